"""Writing: one connection, which writes all commits that arrived during its last transaction as the next one.

Each commit of a group stands for itself all the same: if one is refused, the group is rolled back and written again
with a savepoint around each. A group that has nothing but journal lines is one statement, and one round trip.

Deletions of what is old have a connection of their own while this process alone deletes (`aside`), so that no other
commit waits for them.

A connection can break while the server commits. Then a new connection looks for evidence: a line that the transaction
wrote in a journal or, if there is none, its count in the row of this process. A group of journal lines is proved by all
of them, because some may have been there before. The old session may still be at work, so it is ended first, and the
evidence is read when the rows that the transaction had locked are free: that of this process and, because a group of
journal lines does not lock it, that of the call.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from itertools import chain
from typing import Any

import asyncpg

from keephold.errors import KeepholdError
from keephold.store import events
from keephold.store.base import Collected, Journaled
from keephold.store.postgres.connecting import (
    AGAIN,
    COLLIDED,
    CONNECT_SECS,
    SQL,
    STORAGE,
    Session,
    is_lost,
    sentence,
    session,
    unfit,
    whose,
)
from keephold.store.postgres.presence import Presence
from keephold.store.postgres.statements import PostgresStatements, bridged, step, steps
from keephold.store.sql.codec import encode
from keephold.store.sql.operations import write_each, write_group
from keephold.store.sql.transaction import (
    Backlog,
    Commit,
    Deliver,
    Displaced,
    EventRow,
    NotWritten,
    Transaction,
    event_rows,
    not_storable,
    note_events,
)

_log = logging.getLogger("keephold.store")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts while the store cannot write."""
LAST_ATTEMPTS = 5.0
"""Seconds that a closing store keeps trying."""
MANY = 1000
"""Operations in a group at most."""
TRIES = 20
"""How often a transaction is begun again because of other processes."""
COLLISIONS = 5
"""How often of these because of rows that another process has added."""
FIRST_WAIT, DOUBLED = 20, 5
"""Milliseconds that a deletion waits for a lock, and how often that is doubled when it is begun again. Others may wait
for a lock that it has, so it must give way before the server calls that a deadlock, after a second."""
SELDOM = 0.1
"""Seconds between two notifications that are not urgent. If the last one is left out, the sweep of other processes
finds the change."""
LONGEST_NOTE = 7900
"""Bytes of a notification; a longer one says only that something has changed."""

Errors = tuple[type[BaseException], ...]
Fault = Callable[[str], None]
Evidence = list[tuple[str, str, str]] | int
"""Journal lines of which all exist, or a count of transactions that is reached, if the transaction was committed. If it
was not, that count is not reached, and all lines exist only if each of them was there before."""


