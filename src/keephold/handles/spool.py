"""The disk for output and results: the directory for large output, how much disk is taken, and how room is made.

`Spool` is a private directory for output that is too big for memory (O5). A durable store has one and removes what is
in it. Otherwise the spool is made on first use, below the directory for temporary files (`TMPDIR`), and removed by
`close`. Its owner holds a lock on it that ends with the process, so the next spool finds and removes what a crash left
behind. The lock is on the directory itself: programs that age temporary files leave a locked directory alone.

`Disk` counts the bytes in output files as they are written, and estimates what goes into the store (K6, `[limits]
disk`). `Room` measures both now and then, and corrects the count: other processes write, too. When 90 % of the limit
are taken, it deletes handles that have stopped until 80 % are, as if their retention were over: large output before
small, handles without a queued notification before others, each time the oldest first. Live handles and those of open
turns stay.

If nothing can be deleted, files do not grow beyond the limit: as on a full disk, the first part of an output and its
latest MiB are kept. New calls are refused until there is room.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from keephold.errors import KeepholdError, ToolError
from keephold.forking import Descriptor
from keephold.platforms import machine
from keephold.store.base import Collected, Record

if TYPE_CHECKING:
    from keephold.handles.cache import Cache

_log = logging.getLogger("keephold.handles")

_PREFIX = "keephold-spool-"
_HIGH, _LOW = 0.9, 0.8
_AGAIN_SECS = 5.0
"""If nothing could be deleted, when it is tried again at the earliest."""
_AT_ONCE = 100
"""Handles that are read at once; each may have 64 KiB of output and a large result."""


class Disk:
    """The bytes that stored output and results take, as far as is known."""

    __slots__ = ("files", "grown", "limit", "measured", "on_crowded", "stored", "stuck")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        """None: no limit."""
        self.files = 0
        """Bytes in output files."""
        self.stored = 0
        """Bytes in the store's own file."""
        self.grown = 0
        """By how much `files` has grown through this process."""
        self.measured = False
        """Whether `stored` is measured now and then: the store has a file."""
        self.stuck = False
        """Nothing more can be deleted."""
        self.on_crowded: Callable[[], None] = lambda: None

    @property
    def used(self) -> int:
        return self.files + self.stored

    @property
    def crowded(self) -> bool:
        return self.limit is not None and self.used > _HIGH * self.limit

    @property
    def excess(self) -> int:
        """How many bytes are to be deleted."""
        return 0 if self.limit is None else self.used - int(_LOW * self.limit)

    def take(self, size: int) -> None:
        """Count bytes that are about to be written to a file. Raises `OSError` if the limit does not allow them."""
        if self.limit is not None and self.used + size > self.limit:
            self.on_crowded()
            raise OSError(errno.EDQUOT, f"stored output has reached {self.limit} bytes, the limit ([limits] disk)")
        self.count(size)

    def count(self, size: int) -> None:
        """Count bytes that another process has written to a file for us."""
        self.files += size
        self.grown += size
        if self.crowded:
            self.on_crowded()

    def give_back(self, size: int) -> None:
        """Count bytes of a file that was removed, or could not be written."""
        self.files = max(0, self.files - size)
        self.grown -= size

    def note(self, size: int) -> None:
        """Count bytes that go into the store's own file."""
        if self.measured:
            self.stored += size
            if self.crowded:
                self.on_crowded()

    def refusal(self) -> ToolError | None:
        """Return why a new call is refused: its result could not be stored."""
        if not self.stuck or self.limit is None or self.used < self.limit:
            return None
        self.on_crowded()
        return ToolError(
            f"stored output takes {self.used} bytes, the limit is {self.limit} ([limits] disk), and nothing can be "
            "deleted; wait until handles have stopped and turns have ended, or raise the limit",
            code="limit_exceeded",
        )


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


class Room:
    """Measures the disk of one runtime, and deletes handles to make room."""

    def __init__(self, cache: "Cache") -> None:
        self._cache = cache
        self._disk = cache.spool.disk
        self._disk.on_crowded = self._crowded
        self._disk.measured = cache.store.durable
        self._making = False
        self._once_more = False
        self._again = 0.0

    def _crowded(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._making and not self._cache.closing and (not self._disk.stuck or now >= self._again):
            self._making, self._again = True, now + _AGAIN_SECS
            self._cache.run_soon(self._make())

    def turn_ended(self) -> None:
        """Try again: the handles that the turn kept can be deleted now."""
        if self._disk.crowded:
            self._again = 0.0
            self._once_more = self._making  # that may have looked before the turn ended
            self._crowded()

    async def check(self) -> None:
        """Measure, and make room if necessary. Called every minute while calls are made."""
        await self._measure()
        if self._disk.crowded:
            self._crowded()

    async def _measure(self) -> None:
        store, disk = self._cache.store, self._disk
        if disk.limit is not None and store.directory is not None:  # a spool of this process alone is counted
            with ThreadPoolExecutor(1) as thread:
                before = disk.grown
                files = await asyncio.get_running_loop().run_in_executor(thread, _size, store.directory)
            disk.files = files + disk.grown - before
        if disk.limit is not None and disk.measured:
            disk.stored = await store.used_bytes()

    async def _make(self) -> None:
        disk, gone = self._disk, 0
        try:
            await self._cache.collect()
            await self._measure()
            if disk.crowded:
                gone = await self._delete()
                await self._measure()
            disk.stuck = disk.crowded
        except KeepholdError as error:  # the store cannot write now; the next check tries again
            _log.warning("no room could be made for output: %s", error)
        finally:
            self._making = False
        if self._once_more and disk.stuck:
            self._once_more = False
            self._crowded()
        elif gone or disk.stuck:
            _log.warning(
                "stored output takes %d of %s bytes ([limits] disk): %d handles were deleted before their time%s",
                disk.used, disk.limit, gone, ", and no more can be deleted" if disk.stuck else "",
            )  # fmt: skip

    async def _delete(self) -> int:
        gone = 0
        choices: list[tuple[Literal["seen", "any"], bool]] = [("seen", True), ("any", True)]
        if self._cache.store.durable:  # deleting small ones from memory makes no room on the disk
            choices += [("seen", False), ("any", False)]
        for early, files in choices:
            while self._disk.excess > 0:
                now = self._cache.clock.now()
                op = Collected(now + 1, now, _AT_ONCE, early=early, files=files)
                chosen, in_files, in_store = list[Record](), 0, 0
                for record in await self._cache.store.expiring(op):
                    if in_files + in_store < self._disk.excess:
                        chosen.append(record)
                        in_files += in_a_file(record)
                        in_store += in_the_store(record)
                if not chosen:
                    break
                await self._cache.delete(op, chosen)
                gone += len(chosen)
                if self._cache.store.durable:  # an estimate, until it is measured
                    self._disk.give_back(in_files)
                    self._disk.stored -= min(self._disk.stored, in_store)
        return gone


def in_a_file(record: Record) -> int:
    """Return how many bytes a handle has in its output file."""
    return record.output.in_file if record.output is not None and record.output.file is not None else 0


def in_the_store(record: Record) -> int:
    """Return about how many bytes a handle has in the store."""
    printed = 0 if record.output is None else len(record.output.data)
    return printed + len(msgspec.msgpack.encode(record.state, enc_hook=str))


def _size(directory: Path) -> int:
    """Return how many bytes the files of a directory have."""
    total = 0
    try:
        for file in directory.iterdir():
            try:
                total += file.lstat().st_size
            except FileNotFoundError:  # just deleted
                continue
    except FileNotFoundError:
        pass
    return total
