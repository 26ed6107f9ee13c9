"""The state that the operations of one transaction share: the statements, what they touched, and common checks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keephold.errors import AlreadyStopped, KeepholdError
from keephold.handles.state import State, Stopped, describe
from keephold.store.base import Journaled, KeptOutput, Kind, Parking
from keephold.store.events import Draft
from keephold.store.sql.codec import Row, decode_parking, decode_state, encode_kept


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


def _nothing_to_return() -> bool:
    return False


class Transaction:
    """One transaction of a writer. Operations run their statements in it, in order."""

    __slots__ = (
        "alive", "changes", "directory", "events", "files", "forgetful", "line", "litter", "lock",
        "many", "owner", "record_steps", "rows", "run", "shrink", "sql", "touched", "urgent",
    )  # fmt: skip

    def __init__(
        self, statements: Statements, owner: str, directory: Path | None, alive: Callable[[str], bool]
    ) -> None:
        self.sql = statements.sql
        self.run, self.rows, self.many = statements.run, statements.rows, statements.many
        self.changes, self.lock, self.record_steps = statements.changes, statements.lock, statements.record_steps
        self.shrink: Callable[[], bool] = getattr(statements, "shrink", _nothing_to_return)
        """Return some unused space to the disk; return whether there is more. Some databases do that by themselves."""
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

    def keep_output(self, uid: str, kept: KeptOutput) -> None:
        self.run(self.sql["keep_output"], (uid, encode_kept(kept), kept.file))
        if kept.file is not None:
            self.files.add(kept.file)


def lease_lost(uid: str) -> KeepholdError:
    return KeepholdError(
        f"call `{uid}` belongs to another process by now; what this one did was not recorded", code="lease_lost"
    )