class Writer:
    """Writes commits until it is closed."""

    def __init__(self, presence: Presence, deliver: Deliver, fault: Fault | None) -> None:
        self.commits = 0
        """Transactions done."""
        self._presence, self._address, self._owner = presence, presence.address, presence.owner
        self._deliver, self._fault = deliver, fault
        self._backlog = Backlog(deliver)
        self._wake = asyncio.Event()
        self._closing_since: float | None = None
        self._session: Session | None = None
        self._who: tuple[int, Any] | None = None
        """The session that may still be at work on the server."""
        self._counted = 0
        self._told_at = 0.0
        self._aside: Session | None = None
        self._aside_is: tuple[int, Any] | None = None
        self._deletions: list[Commit] = []
        self._deleting: asyncio.Task[None] | None = None
        self._deletes_on: Session | None = None
        """The session of the running deletion, which may outlast `aside`."""
        self._lost: tuple[int, Any] | None = None
        """The session of a deletion that failed. Until the server ends it, it may hold locks that the writer needs."""

    @contextlib.asynccontextmanager
    async def aside(self, found: Session, who: tuple[int, Any]) -> AsyncIterator[None]:
        """Write deletions on this session meanwhile. Other commits do not wait for them, whichever was given first."""
        self._aside, self._aside_is = found, who
        try:
            yield
        finally:
            self._aside = None
            if self._deleting is not None:
                await asyncio.wait([self._deleting])

    def give(self, commit: Commit) -> None:
        self._backlog.commits.append(commit)
        self._wake.set()

    def give_up(self) -> None:
        """Drop the connections: the server does not answer."""
        for found in (self._session, self._aside, self._deletes_on):
            if found is not None:
                found.connection.terminate()

    def finish(self) -> None:
        """Have `run` end when all is written, or has been tried for long enough."""
        self._closing_since = time.monotonic()
        self._wake.set()

    async def run(self) -> None:
        pause, backlog = FIRST_PAUSE, self._backlog
        while backlog.commits or self._deleting is not None or self._closing_since is None:
            if not backlog.commits:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._write()
                pause = FIRST_PAUSE
            except Displaced:
                backlog.lose(
                    f"this process has lost `{self._address.name}`: the server did not hear from it, and other "
                    "processes take over its calls. Nothing that it does from now on is recorded; restart it"
                )
            except NotWritten as problem:
                last = self._closing_since is not None and time.monotonic() - self._closing_since > LAST_ATTEMPTS
                if backlog.trouble is None:
                    _log.warning("%s", problem.why)
                backlog.fail(problem, everything=last)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if self._session is not None:
            await self._session.close()

    def _group_size(self) -> int:
        count = size = 0
        for commit in self._backlog.commits:
            count += len(commit.ops)
            if size and (count > MANY or self._goes_aside(commit)):
                break
            size += 1
        return size

    async def _write(self) -> None:
        """Write the first waiting commits as one transaction, and call back; or raise `NotWritten` or `Displaced`."""
        backlog = self._backlog
        if backlog.displaced or self._presence.displaced:
            raise Displaced
        if backlog.in_doubt is not None:
            await self._settle(*backlog.in_doubt)
            return
        if self._aside is not None and self._goes_aside(backlog.commits[0]):
            self._deletions.append(backlog.commits.pop(0))
            if self._deleting is None:
                self._deleting = asyncio.create_task(self._delete(self._aside), name="keephold-postgres-deleting")
            return
        group = backlog.commits[: self._group_size()]
        if backlog.trouble is not None or any(commit.ops for commit in group):
            found = await self._connected()
            try:
                if self._lost is not None:
                    await found.rows(SQL["end_session"], self._lost)
                    self._lost = None
                await self._transact(found, group)
            except (NotWritten, Displaced):
                raise
            except Exception as error:
                await self._give_up(found, error)
        backlog.settle(len(group))

    # Deleting

    def _goes_aside(self, commit: Commit) -> bool:
        """Whether to write a commit on the session for deletions."""
        if self._aside is None or self._backlog.trouble is not None or commit.keep or not commit.ops:
            return False
        return all(type(op) is Collected for op in commit.ops)

    async def _delete(self, found: Session) -> None:
        """Write the deletions that wait. If one fails, it and those after it are written like other commits: to delete
        twice is harmless."""
        self._deletes_on, who = found, self._aside_is
        while self._deletions:
            commit, written = self._deletions[0], False
            try:
                written = self._aside is found and await self._deleted(found, commit)
            except Exception as error:
                _log.warning("a deletion is done again: %s", sentence(self._address, error))
                found.connection.terminate()
                self._lost = who
            del self._deletions[0]
            if written:
                self._deliver([commit], self._backlog.trouble)
            else:
                self._aside = None
                self.give(commit)
        self._deleting = self._deletes_on = None
        self._wake.set()

    async def _deleted(self, found: Session, commit: Commit) -> bool:
        """Write a deletion on its own session; return False if others prevent it.

        The session does not wait for the disk (`synchronous_commit`). A crash of the server may undo the deletion, and
        the next one finds the same handles. A later commit is behind it in the server's log, so one that builds on
        the deletion cannot survive without it. A deletion that has events does wait: a reader that has seen them
        continues after their numbers, so the server must not give these numbers to other events.
        """
        again = (*AGAIN, asyncpg.LockNotAvailableError)
        for attempt in range(TRIES):
            try:
                await found.run(f"BEGIN; SET LOCAL lock_timeout = {FIRST_WAIT << min(attempt, DOUBLED)}")
                tx = await self._statements(found, [commit], each=False, again=again)
                if tx is not None:
                    rows = note_events(tx)
                    note = self._note(tx.touched, urgent=bool(rows))
                    if rows:
                        await found.run("SET LOCAL synchronous_commit TO DEFAULT")
                    values = (self._owner, None, self._address.key("numbering"), *_columns(rows))
                    ((present,),) = await found.rows(SQL["finish"], (*values, self._address.channel, note))
                    if present:
                        self._call_fault("before")
                        await found.run("COMMIT")
                        self._happened(note)
                        return True
            except again:
                await found.run("ROLLBACK")
                continue
            await found.run("ROLLBACK")
            break
        return False

    # Connecting, and finding out what was written

    async def _connected(self) -> Session:
        """Return the session; make a new one if it was lost, and see that nothing of the old one is left. After
        trouble, nothing is written before this process has its lock again."""
        if self._session is None or self._session.closed:
            self._session = await self._connect()
        elif self._backlog.trouble is None:
            return self._session
        if not self._presence.held:
            raise NotWritten(f"`{self._address.name}` has just come back; this process takes its lock again first")
        return self._session

    async def _connect(self) -> Session:
        try:
            new = await session(self._address)
            try:
                async with asyncio.timeout(CONNECT_SECS):
                    if self._who is not None:
                        await new.rows(SQL["end_session"], self._who)
                    self._who = await whose(new)
            except BaseException:
                new.connection.terminate()
                raise
        except Exception as error:
            raise NotWritten(sentence(self._address, error)) from error
        return new

    async def _give_up(self, found: Session, error: Exception) -> None:
        """Leave a transaction that failed before its COMMIT was sent."""
        if is_lost(error, found):
            found.connection.terminate()
        else:
            try:
                await found.run("ROLLBACK")
            except Exception:
                found.connection.terminate()
        raise NotWritten(sentence(self._address, error)) from error

    async def _settle(self, count: int, evidence: Evidence) -> None:
        """Find out whether the uncertain transaction was committed."""
        try:
            found = await self._connected()
            present = await found.rows(SQL["hold_owner"], (self._owner,))  # first: a new call has no row to wait for
            if isinstance(evidence, int):
                happened = present == [(evidence,)]
                self._counted += happened
            else:
                await found.rows(SQL["hold_call"], evidence[0][:1])
                happened = all([await found.rows(SQL["recorded"], line) for line in evidence])
                # The lines may be those of the process that has taken over.
                present = await found.rows(SQL["registered"], (self._owner,))
            if not present:
                raise Displaced
        except NotWritten as problem:
            raise NotWritten(problem.why, (count, evidence)) from problem
        except Displaced:
            raise
        except Exception as error:
            raise NotWritten(sentence(self._address, error), (count, evidence)) from error
        self._backlog.in_doubt = None
        if happened:
            self.commits += 1
            self._backlog.settle(count)

    async def _transact(self, found: Session, group: list[Commit]) -> None:
        ops = list(chain.from_iterable(commit.ops for commit in group))
        if ops and all(type(op) is Journaled for op in ops) and await self._only_steps(found, group, ops):
            return
        each = False
        for attempt in range(TRIES):
            again = (*AGAIN, *COLLIDED) if attempt < COLLISIONS else AGAIN
            try:
                await found.run("BEGIN")
                tx = await self._statements(found, group, each, again)
                if tx is not None:
                    await self._commit(found, tx, len(group))
                    return
            except again:
                await found.run("ROLLBACK")
                continue
            await found.run("ROLLBACK")
            if len(group) == 1:
                await self._refused(found, group[0])
                return
            each = True
        raise NotWritten(f"other processes keep `{self._address.name}` busy: {TRIES} attempts failed; try again")

    async def _only_steps(self, found: Session, group: list[Commit], ops: list[Any]) -> bool:
        """Write journal lines by one statement; return False if one is refused."""
        rows = event_rows(draft for op in ops for draft in events.events_of(op, None))
        first = ops[0]
        note = self._note({first.uid}, urgent=False)
        if len(ops) == len(rows) == 1:  # most often; arrays would take the server 60 µs more
            query, columns, told = "commit_step", step(first), rows[0]
        else:
            query, columns, told = "commit_steps", steps(ops), _columns(rows)
        bindings = (*columns, self._address.key("numbering"), *told, self._address.channel, note)
        for commit in group:  # now: `_settle` may have to report them
            commit.results, commit.error, commit.told = [None] * len(commit.ops), None, True
        self._call_fault("before")
        try:
            await found.rows(SQL[query], bindings)
        except Exception as error:
            if is_lost(error, found):
                found.connection.terminate()
                lines = [(op.uid, op.kind, op.name) for op in ops]
                raise NotWritten(sentence(self._address, error), (len(group), lines)) from error
            if isinstance(error, STORAGE):
                raise
            return False
        self._happened(note)
        return True

    async def _statements(self, found: Session, group: list[Commit], each: bool, again: Errors) -> Transaction | None:
        """Run everything of a transaction except its beginning and its end; None: a commit is refused, and if it is not
        the only one, it is to be found out which."""
        statements = PostgresStatements(found, self._address)

        def begin() -> Transaction:
            return Transaction(statements, self._owner, None, self._presence.alive)

        def refusal(error: Exception) -> KeepholdError:
            if isinstance(error, (*STORAGE, *again)) or is_lost(error, found):
                raise error
            return error if isinstance(error, KeepholdError) else not_storable(unfit(error))

        if each:
            return await bridged(write_each, begin, group, refusal)
        tx = begin()
        try:
            await bridged(write_group, tx, group)
        except Exception as error:
            group[0].error = refusal(error)
            return None
        return tx

    async def _refused(self, found: Session, commit: Commit) -> None:
        """See whether a commit was refused because others take this process for dead."""
        lost = commit.error is not None and commit.error.code == "lease_lost"
        if lost and not await found.rows(SQL["registered"], (self._owner,)):
            raise Displaced

    async def _commit(self, found: Session, tx: Transaction, count: int) -> None:
        """Count the transaction, write its events, and commit it. `count`: how many commits it has."""
        rows = note_events(tx)
        evidence: Evidence = self._counted + 1 if tx.line is None or tx.forgetful else [tx.line]
        counted = self._counted if isinstance(evidence, int) else None
        note = self._note(tx.touched, urgent=tx.urgent)
        values = (self._owner, counted, self._address.key("numbering"), *_columns(rows))
        ((present,),) = await found.rows(SQL["finish"], (*values, self._address.channel, note))
        if not present:  # another process has removed the row
            await found.run("ROLLBACK")
            raise Displaced
        self._call_fault("before")
        try:
            await found.run("COMMIT")
        except Exception as error:
            if not is_lost(error, found):
                raise
            found.connection.terminate()
            raise NotWritten(sentence(self._address, error), (count, evidence)) from error
        self._counted += counted is not None
        self._happened(note)

    def _happened(self, note: str | None) -> None:
        self.commits += 1
        if note is not None:
            self._told_at = time.monotonic()
        self._call_fault("after")

    def _call_fault(self, when: str) -> None:
        if self._fault is not None:
            self._fault(when)

    def _note(self, touched: set[str], *, urgent: bool) -> str | None:
        """Return the notification for other processes; None: they need none now."""
        if not touched or not (urgent or time.monotonic() > self._told_at + SELDOM):
            return None
        note = encode([self._owner, *touched])
        return (note if len(note) <= LONGEST_NOTE else encode([self._owner])).decode()


def _columns(rows: list[EventRow]) -> tuple[Any, ...]:
    """Return the columns of events, after the time of all of them."""
    at = rows[0][0] if rows else 0.0
    return at, [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows], [row[4] for row in rows]
