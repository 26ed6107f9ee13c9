"""What a chat shows of a conversation, piece by piece: from events to text, the same for a screen and for a pipe.

`Teller` promises: pieces come in the order of what they tell; each line is told once; nothing in them makes a terminal
act (K4), also where a control sequence comes in parts.

Tool calls as a chat shows them: one line while they run, one when they are over, one for what was answered.

Pure: handles and calls in, text out. What tools and models wrote is cleaned of whatever a terminal would act on (K4).
"""

from collections.abc import Iterator, Set
from typing import Any, Literal, NamedTuple

import msgspec

from keephold.agent.events import (
    Answered,
    Called,
    Compacted,
    Event,
    Interjected,
    NotificationsDelivered,
    Restarted,
    Retrying,
    Text,
    Thought,
    TurnAnswer,
    TurnFinished,
    Usage,
)
from keephold.cli.printing import duration, one_line, printable
from keephold.control.safe_text import Plain
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.rendering import render_piece
from keephold.handles.state import Failure, Ok, Pending, Progress, Reply, Running, Stopped, Waiting
from keephold.text import strip_controls, to_utf8
from keephold.turn.notifications import Notification
from keephold.turn.permission import SKIPPED
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

Style = Literal["", "bold", "dim", "green", "red", "yellow"]

_TAIL = 4096
"""Bytes of an output in which its last line is looked for."""
_WORDS = 120
"""Characters of a call, or of what came of it, that are worth a line."""
_SETTLED = "await"
"""A call that is over when others are: they have lines of their own."""


class StyledLine(NamedTuple):
    """One line, not cut yet."""

    text: str
    style: Style = ""


# The names of things


def call_words(call: ToolCall) -> str:
    """A call in few words: `deploy env=prod`, `shell spawn sh`, `await a, b`."""
    given = _object(call.arguments)
    if given is None:
        return one_line(f"{call.name} {call.arguments}", _WORDS)
    given = {key: value for key, value in given.items() if value is not None}
    words = [call.name]
    if call.name == _SETTLED:
        ids = [id for key in ("any", "all") if isinstance(given.get(key), list) for id in given.pop(key)]
        words.append(", ".join(map(str, ids)))
    elif isinstance(given.get("action"), str):
        words += [given.pop("action"), *([str(given.pop("id"))] if "id" in given else [])]
    words += [f"{key}={_value(value)}" for key, value in given.items()]
    return one_line(" ".join(words), _WORDS)


def handle_name(handle: Handle, call: ToolCall | None) -> str:
    """What a handle is called: its id and tool; a one-shot call, which has no name, by its words."""
    if handle.stateful:
        return one_line(f"{handle.id} ({handle.tool.name})", _WORDS)
    return one_line(handle.tool.name, _WORDS) if call is None else call_words(call)


def _object(arguments: dict[str, Any] | str) -> dict[str, Any] | None:
    if isinstance(arguments, dict):
        return dict(arguments)
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None


def _value(value: Any) -> str:
    return one_line(value, 40)


# While it runs


def running_line(handle: Handle, call: ToolCall | None, now: float) -> StyledLine:
    """A handle that has not stopped: its state, how long it has been so, and its last word."""
    name = handle_name(handle, call)
    match handle.state:
        case Pending(created=created):
            return StyledLine(f"○ {name}  pending {duration(now - created)}", "dim")
        case Waiting(question=question, started=started):
            return StyledLine(f"? {name}  {duration(now - started)}  asks: {one_line(question.text, _WORDS)}", "yellow")
        case Running(started=started):
            parts = (duration(now - started), _progress(handle.progress), last_line(handle.output))
            return StyledLine("  ".join(("● " + name, *filter(None, parts))))
    return StyledLine(f"● {name}  stopped, and a part of it runs on", "dim")


def last_line(output: Output | None) -> str:
    """The last line with something in it, of the end of an output."""
    if output is None or output.total == 0:
        return ""
    data = output.before(output.whole, _TAIL)
    if output.terminal:
        text = render_piece(output, data, output.whole - len(data))
    else:
        text = strip_controls(data.decode(errors="replace"))
    return next((line for each in reversed(text.splitlines()) if (line := one_line(each, _WORDS))), "")


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return ""
    said = f"{progress.done:g}" if progress.total is None else f"{progress.done:g}/{progress.total:g}"
    return said if progress.message is None else f"{said} {one_line(progress.message, _WORDS)}"


