"""The replies to calls: a one-shot call's result, a handle's state (C3), the result of an `await` (A3).

Each reply has two views, for calling code and for a model, both cut from the kept output and never from each other
(O2). If a tool's two views are the same, so is the text.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from msgspec.structs import replace as replace_in

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.pace import Pace
from keephold.handles.state import Failure, Ok, Outcome, PendingState, PrintedOutput, Reply, Stopped, Waiting, name
from keephold.handles.view import Waited
from keephold.store.rules import NOTIFICATION_CHARACTERS
from keephold.text import time_of_day, to_json
from keephold.tools.base import OutputView, Screen, SupportsScreen, Tool, ViewName
from keephold.turn.budget import Projector, ProjectorProtocol, shares, size_of
from keephold.turn.settle import Because

_log = logging.getLogger("keephold.turn")

_LEAST_NOTIFIED = 200
"""A result of which a notification could show less than this is left out of it."""

CANCELLED = "Tool execution cancelled."
TRANSIENT = "This error is transient: the same call may succeed later."
"""The last sentence of a one-shot call's error, where a handle's reply has `"transient": true`."""


def error_reply(error: KeepholdError, tool: Tool | None = None) -> Reply:
    """C9: reply to a call that was wrong. Quotes of the call may be long, and are cut like a result (O3)."""
    text = Projector().text(error.message, OutputView(), "")
    if tool is not None and tool.errors == "object":
        text = encode({"error": text, "isError": True})
    return Reply(text, text, True, error.code)


def failed_reply(call_id: str, error: Exception, tool: Tool | None = None) -> Reply:
    """Reply to a call that failed: with the tool's own error, or one that reports a bug of its runtime (C9)."""
    if isinstance(error, ToolError):
        return error_reply(error, tool)
    _log.error("call %s failed", call_id, exc_info=error)
    return error_reply(ToolError(f"The call failed: {type(error).__name__}: {error}"), tool)


def encode(value: Any) -> str:
    """Return compact JSON."""
    return to_json(value).decode()


