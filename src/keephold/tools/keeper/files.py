"""Files that a keeper writes now and then: only some are open at once, however many processes it has."""

import errno
import os
import stat

_MOST = 128
"""A terminal needs three descriptors besides, and the usual limit of a process is 1024."""


class Files:
    """Descriptors of files by their paths; those not used for the longest time are closed."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def get(self, path: str) -> int:
        """Return a descriptor for reading and writing, good until the next call. Raises `OSError`."""
        descriptor = self._open.pop(path, None)
        if descriptor is None:
            if len(self._open) >= _MOST:
                self.close(next(iter(self._open)))
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._open[path] = descriptor
        return descriptor

    def close(self, path: str) -> None:
        """Close it, if it is open."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)


def content(path: str, limit: int) -> bytes:
    """Return at most `limit` bytes of a file. Raises `OSError`, also for a link or a pipe, which is none of a keeper's
    files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "This is not a regular file", path)
        data = part = os.read(descriptor, min(limit, 65536))
        while part and len(data) < limit:
            part = os.read(descriptor, min(limit - len(data), 1 << 20))
            data += part
        return data
    finally:
        os.close(descriptor)
