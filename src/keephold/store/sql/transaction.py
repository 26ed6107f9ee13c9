"""The state that the operations of one transaction share: the statements, what they touched, common checks, and the
events, which are written last, so that their numbers are in the order of the commits.

A transaction writes one or more commits; the callbacks of a commit are called when it is safe.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keephold.errors import AlreadyStopped, KeepholdError
from keephold.handles.state import State, Stopped, describe
from keephold.listeners import Listeners
from keephold.store.base import EVENTS_LIMIT, NOBODY, Collected, Done, Failed, Journaled, KeptOutput, Kind, Op, Parking
from keephold.store.events import Draft
from keephold.store.rules import lease_lost
from keephold.store.sql.codec import Row, decode_parking, decode_state, encode, encode_kept

_log = logging.getLogger("keephold.store")


class CallRow(NamedTuple):
    """The columns that decide about an operation on a call: a row of the query `call`."""

    number: int
    uid: str
    fence: int
    owner: str | None
    stopped_at: float | None
    state_json: bytes
    parking_json: bytes | None
    keyed: int
    resolved: int
    hook_due: int
    conversation: str
    id: str
    tool: str
    kind: Kind
    stateful: int

    @property
    def state(self) -> State:
        return decode_state(self.state_json)

    @property
    def parking(self) -> Parking | None:
        return None if self.parking_json is None else decode_parking(self.parking_json)

    @property
    def parked(self) -> bool:
        return self.owner is None and self.parking_json is not None and self.stopped_at is None


class Statements(Protocol):
    """How a store runs statements in the transaction of its writer. A transaction uses these very methods, so that
    nothing is between it and the database."""

    @property
    def sql(self) -> Mapping[str, str]:
        """The statements by name, as this database understands them."""

    @property
    def run(self) -> Callable[[str, tuple[Any, ...]], object]:
        """Run a statement that returns no rows."""

    @property
    def many(self) -> Callable[[str, Iterable[tuple[Any, ...]]], object]:
        """Run such a statement several times."""

    @property
    def changes(self) -> Callable[[], int]:
        """Return how many rows the last statement has changed."""

    def rows(self, query: str, bindings: tuple[Any, ...], /) -> list[Row]: ...

    def lock(self, *names: str) -> None:
        """Let no other process change what is decided under these names until this transaction ends."""

    def record_steps(self, ops: Sequence[Journaled], /) -> int:
        """Add journal lines whose fencing numbers are right and whose names are new; return how many."""

    def shrink(self) -> bool:
        """Return some unused space to the disk; return whether there is more."""

    def lives(self, owner: str, /) -> bool:
        """Whether an owner that was found dead may still write."""


class Transaction:
    """One transaction of a writer. Operations run their statements in it, in order."""

    __slots__ = (
        "_lives", "alive", "changes", "directory", "events", "files", "forgetful", "line", "litter", "lock",
        "many", "owner", "record_steps", "rows", "run", "shrink", "sql", "touched", "urgent",
    )  # fmt: skip

    def __init__(
        self, statements: Statements, owner: str, directory: Path | None, alive: Callable[[str], bool]
    ) -> None:
        self.sql = statements.sql
        self.run, self.rows, self.many = statements.run, statements.rows, statements.many
        self.changes, self.lock, self.record_steps = statements.changes, statements.lock, statements.record_steps
        self.shrink = statements.shrink
        self._lives = statements.lives
        self.owner = owner
        self.directory = directory
        self.alive = alive
        self.line: tuple[str, str, str] | None = None
        """A journal line, by uid, kind and name, that exists if and only if the transaction was committed."""
        self.forgetful = False
        """Journal lines were removed."""
        self.touched: set[str] = set()
        """Uids, key ids and conversations that other processes may want to know."""
        self.events: list[Draft] = []
        """Drafts of events, in order; written at the end of the transaction."""
        self.urgent = True
        """Other processes are woken at once."""
        self.files: set[str] = set()
        """Output files that must be on the disk before the commit."""
        self.litter: list[str] = []
        """Output files to be removed after it."""

    def add(self, other: "Transaction") -> None:
        """Add what another part of the same transaction touched."""
        self.line = other.line or self.line
        self.forgetful |= other.forgetful
        self.touched |= other.touched
        self.events += other.events
        self.files |= other.files
        self.litter += other.litter

    def row(self, query: str, bindings: tuple[Any, ...]) -> Row | None:
        found = self.rows(query, bindings)
        return found[0] if found else None

    def call(self, uid: str) -> CallRow | None:
        row = self.row(self.sql["call"], (uid,))
        return None if row is None else CallRow._make(row)

    def own(self, uid: str, fence: int | None) -> CallRow:
        """Return the call if the holder of this fencing number may change it; None stands for any holder."""
        call = self.call(uid)
        if call is None or fence not in (None, call.fence):
            raise lease_lost(uid)
        if call.stopped_at is not None:
            state = call.state
            assert isinstance(state, Stopped)
            raise AlreadyStopped(f"already stopped: {describe(state.outcome)}")
        return call

    def lives(self, owner: str | None) -> bool:
        """Whether an owner that was found dead may still write, so that nothing of it can be taken over."""
        return owner not in (None, NOBODY, self.owner) and self._lives(str(owner))

    def keep_output(self, uid: str, kept: KeptOutput) -> None:
        self.run(self.sql["keep_output"], (uid, encode_kept(kept), kept.file))
        if kept.file is not None:
            self.files.add(kept.file)


class Commit:
    """The arguments of `Store.commit`, and the result."""

    __slots__ = ("done", "error", "failed", "keep", "ops", "results", "told")

    def __init__(self, ops: Sequence[Op], done: Done, failed: Failed, keep: bool) -> None:
        self.ops, self.done, self.failed, self.keep = ops, done, failed, keep
        self.results: Sequence[Any] = ()
        self.error: KeepholdError | None = None
        self.told = False
        """Whether it, or one that was written with it, has events."""


Deliver = Callable[[list[Commit], str | None], None]
"""Receives settled commits, in order, and why the store cannot write, if it cannot."""
Doubt = tuple[int, Any]
"""How many of the first commits may be written already, and the evidence for it."""


class NotWritten(Exception):
    """A transaction was not committed; with `doubt`, that could not be found out."""

    def __init__(self, why: str, doubt: Doubt | None = None) -> None:
        super().__init__(why)
        self.why, self.doubt = why, doubt


class Displaced(Exception):
    """Other processes take this one for dead, so that nothing it writes counts any more."""


class Backlog:
    """The commits that a writer has not settled, in order."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self.commits: list[Commit] = []
        self.trouble: str | None = None
        self.in_doubt: Doubt | None = None
        self.displaced = False
        """Nothing of this process is written any more."""

    def settle(self, count: int, trouble: str | None = None) -> None:
        """Deliver the first commits, which are written or refused."""
        settled, self.commits, self.trouble = self.commits[:count], self.commits[count:], trouble
        self._deliver(settled, trouble)

    def fail(self, problem: NotWritten, *, everything: bool) -> None:
        """Fail commits that do not want to wait; the others wait in their places. Commits that may be written already
        wait in any case: to report that nothing was written would be a guess."""
        self.in_doubt = problem.doubt or self.in_doubt
        doubtful = 0 if self.in_doubt is None else self.in_doubt[0]
        failed: list[Commit] = []
        waiting: list[Commit] = []
        for place, commit in enumerate(self.commits):
            if everything or (place >= doubtful and not commit.keep):
                commit.error = unavailable(problem.why, uncertain=place < doubtful)
                failed.append(commit)
            else:
                waiting.append(commit)
        self.commits, self.trouble = waiting, problem.why
        self._deliver(failed, problem.why)

    def lose(self, message: str) -> None:
        """Fail every commit, now and later: another process may have taken over the calls that they are about."""
        if not self.displaced:
            self.displaced = True
            _log.error("%s", message)
        for commit in self.commits:
            commit.error = KeepholdError(message, code="lease_lost")
        failed, self.commits, self.in_doubt = self.commits, [], None
        self._deliver(failed, message)


