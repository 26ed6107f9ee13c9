"""How calls of the memory store end, and what they wait for from outside (D)."""

from heapq import heapify, heappush

from msgspec.structs import replace

from keephold.errors import AlreadyStopped, KeepholdError
from keephold.handles.state import Ended, State, Stopped, describe, transition
from keephold.store import base, events
from keephold.store.base import Notice, Record, Resolving, WaitRow
from keephold.store.endings import REVOKED, end_notice, ended, resolution_of
from keephold.store.memory.notifications import Telling
from keephold.store.memory.tables import parked


def lost(uid: str) -> KeepholdError:
    return KeepholdError(
        f"call `{uid}` belongs to another runtime by now; what this one did was not recorded", code="lease_lost"
    )


class Waits(Telling):
    """The operations on waits, and the end of a call, which settles its own."""

    def __init__(self) -> None:
        super().__init__()
        self._crowded = 1000
        """At this length `_deadlines` is rid of those that no longer count."""

    def _own(self, uid: str, fence: int | None) -> Record:
        """The record, if whoever holds this fencing number may change it; None: anybody."""
        record = self._records.get(uid)
        if record is None or fence not in (None, record.fence):
            raise lost(uid)
        if type(record.state) is Stopped:
            raise AlreadyStopped(f"already stopped: {describe(record.state.outcome)}")
        return record

    def _end(self, record: Record, state: Stopped, told: Notice | None = None) -> None:
        """It has stopped, which settles what it waited for. Of a parked call that is always news (D9)."""
        uid = record.uid
        parking = record.parking if record.owner is None else None
        record.state, record.owner, record.next_attempt_at = state, None, None
        self._note_stop(record, state.stopped)
        if uid in self._keys:
            row = self._completion(uid)
            if row is not None and row.resolution is None and not row.revoked:
                resolution = resolution_of(state.outcome)
                self._put(self._waits, row.key_id, replace(row, resolution=resolution))
                self._history.noted += (events.resolved(uid, row.conversation, row.key_id, resolution.status),)
        if told is None and parking is not None:
            told = end_notice(state, parking.carriers)
        if told is not None:
            self._tell_of(record, state, told, state.stopped)

    def _wait_opened(self, op: base.WaitOpened) -> bool:
        record = self._own(op.uid, op.fence)
        new = op.key_id not in self._waits
        if new:
            row = WaitRow(op.key_id, op.uid, record.conversation, op.kind, op.name, op.secret_id)
            self._put(self._waits, op.key_id, row)
            self._put(self._keys, op.uid, (*self._keys.get(op.uid, ()), op.key_id))
        if op.parking is not None:
            self._save(record)
            record.parking = op.parking
        return new

    def _parked(self, op: base.Parked) -> State:
        record = self._own(op.uid, op.fence)
        row = self._completion(op.uid)
        if row is None:
            raise KeepholdError(
                f"`{record.tool}` returned Pending without a key; take one first: key = await call.completion_key()",
                code="pending_tool_missing_completion_key",
            )
        self._save(record)
        record.parking, record.owner, record.next_attempt_at = op.parking, None, None
        if op.output is not None:
            record.output = op.output
        return self._now_parked(record, row, op.at)

    def _now_parked(self, record: Record, row: WaitRow | None, at: float | None) -> State:
        """It stops if its completion was there first: at `at`, or when that came. Otherwise it is to be found later."""
        parking = record.parking
        if parking is None or type(record.state) is Stopped:
            return record.state
        if row is not None and (row.revoked or (row.resolution is not None and not parking.hold)):
            when = self._settled[row.key_id] if at is None else at
            return self._stop(record, Ended(when, REVOKED) if row.resolution is None else ended(row.resolution, when))
        if record.resources:
            self._holding[record.uid] = record
        if row is not None and row.resolution is not None:
            self._held[record.uid] = record
        if parking.deadline is not None:
            heappush(self._deadlines, (parking.deadline, record.uid))
            if len(self._deadlines) > self._crowded:
                self._deadlines = [(at, uid) for at, uid in self._deadlines if self._awaits(uid, at)]
                heapify(self._deadlines)
                self._crowded = 2 * len(self._deadlines) + 1000
        return record.state

    def _stop(self, record: Record, end: Ended) -> State:
        """End a parked call from outside."""
        state = transition(record.state, end)
        assert isinstance(state, Stopped)
        self._history.noted += (events.stopped(record.uid, record.conversation, state),)
        self._end(record, state)
        return state

    def _resolved(self, op: base.Resolved) -> Resolving:
        row = self._waits.get(op.key_id)
        if row is None or row.revoked:
            return Resolving("unknown_or_revoked")
        if row.resolution is not None:
            return Resolving("already_resolved", row.resolution)
        record = self._records.get(row.uid) if row.kind == "completion" else None
        end = None
        if record is not None and record.parking is not None and parked(record):
            if record.parking.hold:
                self._held[record.uid] = record
            else:
                end = ended(op.resolution, op.at)
        self._put(self._waits, op.key_id, replace(row, resolution=op.resolution))
        self._history.noted += (events.resolved(row.uid, row.conversation, op.key_id, op.resolution.status),)
        if record is None or end is None:
            self._put(self._settled, op.key_id, op.at)
            return Resolving("accepted")
        self._save(record)
        what = (record.tool, record.kind, record.stateful)
        return Resolving("accepted", uid=record.uid, state=self._stop(record, end), what=what)

    def _revoked(self, op: base.Revoked) -> tuple[tuple[tuple[str, State], ...], tuple[str, ...]]:
        stopped, others = [], []
        for row in list(self._waits.values()):
            if row.conversation != op.conversation or row.resolution is not None or row.revoked:
                continue
            self._put(self._waits, row.key_id, replace(row, revoked=True))
            self._history.noted += (events.revoked(row.uid, row.conversation, row.key_id),)
            record = self._records.get(row.uid)
            if row.kind == "completion" and record is not None and parked(record):
                self._save(record)
                stopped.append((row.uid, self._stop(record, Ended(op.at, REVOKED))))
            else:
                self._put(self._settled, row.key_id, op.at)
                others.append(row.key_id)
        return tuple(stopped), tuple(others)