# When it is over


def ended_line(handle: Handle, call: ToolCall | None) -> StyledLine | None:
    """The end of a handle; None where it says nothing that other lines do not."""
    state = handle.state
    assert isinstance(state, Stopped)
    outcome = state.outcome
    if handle.tool.name == _SETTLED and not handle.stateful and not _failed(outcome):
        return None
    took = _seconds(state.stopped - (state.created if state.started is None else state.started))
    if isinstance(outcome, Failure):
        glyph, style = ("■", "yellow") if state.deliberate else ("✗", "red")
        said = _first_and_last(outcome.message)
    elif isinstance(outcome, Reply):
        glyph, style = ("✗", "red") if outcome.is_error else ("✓", "green")
        said = _end_of(outcome.result)
    else:
        glyph, style = ("■", "yellow") if _skipped(state) else ("✓", "green")
        said = _end_of(outcome.value) if isinstance(outcome, Ok) else last_line(handle.output)
    return StyledLine("  ".join((f"{glyph} {handle_name(handle, call)}", took, *([said] if said else []))), style)  # type: ignore[arg-type]


def _failed(outcome: Any) -> bool:
    return isinstance(outcome, Failure) or (isinstance(outcome, Reply) and outcome.is_error)


def _crashed(entry: Any) -> bool:
    """Whether that is what a reply says of a handle that ended with an error."""
    return isinstance(entry, dict) and entry.get("state") == "stopped" and bool(entry.get("is_error"))


def _skipped(state: Stopped) -> bool:
    """Whether a person did not let it run, which its caller is told as a result."""
    return state.started is None and isinstance(state.outcome, Ok) and _says_skipped(state.outcome.value)


def _says_skipped(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(SKIPPED.removesuffix("."))


def _first_and_last(message: str) -> str:
    """What went wrong is in the first line of a message; of a command, the reason is often in its last one."""
    lines = [line for each in strip_controls(message).splitlines() if (line := one_line(each, _WORDS))]
    return "  ".join(dict.fromkeys((*lines[:1], *lines[-1:])))


def _end_of(value: Any) -> str:
    """The last line of a text; of another value, its beginning."""
    if not isinstance(value, str):
        return "" if value is None else one_line(value, _WORDS)
    lines = strip_controls(value[-_TAIL:]).splitlines()
    return next((line for each in reversed(lines) if (line := one_line(each, _WORDS))), "")


def _seconds(seconds: float) -> str:
    return f"{max(seconds, 0):.1f}s" if seconds < 10 else duration(seconds)


# What was answered


def answered_line(call: ToolCall, response: Response, told: Set[str] = frozenset()) -> StyledLine | None:
    """What a call was answered that made no handle, or whose handle goes on, or had ended before. None: nothing worth
    a line. `told`: handles whose end has a line already."""
    words = call_words(call)
    if response.is_error:
        return StyledLine(f"✗ {words}  {_first_and_last(response.result)}", "red")
    try:
        reply = msgspec.json.decode(response.result)
    except (msgspec.DecodeError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        glyph, style = ("■", "yellow") if _says_skipped(response.result) else ("·", "dim")
        return StyledLine(f"{glyph} {words}  {_end_of(response.result)}".rstrip(), style)  # type: ignore[arg-type]
    entries = reply.get("completed") if call.name == _SETTLED else (reply,)
    failed = [each for each in entries or () if _crashed(each) and each.get("id") not in told]
    if failed:
        return StyledLine(f"✗ {words}  {_first_and_last(str(failed[0].get('result') or 'failed'))}", "red")
    if call.name == _SETTLED:
        why = "timed out" if reply.get("timed_out") else "input is needed" if reply.get("needs_input") else None
        return None if why is None else StyledLine(f"· {words}  {why}", "dim")
    state = reply.get("state")
    return StyledLine(f"· {words}  {one_line(state, _WORDS) if isinstance(state, str) else ''}".rstrip(), "dim")


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
            case NotificationsDelivered(text, notifications):
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


def outcome_lines(answer: TurnAnswer) -> Iterator[Piece]:
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
