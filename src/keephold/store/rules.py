"""Rules that every store follows: how an outcome and a resolution become each other (D1, D2, D4), the notifications of
handles and their order (N), and how metadata is changed and matched."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, EndedBy, Failure, Ok, Outcome, State, Stopped, Waiting
from keephold.store.rows import CARRIERS, Carrier, Level, Notice, Parking, QueuedNotification, Resolution, Shown
from keephold.text import strip_controls, to_utf8

CANCELLED = Failure("pending tool completion cancelled", "cancelled")
TIMED_OUT = Failure("pending tool completion timed out", "tool_completion_timeout")
REVOKED = Failure("the completion key of this call was revoked", "await_event_unknown_or_revoked")


CANCELS: tuple[EndedBy, ...] = ("abort", "cancel", "turn_end", "shutdown")
"""Ends of a parked call that cancel it."""


NOTIFICATION_CHARACTERS = 4000
"""How long the message of a notification may be."""


def hook_is_due(parking: Parking, ended_by: EndedBy) -> bool:
    """Whether the end of a parked call is a cancel for which its hook must be called (D2)."""
    return parking.hook and parking.on_cancel == "cancel_external_work" and ended_by in CANCELS


def gone(uid: str) -> KeepholdError:
    """Return the refusal to repeat a call that the store does not have any more."""
    return KeepholdError(f"handle `{uid}` was deleted, so it cannot be repeated", code="handle_expired")


def lease_lost(uid: str) -> KeepholdError:
    """Return the refusal of a stale fencing number."""
    return KeepholdError(
        f"call `{uid}` belongs to another process by now; what this one did was not recorded", code="lease_lost"
    )


def resolution_of(outcome: Outcome) -> Resolution:
    """Return the resolution of a call's own key for how the call ended."""
    if not isinstance(outcome, Failure):
        return Resolution("ok", outcome.value if isinstance(outcome, Ok) else None)
    if outcome.code in ("aborted", "cancelled"):
        return Resolution("cancelled")
    if outcome.code == TIMED_OUT.code:
        return Resolution("timeout")
    return Resolution("err", {"code": outcome.code, "message": outcome.message})


def timed_out(parking: Parking | None) -> Failure:
    """Return the outcome of a parked call whose deadline has passed."""
    said = None if parking is None else parking.timed_out
    return TIMED_OUT if said is None else Failure(said, TIMED_OUT.code)


STOPPED, FAILED = "tool.stopped", "tool.failed"
"""The kinds of notifications that a handle has stopped."""


@cache
def _end_notice(failed: bool, carriers: tuple[Carrier, ...]) -> Notice:
    return Notice(FAILED, "error", None, carriers) if failed else Notice(STOPPED, "info", None, carriers)


def end_notice(state: Stopped, carriers: tuple[Carrier, ...] = CARRIERS) -> Notice:
    """Return the notification that a handle has stopped. A deliberate end is not a failure of the tool (S3)."""
    return _end_notice(isinstance(state.outcome, Failure) and not state.deliberate, carriers)


def completed_instead(
    state: Stopped, resolution: Resolution, notice: Notice | None, stateful: bool
) -> tuple[Stopped, Notice | None]:
    """Return the state of an ended call whose completion was accepted before (R4), and its notification (D9)."""
    end = ended(resolution, state.stopped)
    state = Stopped(state.created, state.started, state.stopped, end.outcome, end.ended_by)
    carriers = CARRIERS if notice is None else notice.carriers
    return state, end_notice(state, carriers) if stateful else None


def words(id: str, tool: str, state: State) -> str:
    """Return the message of the notification that a handle is in this state now."""
    match state:
        case Stopped(outcome=Failure(message)):
            how = f"stopped: {message}" if state.deliberate else f"failed: {message}"
        case Stopped():
            how = "stopped."
        case Waiting(question=question):
            how = f"asks a person: {question.text}" if question.secret else f"asks: {question.text}"
        case _:
            how = "runs."
    return clip(f"`{id}` ({tool}) {how}")


def clip(message: str) -> str:
    """Return a message as a notification may have it: of bounded length (O2), and without control characters (K4)."""
    message = to_utf8(strip_controls(message)).decode()
    over = len(message) - NOTIFICATION_CHARACTERS
    return message if over <= 0 else f"{message[:NOTIFICATION_CHARACTERS]} ...{over} characters truncated..."


def ended(resolution: Resolution, at: float) -> Ended:
    """Return the end of a parked call whose key was resolved. The payload of `err` was checked before it was stored."""
    ended_by: EndedBy = "self"
    outcome: Outcome
    match resolution.status:
        case "ok":
            outcome = Ok(resolution.payload)
        case "err":
            outcome = Failure(str(resolution.payload["message"]), str(resolution.payload["code"]))
        case "timeout":
            outcome, ended_by = TIMED_OUT, "timeout"
        case "cancelled":
            outcome, ended_by = CANCELLED, "cancel"
    return Ended(at, outcome, ended_by)


# Which notifications there are, and their order

CONTENT = "tool.content"
"""The kind of which at most one is queued for a handle (N6)."""
READY = "tool.ready"
DROPS: tuple[Level, ...] = ("info", "warning", "error")
"""Which level a full queue drops first (N6); `critical` is never dropped."""
TAKES: dict[Shown, tuple[str, ...] | None] = {
    "running": (CONTENT,),
    "waiting": ("tool.waiting", CONTENT),
    "asked": ("tool.waiting",),
    "ready": (READY,),
    "stopped": None,
}
"""Which kinds of a handle's notifications a reply takes back by showing the handle like that (N3). None: all."""


def dropped(conversation: str, count: int, at: float) -> QueuedNotification:
    """Return the line that stands for dropped notifications (N6)."""
    went = "1 earlier notification was dropped." if count == 1 else f"{count} earlier notifications were dropped."
    return QueuedNotification(0, conversation, "keephold.dropped", "info", went, at)


def in_order(notifications: Iterable[QueuedNotification]) -> tuple[QueuedNotification, ...]:
    """Return notifications in the order of delivery: `critical` first, else by number (N4)."""
    return tuple(sorted(notifications, key=lambda each: (each.level != "critical", each.number)))


# Metadata, and texts that are searched for

_FOLDED = {ord(upper): upper.lower() for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def folded(text: str) -> str:
    """Return the text as it is searched for: ASCII letters in lower case, as SQLite makes them."""
    return text.translate(_FOLDED)


def merged(metadata: Mapping[str, Any] | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata with these changes; a key whose value is None is removed."""
    removed = {key for key, value in changes.items() if value is None}
    return {key: value for key, value in {**(metadata or {}), **changes}.items() if key not in removed}


def holds(metadata: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether the metadata has all these keys with these values."""
    return all(key in (metadata or ()) and same(metadata[key], value) for key, value in wanted.items())  # type: ignore[index]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, where true is not 1, and 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
