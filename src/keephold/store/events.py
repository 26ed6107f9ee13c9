"""The store's events: what happened, in the one order in which it was committed.

An operation is written together with its events, or neither is. `events_of` makes an operation's own events, for all
stores. For what an operation causes besides (a queued notification, a parked call that it stops), the store calls the
other functions of this module. Events hold no result, no output, and no key, except a key that a tool put into the text
of its question, which notifications repeat: the code that shows events masks it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from keephold.handles.state import Failure, Reply, Running, State, Stopped, Waiting, name
from keephold.store import ops
from keephold.store.rows import Carrier, Level, Parking, QueuedNotification

EVENTS_LIMIT = 1_000_000
"""How many events are kept, of any age."""
NOTIFICATION_TYPES = ("notification.queued", "notification.delivered", "notification.removed")

Draft = tuple[str, str | None, str | None, dict[str, Any]]
"""An event that has no number yet: its type, its conversation (None: that of its handle), the uid of its handle if it
has one, and its data."""


class StoredEvent(msgspec.Struct, frozen=True):
    """One event. `seq` grows in the order of the commits, without a gap, and is never used again."""

    seq: int
    at: float
    """When it was written, by the clock of this machine."""
    type: str
    conversation: str
    uid: str | None
    data: dict[str, Any]


def events_of(op: ops.Op, result: Any) -> Sequence[Draft]:
    """Return the events of an operation that was not refused and had that result.

    For `Registered` the result is None, or the state that its record came with, should that have changed since.
    """
    tells = _TELLS.get(type(op))
    return () if tells is None else tells(op, result)


def stopped(uid: str, conversation: str | None, state: Stopped) -> Draft:
    """A handle has stopped."""
    outcome = state.outcome
    failed = isinstance(outcome, Failure) or (isinstance(outcome, Reply) and outcome.is_error)
    code = outcome.code if isinstance(outcome, Failure | Reply) else None
    return "handle.stopped", conversation, uid, {"ok": not failed, "ended_by": state.ended_by, "code": code}


def parked(uid: str, conversation: str | None, parking: Parking) -> Draft:
    """A call is parked: it has no owner and waits for its completion."""
    return "handle.parked", conversation, uid, {"deadline": parking.deadline}


def resolved(uid: str, conversation: str | None, key_id: str, status: str) -> Draft:
    """A wait is over."""
    return "key.resolved", conversation, uid, {"key_id": key_id, "status": status}


def revoked(uid: str, conversation: str | None, key_id: str) -> Draft:
    """A key was revoked."""
    return "key.revoked", conversation, uid, {"key_id": key_id}


def queued(number: int, conversation: str, uid: str | None, kind: str, level: Level, message: str) -> Draft:
    """A notification was queued. The same number again: its message has changed."""
    return (
        "notification.queued",
        conversation,
        uid,
        {"number": number, "kind": kind, "level": level, "message": message},
    )


def delivered(each: QueuedNotification, carrier: Carrier) -> Draft:
    """A notification was delivered."""
    return "notification.delivered", each.conversation, each.uid, {**_described(each), "carrier": carrier}


def removed(each: QueuedNotification, by: Literal["shown", "dropped", "expired"]) -> Draft:
    """A notification was removed: its handle was shown or deleted, or the queue was full."""
    return "notification.removed", each.conversation, each.uid, {**_described(each), "by": by}


def _described(each: QueuedNotification) -> dict[str, Any]:
    return {"number": each.number, "kind": each.kind, "level": each.level, "message": each.message}


def _state(uid: str, state: State) -> Draft:
    if isinstance(state, Stopped):
        return stopped(uid, None, state)
    if isinstance(state, Waiting):
        return "handle.waiting", None, uid, {"question": state.question.id}
    return ("handle.running" if isinstance(state, Running) else "handle.changed"), None, uid, {}


def _registered(op: ops.Registered | ops.Retried, result: State | None) -> Sequence[Draft]:
    record = op.record
    state = record.state if result is None else result
    data = {
        "id": record.id, "tool": record.tool, "kind": record.kind, "state": name(state), "stateful": record.stateful,
    }  # fmt: skip
    created: Draft = ("handle.created", record.conversation, record.uid, data)
    return (created, stopped(record.uid, record.conversation, state)) if isinstance(state, Stopped) else (created,)


def _changed(uid: str, what: str) -> Sequence[Draft]:
    return (("handle.changed", None, uid, {"what": what}),)


def _journaled(op: ops.Journaled, _: Any) -> Sequence[Draft]:
    if op.kind == "trace":
        return ()
    return (("handle.stepped", None, op.uid, {"kind": op.kind, "name": op.name, "ok": op.ok}),)


def _attempted(op: ops.Attempted, _: Any) -> Sequence[Draft]:
    return (("handle.attempt", None, op.uid, {"attempt": op.attempt, "next_at": op.next_at}),)


def _wait_opened(op: ops.WaitOpened, result: bool) -> Sequence[Draft]:
    data = {"key_id": op.key_id, "kind": op.kind, "name": op.name}
    return (("key.opened", None, op.uid, data),) if result else ()


def _parked(op: ops.Parked, result: State) -> Sequence[Draft]:
    return () if isinstance(result, Stopped) else (parked(op.uid, None, op.parking),)


def _turn_began(op: ops.TurnBegan, _: Any) -> Sequence[Draft]:
    began: Draft = ("turn.began", op.conversation, None, {"turn": op.turn})
    if op.was is None or op.was == op.turn:
        return (began,)
    return ("turn.ended", op.conversation, None, {"turn": op.was}), began


def _said(op: ops.TranscriptAppended, result: int) -> Sequence[Draft]:
    first = result - len(op.lines) + 1
    return [
        ("conversation.said", op.conversation, None, {"line": number, "kind": kind})
        for number, (kind, _) in enumerate(op.lines, first)
    ]


_TELLS: dict[type, Callable[[Any, Any], Sequence[Draft]]] = {
    ops.Registered: _registered,
    ops.Retried: _registered,
    ops.Changed: lambda op, result: (_state(op.uid, result or op.state),),
    ops.Rewritten: lambda op, _: _changed(op.uid, "allowed" if op.arguments is None else "edited"),
    ops.Annotated: lambda op, _: _changed(op.uid, "annotated"),
    ops.Claimed: lambda op, result: () if result is None else _changed(op.uid, "claimed"),
    ops.Released: lambda op, _: _changed(op.uid, "released"),
    ops.Exposed: lambda op, exists: _changed(op.uid, "exposed") if exists else (),
    ops.Attempted: _attempted,
    ops.Readied: lambda op, _: (("handle.ready", None, op.uid, {}),),
    ops.Journaled: _journaled,
    ops.WaitOpened: _wait_opened,
    ops.Parked: _parked,
    ops.TurnBegan: _turn_began,
    ops.TurnEnded: lambda op, was_open: (("turn.ended", op.conversation, None, {"turn": op.turn}),) if was_open else (),
    ops.Emitted: lambda op, number: (("process.event", None, op.process, {"type": op.type, "sequence": number}),),
    ops.Responded: lambda _, result: [delivered(each, "response") for each in result],
    ops.Delivered: lambda op, result: [delivered(each, op.carrier) for each in result],
    ops.HandedOut: lambda op, _: [delivered(each, "message") for each in op.notifications],
    ops.TranscriptAppended: _said,
    ops.Forgotten: lambda op, known: (("conversation.forgotten", op.conversation, None, {}),) if known else (),
}
