"""Files that a keeper writes now and then: only some are open at once, however many processes it has.

`SpoolFile` is the output file of a kept process, laid out as `handles/output.py` reads it: a head, and behind it a
ring. `total` counts the bytes that are in the file. Bytes for which there is no room are held in memory: the disk is
full, or the runtime that reads has not come far enough. The caller then stops reading from the program, so only a
little is held, and calls `release` when there may be room.
"""

import errno
import os
import stat
from pathlib import Path

from keephold.platforms import machine

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


_MOVABLE = 1 << 20


class SpoolFile:
    """Writes the output of one process."""

    __slots__ = ("_files", "_head", "_held", "_path", "_ring", "_splices", "bound", "failure", "total")

    def __init__(self, files: Files, path: Path, head: int, ring: int, total: int) -> None:
        """Continue the file at `total`, or make it. Raises `OSError`."""
        self._files, self._path = files, str(path)
        files.get(self._path)
        self._head, self._ring = head, ring
        self._held = bytearray()
        self._splices = True
        self.total = total
        self.bound: int | None = None
        """The total that a reader allows; None: nobody reads."""
        self.failure: OSError | None = None
        """Why the disk takes no more."""

    @property
    def holds(self) -> int:
        """Bytes that wait for room."""
        return len(self._held)

    def append(self, data: bytes) -> None:
        """Write this, or hold it."""
        if not self._held:
            data = data[self._write(memoryview(data)) :]
        self._held += data

    def move(self, source: int, size: int) -> int:
        """Move at most `size` bytes from a pipe into the file, and return how many; 0 at its end.

        Raises `BlockingIOError` if the pipe is empty.
        """
        place, room = self._place()
        if self._splices and not self._held and room:
            try:
                moved = machine.move(source, self._files.get(self._path), min(size, room), place)
                if moved is not None:
                    self.total += moved
                    return moved
            except BlockingIOError:
                raise
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOSYS):  # a file system that cannot
                    self._splices = False
        data = os.read(source, size)
        self.append(data)
        return len(data)

    def release(self) -> None:
        """Write held bytes, as far as there is room."""
        if self._held:
            held = bytes(self._held)
            del self._held[: self._write(memoryview(held))]

    def close(self) -> None:
        self._files.close(self._path)

    def _write(self, data: memoryview) -> int:
        """Write from the start of the data as much as there is room for, and return how much."""
        self.failure = None
        written = 0
        while written < len(data):
            place, room = self._place()
            if not room:
                break
            try:
                count = os.pwrite(self._files.get(self._path), data[written : written + room], place)
            except FileNotFoundError:  # the directory was removed, and nobody can read it any more
                count = len(data) - written
            except OSError as error:
                self.failure = error
                break
            written += count
            self.total += count
        return written

    def _place(self) -> tuple[int, int]:
        """Return the place of the next byte, and how many may follow it there."""
        offset = self.total
        allowed = _MOVABLE if self.bound is None else max(0, self.bound - offset)
        if offset < self._head:
            return offset, min(allowed, self._head - offset)
        place = (offset - self._head) % self._ring
        return self._head + place, min(allowed, self._ring - place)
