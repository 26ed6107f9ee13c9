"""What happens in a turn of a conversation, told to whoever shows it: an editor, a terminal, a program (G1).

A listener is called with one event after the other, in order, on the event loop. It must not wait: what it shows later
it queues. Whatever it raises is logged and changes nothing.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from keephold.turn.notifications import Notification
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What requests to models have taken. `cost` is in US dollars; None where no price is known."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost: float | None = None
    context_tokens: int = 0
    """How long the history was in the newest request, with its answer."""
    context_window: int | None = None
    """How much the model can take; None: it is not known."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended, and what the assistant said last."""

    text: str
    stop_reason: StopReason
    turn: str
    usage: Usage
    error: str | None = None
    """Why it ended with an error, or before its time."""


class TurnStarted(msgspec.Struct, frozen=True, tag=True):
    """A turn began, or goes on after its process died."""

    turn: str
    resumed: bool = False


class Text(msgspec.Struct, frozen=True, tag=True):
    """A piece of the assistant's answer."""

    text: str


class Thought(msgspec.Struct, frozen=True, tag=True):
    """A piece of its reasoning."""

    text: str


class Called(msgspec.Struct, frozen=True, tag=True):
    """A batch is about to run."""

    calls: tuple[ToolCall, ...]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The batch was answered, each call once, in order."""

    responses: tuple[Response, ...]


class NotificationsDelivered(msgspec.Struct, frozen=True, tag=True):
    """The assistant is told something that no person wrote: news, or results at the end of a turn (N4, T2)."""

    text: str
    notifications: tuple[Notification, ...] = ()


class Interjected(msgspec.Struct, frozen=True, tag=True):
    """What the user said meanwhile was taken into the turn."""

    text: str


class Retrying(msgspec.Struct, frozen=True, tag=True):
    """A request to the model failed and is made again."""

    attempt: int
    delay_secs: float
    why: str


class Restarted(msgspec.Struct, frozen=True, tag=True):
    """What has streamed of this response so far is void: it is asked for again."""


class Used(msgspec.Struct, frozen=True, tag=True):
    """What the turn has taken so far."""

    usage: Usage


class Compacted(msgspec.Struct, frozen=True, tag=True):
    """The history had grown too long: from now on a summary stands for what was said before."""

    summary: str


class TurnFinished(msgspec.Struct, frozen=True, tag=True):
    """The turn is over; nothing follows."""

    answer: Answer


Event = (
    TurnStarted | Text | Thought | Called | Answered | NotificationsDelivered | Interjected | Retrying | Restarted
    | Used | Compacted | TurnFinished
)  # fmt: skip
Listener = Callable[[Event], None]
