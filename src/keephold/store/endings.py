"""Outcomes and resolutions: the two ways to say how something ended, and how one becomes the other (D1, D2, D4)."""

from functools import cache

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, EndedBy, Failure, Ok, Outcome, State, Stopped, Waiting
from keephold.store.rows import CARRIERS, Carrier, Notice, Parking, Resolution
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
