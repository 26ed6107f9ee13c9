"""Turns the events and tool calls of a conversation into the lines that a chat shows, on a screen or in a pipe.

Pieces come in the order of the events, and each line once. Controls that a terminal would obey are removed (K4), also
if a control sequence comes in parts.
"""

from collections.abc import Iterable, Iterator, Set
from typing import Any, Literal, NamedTuple, Self

import msgspec

from keephold.agent import events
from keephold.cli.printing import duration, one_line, printable
from keephold.control.safe_text import Plain
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.rendering import render_piece
from keephold.handles.state import Failure, Ok, PendingState, Progress, Reply, Running, Stopped, Waiting
from keephold.schema.shared import HANDLE_TOOLS, PREFIX
from keephold.text import strip_controls, to_utf8
from keephold.turn.notifications import Notification
from keephold.turn.permission import SKIPPED
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response

Style = Literal["", "bold", "dim", "green", "red", "yellow"]

_TAIL = 4096
"""Bytes of an output in which its last line is looked for."""
_WORDS = 120
"""Characters of a call, or of its result, that are shown."""
_SETTLED = "await"
"""A tool that waits for handles which have their own lines."""


class Piece(NamedTuple):
    """A piece of text to show. `answer` and `thought` continue the last one of their kind until `end`; a `line` is a
    line of its own, cut to the width of a screen unless it is `whole`."""

    kind: Literal["answer", "thought", "line", "end"]
    text: str = ""
    style: Style = ""
    whole: bool = False

    @classmethod
    def line(cls, text: str, style: Style = "", *, whole: bool = False) -> Self:
        return cls("line", text, style, whole)


END = Piece("end")


# The names of things


def call_words(call: ToolCall) -> str:
    """Return a call in few words: `deploy env=prod`, `shell spawn sh`, `await a, b`."""
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
    elif isinstance(given.get("spawn"), str):
        words += ["spawn", given.pop("spawn")]
    elif call.name in HANDLE_TOOLS and "id" in given:
        words = [call.name.removeprefix(PREFIX), str(given.pop("id"))]
    words += [f"{key}={one_line(value, 40)}" for key, value in given.items()]
    return one_line(" ".join(words), _WORDS)


def handle_name(handle: Handle, call: ToolCall | None) -> str:
    """Return a handle's id and tool; for a one-shot call, which has no name, its words."""
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


# While it runs


def running_line(handle: Handle, call: ToolCall | None, now: float) -> Piece:
    """Return the line of a live handle: its state, for how long, and its last line of output."""
    name = handle_name(handle, call)
    match handle.state:
        case PendingState(created=created):
            return Piece.line(f"○ {name}  pending {duration(now - created)}", "dim")
        case Waiting(question=question, started=started):
            return Piece.line(f"? {name}  {duration(now - started)}  asks: {one_line(question.text, _WORDS)}", "yellow")
        case Running(started=started):
            parts = (duration(now - started), _progress(handle.progress), last_line(handle.output))
            return Piece.line("  ".join(("● " + name, *filter(None, parts))))
    return Piece.line(f"● {name}  stopped, and a part of it runs on", "dim")


def last_line(output: Output | None) -> str:
    """Return the last line of an output that is not empty."""
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


def ended_line(handle: Handle, call: ToolCall | None) -> Piece | None:
    """Return the line of a stopped handle; None if other lines say the same."""
    state = handle.state
    assert isinstance(state, Stopped)
    outcome = state.outcome
    failed = isinstance(outcome, Failure) or (isinstance(outcome, Reply) and outcome.is_error)
    if handle.tool.name == _SETTLED and not handle.stateful and not failed:
        return None
    secs = state.stopped - (state.created if state.started is None else state.started)
    took = f"{max(secs, 0):.1f}s" if secs < 10 else duration(secs)
    if isinstance(outcome, Failure):
        glyph, style = ("■", "yellow") if state.deliberate else ("✗", "red")
        said = _first_and_last(outcome.message)
    elif isinstance(outcome, Reply):
        glyph, style = ("✗", "red") if failed else ("✓", "green")
        said = _end_of(outcome.result)
    else:
        # If the user did not let it run, the model gets that as a result.
        skipped = state.started is None and isinstance(outcome, Ok) and _says_skipped(outcome.value)
        glyph, style = ("■", "yellow") if skipped else ("✓", "green")
        said = _end_of(outcome.value) if isinstance(outcome, Ok) else last_line(handle.output)
    return Piece.line("  ".join((f"{glyph} {handle_name(handle, call)}", took, *([said] if said else []))), style)  # type: ignore[arg-type]


def _crashed(entry: Any) -> bool:
    """Return whether the entry of a reply is a handle that ended with an error."""
    return isinstance(entry, dict) and entry.get("state") == "stopped" and bool(entry.get("is_error"))


