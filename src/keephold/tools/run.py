"""The life of one started call: between a tool's runtime, which tells what happens, and the registry, which records it.

A run is the `Sink` its runtime talks to. It turns news into events of the state machine, keeps the tool's timeout, and
is how everyone else ends a call: `end` says why, the runtime does it, and the end that comes back carries that reason.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from keephold.durable.deferred import Pending, parking
from keephold.errors import ToolError
from keephold.handles.handle import Handle, Progress
from keephold.handles.observing import answered
from keephold.handles.question import Open, Question
from keephold.handles.registry import Registry
from keephold.handles.state import Answered, Asked, EndedBy, Failure, Ok, Outcome, Running, Stopped, error_of
from keephold.handles.timeline import Timeline
from keephold.store.base import Op, Parking, Wrote
from keephold.tools.attempts import Attempts
from keephold.tools.base import Invocation
from keephold.tools.output_notifications import OutputNotifications
from keephold.tools.pausable_timeout import PausableTimeout
from keephold.tools.probing import Probing

if TYPE_CHECKING:
    from keephold.tools.call import FileDiff

_log = logging.getLogger("keephold.tools")

FORCE_SECS = 3.0
"""How long after its grace a call may still take to end before it is left to linger."""


class RunHost(Protocol):
    """What a call meets outside its tool. One object for all runs: there may be a hundred thousand of them."""

    def route(self, handle: Handle, question: Question) -> Outcome | Open:
        """Who answers a question: an outcome at once, or for whom it is open."""

    def opened(self, handle: Handle) -> None:
        """The question is visibly open: whoever may answer is to be asked."""

    def awaited(self, handle: Handle) -> None:
        """An `await` watches the handle, whose question is open."""

    def closed(self, handle: Handle) -> None:
        """Nobody needs an answer any more: to its question, or to whether its result may be delivered."""

    def deliver(self, handle: Handle, outcome: Outcome, then: Callable[[Outcome], None]) -> None:
        """What of an outcome may be delivered (P1's result modes), told to `then`, now or later."""

    def leave(self, handle: Handle) -> None:
        """Nothing of the call runs any more."""

    def end(self, handle: Handle, error: Failure, ended_by: EndedBy) -> None:
        """End a call that was told to end while its parking was being written."""


class Run(Attempts):
    """One call from its start to the last trace of it."""

    __slots__ = (
        "_answer_to", "_around", "_began", "_gone", "_open", "_parking", "_patience", "_record",
        "_released", "content", "delivering", "listeners", "questions",
    )  # fmt: skip

    def __init__(self, registry: Registry, handle: Handle, around: RunHost) -> None:
        super().__init__(registry, handle)
        self._around = around
        self._gone: asyncio.Event | None = None
        self._parking: Parking | None = None
        """It has returned `Pending`; that is being written."""
        self._answer_to: Callable[[Outcome], None] | None = None
        self._record: Callable[[Any, bytes], Op] | None = None
        self._open: Open | None = None
        """Who may answer the open question."""
        self.questions = 0
        """How many it has asked that were open."""
        self.delivering = False
        """The tool has ended; whether its result may be seen is being asked (P1)."""
        self._released = False
        """Nothing of the tool runs any more, and that is told when its result is delivered."""
        self._patience: PausableTimeout | None = None
        """The timeout of this attempt."""
        self._began = 0.0
        wanted = handle.stateful and handle.tool.spawn.notifications.on_content
        self.content = OutputNotifications(registry, handle) if wanted else None
        """Tells that it has printed more, if its tool's settings want that."""
        self.listeners: list[Callable[[], None]] = []
        """Called after each piece of output."""
        handle.run = self

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What the call was given."""
        return {} if self._invocation is None else self._invocation.arguments

    def start(self, invocation: Invocation) -> None:
        """Start it, once that it starts is written; a tool that cannot start is stopped with the reason (B6)."""
        self._invocation = invocation
        handle = self.handle
        if handle.next_attempt_at is not None:
            self.resume_in(max(0.0, handle.next_attempt_at - self.registry.clock.now()))
        elif isinstance(handle.decided, Running):  # registered as such, or a call that is taken up again
            if handle.attempt > 1:
                self.mark_attempt()
            self._begin()
        else:
            self.registry.start(handle, self._begin)

    def _begin(self) -> None:
        handle, tool = self.handle, self.handle.tool
        if isinstance(handle.decided, Stopped) or self._parking is not None or self.letting_go:
            return  # ended, or let go, while its start was being written
        assert self._invocation is not None
        recorded = sum(entry.kind == "ask" for entry in self._invocation.entries)  # answered before a crash
        self.questions = max(self.questions, recorded)
        if tool.timeout_secs is not None:
            self._began = self.registry.clock.now()
            self._patience = PausableTimeout(tool.timeout_secs, self._timed_out)
            if handle.driver is not None:
                self._patience.pause()
        try:
            traces = self.registry.traces
            if traces is None:
                self.live = tool.runtime.start(self._invocation, self)
            else:
                with traces.attempt(handle):
                    self.live = tool.runtime.start(self._invocation, self)
        except Exception as error:
            self._not_started(error)
            return
        probe = getattr(self.live, "probe", None)  # SupportsProbe
        if probe is not None:
            self._probing = Probing(handle, probe, self.reading)
        if handle.watchers and self._probing is not None:
            self._probing.when_quiet()  # who has waited for it since it was queued wants to know, too

    def _not_started(self, error: Exception) -> None:
        if isinstance(error, ToolError):
            outcome = error_of(error)
        else:
            _log.error("tool `%s` could not be started", self.handle.tool.name, exc_info=error)
            outcome = Failure(f"The tool could not be started: {type(error).__name__}: {error}")
        self.stop(outcome)
        self.released()

    # What the tool tells (Sink)

    def output(self, data: bytes) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or not data:
            return
        if self._probing is not None:  # a function says itself when it has what it waited for
            self._probing.printed()
        output = self.registry.output_of(handle)
        output.append(data)
        if self.registry.meter is not None:
            self.registry.meter.printed(handle.tool.name, len(data))
        if output.timeline is not None:
            output.timeline.note(output.total, self.registry.clock.now())
        if self.content is not None:
            self.content.printed()
        for listener in tuple(self.listeners):
            listener()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.registry.progressed(self.handle, Progress(done, total, message))

    def show(self, diff: "FileDiff") -> None:
        for watcher in tuple(self.handle.watchers or ()):
            watcher.showed(self.handle, diff)

    def resized(self, rows: int, cols: int) -> None:
        if isinstance(self.handle.decided, Stopped):
            return
        output, now = self.registry.output_of(self.handle), self.registry.clock.now()
        if output.timeline is None:
            output.timeline = Timeline(now, rows, cols)
        else:
            output.timeline.resized(output.total, now, rows, cols)

    def reading(self, yes: bool) -> None:
        handle = self.handle
        if handle.reading != yes and not isinstance(handle.decided, Stopped) and not (yes and self.ending):
            handle.reading = yes
            if yes:
                self.registry.notify_watchers(handle)

    def ask(
        self, question: Question, then: Callable[[Outcome], None], record: Callable[[Any, bytes], Op] | None = None
    ) -> None:
        handle = self.handle
        over = isinstance(handle.decided, Stopped) or self.delivering
        if over or self._ending is not None or self._parking is not None:
            return
        if self._probing is not None:
            handle.reading = False  # what it reads next is the answer
        route = self._around.route(handle, question)
        registry, now = self.registry, self.registry.clock.now()
        if isinstance(route, Open):
            then = answered(registry, handle.uid, "question", then)
            self._answer_to, self._record, self._open = then, record, route
            self.questions += 1
            registry.conversation(handle.conversation).open_questions += 1
            handle.asks_caller = route.caller and not route.person
            if route.person and self._patience is not None:
                self._patience.pause()
            registry.apply_event(handle, Asked(now, question, self.questions), partial(self._asked, then))
        else:
            registry.apply_event(handle, Asked(now, question), quiet=True)
            also = (record(route.value, b""),) if record is not None and isinstance(route, Ok) else ()
            registry.apply_event(handle, Answered(now), lambda: then(route), also)

    def _asked(self, then: Callable[[Outcome], None]) -> None:
        """The question is visible; it may have been closed meanwhile."""
        if self._answer_to is then:
            self._around.opened(self.handle)
        self.registry.notify_watchers(self.handle)

    def withdraw(self) -> None:
        if self._answer_to is not None:
            self._close_question()
            self.registry.apply_event(self.handle, Answered(self.registry.clock.now()))

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or self.delivering:
            return
        ended_by: EndedBy = "self"
        if self._ending is not None:
            error, ended_by = self._ending
            own = not isinstance(outcome, Failure) or outcome.code not in ("cancelled", "command_failed")
            if ended_by == "cancel" and own and handle.tool.result == "unattended":
                ended_by = "self"  # B7: a tool that is cancelled may still return its own result
            else:
                outcome = error
        if self._answer_to is not None:
            self._close_question()
        self._cancel_timers()
        if self.letting_go or (self.registry.closing and _is_closing(outcome)):
            return  # what it says when it is let go is not its end; if it was, a replay says it again (R6)
        if isinstance(outcome, Failure) and outcome.transient and self._again():
            return
        if handle.tool.result == "unattended":
            self.registry.end(handle, outcome, ended_by, exit_code, signal)
        elif self._ending is None:
            self.delivering = True
            self._around.deliver(handle, outcome, partial(self._delivered, outcome, exit_code, signal))
        else:  # it was ended: that is told in our words, and what it printed was never approved
            self.registry.withhold(handle)
            self.registry.end(handle, outcome, ended_by, exit_code, signal)

    def _delivered(self, outcome: Outcome, exit_code: int | None, signal: int | None, shown: Outcome) -> None:
        """P1: this may be seen of the outcome."""
        if not self.delivering:
            return
        self.delivering = False
        if shown is not outcome:
            self.registry.withhold(self.handle)
        self.registry.end(self.handle, shown, "self", exit_code, signal)
        if self._released:
            self.released()

    def park(self, pending: Pending) -> None:
        handle, tool = self.handle, self.handle.tool
        if isinstance(handle.decided, Stopped):
            self.released()
            return
        self.withdraw()  # whoever asked has returned
        self._cancel_timers()
        self._parking = parking(pending, self.registry.clock.now(), tool)
        self.registry.park(handle, self._parking, self._parked)

    def _parked(self) -> None:
        handle, ending = self.handle, self._ending
        self.released()
        if ending is not None:  # it was told to end while that was being written
            self._around.end(handle, *ending)

    def released(self) -> None:
        handle = self.handle
        if self._force is not None:
            self._force.cancel()
        if handle.run is not self or self._between:
            return
        if self.delivering:
            self._released = True
            return
        handle.run = None
        if self._gone is not None:
            self._gone.set()
        self.registry.released(handle)
        self._around.leave(handle)

    # What the world tells the tool

    def write(self, arguments: Mapping[str, Any], cause: bytes) -> None:
        """What an `apply` sends to a running tool (C6); `cause` names the call that sends it."""
        assert self.live is not None
        apply = getattr(self.live, "apply", None)  # SupportsApply
        write = getattr(self.live, "write_recorded", None)  # SupportsRecordedInput
        if apply is not None:
            apply(arguments)
        elif write is not None:
            write(arguments["input"], cause)
        else:
            self.live.write(arguments["input"])
        self.handle.reading = False

    def answer(self, value: Any, cause: bytes) -> None:
        """The answer to the open question: recorded, then given to the tool."""
        then = self._answer_to
        assert then is not None
        also = (self._record(value, cause),) if self._record is not None else ()
        self._close_question()
        self.registry.apply_event(self.handle, Answered(self.registry.clock.now()), lambda: then(Ok(value)), also)

    def end(self, error: Failure, ended_by: EndedBy) -> None:
        """End it for this reason. The first reason counts; the handle stops when the tool has ended."""
        if self._ending is not None or isinstance(self.handle.decided, Stopped):
            return
        if self._parking is not None and ended_by in ("turn_end", "shutdown"):
            return  # parked calls stay (T4, R6), and it is as good as parked
        self._ending = (error, ended_by)
        if self._parking is not None:
            return  # it has returned; `_parked` sees to it
        if self.delivering:  # it has ended; what nobody was shown yet, nobody is shown
            self._around.closed(self.handle)
            self._undelivered(error, ended_by)
            return
        self._close_question()
        self.handle.reading = False  # from now on nobody waits for the caller (A6)
        if self.live is None:  # its start is being written, or it is between two attempts
            self._between = False
            self.stop(Failure("Tool execution cancelled.", "cancelled"))
            self.released()
            return
        grace = self.handle.tool.spawn.abort_grace_ms / 1000
        self._force = asyncio.get_running_loop().call_later(grace + FORCE_SECS, self.abandon)
        self.live.end(grace)

    def _undelivered(self, error: Failure, ended_by: EndedBy) -> None:
        self.delivering = False
        self.registry.withhold(self.handle)
        self.registry.end(self.handle, error, ended_by)
        if self._released:
            self.released()

    def let_go(self) -> None:
        """The runtime is closing: stop working on it and record no end; the next runtime takes it up (R6)."""
        self.letting_go = True
        self._cancel_timers()
        if self.delivering:
            self.delivering = False
            self._around.closed(self.handle)
            if self._released:
                self.released()
        handle, output = self.handle, self.handle.output
        if output is not None and self.registry.store.durable:
            op = Wrote(handle.uid, handle.fence, output.keep(self.registry.store.inline_output))
            self.registry.commit((op,), lambda _: None, lambda _: None, keep=True)
        if self.live is not None:
            self.live.end(0)

    async def gone(self) -> None:
        """Until nothing of a call that was let go runs any more."""
        if self.handle.run is self and self.live is not None and self._parking is None:
            self._gone = asyncio.Event()
            await self._gone.wait()

    def lost(self) -> None:
        """Another process runs it: stop working on it, in silence (E6)."""
        self.let_go()

    def abandon(self) -> None:
        """Stop the handle although something of the call still runs; it lingers, with its lane and resources (Y2)."""
        if isinstance(self.handle.decided, Stopped):
            return
        self.handle.lingering = True
        self.stop(Failure("The tool did not end when it was told to.", "cancelled"))

    @property
    def open_to_caller(self) -> bool:
        """Whether the caller may answer the open question."""
        return self._open is not None and self._open.caller

    @property
    def unseen(self) -> bool:
        """Whether it is a terminal that does not echo what is typed now."""
        return bool(getattr(self.live, "unseen", False))

    @property
    def typing(self) -> bool:
        """Whether part of what was sent is still to be typed."""
        return bool(getattr(self.live, "typing", False))

    @property
    def ending(self) -> bool:
        return self._ending is not None

    @property
    def is_parking(self) -> bool:
        """Whether it has returned `Pending`, and that is being written."""
        return self._parking is not None

    @property
    def waits_in_effects(self) -> bool:
        """Whether it waits for an event or sleeps (T1)."""
        return bool(getattr(self.live, "waits_in_effects", False))

    # Its timers

    def _timed_out(self) -> None:
        secs = self.handle.tool.timeout_secs
        self.end(Failure(f"Tool timed out after {secs:g} s.", "timeout", transient=True), "timeout")

    def probe(self) -> None:
        """Ask now whether it reads its input; that it does is told to whoever watches the handle."""
        if self._probing is not None:
            self._probing.now()

    @property
    def can_probe(self) -> bool:
        return self._probing is not None

    def _cancel_timers(self) -> None:
        for timer in (self._patience, self._next):
            if timer is not None:
                timer.cancel()
        self._patience = self._next = None
        for telling in (self._probing, self.content):
            if telling is not None:
                telling.stop()

    def _close_question(self) -> None:
        if self._answer_to is not None:
            if self._open is not None and self._open.person and self._patience is not None:
                self._patience.go_on()
            self._answer_to = self._record = self._open = None
            self.handle.asks_caller = False
            self.registry.conversation(self.handle.conversation).open_questions -= 1
            self._around.closed(self.handle)

    # A person at its terminal

    def drive(self, by_person: bool) -> None:
        """A person has taken over its terminal, or hands it back. Their time is not the tool's (P4)."""
        handle = self.handle
        if (handle.driver is not None) == by_person:
            return
        handle.driver, handle.reading = "person" if by_person else None, False
        driven = getattr(self.live, "driven", None)  # SupportsScreen
        if driven is not None:
            driven(by_person)
        if self._patience is not None:
            (self._patience.pause if by_person else self._patience.go_on)()
        if handle.watchers and self._probing is not None:
            self._probing.when_quiet()
        self.registry.notify_watchers(handle)

    @property
    def deadline(self) -> float | None:
        """When the timeout of this attempt ends it; None if nothing does, or a person is waited for (P4)."""
        secs, patience = self.handle.tool.timeout_secs, self._patience
        if secs is None or patience is None or patience.paused:
            return None
        return self._began + secs + patience.waited

    def awaited(self) -> None:
        """An `await` watches it."""
        if self._answer_to is not None:
            self._around.awaited(self.handle)
        if self._probing is not None:
            self._probing.when_quiet()


def _is_closing(outcome: Outcome) -> bool:
    """Whether a call failed because its effects refuse further steps (R6)."""
    return isinstance(outcome, Failure) and outcome.code == "runtime_closing"
