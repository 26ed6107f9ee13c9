"""Files that a keeper writes now and then: only some are open at once, however many processes it has."""

import os

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
