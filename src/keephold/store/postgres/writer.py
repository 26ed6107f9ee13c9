"""Writing: one connection, which writes all commits that arrived during its last transaction as the next one.

Each commit of a group stands for itself all the same: if one is refused, the group is rolled back and written again
with a savepoint around each. A group that has nothing but journal lines is one statement, and one round trip.

A connection can break while the server commits. Then a new connection looks for evidence: a line that the transaction
wrote in a journal or, if there is none, its count in the row of this process. The old session may still be at work, so
it is ended first, and the evidence is read when the rows that the transaction had locked are free.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from keephold.errors import KeepholdError
from keephold.store import events
from keephold.store.base import Journaled
from keephold.store.postgres.bridge import bridged
from keephold.store.postgres.connecting import (
    AGAIN,
    COLLIDED,
    CONNECT_SECS,
    STORAGE,
    Session,
    is_lost,
    sentence,
    session,
    unfit,
    whose,
)
from keephold.store.postgres.presence import Presence
from keephold.store.postgres.sql import SQL
from keephold.store.postgres.statements import PostgresStatements, step, steps
from keephold.store.sql.codec import encode
from keephold.store.sql.commits import Commit, not_storable, unavailable
from keephold.store.sql.events import EventRow, event_rows, note_events
from keephold.store.sql.operations import write, write_group
from keephold.store.sql.transaction import Transaction

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
SELDOM = 0.1
"""Seconds between two notifications that are not urgent. If the last one is left out, the sweep of other processes
finds the change."""
LONGEST_NOTE = 7900
"""Bytes of a notification; a longer one says only that something has changed."""

Errors = tuple[type[BaseException], ...]
Fault = Callable[[str], None]
Tell = Callable[[list[Commit], str | None], None]
"""Receives settled commits, in order, and why the store cannot write, if it cannot."""
Evidence = tuple[str, str, str] | int
"""A journal line, or the count of transactions, that exists if and only if the transaction was committed."""
Doubt = tuple[int, Evidence]
"""How many of the waiting commits may be written already, and the evidence for it."""


class NotWritten(Exception):
    """A transaction was not committed; with `doubt`, that could not be found out."""

    def __init__(self, why: str, doubt: Doubt | None = None) -> None:
        super().__init__(why)
        self.why, self.doubt = why, doubt


class Displaced(Exception):
    """Other processes take this one for dead, so that nothing it writes counts any more."""


class Writer:
    """Writes commits until it is closed."""

    def __init__(self, presence: Presence, tell: Tell, fault: Fault | None) -> None:
        self.commits = 0
        """Transactions done."""
        self._presence, self._address, self._owner = presence, presence.address, presence.owner
        self._tell, self._fault = tell, fault
        self._waiting: list[Commit] = []
        self._wake = asyncio.Event()
        self._closing_since: float | None = None
        self._session: Session | None = None
        self._who: tuple[int, Any] | None = None
        """The session that may still be at work on the server."""
        self._counted = 0
        self._trouble: str | None = None
        self._displaced = False
        self._in_doubt: Doubt | None = None
        self._told_at = 0.0

    def give(self, commit: Commit) -> None:
        self._waiting.append(commit)
        self._wake.set()

    def give_up(self) -> None:
        """Drop the connection: the server does not answer."""
        if self._session is not None:
            self._session.connection.terminate()

    def finish(self) -> None:
        """Have `run` end when all is written, or has been tried for long enough."""
        self._closing_since = time.monotonic()
        self._wake.set()

    async def run(self) -> None:
        pause = FIRST_PAUSE
        while self._waiting or self._closing_since is None:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._write()
                pause = FIRST_PAUSE
            except Displaced:
                self._fail_all()
            except NotWritten as problem:
                last = self._closing_since is not None and time.monotonic() - self._closing_since > LAST_ATTEMPTS
                self._fail(problem, everything=last)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        if self._session is not None:
            await self._session.close()

    def _fail(self, problem: NotWritten, *, everything: bool) -> None:
        """Fail commits that do not want to wait; the others wait in their places. Commits that may be written already
        wait in any case: to report that nothing was written would be a guess."""
        if problem.doubt is not None:
            self._in_doubt = problem.doubt
        doubtful = 0 if everything or self._in_doubt is None else self._in_doubt[0]
        settled, waiting = self._waiting[doubtful:], self._waiting[:doubtful]
        failed = [commit for commit in settled if everything or not commit.keep]
        for commit in failed:
            commit.error = unavailable(problem.why, uncertain=everything and self._in_doubt is not None)
        self._waiting = [] if everything else [*waiting, *(commit for commit in settled if commit.keep)]
        if self._trouble is None:
            _log.warning("%s", problem.why)
        self._trouble = problem.why
        self._tell(failed, problem.why)

    def _fail_all(self) -> None:
        """Fail every commit, now and later: another process may have taken over the calls that they are about."""
        message = (
            f"this process has lost `{self._address.name}`: the server did not hear from it, and other processes take "
            "over its calls. Nothing that it does from now on is recorded; restart it"
        )
        if not self._displaced:
            self._displaced = True
            _log.error("%s", message)
        for commit in self._waiting:
            commit.error = KeepholdError(message, code="lease_lost")
        failed, self._waiting, self._in_doubt = self._waiting, [], None
        self._tell(failed, message)

    def _group_size(self) -> int:
        count = size = 0
        for commit in self._waiting:
            count += len(commit.ops)
            if size and count > MANY:
                break
            size += 1
        return size

    async def _write(self) -> None:
        """Write the first waiting commits as one transaction, and call back; or raise `NotWritten` or `Displaced`."""
        if self._displaced or self._presence.displaced:
            raise Displaced
        if self._in_doubt is not None:
            await self._settle(*self._in_doubt)
            return
        group = self._waiting[: self._group_size()]
        if self._trouble is not None or any(commit.ops for commit in group):
            found = await self._connected()
            try:
                await self._transact(found, group)
            except (NotWritten, Displaced):
                raise
            except Exception as error:
                await self._give_up(found, error)
        del self._waiting[: len(group)]
        self._trouble = None
        self._tell(group, None)

    async def _connected(self) -> Session:
        """Return the session; make a new one if it was lost, and see that nothing of the old one is left. After
        trouble, nothing is written before this process has its lock again."""
        if self._session is None or self._session.closed:
            self._session = await self._connect()
        elif self._trouble is None:
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
            if isinstance(evidence, tuple):
                await found.rows(SQL["hold_call"], evidence[:1])
                happened = bool(await found.rows(SQL["recorded"], evidence))
                if not await found.rows(SQL["registered"], (self._owner,)):
                    raise Displaced  # the line may be one of the process that has taken over
            else:
                rows = await found.rows(SQL["hold_owner"], (self._owner,))
                if not rows:
                    raise Displaced
                happened = rows[0][0] == evidence
                self._counted += happened
        except NotWritten as problem:
            raise NotWritten(problem.why, (count, evidence)) from problem
        except Displaced:
            raise
        except Exception as error:
            raise NotWritten(sentence(self._address, error), (count, evidence)) from error
        self._in_doubt = None
        if happened:
            self.commits += 1
            written, self._waiting = self._waiting[:count], self._waiting[count:]
            self._trouble = None
            self._tell(written, None)

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
            query, lines, told = "commit_step", step(first), rows[0]
        else:
            query, lines, told = "commit_steps", steps(ops), _columns(rows)
        bindings = (*lines, self._address.key("numbering"), *told, self._address.channel, note)
        doubt = len(group), (first.uid, first.kind, first.name)
        for commit in group:  # now: `_settle` may have to report them
            commit.results, commit.error, commit.told = [None] * len(commit.ops), None, True
        if self._fault is not None:
            self._fault("before")
        try:
            await found.rows(SQL[query], bindings)
        except Exception as error:
            if is_lost(error, found):
                found.connection.terminate()
                raise NotWritten(sentence(self._address, error), doubt) from error
            if isinstance(error, STORAGE):
                raise
            return False
        self._happened(note)
        return True

    async def _statements(self, found: Session, group: list[Commit], each: bool, again: Errors) -> Transaction | None:
        """Run everything of a transaction except its beginning and its end; None: a commit is refused, and if it is not
        the only one, it is to be found out which."""
        statements = PostgresStatements(found, self._address)
        tx = self._transaction(statements)
        if each:
            for commit in group:
                await self._one(found, statements, tx, commit, again)
            return tx
        try:
            every = await bridged(write_group, tx, [commit.ops for commit in group])
        except (*STORAGE, *again):
            raise
        except Exception as error:
            if is_lost(error, found):
                raise
            group[0].error = _refusal(error)
            return None
        for commit, results in zip(group, every, strict=True):
            commit.results, commit.error, commit.told = results, None, bool(tx.events)
        return tx

    async def _one(
        self, found: Session, statements: PostgresStatements, whole: Transaction, commit: Commit, again: Errors
    ) -> None:
        """Write one commit, or note why it cannot be written."""
        tx = self._transaction(statements)
        await found.run("SAVEPOINT commit_")
        try:
            commit.results, commit.error = await bridged(write, tx, commit.ops), None
            commit.told = bool(tx.events)
        except (*STORAGE, *again):
            raise
        except Exception as error:
            if is_lost(error, found):
                raise
            await found.run("ROLLBACK TO commit_")
            commit.error = _refusal(error)
        else:
            whole.add(tx)
        await found.run("RELEASE commit_")

    async def _refused(self, found: Session, commit: Commit) -> None:
        """See whether a commit was refused because others take this process for dead."""
        lost = commit.error is not None and commit.error.code == "lease_lost"
        if lost and not await found.rows(SQL["registered"], (self._owner,)):
            raise Displaced

    def _transaction(self, statements: PostgresStatements) -> Transaction:
        return Transaction(statements, self._owner, None, self._presence.alive)

    async def _commit(self, found: Session, tx: Transaction, count: int) -> None:
        """Count the transaction, write its events, and commit it. `count`: how many commits it has."""
        rows = note_events(tx)
        evidence: Evidence = self._counted + 1 if tx.line is None or tx.forgetful else tx.line
        counted = self._counted if isinstance(evidence, int) else None
        note = self._note(tx.touched, urgent=tx.urgent)
        values = (self._owner, counted, self._address.key("numbering"), *_columns(rows))
        ((present,),) = await found.rows(SQL["finish"], (*values, self._address.channel, note))
        if not present:  # another process has removed the row
            await found.run("ROLLBACK")
            raise Displaced
        if self._fault is not None:
            self._fault("before")
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
        if self._fault is not None:
            self._fault("after")

    def _note(self, touched: set[str], *, urgent: bool) -> str | None:
        """Return the notification for other processes; None: they need none now."""
        if not touched or not (urgent or time.monotonic() > self._told_at + SELDOM):
            return None
        note = encode([self._owner, *touched])
        return (note if len(note) <= LONGEST_NOTE else encode([self._owner])).decode()


def _refusal(error: Exception) -> KeepholdError:
    return error if isinstance(error, KeepholdError) else not_storable(unfit(error))


def _columns(rows: list[EventRow]) -> tuple[Any, ...]:
    """Return the columns of events, after the time of all of them."""
    at = rows[0][0] if rows else 0.0
    return at, [row[1] for row in rows], [row[2] for row in rows], [row[3] for row in rows], [row[4] for row in rows]
