"""The operations on what calls wait for from outside (D).

How the end of a call settles what it waited for, and what the end of a parked one does besides.
"""

from keephold.handles.state import Ended, State, Stopped, transition
from keephold.store import base, events
from keephold.store.base import Notice, Resolving, status_of
from keephold.store.endings import REVOKED, end_notice, ended, hook_is_due, resolution_of
from keephold.store.sqlite.codec import encode, wait_row
from keephold.store.sqlite.notifications import tell_of
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import CallRow, Transaction


def stop_parked(
    tx: Transaction, call: CallRow, state: Stopped, *, hook: bool, told: Notice | None = None, resolved: bool = False
) -> None:
    """The end of a parked call settles its key and is always news (D9). `hook`: if it is a cancel, that is due (D2).
    `resolved`: its key brought the end, and is settled."""
    parking = call.parking
    assert parking is not None
    due = hook and hook_is_due(parking, state.ended_by)
    owner = tx.owner if due else None
    tx.run(SQL["stop_parked"], (encode(state), status_of(state), state.stopped, owner, due, resolved, call.number))
    if not resolved:
        resolve_by_end(tx, call.uid, state)
    notice = told or end_notice(state, parking.carriers)
    tell_of(tx, (call.conversation, call.id, call.tool), call.uid, state, notice, state.stopped)
    tx.touched.add(call.uid)


def resolve_by_end(tx: Transaction, uid: str, state: Stopped) -> None:
    resolution = resolution_of(state.outcome)
    for (key_id,) in tx.rows(SQL["resolve_by_end"], (encode(resolution), state.stopped, uid)):
        tx.events.append(events.resolved(uid, None, key_id, resolution.status))


def wait_opened(tx: Transaction, op: base.WaitOpened) -> bool:
    call = tx.own(op.uid, op.fence)
    tx.run(SQL["open_wait"], (op.key_id, op.uid, call.conversation, op.kind, op.name, op.secret_id))
    new = bool(tx.changes())
    parking = op.parking
    if op.kind == "completion":
        terms = (None, None) if parking is None else (encode(parking), parking.deadline)
        tx.run(SQL["take_completion_key"], (call.number, *terms))
    return new


def resolved(tx: Transaction, op: base.Resolved) -> Resolving:
    first = tx.row(SQL["resolve"], (encode(op.resolution), op.at, op.key_id))
    if first is None:
        row = tx.row(SQL["wait"], (op.key_id,))
        wait = None if row is None else wait_row(row)
        if wait is None or wait.revoked:
            return Resolving("unknown_or_revoked")
        return Resolving("already_resolved", wait.resolution)
    uid, kind, conversation = first
    tx.events.append(events.resolved(uid, conversation, op.key_id, op.resolution.status))
    tx.touched.update((op.key_id, uid))
    call = tx.call(uid) if kind == "completion" else None
    if call is None:
        return Resolving("accepted")
    parking = call.parking
    if parking is None or parking.hold or not call.parked:
        tx.run(SQL["completed"], (call.number,))
        return Resolving("accepted")
    state = _stop(tx, call, ended(op.resolution, op.at), resolved=True)
    return Resolving("accepted", uid=call.uid, state=state, what=(call.tool, call.kind, bool(call.stateful)))


def revoked(tx: Transaction, op: base.Revoked) -> tuple[tuple[tuple[str, State], ...], tuple[str, ...]]:
    stopped: list[tuple[str, State]] = []
    others: list[str] = []
    for key_id, uid, kind in tx.rows(SQL["revoke"], (op.at, op.conversation)):
        call = tx.call(uid) if kind == "completion" else None
        tx.events.append(events.revoked(uid, op.conversation, key_id))
        if call is not None and call.parked:
            stopped.append((uid, _stop(tx, call, Ended(op.at, REVOKED))))
        else:
            others.append(key_id)
        tx.touched.update((key_id, uid))
    return tuple(stopped), tuple(others)


def _stop(tx: Transaction, call: CallRow, end: Ended, *, resolved: bool = False) -> State:
    """End a parked call from outside. Its hook is not called: the outside said so itself."""
    state = transition(call.state, end)
    assert isinstance(state, Stopped)
    tx.events.append(events.stopped(call.uid, call.conversation, state))
    stop_parked(tx, call, state, hook=False, resolved=resolved)
    return state