def _says_skipped(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(SKIPPED.removesuffix("."))


def _first_and_last(message: str) -> str:
    """Return the first and the last line: the error is in the first, the reason of a command often in the last."""
    lines = [line for each in strip_controls(message).splitlines() if (line := one_line(each, _WORDS))]
    return "  ".join(dict.fromkeys((*lines[:1], *lines[-1:])))


def _end_of(value: Any) -> str:
    """Return the last line of a text; the beginning of any other value."""
    if not isinstance(value, str):
        return "" if value is None else one_line(value, _WORDS)
    lines = strip_controls(value[-_TAIL:]).splitlines()
    return next((line for each in reversed(lines) if (line := one_line(each, _WORDS))), "")


# Responses


def answered_line(call: ToolCall, response: Response, shown: Set[str] = frozenset()) -> Piece | None:
    """Return the line of a response to a call without a handle, or whose handle keeps running or had stopped before.
    None if it needs no line. `shown` has the handles whose end has a line already."""
    words = call_words(call)
    if response.is_error:
        return Piece.line(f"✗ {words}  {_first_and_last(response.result)}", "red")
    try:
        reply = msgspec.json.decode(response.result)
    except (msgspec.DecodeError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        glyph, style = ("■", "yellow") if _says_skipped(response.result) else ("·", "dim")
        return Piece.line(f"{glyph} {words}  {_end_of(response.result)}".rstrip(), style)  # type: ignore[arg-type]
    entries = reply.get("completed") if call.name == _SETTLED else (reply,)
    failed = [each for each in entries or () if _crashed(each) and each.get("id") not in shown]
    if failed:
        return Piece.line(f"✗ {words}  {_first_and_last(str(failed[0].get('result') or 'failed'))}", "red")
    if call.name == _SETTLED:
        why = "timed out" if reply.get("timed_out") else "input is needed" if reply.get("needs_input") else None
        return None if why is None else Piece.line(f"· {words}  {why}", "dim")
    state = reply.get("state")
    return Piece.line(f"· {words}  {one_line(state, _WORDS) if isinstance(state, str) else ''}".rstrip(), "dim")


_WHY = {
    "max_tokens": "The answer was cut: it is longer than the model may answer.",
    "max_turn_requests": "The turn was ended: it made as many requests as `[conversation] max_requests` allows.",
    "refusal": "The model refuses to continue.",
    "cancelled": "Cancelled.",
}


class Teller:
    """Makes the pieces of a conversation."""

    def __init__(self) -> None:
        self.calls: dict[str, ToolCall] = {}
        """The calls of the running batch, by their labels."""
        self._flow = Plain()
        self._kind: Literal["answer", "thought"] = "answer"
        self._over: set[str] = set()  # labels of calls of this batch that have a line as handles
        self._ends: set[str] = set()  # beginnings of notifications on handles whose end has a line
        self._ended_ids: set[str] = set()  # ids of these handles

    def hear(self, event: events.Event) -> Iterator[Piece]:
        """Yield the pieces of an event."""
        if isinstance(event, events.Text | events.Thought):
            yield from self._flows("answer" if isinstance(event, events.Text) else "thought", event.text)
        elif isinstance(event, events.Answered):
            yield from self._answered(event)
        elif (lines := self._lines(event)) is not None:
            yield from self._ended()
            yield from lines

    def _lines(self, event: events.Event) -> Iterable[Piece] | None:
        """Return the lines of an event that ends the text before it."""
        match event:
            case events.Called(calls):
                self.calls, self._over = {call.id: call for call in calls}, set()
                return ()
            case events.NotificationsDelivered(text, notifications):
                return self._delivered(text, notifications)
            case events.Interjected(text):
                return [user_line(text)]
            case events.Retrying(attempt, delay_secs, why):
                said = f"{one_line(why, 300)}; attempt {attempt} in {delay_secs:.0f} s"
                return [Piece.line(said, "yellow", whole=True)]
            case events.Restarted():
                return [Piece.line("The last answer is void: the model is asked again.", "yellow")]
            case events.Compacted():
                return [Piece.line("The conversation had grown long: a summary stands for its beginning now.", "dim")]
            case events.TurnFinished(answer):
                return outcome_lines(answer)
        return None

    def stopped(self, handle: Handle) -> Iterator[Piece]:
        """Yield the pieces for the end of a handle, at any time."""
        if handle.stateful:
            self._ends.add(f"`{handle.id}` ({handle.tool.name}) ")
            self._ended_ids.add(handle.id)
        if (ended := ended_line(handle, self.calls.get(handle.call_id))) is not None:
            self._over.add(handle.call_id)
            yield ended

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

    def _answered(self, event: events.Answered) -> Iterator[Piece]:
        for response in event.responses:
            call = self.calls.get(response.id)
            if call is not None and response.id not in self._over:
                answered = answered_line(call, response, self._ended_ids)
                yield from () if answered is None else (answered,)
        self.calls, self._over = {}, set()

    def _delivered(self, text: str, notifications: tuple[Notification, ...]) -> Iterator[Piece]:
        if not notifications:
            yield Piece.line(f"· the model is notified: {one_line(text, 300)}", "dim")
        for each in notifications:
            if each.kind != "tool.content" and not any(each.message.startswith(shown) for shown in self._ends):
                yield Piece.line(f"· {one_line(each.message, 300)}", "dim" if each.level == "info" else "yellow")


def user_line(text: str) -> Piece:
    """Return the line of a prompt."""
    return Piece.line("> " + printable(text).strip().replace("\n", "\n  "), "bold", whole=True)


def outcome_lines(answer: events.TurnAnswer) -> Iterator[Piece]:
    """Yield the lines for an unusual end of a turn, and for its usage."""
    if answer.stop_reason == "error":
        yield Piece.line(f"Error: {printable(answer.error or 'the turn failed').strip()}", "red", whole=True)
    elif answer.stop_reason in _WHY:
        why = f" {one_line(answer.error, 300)}" if answer.error else ""
        yield Piece.line(_WHY[answer.stop_reason] + why, "yellow", whole=True)
    if answer.usage.requests:
        yield Piece.line(usage_words(answer.usage), "dim")


def usage_words(usage: events.Usage) -> str:
    """Return the usage in one line."""
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
