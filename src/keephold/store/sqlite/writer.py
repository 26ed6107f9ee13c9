"""Writing: one thread, which writes all commits that arrived during its last transaction as the next one.

Where a disk is quick, going to the thread and back costs more than the disk does, and two threads that both want the
interpreter cost each other more still. A commit that arrives when nothing else is under way is then written on the
loop's thread (`write_now`), if by recent measurements that takes a moment: `QUICK` for a single commit, `MOMENT` for a
group. The connection belongs to the loop while nothing is unsettled, and to the thread otherwise.

A group of commits is written as one transaction, with one fsync. Each commit stands for itself all the same: if one is
refused, the group is rolled back and written again with a savepoint around each.

A transaction that fails may have been committed nevertheless (the disk wrote and the answer got lost). After a failure
a new connection looks for evidence of it: a line that it wrote in a journal or, if there is none, the count in a row of
this process. Counting every transaction would be simpler, but one page more to write in the most frequent ones.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC
from keephold.store.base import (
    Collected,
    Forgotten,
    Journaled,
    Op,
    Posted,
    Registered,
    TranscriptAppended,
)
from keephold.store.sql.operations import write_each, write_group
from keephold.store.sql.transaction import (
    Backlog,
    Commit,
    Deliver,
    Displaced,
    NotWritten,
    Transaction,
    not_storable,
    note_events,
)
from keephold.store.sqlite import opening
from keephold.store.sqlite.opening import STORAGE, StoreFiles, lost, sentence
from keephold.store.sqlite.processes import stopped_writer
from keephold.store.sqlite.statements import SQL, SqliteStatements

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts while the store cannot write."""
LAST_ATTEMPTS = 5.0
"""Seconds that a closing store keeps trying."""

QUICK, MOMENT = 0.001, 0.004
"""Seconds that a commit, or a group of them, may take on the loop's thread, which is blocked meanwhile. A group comes
from as many requests, which took the loop longer."""

FEW, LARGE = 128, 1 << 18
"""Operations, and bytes in them, that the loop's thread writes at most, however quick it has been."""

SELDOM = 0.1
"""Seconds between two rings that are not urgent. If the last one is left out, the sweep of other processes finds the
change."""

WAL_PAGES = 4000
"""16 MiB: pages that change again and again are written back less often."""

_COUNT, _COUNTED = SQL["count_commit"], SQL["counted"]
_NOT_NOW = (Collected, Forgotten)
"""Operations that may take long."""

Fault = Callable[[str], None]


Evidence = tuple[str, tuple[Any, ...]]
"""A query and its bindings that return a row if and only if the transaction was committed."""


