"""The one state machine (S1–S4): four states, four events, one function.

A state is data. Each variant carries the times that exist in it and no others, so a stopped handle without an outcome
or a waiting one without a question cannot be built. `transition` is the only way from one state to the next.
"""

from typing import Any, Literal

import msgspec

from keephold.errors import AlreadyStopped, KeepholdError, ToolError
from keephold.handles.question import Question

EndedBy = Literal["self", "abort", "timeout", "cancel", "turn_end", "shutdown", "crash"]


class Ok(msgspec.Struct, frozen=True, tag="ok"):
    """The tool succeeded with any JSON value; text tools give a string."""

    value: Any = None
    content: tuple[dict[str, Any], ...] | msgspec.UnsetType = msgspec.UNSET
    """Images, audio and resources, as MCP writes them. The value describes them, for readers that cannot show them."""


class Failure(msgspec.Struct, frozen=True, tag="error", omit_defaults=True):
    """The tool failed, or was ended."""

    message: str
    code: str = "tool_error"
    trace: tuple[str, ...] = ()
    transient: bool = False


class PrintedOutput(msgspec.Struct, frozen=True, tag="printed"):
    """Ok, and the value is what it printed: a command's result may be larger than memory and stays in its output."""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The reply to a call, for calling code and for a model (O2). A built-in's outcome is its reply."""

    result: str
    model: str
    is_error: bool = False
    code: str | None = None
    """The stable code of an error."""
    cursors: tuple[tuple[str, int], ...] = ()
    """By uid: up to where the reply showed a handle's output (C5)."""
    showed: tuple[tuple[str, Literal["running", "waiting", "asked", "ready", "stopped"], int], ...] = ()
    """By uid: the state in which the reply showed a handle, and the number of the question of a waiting one (N3)."""


Outcome = Ok | PrintedOutput | Failure | Reply


class PendingState(msgspec.Struct, frozen=True, tag="pending"):
    """Registered, not started: a placeholder, queued, or waiting for permission."""

    created: float


class Running(msgspec.Struct, frozen=True, tag="running"):
    created: float
    started: float


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """A question is open."""

    created: float
    started: float
    asked: float
    question: Question
    number: int = 0
    """Which of the call's questions it is, counted from 1 without those that were answered at once."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Final. `started` is None when it never ran."""

    created: float
    started: float | None
    stopped: float
    outcome: Outcome
    ended_by: EndedBy = "self"
    exit_code: int | None = None
    signal: int | None = None

    @property
    def deliberate(self) -> bool:
        """Whether somebody asked for this end: then it is never shown as a failure of the tool (S3)."""
        outcome = self.outcome
        return isinstance(outcome, Failure) and self.ended_by != "self" and outcome.code in ("aborted", "cancelled")


State = PendingState | Running | Waiting | Stopped


LONGEST_LABEL = 1000
"""Characters of a text that lists show, many at once: a task's name, what is being done."""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a call is, as its tool reports."""

    done: float
    total: float | None = None
    message: str | None = None


class Started(msgspec.Struct, frozen=True, tag="started"):
    at: float


class QuestionAsked(msgspec.Struct, frozen=True, tag="asked"):
    at: float
    question: Question
    number: int = 0


class QuestionAnswered(msgspec.Struct, frozen=True, tag="answered"):
    at: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    at: float
    outcome: Outcome
    ended_by: EndedBy = "self"
    exit_code: int | None = None
    signal: int | None = None


StateEvent = Started | QuestionAsked | QuestionAnswered | Ended


class IllegalTransition(KeepholdError):
    """A bug in a tool runtime: the event does not exist in the handle's state."""


def error_of(error: ToolError) -> Failure:
    """Return the outcome of an error that a tool, or keephold in its place, raised."""
    return Failure(error.message, error.code, error.trace, error.transient)


def transition(state: State, event: StateEvent) -> State:
    """Return the state after `event`, or raise: S2's six arrows and nothing else."""
    match event:
        case Ended():
            if isinstance(state, Stopped):
                raise AlreadyStopped(f"already stopped: {describe(state.outcome)}")
            started = None if isinstance(state, PendingState) else state.started
            return Stopped(
                state.created, started, event.at, event.outcome, event.ended_by, event.exit_code, event.signal
            )
        case Started() if isinstance(state, PendingState):
            return Running(state.created, event.at)
        case QuestionAsked() if isinstance(state, Running):
            return Waiting(state.created, state.started, event.at, event.question, event.number)
        case QuestionAnswered() if isinstance(state, Waiting):
            return Running(state.created, state.started)
    if isinstance(state, Stopped):
        raise AlreadyStopped(f"already stopped: {describe(state.outcome)}")
    raise IllegalTransition(f"{name(event)} does not exist in state {name(state)}")


def name(variant: State | StateEvent) -> str:
    """Return the variant's name on the wire: `pending`, `running`, …"""
    tag = variant.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def describe(outcome: Outcome) -> str:
    """Describe an outcome briefly, for messages."""
    return f"error ({outcome.code}): {outcome.message}" if isinstance(outcome, Failure) else "ok"
