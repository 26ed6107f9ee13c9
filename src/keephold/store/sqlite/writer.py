"""Writing: one thread, and whatever has come while it was at the last transaction goes into the next one.

Where a disk is quick, going to the thread and back costs more than the disk does, and two threads that both want the
interpreter cost each other more still. What comes when nothing else is under way is then written where it is given, on
the loop's thread (`write_now`), if by what was measured that takes a moment: `QUICK` for what stands alone, `MOMENT`
for a group. The connection belongs to the loop while nothing is unsettled, and to the thread else.

A group of commits is written as one transaction, with one fsync. Each commit stands for itself all the same: if one is
refused, the group is taken back and written again with a savepoint around each.

A transaction that fails may have happened nevertheless (the disk wrote and the answer got lost). After a failure a new
connection looks for evidence of it: a line that it wrote in a journal or, if there is none, the count in a row of this
process. To count every transaction would be simpler, but one page more to write in the most frequent ones.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from keephold.errors import KeepholdError
from keephold.store.base import Collected, Done, Failed, Forgotten, Journaled, Op, Registered, TranscriptAppended
from keephold.store.sqlite import opening
from keephold.store.sqlite.events import write_events
from keephold.store.sqlite.opening import StoreFiles
from keephold.store.sqlite.operations import write, write_group
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import Transaction
from keephold.store.sqlite.write_errors import STORAGE, sentence, unavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts while the store cannot write."""
LAST_ATTEMPTS = 5.0
"""Seconds that a closing store goes on trying."""

QUICK, MOMENT = 0.001, 0.004
"""Seconds that a commit, or a group of them, may take on the loop's thread, which stands still meanwhile. A group comes
of as many requests, which took the loop longer."""

FEW, LARGE = 128, 1 << 18
"""Operations, and bytes of what they bring, that the loop's thread writes at most, however quick it has been."""

SELDOM = 0.1
"""Seconds between two rings of what is not urgent. If the last one is left out, the others' sweep finds it."""

WAL_PAGES = 4000
"""16 MiB: pages that change again and again are written back less often."""

_COUNT = SQL["count_commit"]
_NOT_NOW = (Collected, Forgotten)
"""Operations that may take long."""

Fault = Callable[[str], None]


class Commit:
    """What was given to `Store.commit`, and what came of it."""

    __slots__ = ("done", "error", "failed", "keep", "ops", "results", "told")

    def __init__(self, ops: Sequence[Op], done: Done, failed: Failed, keep: bool) -> None:
        self.ops, self.done, self.failed, self.keep = ops, done, failed, keep
        self.results: Sequence[Any] = ()
        self.error: KeepholdError | None = None
        self.told = False
        """Whether it, or one that was written with it, has events."""


Deliver = Callable[[list[Commit], str | None], None]
"""Takes commits that are settled, in order, and why the store cannot write, if it cannot."""


Evidence = tuple[str, tuple[Any, ...]]
"""A query, and what to bind, that gives a row if and only if the transaction happened."""


class NotWritten(Exception):
    """A transaction did not happen; with `evidence`, that could not be found out."""

    def __init__(self, why: str, evidence: Evidence | None = None) -> None:
        super().__init__(why)
        self.why, self.evidence = why, evidence