def tell(commits: Sequence[Commit], on_commit: Listeners[[]]) -> None:
    """Call back for settled commits, in order, and tell the listeners if one has events."""
    for commit in commits:
        try:
            if commit.error is None:
                commit.done(commit.results)
            else:
                commit.failed(commit.error)
        except Exception as error:  # the callbacks of later commits must run all the same
            complain("after a commit to the store", error)
    if on_commit and any(commit.told and commit.error is None for commit in commits):
        on_commit()


def complain(message: str, error: BaseException) -> None:
    """Report what nobody else would notice."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


def unavailable(why: str, *, uncertain: bool = False) -> KeepholdError:
    known = "whether it was written is not known" if uncertain else "nothing was written"
    return KeepholdError(f"the store cannot write at present, {known}: {why}", code="store_unavailable")


def not_storable(why: str) -> KeepholdError:
    """A value that no store can keep: a bug of the code that made it."""
    return KeepholdError(f"this cannot be stored: {why}", code="not_storable")


EventRow = tuple[float, str, str | None, str | None, bytes]


def event_rows(drafts: Iterable[Draft]) -> list[EventRow]:
    """Return the rows of drafted events, without their numbers."""
    at = time.time()
    return [(at, type, place, uid, encode(data)) for type, place, uid, data in drafts]


def note_events(tx: Transaction) -> list[EventRow]:
    """Return the rows of the events of a transaction. Events wake other processes; for steps alone that is not
    urgent."""
    drafts = tx.events
    if drafts and not tx.touched:
        _, conversation, uid, _ = drafts[0]
        tx.touched.add(uid or conversation or "")
        tx.urgent = not all(type == "handle.stepped" for type, *_ in drafts)
    return event_rows(drafts)


def remove_events(tx: Transaction, op: Collected) -> bool:
    """Delete events of that age, and those beyond the limit, oldest first and some at a time (S5). Returns whether
    there may be more."""
    row = tx.row(tx.sql["kept_events"], ())
    assert row is not None
    first, last = row
    if first is None:
        return False
    surplus = max(last - EVENTS_LIMIT - first + 1, 0)
    some = 10 * op.limit
    tx.run(tx.sql["remove_old_events"], (first + some, op.before))
    gone = tx.changes()
    if surplus:
        tx.run(tx.sql["remove_events"], (first + min(some, surplus),))
        gone += tx.changes()
    return gone >= some
