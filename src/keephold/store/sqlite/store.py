"""The store in one SQLite file, for any number of processes of one machine.

    <db>            the database, with SQLite's own `-wal` and `-shm`
    <db>-output/    output that is too large for a row
    <db>-owners/    a locked file for each process that has the store open
    <db>-gate, <db>-turn    where writers queue

Commits are gathered during a pass of the loop. The loop writes them itself if that is quick, otherwise the writer's
thread does. Reads run on the loop, except scans, which have a thread.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keephold.forking import Descriptor
from keephold.listeners import Listeners
from keephold.platforms import machine
from keephold.store.base import Done, Failed, Heard, Op
from keephold.store.sql.reads import refuse
from keephold.store.sql.transaction import Commit, complain, tell
from keephold.store.sqlite.opening import INLINE_OUTPUT, StoreFiles
from keephold.store.sqlite.processes import stopped_holder
from keephold.store.sqlite.reads import Reads, Scanner, in_thread
from keephold.store.sqlite.writer import Fault, Writer

if TYPE_CHECKING:
    from keephold.store.sqlite.housekeeping import SqliteHousekeeping

_NOTICE, _SELDOM, _PAUSE = 0.001, 0.05, 0.0001
"""Seconds after which a busy loop pauses for the writer; the longest interval if it is not busy; how long a pause
is."""


class SqliteStore(Reads):
    """Keeps everything in the file at `path`, and makes it if it does not exist.

    `fault` is for tests: the writer calls it with "before" when the statements of a transaction have been run, and with
    "after" when it is committed and no callback has run.
    """

    durable = True
    inline_output = INLINE_OUTPUT

    def __init__(self, path: str | os.PathLike[str], *, fault: Fault | None = None) -> None:
        self.path = Path(os.path.realpath(path))
        self.directory: Path | None = self.path.with_name(f"{self.path.name}-output")
        self.owner = ""
        self.trouble: str | None = None
        self.on_commit: Listeners[[]] = Listeners()
        self._fault = fault
        self._pending: list[Commit] = []
        self._held = False
        """Gathered commits wait until the thread has finished its transaction."""
        self._unsettled = 0
        self._watching = False
        self._place: StoreFiles | None = None
        self._closed: asyncio.Future[None] | None = None

    @property
    def commits(self) -> int:
        """Transactions done since the store was opened."""
        return 0 if self._place is None else self._writer.commits

    def housekeeping(self) -> "SqliteHousekeeping":
        """Return what can be done with the whole store; it need not be open."""
        from keephold.store.sqlite.housekeeping import SqliteHousekeeping

        return SqliteHousekeeping(self.path)

    @asynccontextmanager
    async def sole(self) -> AsyncIterator[bool]:
        """Hold the lock under which one process at a time deletes and archives what is old. False: another has it. A
        process that is stopped (SIGSTOP) is passed: two that delete do no harm."""
        assert self._owners is not None, "the store is open"
        directory = self._owners.directory
        try:
            lock = Descriptor(machine.lock_directory(directory))
        except BlockingIOError:
            yield stopped_holder(str(directory)) is not None
            return
        try:
            yield True
        finally:
            lock.close()

    async def disk_bytes(self) -> int:
        from keephold.store.sqlite.housekeeping import disk_bytes

        return disk_bytes(self.path)

    async def vacuum(self) -> None:
        from keephold.store.sqlite.housekeeping import rewrite

        await in_thread(self._loop, lambda: rewrite(self.path))

    async def open(self, heard: Heard) -> None:
        assert self.directory is not None
        loop, directory = asyncio.get_running_loop(), self.directory
        opening = in_thread(loop, lambda: StoreFiles(self.path, directory))
        try:
            place = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_files)
            await asyncio.wait([opening])  # its thread may still make files, which the caller may want to remove
            raise
        self._process = os.getpid()
        self._loop, self._place, self.owner, self._reading = loop, place, place.owners.me, place.reading
        self._owners, self._scanner = place.owners, Scanner(loop, self.path)
        self._writer = Writer(place, directory, self._deliver, self._fault)
        self._written = in_thread(loop, self._writer.run)
        self._written.add_done_callback(self._no_more)
        place.bell.listen(loop, heard)

    async def close(self) -> None:
        if self._closed is None:
            if self._place is None or os.getpid() != self._process:  # a forked child leaves it to its parent
                return
            self._flush(now=True)
            self._closed = asyncio.ensure_future(self._close(self._place))
        await asyncio.shield(self._closed)

    async def _close(self, place: StoreFiles) -> None:
        self._writer.give(None)
        await asyncio.wait([self._written])
        place.bell.deafen()
        self._reading = None
        await self._scanner.close()
        # The last connection of all writes the WAL back into the database, which takes time.
        await in_thread(self._loop, place.close)

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        if self._place is None or self._closed is not None or os.getpid() != self._process:
            refuse(failed, "the store is closed")
            return
        pending = self._pending
        if not pending:
            self._loop.call_soon(self._flush)
        pending.append(Commit(ops, done, failed, keep))

    def _flush(self, *, now: bool = False) -> None:
        """Write the gathered commits. While the thread is writing, commits that the loop could write itself are held
        back; otherwise the thread would get them for as long as it is busy. `now`: do not hold them back."""
        if self._unsettled and not now and self._is_quick(self._pending):
            self._held = True
            return
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        idle = not self._unsettled and self.trouble is None
        self._unsettled += len(pending)
        if idle and not any(commit.ops for commit in pending):
            self._tell(pending, None)  # only barriers, and nothing is before them
            return
        try:
            if not idle or not self._writer.write_now(pending, lambda: self._tell(pending, None)):
                self._writer.give(pending)
        finally:
            if self._unsettled and not self._watching:
                self._watching = True
                self._watch_on(_NOTICE)

    def _is_quick(self, commits: list[Commit]) -> bool:
        return self.trouble is None and self._writer.is_quick(commits)

    def _watch_on(self, delay: float) -> None:
        self._loop.call_later(delay, self._watch, delay, time.monotonic(), time.thread_time())

    def _watch(self, delay: float, since: float, worked: float) -> None:
        """Let the writer have the interpreter now and then.

        A loop that never sleeps releases the interpreter's lock in each pass, but only as long as it takes to poll for
        events. The writer does not get the lock that way and waits until the loop is idle: seconds, measured.
        """
        self._watching = self._unsettled > 0
        if not self._watching:
            return
        if time.thread_time() - worked > 0.8 * (time.monotonic() - since):
            time.sleep(_PAUSE)
            self._watch_on(_NOTICE)
        else:
            self._watch_on(min(2 * delay, _SELDOM))

    def _no_more(self, written: asyncio.Future[None]) -> None:
        """Report that the writer has ended because of a bug; nobody else would notice."""
        if error := written.exception():
            self.trouble = (
                f"the thread that writes `{self.path}` has ended ({error!r}); close the store and open it again"
            )
            complain(self.trouble, error)

    def _deliver(self, commits: list[Commit], trouble: str | None) -> None:
        """Have the loop call back. Called in the writer thread."""
        self._loop.call_soon_threadsafe(self._tell, commits, trouble)

    def _tell(self, commits: list[Commit], trouble: str | None) -> None:
        self.trouble = trouble
        self._unsettled -= len(commits)
        tell(commits, self.on_commit)
        if self._held:
            self._held = False
            self._flush()


def _close_files(opened: asyncio.Future[StoreFiles]) -> None:
    """Close files that were opened for a caller who was cancelled."""
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