class Writer:
    """Methods are for the writer thread, except `give`, `is_quick` and `write_now`."""

    def __init__(self, place: StoreFiles, directory: Path, deliver: Deliver, fault: Fault | None) -> None:
        self.commits = 0
        """Transactions done."""
        self._counted = 0
        """The number of transactions in the row of this process."""
        self._place, self._path, self._owner, self._directory = place, place.path, place.owners.me, directory
        self._turnstile, self._fault = place.turnstile, fault
        self._backlog = Backlog(deliver)
        self._hooked: apsw.Connection | None = None
        self._wal_pages = 0
        self._syncing = self._stating = 0.0
        """How long recent commits took, on average: each to reach the disk, and each operation before that."""
        self._rung = 0.0
        self._queue: SimpleQueue[list[Commit] | NotNow | None] = SimpleQueue()
        self._closing = False
        self._not_now: NotNow | None = None
        """Commits that could not be written on the loop's thread: they are the first in the queue."""
        self._interrupt: BaseException | None = None
        """An exception that interrupted the loop's thread after it had written something."""

    def give(self, commits: "list[Commit] | NotNow | None") -> None:
        """Queue commits; None: there will be no more. For any thread."""
        self._queue.put(commits)

    def is_quick(self, commits: list[Commit]) -> bool:
        """Whether these commits may be written on the loop's thread. For that thread."""
        count = sum(len(commit.ops) for commit in commits)
        slow = self._syncing + count * self._stating > (QUICK if len(commits) == 1 else MOMENT)
        if slow or self._wal_pages > WAL_PAGES or not 0 < count <= FEW:
            return False
        ops = [op for commit in commits for op in commit.ops]
        return not any(isinstance(op, _NOT_NOW) or _has_file(op) for op in ops) and sum(map(_bytes, ops)) <= LARGE

    def write_now(self, commits: list[Commit], tell: Callable[[], None]) -> bool:
        """Write these commits on the loop's thread, and call back; False: they must be given. For when nothing is
        unsettled."""
        self._syncing *= 0.999  # or one slow moment would count indefinitely
        self._stating *= 0.999
        try:
            if not self.is_quick(commits) or not self._turnstile.enter_now():
                return False
            tx = self._transact(commits, at_once=True)
        except NotWritten as problem:
            interrupt = problem.__cause__
            if isinstance(interrupt, Exception) or interrupt is None:
                self.give(NotNow(commits, problem))
                return True
            self.give(commits)  # the disk works
            raise interrupt from None
        except (Busy, Displaced, OSError):  # of `flock`: the thread will find out what is wrong
            return False
        tell()
        self._ring(tx)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt
        return True

    def run(self) -> None:
        """Write commits until there will be no more."""
        pause, last, backlog = FIRST_PAUSE, math.inf, self._backlog
        while backlog.commits or not self._closing:
            self._take(pause)
            if self._not_now is not None:
                self._fail_first()
                continue
            if self._closing and last == math.inf:
                last = time.monotonic() + LAST_ATTEMPTS
            try:
                self._write()
            except Displaced:
                backlog.lose(lost(self._path))
            except NotWritten as problem:
                pause = FIRST_PAUSE if backlog.trouble is None else min(2 * pause, LONGEST_PAUSE)
                backlog.fail(problem, everything=time.monotonic() >= last)

    def _take(self, pause: float) -> None:
        """Get new commits: wait for some or, while the store cannot write, wait out the pause."""
        queue = self._queue
        if self._backlog.trouble is None:
            if not self._backlog.commits and not self._closing:
                self._add(queue.get())
            while not queue.empty():
                self._add(queue.get())
        else:
            until = time.monotonic() + pause
            with contextlib.suppress(Empty):
                while True:
                    self._add(queue.get(timeout=max(until - time.monotonic(), 0.0)))

    def _add(self, given: "list[Commit] | NotNow | None") -> None:
        if given is None:
            self._closing = True
        elif isinstance(given, NotNow):
            self._backlog.commits += given.commits
            self._not_now = given
        else:
            self._backlog.commits += given

    def _fail_first(self) -> None:
        """Take over commits that failed on the loop's thread; later ones have not been tried yet."""
        tried, self._not_now, backlog = self._not_now, None, self._backlog
        assert tried is not None
        count = len(tried.commits)
        later, backlog.commits = backlog.commits[count:], backlog.commits[:count]
        backlog.fail(tried.problem, everything=False)
        backlog.commits += later

    def _write(self) -> None:
        """Write the waiting commits as one transaction, and call back; or raise `NotWritten` or `Displaced`."""
        backlog = self._backlog
        if backlog.displaced:
            raise Displaced
        if backlog.in_doubt is not None:
            self._settle(*backlog.in_doubt)
        waiting = backlog.commits
        for commit in waiting:
            if commit.ops:
                break
        else:
            if backlog.trouble is None:
                if waiting:  # only barriers
                    backlog.settle(len(waiting))
                return
        tx = self._transact(waiting)
        self._ring(tx)  # before the loop may write, and ring
        backlog.settle(len(waiting))
        if self._wal_pages > WAL_PAGES:
            self._write_back()

    def _write_back(self) -> None:
        """Move the WAL into the database, as far as nobody reads it, so that the WAL starts over."""
        with contextlib.suppress(apsw.Error):  # the next checkpoint will do
            self._place.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._wal_pages = 0

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _settle(self, count: int, evidence: Evidence) -> None:
        """Find out whether the uncertain transaction was committed."""
        try:
            self._place.reconnect()
            happened = self._happened(evidence)
        except Exception as error:
            raise NotWritten(sentence(self._path, error), (count, evidence)) from error
        self._backlog.in_doubt = None
        if happened:
            self._backlog.settle(count, self._backlog.trouble)

    def _transact(self, commits: list[Commit], *, at_once: bool = False) -> Transaction:
        """Write the commits as one transaction, in this process's turn; `at_once`: it has the turn, and waits for
        nobody."""
        evidence = None
        try:
            if not at_once:
                self._turnstile.enter()
            began = stated = time.perf_counter()
            try:
                connection = self._place.connection
                if connection is not self._hooked:
                    self._hooked = connection
                    connection.set_wal_hook(self._committed)
                run = connection.execute
                if at_once:
                    _begin_at_once(connection)
                else:
                    run("BEGIN IMMEDIATE")
                tx = self._statements(connection, commits, at_once)
                if self._fault is not None:
                    self._fault("before")
                evidence = self._evidence(tx)
                stated = time.perf_counter()
                run("COMMIT")
                if self._fault is not None:
                    self._fault("after")
            finally:
                self._turnstile.leave()
        except Busy:
            raise
        except Displaced:
            self._place.reconnect()
            raise
        except BaseException as error:  # on the loop's thread that may be Ctrl-C
            why = (stopped_writer(self._path) if isinstance(error, apsw.BusyError) else None) or sentence(
                self._path, error
            )
            doubt = None if evidence is None else (len(commits), evidence)
            try:
                self._place.reconnect()
                happened = evidence is not None and self._happened(evidence)
            except Exception as unreadable:
                raise NotWritten(why, doubt) from unreadable
            if not happened:
                raise NotWritten(why, doubt if _may_rise(error) else None) from error
            if not isinstance(error, Exception):
                self._interrupt = error
        else:
            self._has_happened(tx.line is None)
        self._syncing += 0.1 * (time.perf_counter() - stated - self._syncing)
        if at_once:  # in the thread it takes as long as the loop allows
            each = (stated - began) / sum(len(commit.ops) for commit in commits)
            self._stating += 0.1 * (each - self._stating)
        for file in tx.litter:
            with contextlib.suppress(OSError):  # it is in the table of litter
                (self._directory / file).unlink()
        return tx

    def _ring(self, tx: Transaction) -> None:
        """Wake other processes that may need the change."""
        if tx.touched and (tx.urgent or time.monotonic() > self._rung + SELDOM):
            self._rung = time.monotonic()
            self._place.bell.ring(tx.touched)

    def _evidence(self, tx: Transaction) -> Evidence:
        if tx.line is not None:
            return SQL["recorded"], tx.line
        return _COUNTED, (self._owner, self._counted + 1)

    def _happened(self, evidence: Evidence) -> bool:
        """Whether the transaction was committed. Pass a connection that did not take part in it."""
        query, bindings = evidence
        if not self._place.connection.execute(query, bindings).fetchall():
            return False
        self._has_happened(query == _COUNTED)
        return True

    def _has_happened(self, counted: bool) -> None:
        self.commits += 1
        self._counted += counted

    def _statements(self, connection: apsw.Connection, commits: list[Commit], at_once: bool) -> Transaction:
        """Run everything of a transaction except its beginning and its end."""
        statements = SqliteStatements(connection)

        def begin() -> Transaction:
            return Transaction(statements, self._owner, self._directory, self._place.owners.alive)

        tx = begin()
        try:
            write_group(tx, commits)
        except STORAGE:
            raise
        except Exception as refused:  # one of them is refused: find out which
            connection.execute("ROLLBACK")
            if at_once:  # beginning again may take long
                raise Busy from refused
            connection.execute("BEGIN IMMEDIATE")
            tx = write_each(begin, commits, self._refusal)
        statements.add_events(note_events(tx))
        if tx.forgetful:
            tx.line = None
        count = self._owner, self._counted
        if tx.line is None:
            connection.execute(_COUNT, count)
        if not (connection.changes() if tx.line is None else connection.execute(_COUNTED, count).fetchall()):
            raise Displaced  # another process has removed the row, or the file is another one
        if tx.files:
            self._sync(tx.files)
        return tx

    def _refusal(self, error: Exception) -> KeepholdError:
        """Return why a commit is refused; raise an error that is not the commit's."""
        if isinstance(error, STORAGE):
            raise error
        if getattr(error, "code", None) == "lease_lost" and self._place.owners.displaced():
            raise Displaced from error
        return error if isinstance(error, KeepholdError) else not_storable(f"{type(error).__name__}: {error}")

    def _sync(self, files: set[str]) -> None:
        """Sync the output files that a commit names, before it is committed."""
        for file in files:
            try:
                descriptor = os.open(self._directory / file, os.O_RDWR | O_CLOEXEC)  # Windows syncs what is written to
            except FileNotFoundError:  # somebody removed it; the end of the call is true all the same
                continue
            try:
                machine.sync_data(descriptor)
            finally:
                os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):  # the same, of all files
            machine.sync_directory(self._directory)