class Writer:
    """Everything here is for the writer thread, but for `give`, `is_quick` and `write_now`."""

    def __init__(self, place: StoreFiles, directory: Path, deliver: Deliver, fault: Fault | None) -> None:
        self.commits = 0
        """Transactions done."""
        self._counted = 0
        """As many as the row of this process says."""
        self._place, self._path, self._owner, self._directory = place, place.path, place.owners.me, directory
        self._turnstile, self._deliver, self._fault = place.turnstile, deliver, fault
        self._hooked: apsw.Connection | None = None
        self._wal_pages = 0
        self._syncing = self._stating = 0.0
        """How long recent commits took, on average: each to be brought to the disk, and an operation before that."""
        self._rung = 0.0
        self._queue: SimpleQueue[list[Commit] | NotNow | None] = SimpleQueue()
        self._waiting: list[Commit] = []
        self._closing = False
        self._trouble: str | None = None
        self._not_now: NotNow | None = None
        """What could not be written on the loop's thread: the first that waits."""
        self._interrupt: BaseException | None = None
        """What interrupted the loop's thread while it wrote something that is written."""
        self._in_doubt: tuple[int, Evidence] | None = None
        """So many of the commits that wait may be written already, and what would tell."""

    def give(self, commits: "list[Commit] | NotNow | None") -> None:
        """Commits to write; None: there will be no more. For any thread."""
        self._queue.put(commits)

    def is_quick(self, commits: list[Commit]) -> bool:
        """Whether these may be written on the loop's thread. For that thread."""
        count = sum(len(commit.ops) for commit in commits)
        slow = self._syncing + count * self._stating > (QUICK if len(commits) == 1 else MOMENT)
        if slow or self._wal_pages > WAL_PAGES or not 0 < count <= FEW:
            return False
        ops = [op for commit in commits for op in commit.ops]
        return not any(isinstance(op, _NOT_NOW) or _has_file(op) for op in ops) and sum(map(_bytes, ops)) <= LARGE

    def write_now(self, commits: list[Commit], tell: Callable[[], None]) -> bool:
        """Write these on the loop's thread, and tell; False: they must be given. For when nothing is unsettled."""
        self._syncing *= 0.999  # or one slow moment would be for ever
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
            self.give(commits)  # nothing is wrong with the disk
            raise interrupt from None
        except (Busy, OSError):  # of `flock`: the thread will see what is wrong
            return False
        tell()
        self._ring(tx)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt
        return True

    def run(self) -> None:
        """Write what is given until there will be no more."""
        pause, last = FIRST_PAUSE, math.inf
        while self._waiting or not self._closing:
            self._take(pause)
            if self._not_now is not None:
                self._fail_first()
                continue
            if self._closing and last == math.inf:
                last = time.monotonic() + LAST_ATTEMPTS
            try:
                self._write()
            except NotWritten as problem:
                pause = FIRST_PAUSE if self._trouble is None else min(2 * pause, LONGEST_PAUSE)
                self._fail(problem, everything=time.monotonic() >= last)

    def _take(self, pause: float) -> None:
        """Get what was given: wait for something or, while the store cannot write, wait out the pause."""
        queue = self._queue
        if self._trouble is None:
            if not self._waiting and not self._closing:
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
            self._waiting += given.commits
            self._not_now = given
        else:
            self._waiting += given

    def _fail(self, problem: NotWritten, *, everything: bool) -> None:
        """Tell those that do not want to wait; the others wait in their places.

        Those that may be written already wait in any case: to be told that nothing happened would be a guess.
        """
        if problem.evidence is not None and self._in_doubt is None:
            self._in_doubt = len(self._waiting), problem.evidence
        doubtful = 0 if everything or self._in_doubt is None else self._in_doubt[0]
        settled, waiting = self._waiting[doubtful:], self._waiting[:doubtful]
        told = [commit for commit in settled if everything or not commit.keep]
        error = unavailable(problem.why, uncertain=problem.evidence is not None)
        for commit in told:
            commit.error = error
        self._waiting = waiting if everything else [*waiting, *(commit for commit in settled if commit.keep)]
        self._trouble = problem.why
        self._deliver(told, problem.why)

    def _fail_first(self) -> None:
        """The first that wait failed on the loop's thread; what has come after them has not been tried yet."""
        tried, self._not_now = self._not_now, None
        assert tried is not None
        count = len(tried.commits)
        later, self._waiting = self._waiting[count:], self._waiting[:count]
        self._fail(tried.problem, everything=False)
        self._waiting += later

    def _write(self) -> None:
        """Write what waits, as one transaction, and tell; or raise `NotWritten`."""
        if self._in_doubt is not None:
            self._settle(*self._in_doubt)
        waiting = self._waiting
        for commit in waiting:
            if commit.ops:
                break
        else:
            if self._trouble is None:
                self._waiting = []
                if waiting:  # nothing but barriers
                    self._deliver(waiting, None)
                return
        tx = self._transact(waiting)
        self._waiting, self._trouble = [], None
        self._ring(tx)  # before the loop may write, and ring
        self._deliver(waiting, None)
        if self._wal_pages > WAL_PAGES:
            self._write_back()

    def _write_back(self) -> None:
        """Bring what the WAL holds into the database, as far as nobody reads it, so that the WAL begins anew."""
        with contextlib.suppress(apsw.Error):  # the next one will do
            self._place.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._wal_pages = 0

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _settle(self, count: int, evidence: Evidence) -> None:
        """Find out about the transaction that may have happened."""
        try:
            self._place.reconnect()
            happened = self._happened(evidence)
        except Exception as error:
            raise NotWritten(sentence(self._path, error), evidence) from error
        self._in_doubt = None
        if happened:
            written, self._waiting = self._waiting[:count], self._waiting[count:]
            self._deliver(written, self._trouble)

    def _transact(self, commits: list[Commit], *, at_once: bool = False) -> Transaction:
        """Write them as one, in our turn; `at_once`: it has come, and nobody is waited for."""
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
        except BaseException as error:  # on the loop's thread that may be Ctrl-C
            why = sentence(self._path, error)
            try:
                self._place.reconnect()
                happened = evidence is not None and self._happened(evidence)
            except Exception as unreadable:
                raise NotWritten(why, evidence) from unreadable
            if not happened:
                raise NotWritten(why, evidence if _may_rise(error) else None) from error
            if not isinstance(error, Exception):
                self._interrupt = error
        else:
            self._has_happened(tx.line is None)
        self._syncing += 0.1 * (time.perf_counter() - stated - self._syncing)
        if at_once:  # in the thread it takes as long as the loop lets it
            each = (stated - began) / sum(len(commit.ops) for commit in commits)
            self._stating += 0.1 * (each - self._stating)
        for file in tx.litter:
            with contextlib.suppress(OSError):  # it is in the table of litter
                (self._directory / file).unlink()
        return tx

    def _ring(self, tx: Transaction) -> None:
        """Tell other processes what they may want to hear of."""
        if tx.touched and (tx.urgent or time.monotonic() > self._rung + SELDOM):
            self._rung = time.monotonic()
            self._place.bell.ring(tx.touched)

    def _evidence(self, tx: Transaction) -> Evidence:
        if tx.line is not None:
            return SQL["recorded"], tx.line
        return SQL["counted"], (self._owner, self._counted + 1)

    def _happened(self, evidence: Evidence) -> bool:
        """Whether the transaction was committed. Ask a connection that knows nothing of it."""
        query, bindings = evidence
        if not self._place.connection.execute(query, bindings).fetchall():
            return False
        self._has_happened(query == SQL["counted"])
        return True

    def _has_happened(self, counted: bool) -> None:
        self.commits += 1
        self._counted += counted

    def _statements(self, connection: apsw.Connection, commits: list[Commit], at_once: bool) -> Transaction:
        """Everything of a transaction but its beginning and its end."""
        tx = Transaction(connection, self._owner, self._directory)
        try:
            for commit, results in zip(commits, write_group(tx, [commit.ops for commit in commits]), strict=True):
                commit.results, commit.error, commit.told = results, None, bool(tx.events)
        except STORAGE:
            raise
        except Exception as refused:  # one of them is: find out which
            connection.execute("ROLLBACK")
            if at_once:  # to begin again may take long
                raise Busy from refused
            connection.execute("BEGIN IMMEDIATE")
            tx = self._one_by_one(connection, commits)
        write_events(tx)
        if tx.forgetful:
            tx.line = None
        if tx.line is None:
            connection.execute(_COUNT, (self._owner, self._counted))
            if not connection.changes():
                raise KeepholdError(f"`{self._path}` was replaced while it was open; close the store and open it again")
        if tx.files:
            self._sync(tx.files)
        return tx

    def _one_by_one(self, connection: apsw.Connection, commits: list[Commit]) -> Transaction:
        """Write what can be written, and let the others know why they cannot."""
        all_of_them = Transaction(connection, self._owner, self._directory)
        for commit in commits:
            tx = Transaction(connection, self._owner, self._directory)
            connection.execute("SAVEPOINT commit_")
            try:
                commit.results, commit.error = write(tx, commit.ops), None
                commit.told = bool(tx.events)
            except STORAGE:
                raise
            except Exception as error:
                connection.execute("ROLLBACK TO commit_")
                commit.error = error if isinstance(error, KeepholdError) else _cannot(error)
            else:
                all_of_them.add(tx)
            connection.execute("RELEASE commit_")
        return all_of_them

    def _sync(self, files: set[str]) -> None:
        """Output that a commit speaks of is on the disk before the commit is."""
        for file in (*files, "."):
            try:
                descriptor = os.open(self._directory / file, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # somebody removed it; the end of the call is true all the same
                continue
            try:
                os.fsync(descriptor) if file == "." else os.fdatasync(descriptor)
            finally:
                os.close(descriptor)


class Busy(Exception):
    """The loop's thread would have to wait: for another connection that writes just now, or to begin once more."""


class NotNow:
    """Commits that the loop's thread could not write, and why."""

    __slots__ = ("commits", "problem")

    def __init__(self, commits: list[Commit], problem: NotWritten) -> None:
        self.commits, self.problem = commits, problem


def _begin_at_once(connection: apsw.Connection) -> None:
    """Begin without waiting for anyone: the loop must never wait for another program."""
    connection.set_busy_timeout(0)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError as error:
        raise Busy from error
    finally:
        connection.set_busy_timeout(opening.BUSY_MS)


def _has_file(op: Op) -> bool:
    """Whether the operation speaks of a file that must be on the disk first."""
    output = getattr(op, "output", None)
    return output is not None and output.file is not None


def _bytes(op: Op) -> int:
    """About how much an operation brings, of what is known to be long at times without looking through it."""
    if isinstance(op, Journaled):
        return len(op.value) + len(op.input)
    if isinstance(op, TranscriptAppended):
        return sum(len(body) for _, body in op.lines)
    if isinstance(op, Registered):
        return sum(len(value) for value in op.record.arguments.values() if isinstance(value, str))
    output = getattr(op, "output", None)
    return 0 if output is None else len(output.data)


def _may_rise(error: BaseException) -> bool:
    """Whether a transaction that is not there now may be there after a crash: it is in the WAL, and only the fsync went
    wrong. The next transaction is written over it."""
    return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_FSYNC


def _cannot(error: Exception) -> KeepholdError:
    """A value that no store can keep: a bug of whoever made it."""
    return KeepholdError(f"this cannot be stored: {type(error).__name__}: {error}", code="not_storable")