class Replies:
    """Makes replies, with the runtime's projector."""

    def __init__(self, projector: ProjectorProtocol) -> None:
        self._projector = projector

    def outcome(self, handle: Handle) -> Reply:
        """Reply with a one-shot call's result: the outcome of a handle that the model never sees (C8)."""
        state = handle.state
        assert isinstance(state, Stopped)
        if isinstance(state.outcome, Reply):
            return state.outcome
        hint = read_hint("call_id", handle.call_id)
        error = state.outcome if isinstance(state.outcome, Failure) else None
        reply = self._both(
            [handle],
            lambda view: self._result(handle, state.outcome, view, hint),
            is_error=error is not None and not state.deliberate,
            code=error.code if error is not None else None,
            shown=[handle] if handle.parking is not None else (),  # its end was notified (D9)
        )
        return (
            reply if error is None else replace_in(reply, model=reply.model + self._about_error(handle, state, error))
        )

    def _about_error(self, handle: Handle, state: Stopped, error: Failure) -> str:
        """Return, for a model, what the reply about a handle says in `transient` and `trace` (C3)."""
        about: dict[str, Any] = {}
        _add_error(about, state, error, handle)
        view = _view(handle, "model", None)
        trace = self._projector.text("\n".join(about.get("trace", ())), replace(view, limit=view.limit // 4), "")
        return (f"\n\nTrace:\n{trace}" if trace else "") + (f"\n\n{TRANSIENT}" if "transient" in about else "")

    def object(
        self,
        value: Mapping[str, Any],
        *,
        is_error: bool = False,
        code: str | None = None,
        shown: Sequence[Handle] = (),
        asked: Sequence[Handle] = (),
        hint: str = "",
        limit: int | None = None,
    ) -> Reply:
        """Reply with an object of a built-in's own form, cut like any result (O3).

        `shown` are handles whose state it shows, `asked` those of which it shows only the question. `limit`: how big it
        may be, if not as big as one result.
        """
        text = self._projector.value(dict(value), OutputView() if limit is None else OutputView(limit=limit), hint)
        return self._both((), lambda _: text, is_error=is_error, code=code, shown=shown, asked=asked)

    def printed(self, handle: Handle) -> str:
        """Return the result or error of a stopped handle, as a model sees it."""
        return str(self.entry(handle, "model").get("result", ""))

    def handle(
        self, handle: Handle, view: str | None = None, *, because: Because | None = None, scrollback: int = 0
    ) -> Reply:
        """Reply with a handle's state, as spawn, fetch, apply and abort do (C3).

        A terminal is shown as a stream or a screen, as `view` says or as suits its output, with the reason why the
        reply came when it did. `scrollback` lines above the screen are shown with the screen.
        """
        if handle.tool.source != "terminal":
            return self._both([handle], lambda name: encode(self.entry(handle, name)), shown=[handle])
        screen = _screen(handle, "screen" if scrollback else view)
        above = _scrollback(handle, scrollback) if screen is not None and scrollback else ""
        return self._both(
            [handle], lambda name: encode(self._terminal(handle, name, screen, above, because)), shown=[handle]
        )

    def _terminal(
        self, handle: Handle, view: ViewName, screen: Screen | None, above: str, because: Because | None
    ) -> dict[str, Any]:
        entry = self.entry(handle, view)
        if screen is not None:
            chosen = _view(handle, view, None)
            text = "\n".join(screen.lines).rstrip("\n")
            entry["content"] = self._projector.text(text, chosen, "")
            if above:  # of lines that are too many, the nearest to the screen
                entry["scrollback"] = self._projector.text(above, replace(chosen, window="tail"), "")
            entry["screen"] = {"rows": screen.rows, "cols": screen.cols, "cursor": screen.cursor}
            if screen.title:
                entry["screen"]["title"] = screen.title
            if screen.alternate:
                entry["screen"]["alternate"] = True
            if screen.emulator == "line":
                entry["screen"]["emulator"] = "line"
        if not handle.active:
            because = because or "exited"
        elif handle.reading or isinstance(handle.state, Waiting):
            because = because or "waiting_for_input"
        if because is not None:
            entry["yielded_because"] = because
        if handle.driver is not None:
            entry["driver"] = handle.driver
        return entry

    def tail(self, handle: Handle, size: int) -> str:
        """Return the last characters of a handle's output or, for a full-screen program, of its screen."""
        screen = _screen(handle, None) if handle.tool.source == "terminal" else None
        if screen is not None:
            return "\n".join(screen.lines).rstrip("\n")[-size:]
        if handle.output is None or handle.withheld:
            return ""
        view = OutputView(limit=4 * size, max_lines=size, window="tail")
        try:
            return self._projector.text(handle.output.span(max(0, handle.output.total - 4 * size)), view, "")[-size:]
        except Exception as error:
            return _not_shown(error)

    def preview(self, handle: Handle, outcome: Outcome) -> str:
        """Return a result that is not visible yet, for the user who has to release it (P1)."""
        try:
            return self._result(handle, outcome, "dispatch", "")
        except Exception as error:
            return _not_shown(error)

    def waited(self, waited: Waited) -> Reply:
        """Reply with the result of an `await` (A3)."""
        stopped = [handle for handle in waited.handles if not handle.active]
        return self._both(
            waited.handles,
            lambda view: encode(self._waited(waited, self.entries(stopped, view))),
            shown=stopped,
            ready=[h for h in waited.handles if h.ready],
            asked=[h for h in waited.handles if waited.needs_input and isinstance(h.state, Waiting)],
        )

    def values(self, waited: Waited) -> dict[str, Any]:
        """Like `waited`, for Python: each result is the value itself, with `is_error` beside it."""
        stopped = [handle for handle in waited.handles if isinstance(handle.state, Stopped)]
        limits = self._limits(stopped, "dispatch")
        return self._waited(waited, [self._value(handle, limit) for handle, limit in zip(stopped, limits, strict=True)])

    def _value(self, handle: Handle, limit: int | None) -> dict[str, Any]:
        state = handle.state
        assert isinstance(state, Stopped)
        if isinstance(state.outcome, Ok):  # without making its text, which may be expensive and would be discarded
            return {"id": handle.id, "state": "stopped", "result": state.outcome.value, "is_error": False}
        entry = self.entry(handle, "dispatch", limit)
        entry.setdefault("is_error", False)
        return entry

    def notified(self, handles: Sequence[Handle]) -> list[str | None]:
        """Return the results of stopped handles for the notifications of one carrier, which nobody asked for (O2).

        Each has at most as many bytes as a notification may have characters, and all together four times that. None:
        so little would be shown that the model is better off without.
        """
        views = [_view(handle, "model", None) for handle in handles]
        most = [min(view.limit, NOTIFICATION_CHARACTERS // (1 if view.mode == "bytes" else 4)) for view in views]
        sizes = [_size(handle, view.mode) for handle, view in zip(handles, views, strict=True)]
        given = shares(sizes, most, 4 * max(most, default=0))
        results: list[str | None] = []
        for handle, size, limit, share in zip(handles, sizes, most, given, strict=True):
            enough = share >= min(size, limit, _LEAST_NOTIFIED)
            entry = self.entry(handle, "model", limit if share >= size else share) if enough else None
            results.append(None if entry is None else str(entry["result"]))
        return results

    def entries(self, handles: Sequence[Handle], view: ViewName) -> list[dict[str, Any]]:
        """Return C3's objects for several handles in one reply: their results share four limits (O3)."""
        limits = self._limits(handles, view)
        return [self.entry(handle, view, limit) for handle, limit in zip(handles, limits, strict=True)]

    async def all_entries(self, handles: Sequence[Handle], view: ViewName) -> list[dict[str, Any]]:
        """Like `entries`, for any number of handles: the event loop runs in between."""
        pace, made = Pace(), list[dict[str, Any]]()
        for handle, limit in zip(handles, self._limits(handles, view), strict=True):
            made.append(self.entry(handle, view, limit))
            await pace.step()
        return made

    def _waited(self, waited: Waited, completed: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = {"completed": completed, "pending": []}
        if len(completed) < len(waited.handles):
            live = (handle for handle in waited.handles if handle.active)
            answer["pending"] = [self._pending(handle, waited) for handle in live]
        if waited.timed_out:
            answer["timed_out"] = True
        if waited.needs_input:
            answer["needs_input"] = True
        return answer

    def _pending(self, handle: Handle, waited: Waited) -> dict[str, Any]:
        state = handle.state
        entry: dict[str, Any] = {"id": handle.id, "state": name(state), **_parked(handle), **_ready(handle)}
        if waited.matched and handle.uid in waited.matched and not handle.withheld:
            entry["matched"] = "\n".join(waited.matched[handle.uid])
        if waited.needs_input:
            behind = handle.behind()
            if isinstance(state, Waiting):
                entry["question"] = state.question
            elif behind is not None:
                entry["behind"] = behind.id
            elif handle.reading:
                entry["waiting_for_input"] = True
        return entry

    def entry(self, handle: Handle, view: ViewName, limit: int | None = None) -> dict[str, Any]:
        """Return C3's object for one handle; `limit` is its share if a reply holds several."""
        entry: dict[str, Any] = {"id": handle.id, "state": name(handle.state)}
        try:
            self._add_state(entry, handle, view, limit)
        except Exception as error:  # the others must still be shown
            entry |= {"content" if handle.active else "result": _not_shown(error), "is_error": True}
        return entry

    def _add_state(self, entry: dict[str, Any], handle: Handle, view: ViewName, limit: int | None) -> None:
        state = handle.state
        if isinstance(state, Stopped):
            hint = read_hint("id", handle.id)
            entry["result"] = self._result(handle, state.outcome, view, hint, limit)
            if isinstance(state.outcome, Failure):
                _add_error(entry, state, state.outcome, handle)
                if state.deliberate:  # its output is not in the result (C7)
                    self._add_content(entry, handle, view, limit)
        elif not isinstance(state, PendingState):
            entry |= _parked(handle) | _ready(handle)
            if handle.progress is not None:
                entry["progress"] = handle.progress
            self._add_content(entry, handle, view, limit)
            if isinstance(state, Waiting):
                entry["question"] = state.question

    def _add_content(self, entry: dict[str, Any], handle: Handle, view: ViewName, limit: int | None) -> None:
        """Add the output that the conversation has not seen yet (C5)."""
        output = handle.output
        if output is not None and _end(handle, output) > handle.cursor and not handle.withheld:
            span = output.span(handle.cursor, _end(handle, output))
            content = self._projector.text(span, _view(handle, view, limit), read_hint("id", handle.id))
            if content:  # else all of it was control sequences
                entry["content"] = content

    def _result(self, handle: Handle, outcome: Outcome, view: ViewName, hint: str, limit: int | None = None) -> str:
        chosen = _view(handle, view, limit)
        match outcome:
            case Failure(message):
                return self._failure(handle, outcome, chosen, hint) or self._projector.text(message, chosen, hint)
            case PrintedOutput():
                return self._projector.text(handle.output.span(_given(handle)), chosen, hint) if handle.output else ""
            case Ok(value):
                return self._projector.value(value, chosen, hint)
            case Reply(result):
                return result

    def _failure(self, handle: Handle, error: Failure, view: OutputView, hint: str) -> str | None:
        """Return the reason and the output of a failed command; None for other failures."""
        span = handle.output.span(_given(handle)) if handle.output is not None else None
        if error.code not in ("command_failed", "timeout") or span is None or span.start == span.stop:
            return None
        most = replace(view, limit=view.limit * 3 // 4, max_lines=max(1, view.max_lines * 3 // 4))
        reason = self._projector.text(error.message, most, "")
        rest = replace(
            view,
            limit=max(0, view.limit - size_of(reason, view.mode)),
            max_lines=max(0, view.max_lines - reason.count("\n") - 3),
        )
        shown = self._projector.text(span, rest, hint)
        return f"{reason}\n\nOutput:\n{shown}" if shown.strip() else reason

    def _limits(self, handles: Sequence[Handle], view: ViewName) -> Sequence[int | None]:
        """Share four limits among several results (O3)."""
        if len(handles) <= 4:
            return [None] * len(handles)
        views = [_view(handle, view, None) for handle in handles]
        own = [each.limit for each in views]
        sizes = [_size(handle, each.mode) for handle, each in zip(handles, views, strict=True)]
        # A result that fits into its share is not cut, even if bytes that are not text make it longer than its size.
        given = zip(sizes, shares(sizes, own, 4 * max(own)), strict=True)
        return [None if share >= size else share for size, share in given]

    def _both(
        self,
        handles: Sequence[Handle],
        text: Callable[[ViewName], str],
        *,
        is_error: bool = False,
        code: str | None = None,
        shown: Sequence[Handle],
        asked: Sequence[Handle] = (),
        ready: Sequence[Handle] = (),
    ) -> Reply:
        same = all(handle.tool.output.dispatch == handle.tool.output.model for handle in handles)
        try:
            dispatch = text("dispatch")
            model = dispatch if same else text("model")
        except Exception as error:
            why = _not_shown(error)
            return Reply(why, why, True, "tool_error")
        cursors = tuple((h.uid, _end(h, h.output)) for h in shown if h.output is not None and not h.withheld)
        showed: list[Any] = [(h.uid, state, _questions(h)) for h in shown if (state := name(h.state)) != "pending"]
        showed += [(handle.uid, "asked", _questions(handle)) for handle in asked]
        showed += [(handle.uid, "ready", 0) for handle in (*shown, *ready) if handle.ready]
        return Reply(dispatch, model, is_error, code, cursors, tuple(showed))


def _questions(handle: Handle) -> int:
    """Return how many questions a waiting handle has asked."""
    return handle.run.questions if isinstance(handle.state, Waiting) and handle.run is not None else 0


def _screen(handle: Handle, view: str | None) -> Screen | None:
    """Return a terminal's screen if it was asked for, or if its output makes no sense as lines."""
    live = handle.run.live if handle.run is not None and handle.active else None
    if live is None or handle.withheld or view == "stream" or not isinstance(live, SupportsScreen):
        return None
    return live.screen() if view == "screen" or live.draws(handle.cursor) else None


def _scrollback(handle: Handle, count: int) -> str:
    """Return the last lines above a terminal's screen; none for a full-screen program."""
    live = handle.run.live if handle.run is not None else None
    return "\n".join(live.scrollback(count)) if isinstance(live, SupportsScreen) else ""


def _parked(handle: Handle) -> dict[str, Any]:
    """Return the fields that a reply adds for a parked call (D9)."""
    if not handle.parked or handle.parking is None:
        return {}
    deadline = handle.parking.deadline
    return {"parked": True} if deadline is None else {"parked": True, "deadline": time_of_day(deadline)}


def _ready(handle: Handle) -> dict[str, Any]:
    """Return the field that a reply adds for a handle that is ready (A9)."""
    return {"ready": True} if handle.ready else {}


def _not_shown(error: Exception) -> str:
    """Report a projector that failed: the call must be answered all the same."""
    _log.error("a result could not be shown", exc_info=error)
    return f"The result could not be shown: {type(error).__name__}: {error}"


def _add_error(entry: dict[str, Any], state: Stopped, error: Failure, handle: Handle) -> None:
    if state.deliberate:
        entry["ended_by"] = state.ended_by
        return
    entry["is_error"] = True
    if error.transient:
        entry["transient"] = True
    if error.trace and handle.tool.source == "local":
        entry["trace"] = error.trace


def _view(handle: Handle, view: ViewName, limit: int | None) -> OutputView:
    chosen: OutputView = getattr(handle.tool.output, view)
    return chosen if limit is None else replace(chosen, limit=limit)


def _end(handle: Handle, output: Output) -> int:
    """Return the end of the output to show: while it grows, its last character may be incomplete (C5)."""
    return output.whole if handle.active else output.total


def _size(handle: Handle, mode: Literal["bytes", "tokens"]) -> int:
    """Estimate the size of a handle's result."""
    output = handle.output
    printed = 0 if output is None else size_of(output.span(_given(handle)), mode)
    match handle.state:
        case Stopped(outcome=Failure(message)):
            return size_of(message, mode) + printed
        case Stopped(outcome=Ok(value)):
            return size_of(value, mode)
    return printed


def _given(handle: Handle) -> int:
    """Return the offset up to which the conversation has seen the output (C3)."""
    return handle.cursor if "apply" in handle.tool.actions else 0


def read_hint(key: str, id: str) -> str:
    """Return the sentence that says how to read the rest."""
    return f"Read the rest with read_output {encode({key: id})}; it takes offset, limit, from_end and pattern."