class Busy(Exception):
    """The loop's thread would have to wait: for another connection that is writing, or to begin again."""


class NotNow:
    """Commits that the loop's thread could not write, and why."""

    __slots__ = ("commits", "problem")

    def __init__(self, commits: list[Commit], problem: NotWritten) -> None:
        self.commits, self.problem = commits, problem


def _begin_at_once(connection: apsw.Connection) -> None:
    """Begin without waiting: the loop must never wait for another program."""
    connection.set_busy_timeout(0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError as error:
        raise Busy from error
    finally:
        connection.set_busy_timeout(opening.BUSY_MS)


def _has_file(op: Op) -> bool:
    """Whether the operation names a file that must be on the disk first."""
    output = getattr(op, "output", None)
    return output is not None and output.file is not None


def _bytes(op: Op) -> int:
    """Estimate how many bytes an operation brings, from fields that can be long."""
    if isinstance(op, Journaled):
        return len(op.value) + len(op.input)
    if isinstance(op, Posted):
        return len(op.body)
    if isinstance(op, TranscriptAppended):
        return sum(len(body) for _, body in op.lines)
    if isinstance(op, Registered):
        return sum(len(value) for value in op.record.arguments.values() if isinstance(value, str))
    output = getattr(op, "output", None)
    return 0 if output is None else len(output.data)


def _may_rise(error: BaseException) -> bool:
    """Whether a transaction that is not visible now may appear after a crash: it is in the WAL, and only the fsync
    failed. The next transaction overwrites it."""
    return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_FSYNC
