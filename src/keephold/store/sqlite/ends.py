"""How the end of a call settles what it waited for, and what the end of a parked one does besides."""

from keephold.handles.state import Stopped
from keephold.store import events
from keephold.store.base import Notice, status_of
from keephold.store.endings import end_notice, hook_is_due, resolution_of
from keephold.store.sqlite.codec import encode
from keephold.store.sqlite.notifications import tell_of
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import Call, Transaction


def stop_parked(
    tx: Transaction, call: Call, state: Stopped, *, hook: bool, told: Notice | None = None, resolved: bool = False
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
