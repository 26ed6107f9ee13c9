"""The life of one started call: between a tool's runtime, which tells what happens, and the registry, which records it.

A run is the `Sink` its runtime talks to. It turns news into events of the state machine, keeps the tool's timeout, and
is how everyone else ends a call: `end` says why, the runtime does it, and the end that comes back carries that reason.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from holdfast.errors import ToolError
from holdfast.handles.handle import Handle, Progress
from holdfast.handles.question import Question
from holdfast.handles.registry import Registry
from holdfast.handles.state import Answered, Asked, EndedBy, Error, Ok, Outcome, Running, Stopped, error_of
from holdfast.tools.base import Invocation, Live

_log = logging.getLogger("holdfast.tools")

FORCE_SECS = 3.0
"""How long after its grace a call may still take to end before it is left to linger."""

AskRouter = Callable[[Handle, Question], Outcome | None]
"""Who answers a question: an outcome at once, or None when it stays open for the caller."""
Delivery = Callable[[Handle, Outcome], Outcome]
"""What of an outcome may be delivered (P1's result modes)."""


class Run:
    """One call from its start to the last trace of it."""

    __slots__ = (
        "_answer_to", "_delivery", "_ending", "_force", "_last_output", "_probe", "_probe_timer", "_route", "_timeout",
        "handle", "listeners", "live", "on_released", "registry",
    )  # fmt: skip

    def __init__(self, registry: Registry, handle: Handle, route: AskRouter, delivery: Delivery) -> None:
        self.registry = registry
        self.handle = handle
        self.live: Live | None = None
        self.on_released: Callable[[Handle], None] | None = None
        self._route = route
        self._delivery = delivery
        self._ending: tuple[Error, EndedBy] | None = None
        self._answer_to: Callable[[Outcome], None] | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._force: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._probe: Callable[[], bool | None] | None = None
        self._last_output = 0.0
        self.listeners: list[Callable[[], None]] = []
        """Called after each piece of output."""
        handle.run = self

    def start(self, invocation: Invocation) -> None:
        """Start it; a tool that cannot start is stopped with the reason (B6)."""
        handle, tool = self.handle, self.handle.tool
        self.registry.start(handle)
        try:
            self.live = tool.runtime.start(invocation, self)
        except Exception as error:
            self._not_started(error)
            return
        self._probe = getattr(self.live, "probe", None)  # SupportsProbe
        if tool.timeout_secs is not None and not isinstance(handle.decided, Stopped):
            self._timeout = asyncio.get_running_loop().call_later(tool.timeout_secs, self._timed_out)
        if handle.watchers:
            self.probe_when_quiet()  # who has waited for it since it was queued wants to know, too

    def _not_started(self, error: Exception) -> None:
        if isinstance(error, ToolError):
            outcome = error_of(error)
        else:
            _log.error("tool `%s` could not be started", self.handle.tool.name, exc_info=error)
            outcome = Error(f"The tool could not be started: {type(error).__name__}: {error}")
        self.stop(outcome)
        self.released()

    # What the tool tells (Sink)

    def output(self, data: bytes) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or not data:
            return
        if self._probe is not None:
            handle.reading = False  # as far as is known; a function says itself when it has what it waited for
            self._last_output = asyncio.get_running_loop().time()
            if handle.watchers:
                self.probe_when_quiet()
        self.registry.output_of(handle).append(data)
        for listener in tuple(self.listeners):
            listener()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.handle.progress = Progress(done, total, message)

    def reading(self, yes: bool) -> None:
        handle = self.handle
        if handle.reading != yes and not isinstance(handle.decided, Stopped) and not (yes and self.ending):
            handle.reading = yes
            if yes:
                self.registry.touch(handle)

    def ask(self, question: Question, then: Callable[[Outcome], None]) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or self._ending is not None:
            return
        if self._probe is not None:
            handle.reading = False  # what it reads next is the answer
        outcome = self._route(handle, question)
        registry, now = self.registry, self.registry.clock.now()
        if outcome is None:
            self._answer_to = then
            registry.conversation(handle.conversation).open_questions += 1
            handle.asks_caller = True
            registry.apply_event(handle, Asked(now, question), lambda: registry.touch(handle))
        else:
            registry.apply_event(handle, Asked(now, question))
            registry.apply_event(handle, Answered(now), lambda: then(outcome))

    def withdraw(self) -> None:
        if self._answer_to is not None:
            self._close_question()
            self.registry.apply_event(self.handle, Answered(self.registry.clock.now()))

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped):
            return
        ended_by: EndedBy = "self"
        if self._ending is not None:
            error, ended_by = self._ending
            own = not isinstance(outcome, Error) or outcome.code not in ("cancelled", "command_failed")
            if ended_by == "cancel" and own:
                ended_by = "self"  # B7: a tool that is cancelled may still return its own result
            else:
                outcome = error
        self._close_question()
        self._cancel_timers()
        if ended_by == "self":  # the others are told in our words and hold nothing of the tool's
            delivered = self._delivery(handle, outcome)
            if delivered is not outcome:
                outcome = delivered
                self.registry.withhold(handle)
        self.registry.end(handle, outcome, ended_by, exit_code, signal)

    def released(self) -> None:
        handle = self.handle
        if self._force is not None:
            self._force.cancel()
        if handle.run is None:
            return
        handle.run = None
        self.registry.released(handle)
        if self.on_released is not None:
            self.on_released(handle)

    # What the world tells the tool

    def write(self, data: Any) -> None:
        """Input for a running tool (C6)."""
        assert self.live is not None
        self.live.write(data)
        self.handle.reading = False

    def answer(self, value: Any) -> None:
        """The answer to the open question: recorded, then given to the tool."""
        then = self._answer_to
        assert then is not None
        self._close_question()
        self.registry.apply_event(self.handle, Answered(self.registry.clock.now()), lambda: then(Ok(value)))

    def end(self, error: Error, ended_by: EndedBy) -> None:
        """End it for this reason. The first reason counts; the handle stops when the tool has ended."""
        if self._ending is not None or isinstance(self.handle.decided, Stopped) or self.live is None:
            return
        self._ending = (error, ended_by)
        self._close_question()
        self.handle.reading = False  # from now on nobody waits for the caller (A6)
        grace = self.handle.tool.spawn.abort_grace_ms / 1000
        self._force = asyncio.get_running_loop().call_later(grace + FORCE_SECS, self.abandon)
        self.live.end(grace)

    def abandon(self) -> None:
        """Stop the handle although something of the call still runs; it lingers, with its lane and resources (Y2)."""
        if isinstance(self.handle.decided, Stopped):
            return
        self.handle.lingering = True
        self.stop(Error("The tool did not end when it was told to.", "cancelled"))

    @property
    def ending(self) -> bool:
        return self._ending is not None

    # Its timers

    def _timed_out(self) -> None:
        secs = self.handle.tool.timeout_secs
        self.end(Error(f"Tool timed out after {secs:g} s.", "timeout", transient=True), "timeout")

    def probe_when_quiet(self) -> None:
        """Ask the tool whether it reads its input, once its output has been quiet for a settle time (C4)."""
        if self._probe_timer is None and self._probe is not None:
            settle = self.handle.tool.spawn.settle_ms / 1000
            self._probe_timer = asyncio.get_running_loop().call_later(settle, self._probe_if_quiet)

    def _probe_if_quiet(self) -> None:
        self._probe_timer = None
        settle = self.handle.tool.spawn.settle_ms / 1000
        if asyncio.get_running_loop().time() - self._last_output < settle:
            self.probe_when_quiet()
        else:
            self.probe()

    def probe(self) -> bool:
        """Ask now. True when it is known to wait for input."""
        if self._probe is not None and isinstance(self.handle.decided, Running):
            reading = bool(self._probe())
            if isinstance(self.handle.decided, Running):  # it may have delivered a question, or the end
                self.reading(reading)
        return self.handle.reading

    @property
    def can_probe(self) -> bool:
        return self._probe is not None

    def _cancel_timers(self) -> None:
        for timer in (self._timeout, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._timeout = self._probe_timer = None

    def _close_question(self) -> None:
        if self._answer_to is not None:
            self._answer_to = None
            self.handle.asks_caller = False
            self.registry.conversation(self.handle.conversation).open_questions -= 1
