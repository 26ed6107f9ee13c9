"""The events of a turn, for a listener: an editor, a terminal, a program (G1).

A listener is called with the events in order, on the event loop. It must not block; queue slow work. An exception it
raises is logged and changes nothing.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from keephold.turn.notifications import Notification
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of requests to models. `cost` is in US dollars; None if no price is known."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost: float | None = None
    context_tokens: int = 0
    """The length of the history in the newest request, with its answer."""
    context_window: int | None = None
    """The length of the model's window; None if it is not known."""


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended, and the model's last message."""

    text: str
    stop_reason: StopReason
    turn: str
    usage: Usage
    error: str | None = None
    """Why the turn ended with an error, or early."""


class TurnStarted(msgspec.Struct, frozen=True, tag=True):
    """A turn began, or was resumed after its process died."""

    turn: str
    resumed: bool = False


class Text(msgspec.Struct, frozen=True, tag=True):
    """A piece of the model's answer."""

    text: str


class Thought(msgspec.Struct, frozen=True, tag=True):
    """A piece of the model's reasoning."""

    text: str


class Called(msgspec.Struct, frozen=True, tag=True):
    """A batch is about to run."""

    calls: tuple[ToolCall, ...]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The batch was answered, each call once, in order."""

    responses: tuple[Response, ...]


class NotificationsDelivered(msgspec.Struct, frozen=True, tag=True):
    """The model gets a message that the user did not write: notifications, or results at the end of a turn."""

    text: str
    notifications: tuple[Notification, ...] = ()


class Interjected(msgspec.Struct, frozen=True, tag=True):
    """A message that the user sent meanwhile was taken into the turn."""

    text: str


class Retrying(msgspec.Struct, frozen=True, tag=True):
    """A request to the model failed and is retried."""

    attempt: int
    delay_secs: float
    why: str


class Restarted(msgspec.Struct, frozen=True, tag=True):
    """The response streamed so far is void: the request is retried."""


class Used(msgspec.Struct, frozen=True, tag=True):
    """The turn's usage so far."""

    usage: Usage


class Compacted(msgspec.Struct, frozen=True, tag=True):
    """The history had grown too long: a summary replaces its older part."""

    summary: str


class TurnFinished(msgspec.Struct, frozen=True, tag=True):
    """The turn has ended; no event follows."""

    answer: TurnAnswer


Event = (
    TurnStarted | Text | Thought | Called | Answered | NotificationsDelivered | Interjected | Retrying | Restarted
    | Used | Compacted | TurnFinished
)  # fmt: skip
Listener = Callable[[Event], None]
