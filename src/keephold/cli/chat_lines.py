"""What a chat shows of a conversation, piece by piece: from events to text, the same for a screen and for a pipe.

`Teller` promises: pieces come in the order of what they tell; each line is told once; nothing in them makes a terminal
act (K4), also where a control sequence comes in parts.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from keephold.agent.events import (
    Answer,
    Answered,
    Called,
    Compacted,
    Event,
    Interjected,
    Restarted,
    Retrying,
    Text,
    Thought,
    Told,
    TurnFinished,
    Usage,
)
from keephold.cli.chat_calls import Style, answered_line, ended_line
from keephold.cli.printing import one_line, printable
from keephold.control.safe_text import Plain
from keephold.handles.handle import Handle
from keephold.handles.text import to_utf8
from keephold.turn.notifications import Notification
from keephold.turn.slot import ToolCall

_WHY = {
    "max_tokens": "The answer was cut: it is longer than the model may answer.",
    "max_turn_requests": "The turn was ended: it made as many requests as `[conversation] max_requests` allows.",
    "refusal": "The model refuses to go on.",
    "cancelled": "Cancelled.",
}


class Piece(NamedTuple):
    """A piece of what is shown. `answer` and `thought` flow on where the last one ended; `end` says that they do not go
    on; a `line` stands for itself, and may be cut to the width of a screen unless it is `whole`."""

    kind: Literal["answer", "thought", "line", "end"]
    text: str = ""
    style: Style = ""
    whole: bool = False


END = Piece("end")


class Teller:
    """Tells a conversation."""

    def __init__(self) -> None:
        self.calls: dict[str, ToolCall] = {}
        """The calls of the batch that runs, by their labels."""
        self._flow = Plain()
        self._kind: Literal["answer", "thought"] = "answer"
        self._over: set[str] = set()
        """Labels of calls of this batch that were told of as handles."""
        self._ends: set[str] = set()
        """How news begins of handles whose end was told."""
        self._ended_ids: set[str] = set()
        """Of those handles."""

    def hear(self, event: Event) -> Iterator[Piece]:
        """What is to be shown of an event."""
        if isinstance(event, Text | Thought):
            yield from self._flows("answer" if isinstance(event, Text) else "thought", event.text)
            return
        match event:
            case Called(calls):
                yield from self._ended()
                self.calls, self._over = {call.id: call for call in calls}, set()
            case Answered():
                yield from self._answered(event)
            case Told(text, notifications):
                yield from self._ended()
                yield from self._told(text, notifications)
            case Interjected(text):
                yield from self._ended()
                yield user_line(text)
            case Retrying(attempt, delay_secs, why):
                yield from self._ended()
                yield Piece("line", f"{one_line(why, 300)}; attempt {attempt} in {delay_secs:.0f} s", "yellow", True)
            case Restarted():
                yield from self._ended()
                yield Piece("line", "What was said last is void: the model is asked again.", "yellow")
            case Compacted():
                yield from self._ended()
                yield Piece("line", "The conversation had grown long: a summary stands for its beginning now.", "dim")
            case TurnFinished(answer):
                yield from self._ended()
                yield from outcome_lines(answer)

    def stopped(self, handle: Handle) -> Iterator[Piece]:
        """What is to be shown of the end of a handle. It may come at any time."""
        if handle.stateful:
            self._ends.add(f"`{handle.id}` ({handle.tool.name}) ")
            self._ended_ids.add(handle.id)
        line = ended_line(handle, self.calls.get(handle.call_id))
        if line is not None:
            self._over.add(handle.call_id)
            yield Piece("line", line.text, line.style)

    def _flows(self, kind: Literal["answer", "thought"], text: str) -> Iterator[Piece]:
        if kind != self._kind:
            yield from self._ended()
            self._kind = kind
        shown = self._flow.feed(to_utf8(text)).decode()
        if shown:
            yield Piece(kind, shown, "" if kind == "answer" else "dim")

    def _ended(self) -> Iterator[Piece]:
        rest = self._flow.end().decode()
        if rest:
            yield Piece(self._kind, rest, "" if self._kind == "answer" else "dim")
        yield END

    def _answered(self, event: Answered) -> Iterator[Piece]:
        for response in event.responses:
            call = self.calls.get(response.id)
            if call is not None and response.id not in self._over:
                line = answered_line(call, response, self._ended_ids)
                if line is not None:
                    yield Piece("line", line.text, line.style)
        self.calls, self._over = {}, set()

    def _told(self, text: str, notifications: tuple[Notification, ...]) -> Iterator[Piece]:
        if notifications:
            yield from self._news(notifications)
        else:
            yield Piece("line", f"· the assistant is told: {one_line(text, 300)}", "dim")

    def _news(self, notifications: tuple[Notification, ...]) -> Iterator[Piece]:
        """News that nothing was shown of before."""
        for news in notifications:
            if news.kind != "tool.content" and not any(news.message.startswith(shown) for shown in self._ends):
                style: Style = "dim" if news.level == "info" else "yellow"
                yield Piece("line", f"· {one_line(news.message, 300)}", style)


def user_line(text: str) -> Piece:
    """What the person said."""
    return Piece("line", "> " + printable(text).strip().replace("\n", "\n  "), "bold", True)


def outcome_lines(answer: Answer) -> Iterator[Piece]:
    """How a turn ended, where that is not how turns end, and what it took."""
    if answer.stop_reason == "error":
        yield Piece("line", f"Error: {printable(answer.error or 'the turn failed').strip()}", "red", True)
    elif answer.stop_reason in _WHY:
        why = f" {one_line(answer.error, 300)}" if answer.error else ""
        yield Piece("line", _WHY[answer.stop_reason] + why, "yellow", True)
    if answer.usage.requests:
        yield Piece("line", usage_words(answer.usage), "dim")


def usage_words(usage: Usage) -> str:
    """What requests have taken, in one line."""
    cached = f" ({usage.cache_read_tokens:,} cached)" if usage.cache_read_tokens else ""
    parts = [
        "1 request" if usage.requests == 1 else f"{usage.requests} requests",
        f"{usage.input_tokens:,} tokens in{cached}",
        f"{usage.output_tokens:,} out",
    ]
    if usage.cost is not None:
        parts.append(f"${usage.cost:.4f}" if usage.cost < 1 else f"${usage.cost:.2f}")
    if usage.context_window:
        parts.append(f"context {100 * usage.context_tokens / usage.context_window:.0f} % full")
    return " · ".join(parts)
