"""Tool calls as a chat shows them: one line while they run, one when they are over, one for what was answered.

Pure: handles and calls in, text out. What tools and models wrote is cleaned of whatever a terminal would act on (K4).
"""

from collections.abc import Set
from typing import Any, Literal, NamedTuple

import msgspec

from keephold.cli.printing import duration, one_line
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.rendering import render_piece
from keephold.handles.state import Error, Ok, Pending, Progress, Reply, Running, Stopped, Waiting
from keephold.handles.text import strip_controls
from keephold.turn.permission import SKIPPED
from keephold.turn.slot import ToolCall
from keephold.turn.turn import Response

Style = Literal["", "bold", "dim", "green", "red", "yellow"]

_TAIL = 4096
"""Bytes of an output in which its last line is looked for."""
_WORDS = 120
"""Characters of a call, or of what came of it, that are worth a line."""
_SETTLED = "await"
"""A call that is over when others are: they have lines of their own."""


class Line(NamedTuple):
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


def running_line(handle: Handle, call: ToolCall | None, now: float) -> Line:
    """A handle that has not stopped: its state, how long it has been so, and its last word."""
    name = handle_name(handle, call)
    match handle.state:
        case Pending(created=created):
            return Line(f"○ {name}  pending {duration(now - created)}", "dim")
        case Waiting(question=question, started=started):
            return Line(f"? {name}  {duration(now - started)}  asks: {one_line(question.text, _WORDS)}", "yellow")
        case Running(started=started):
            parts = (duration(now - started), _progress(handle.progress), last_line(handle.output))
            return Line("  ".join(("● " + name, *filter(None, parts))))
    return Line(f"● {name}  stopped, and a part of it runs on", "dim")


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


def ended_line(handle: Handle, call: ToolCall | None) -> Line | None:
    """The end of a handle; None where it says nothing that other lines do not."""
    state = handle.state
    assert isinstance(state, Stopped)
    outcome = state.outcome
    if handle.tool.name == _SETTLED and not handle.stateful and not _failed(outcome):
        return None
    took = _seconds(state.stopped - (state.created if state.started is None else state.started))
    if isinstance(outcome, Error):
        glyph, style = ("■", "yellow") if state.deliberate else ("✗", "red")
        said = _first_and_last(outcome.message)
    elif isinstance(outcome, Reply):
        glyph, style = ("✗", "red") if outcome.is_error else ("✓", "green")
        said = _end_of(outcome.result)
    else:
        glyph, style = ("■", "yellow") if _skipped(state) else ("✓", "green")
        said = _end_of(outcome.value) if isinstance(outcome, Ok) else last_line(handle.output)
    return Line("  ".join((f"{glyph} {handle_name(handle, call)}", took, *([said] if said else []))), style)  # type: ignore[arg-type]


def _failed(outcome: Any) -> bool:
    return isinstance(outcome, Error) or (isinstance(outcome, Reply) and outcome.is_error)


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


def answered_line(call: ToolCall, response: Response, told: Set[str] = frozenset()) -> Line | None:
    """What a call was answered that made no handle, or whose handle goes on, or had ended before. None: nothing worth
    a line. `told`: handles whose end has a line already."""
    words = call_words(call)
    if response.is_error:
        return Line(f"✗ {words}  {_first_and_last(response.result)}", "red")
    try:
        reply = msgspec.json.decode(response.result)
    except (msgspec.DecodeError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        glyph, style = ("■", "yellow") if _says_skipped(response.result) else ("·", "dim")
        return Line(f"{glyph} {words}  {_end_of(response.result)}".rstrip(), style)  # type: ignore[arg-type]
    entries = reply.get("completed") if call.name == _SETTLED else (reply,)
    failed = [each for each in entries or () if _crashed(each) and each.get("id") not in told]
    if failed:
        return Line(f"✗ {words}  {_first_and_last(str(failed[0].get('result') or 'failed'))}", "red")
    if call.name == _SETTLED:
        why = "timed out" if reply.get("timed_out") else "input is needed" if reply.get("needs_input") else None
        return None if why is None else Line(f"· {words}  {why}", "dim")
    state = reply.get("state")
    return Line(f"· {words}  {one_line(state, _WORDS) if isinstance(state, str) else ''}".rstrip(), "dim")
