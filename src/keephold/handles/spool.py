"""A private directory for output that is too big for memory (O5).

A durable store has one and removes what is in it. Otherwise the spool is made on first use, below the directory for
temporary files (`TMPDIR`), and removed by `close`. Its owner holds a lock on it that ends with the process, so the next
spool finds and removes what a crash left behind. The lock is on the directory itself: programs that age temporary files
leave a locked directory alone.
"""

import contextlib
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from keephold.forking import Descriptor
from keephold.handles.disk import Disk
from keephold.platforms import machine

_PREFIX = "keephold-spool-"


class Spool:
    """Hands out paths for files: of the store whose `directory` is given, or of this process.

    In the second case nothing exists on disk before the first path is requested.
    """

    __slots__ = ("_closed", "_directory", "_lock", "disk", "durable")

    def __init__(self, directory: Path | None = None, limit: int | None = None) -> None:
        """`limit` is that of the bytes on the disk (K6)."""
        self.disk = Disk(limit)
        self.durable = directory is not None
        """Whether files outlive the process."""
        self._directory = directory
        self._lock: Descriptor | None = None
        self._closed = False

    def file(self, name: str) -> Path:
        """Return the path for a file of that name, which the caller makes. Raises `OSError` if there can be none."""
        if self._closed:
            raise FileNotFoundError(f"no room for {name}: the spool is closed")
        if self._directory is None:
            _sweep(Path(tempfile.gettempdir()))
            self._directory, self._lock = _make()
        return self._directory / name

    def remove(self, name: str) -> None:
        """Remove a file of this process's own directory."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                size = (self._directory / name).lstat().st_size
                (self._directory / name).unlink()
                self.disk.give_back(size)

    def close(self) -> None:
        """Hand out no more paths. Remove the directory and its files, unless it is a store's. Calling it twice is
        harmless."""
        self._closed = True
        if self._directory is not None and not self.durable:
            assert self._lock is not None, "made together with the directory"
            machine.remove_directory(self._directory, self._lock.close)
            self._directory = None


def _make() -> tuple[Path, Descriptor]:
    """Return a new directory and the descriptor that holds its lock."""
    for _ in range(8):
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        lock = _locked(path)
        # A sweep of another process may have met the directory before it was locked. Names are never used again, so
        # a name that still exists once the lock is held is ours.
        if lock is not None and path.exists():
            return path, Descriptor(lock)
        if lock is not None:
            os.close(lock)
        shutil.rmtree(path, ignore_errors=True)
    raise OSError(f"cannot lock a directory in {tempfile.gettempdir()}: TMPDIR must name one on a local file system")


def _sweep(below: Path) -> None:
    """Remove the spools of this user whose owners died."""
    for path in below.glob(f"{_PREFIX}*"):
        lock = _locked(path)
        if lock is not None:
            machine.remove_directory(path, partial(os.close, lock))


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory of this user; None if another process holds it or there is
    none."""
    try:
        lock = machine.lock_directory(path)
    except OSError:
        return None
    if os.fstat(lock).st_uid == machine.user():
        return lock
    os.close(lock)
    return None
