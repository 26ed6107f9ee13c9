"""One started call: between its tool's runtime, which reports events, and the registry, which records them.

A run is the `Sink` its runtime reports to. It turns reports into events of the state machine, keeps the tool's timeout
and retries, and ends the call for everyone else: `end` gets the reason, the tool's runtime ends the call, and the
outcome carries that reason.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from keephold.durable.deferred import Pending, parking
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle, OnStop, Progress
from keephold.handles.matching import Search
from keephold.handles.observing import answered
from keephold.handles.output import Output
from keephold.handles.patterns import compiled
from keephold.handles.question import Open, Question
from keephold.handles.registry import Registry
from keephold.handles.state import (
    LONGEST_LABEL,
    EndedBy,
    Failure,
    Ok,
    Outcome,
    QuestionAnswered,
    QuestionAsked,
    Running,
    Stopped,
    error_of,
)
from keephold.handles.timeline import Timeline
from keephold.store.base import Journaled, Op, Parking, Wrote
from keephold.tools.attempts import Attempts
from keephold.tools.base import (
    Invocation,
    Live,
    SupportsApply,
    SupportsProbe,
    SupportsRecordedInput,
    SupportsReturn,
)
from keephold.tools.run_timers import OutputNotifications, PausableTimeout, Probing

if TYPE_CHECKING:
    from keephold.tools.call import FileDiff

_log = logging.getLogger("keephold.tools")

FORCE_SECS = 3.0
"""Seconds after its grace in which a call may still end before its handle stops and the call lingers."""
_TAKE_AGAIN_SECS = 5.0


class RunHost(Protocol):
    """The turn, as runs see it. One object for all runs, of which there may be a hundred thousand."""

    def route(self, handle: Handle, question: Question) -> Outcome | Open:
        """Return the outcome of a question that is answered at once, or who may answer it."""

    def opened(self, handle: Handle) -> None:
        """The question is visible: ask those who may answer it."""

    def awaited(self, handle: Handle) -> None:
        """An `await` watches the handle, whose question is open."""

    def closed(self, handle: Handle) -> None:
        """Withdraw the prompts of the handle: about its question, or about delivering its result."""

    def deliver(self, handle: Handle, outcome: Outcome, then: Callable[[Outcome], None]) -> None:
        """Call `then`, now or later, with the outcome that may be delivered (P1's result modes)."""

    def leave(self, handle: Handle) -> None:
        """Nothing of the call runs any more."""

    def end(self, handle: Handle, error: Failure, ended_by: EndedBy) -> None:
        """End a call whose end was requested while its parking was being written."""


class _Asked(NamedTuple):
    route: Open
    """Who may answer it."""
    then: Callable[[Outcome], None]
    record: Callable[[Any, bytes], Op] | None


class Run:
    """One call from its start until nothing of it runs."""

    __slots__ = (
        "_asked", "_attempts", "_began", "_ending", "_force", "_gone", "_host", "_invocation", "_parking", "_probing",
        "_ready", "_released", "_returning", "_timeout", "content", "delivering", "handing_over", "handle", "live",
        "questions", "registry",
    )  # fmt: skip

    def __init__(self, registry: Registry, handle: Handle, host: RunHost) -> None:
        self.registry = registry
        self.handle = handle
        self.live: Live | None = None
        self.handing_over = False
        """The runtime is closing, or another one runs the call: its end is not recorded here (R6, E6)."""
        self._invocation: Invocation | None = None
        self._attempts: Attempts | None = None
        """Set once an attempt has failed, or an earlier runtime has planned one."""
        self._ending: tuple[Failure, EndedBy] | None = None
        self._force: asyncio.TimerHandle | None = None
        """Until the call is abandoned, or until its keeper is asked for its process again."""
        self._probing: Probing | None = None
        self._host = host
        self._gone: asyncio.Event | None = None
        self._parking: Parking | None = None
        """Set while the `Pending` that the tool returned is being written."""
        self._asked: _Asked | None = None
        """The open question."""
        self.questions = 0
        """Number of open questions so far."""
        self.delivering = False
        """The tool has ended; a prompt decides whether its result may be seen (P1)."""
        self._released = False
        """Nothing of the tool runs any more; reported when its result is delivered."""
        self._returning = False
        """Its process is being taken back."""
        self._timeout: PausableTimeout | None = None
        """The timeout of this attempt."""
        self._began = 0.0
        wanted = handle.stateful and handle.tool.spawn.notifications.on_content
        self.content = OutputNotifications(registry, handle) if wanted else None
        """Notifies of new output, if the tool's settings ask for it."""
        self._ready: Search | None = None
        """Until the attempt is ready, if its tool says when it is (A9)."""
        handle.run = self

    @property
    def arguments(self) -> Mapping[str, Any]:
        return {} if self._invocation is None else self._invocation.arguments

    @property
    def spawned(self) -> bool:
        """Whether the call was spawned. A one-shot call that has become a handle was not."""
        return self._invocation is not None and self._invocation.stateful

    def start(self, invocation: Invocation) -> None:
        """Start it after the start is written. If the tool cannot start, stop with the reason (B6)."""
        self._invocation = invocation
        handle = self.handle
        if handle.next_attempt_at is not None:
            self._further().resume_in(max(0.0, handle.next_attempt_at - self.registry.clock.now()))
        elif isinstance(handle.decided, Running):  # registered as such, or a call that is resumed
            if handle.attempt > 1:
                self.mark_attempt()
            self._begin()
        else:
            self.registry.start(handle, self._begin_queued)

    async def take_back(self, invocation: Invocation) -> None:
        """Connect it to its process, which an earlier runtime started and which has run on (R7)."""
        self._invocation = invocation
        runtime = cast(SupportsReturn, self.handle.tool.runtime)
        self._returning = True
        try:
            live = await runtime.take_back(invocation, self)
        except KeepholdError as error:  # its keeper does not answer: as long as that lives, so may the process
            if error.code == "lease_lost":  # another runtime has it, by a higher fence, and never returns it (E6)
                self.lost()
                self._returning = False
                self.released()
                return
            _log.warning("the process of call %s is not taken back yet: %s", self.handle.uid, error)
            self._force = asyncio.get_running_loop().call_later(_TAKE_AGAIN_SECS, self._take_back_again)
            return
        except Exception as error:
            _log.error("the process of call %s cannot be taken back", self.handle.uid, exc_info=error)
            self._returning = False
            why = f"its process cannot be taken back: {type(error).__name__}: {error}"
            self.crashed(Failure(f"The call was lost, because {why}", "crashed", transient=True))
            self.released()
            return
        self._returning, self.live = False, live
        self._set_timeout(invocation, returning=True)
        if isinstance(self.handle.decided, Stopped):
            return  # it had ended
        if self.handing_over:
            live.release()
            self.released()
        elif self._ending is not None:
            self._end_live()
        else:
            self._watch_for_ready()
            self._watch_reading()
            self.probe_soon()

    def _take_back_again(self) -> None:
        assert self._invocation is not None
        if not self.handing_over:
            self.registry.run_soon(self.take_back(self._invocation))

    def _begin_queued(self) -> None:
        for watcher in tuple(self.handle.watchers or ()):
            watcher.started(self.handle)
        self._begin()

    def _begin(self) -> None:
        handle, tool = self.handle, self.handle.tool
        if isinstance(handle.decided, Stopped) or self._parking is not None or self.handing_over:
            return  # ended or handed over while its start was being written
        assert self._invocation is not None
        recorded = sum(entry.kind == "ask" for entry in self._invocation.entries)  # answered before a crash
        self.questions = max(self.questions, recorded)
        self._set_timeout(self._invocation)
        self._watch_for_ready()
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
        self._watch_reading()

    def _set_timeout(self, invocation: Invocation, *, returning: bool = False) -> None:
        handle, tool, now = self.handle, invocation.tool, self.registry.clock.now()
        if tool.timeout_secs is not None:
            self._began, state = now, handle.decided
            if returning and tool.source == "local" and isinstance(state, Running):
                self._began = state.started  # a command that is kept never waits for the user, so all its time counts
            self._timeout = PausableTimeout(max(0.0, self._began + tool.timeout_secs - now), self._timed_out)
            if handle.driver is not None:
                self._timeout.pause()

    def _watch_reading(self) -> None:
        if hasattr(self.live, "probe"):  # `isinstance` of a protocol is slow, and this is asked at every start
            self._probing = Probing(self.handle, cast(SupportsProbe, self.live).probe, self.reading)
        if self.handle.watchers:
            self.probe_soon()  # somebody has waited for it since it was queued

    def _watch_for_ready(self) -> None:
        """Search the output of this attempt for the line that says that it is ready, if its tool describes one."""
        handle, pattern = self.handle, self.handle.tool.spawn.ready
        if pattern is None or handle.ready:
            return
        start = 0 if handle.output is None or handle.attempt == 1 else handle.output.total
        self._ready = Search(compiled(pattern), lambda: handle.output, self._is_ready, start)
        self._ready.printed()

    def _is_ready(self) -> None:
        if self._ready is not None and self._ready.matched is not None:
            found, self._ready = self._ready.matched, None
            if not isinstance(self.handle.decided, Stopped):
                self.registry.become_ready(self.handle, found)

    def _not_started(self, error: Exception) -> None:
        if isinstance(error, ToolError):
            outcome = error_of(error)
        else:
            _log.error("tool `%s` could not be started", self.handle.tool.name, exc_info=error)
            outcome = Failure(f"The tool could not be started: {type(error).__name__}: {error}")
        self.stop(outcome)
        self.released()

    # Further attempts

    def _again(self, error: Failure) -> bool:
        """After a transient failure: plan another attempt, if there may be one (R5)."""
        tool = self.handle.tool
        if self.handing_over or self.handle.lingering or (self._ending is not None and self._ending[1] != "timeout"):
            return False
        if tool.engine is not None or tool.retry.policy == "never" or self.has_key:
            return False  # an engine has begun the attempts that there may be
        attempts = self._further()
        if attempts.exhausted:
            return False
        self._cancel_timers()
        settled = getattr(self.live, "settled", None)
        self.live, self._probing, self._ending = None, None, None
        attempts.plan(error, settled)
        return True

    def _further(self) -> Attempts:
        if self._attempts is None:
            assert self._invocation is not None
            self._attempts = Attempts(
                self.registry,
                self.handle,
                self._invocation,
                wanted=self._is_wanted,
                begin=self._begin_again,
                lost=self.lost,
            )
        return self._attempts

    def _is_wanted(self) -> bool:
        return self._ending is None and not self.handing_over and not isinstance(self.handle.decided, Stopped)

    def _begin_again(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self.mark_attempt()
        self._begin()

    def mark_attempt(self) -> None:
        """Write a line into the output that separates the attempts (E10)."""
        output = self.handle.output
        if output is not None and output.total:
            start = b"" if output.before(output.total, 1) == b"\n" else b"\n"
            output.append(start + f"--- attempt {self.handle.attempt} ---\n".encode())

    # Reports of the tool (Sink)

    def output(self, data: bytes) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or not data:
            return
        output = self.registry.output_of(handle)
        output.append(data)
        self._printed(output, len(data))

    def spooled(self) -> Output:
        return self.registry.output_of(self.handle)

    def when_stored(self, then: Callable[[], None]) -> None:
        self.handle.watch(OnStop(lambda _: then()))

    def took(self, causes: Sequence[bytes]) -> None:
        uid, fence = self.handle.uid, self.handle.fence
        ops = [Journaled(uid, fence, "input", cause.decode(), cause, b"null") for cause in causes]
        if ops:
            self.registry.write_soon(*ops)

    def followed(self, total: int) -> None:
        output = self.registry.output_of(self.handle)
        more = total - output.total
        if more > 0 and not isinstance(self.handle.decided, Stopped):
            output.followed(total)
            self._printed(output, more)

    def _printed(self, output: Output, size: int) -> None:
        handle = self.handle
        if self._probing is not None:  # a function reports by itself when it stops reading
            self._probing.printed()
        for meter in self.registry.meters:
            meter.printed(handle.tool.name, size)
        if output.timeline is None:
            output.timeline = Timeline(self.registry.clock.now())
        output.timeline.printed(output.total, self.registry.clock.now, asyncio.get_running_loop().time())
        if self.content is not None:
            self.content.printed()
        self.printed()

    def printed(self) -> None:
        """Tell everyone who follows the output that it has grown."""
        if self._ready is not None:
            self._ready.printed()
        for watcher in tuple(self.handle.watchers or ()):
            watcher.printed(self.handle)

    def last_output(self, size: int) -> bytes:
        """Return the last bytes it has printed, at most that many, as far as they are kept."""
        output = self.registry.output_of(self.handle)
        return output.before(output.total, size)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.registry.progressed(self.handle, Progress(done, total, message and message[:LONGEST_LABEL]))
        self.registry.facts.tell_soon(self.handle)

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
            self.registry.notify_watchers(handle)

    def _reads_no_more(self) -> None:
        if self.handle.reading:
            self.handle.reading = False
            self.registry.notify_watchers(self.handle)

    def ask(
        self, question: Question, then: Callable[[Outcome], None], record: Callable[[Any, bytes], Op] | None = None
    ) -> None:
        handle = self.handle
        over = isinstance(handle.decided, Stopped) or self.delivering
        if over or self._ending is not None or self._parking is not None:
            return
        if self._probing is not None:
            self._reads_no_more()  # what it reads next is the answer
        route = self._host.route(handle, question)
        registry, now = self.registry, self.registry.clock.now()
        if isinstance(route, Open):
            then = answered(registry, handle.uid, "question", then)
            asked = self._asked = _Asked(route, then, record)
            self.questions += 1
            registry.conversation(handle.conversation).open_questions += 1
            handle.asks_caller = route.caller and not route.person
            if route.person and self._timeout is not None:
                self._timeout.pause()
            registry.apply_event(handle, QuestionAsked(now, question, self.questions), partial(self._opened, asked))
        else:
            registry.apply_event(handle, QuestionAsked(now, question), quiet=True)
            also = (record(route.value, b""),) if record is not None and isinstance(route, Ok) else ()
            registry.apply_event(handle, QuestionAnswered(now), lambda: then(route), also)

    def _opened(self, asked: _Asked) -> None:
        """The question is visible, unless it was closed meanwhile."""
        if self._asked is asked:
            self._host.opened(self.handle)
        self.registry.notify_watchers(self.handle)

    def withdraw(self) -> None:
        if self._asked is not None:
            self._close_question()
            self.registry.apply_event(self.handle, QuestionAnswered(self.registry.clock.now()))

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        self._stop(outcome, "self", exit_code, signal)

    def crashed(self, error: Failure, *, exit_code: int | None = None, signal: int | None = None) -> None:
        self._stop(error, "crash", exit_code, signal)

    def _stop(self, outcome: Outcome, ended_by: EndedBy, exit_code: int | None, signal: int | None) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or self.delivering:
            return
        if self._ending is not None:
            error, ended_by = self._ending
            own = not isinstance(outcome, Failure) or outcome.code not in ("cancelled", "command_failed")
            if ended_by == "cancel" and own and handle.tool.result == "unattended":
                ended_by = "self"  # B7: a tool that is cancelled may still return its own result
            else:
                outcome = error
        if self._asked is not None:
            self._close_question()
        self._cancel_timers()
        if self.handing_over or (self.registry.closing and _is_closing(outcome)):
            return  # a report during the hand-over is not the end; if it was, a replay reports it again (R6)
        if isinstance(outcome, Failure) and outcome.transient and self._again(outcome):
            return
        if handle.tool.result == "unattended":
            requested = self._ending is not None
            self.registry.end(handle, outcome, ended_by, exit_code, signal, yields=requested)
        elif self._ending is None and ended_by != "crash":
            self.delivering = True
            self._host.deliver(handle, outcome, partial(self._delivered, outcome, exit_code, signal))
        else:  # it was ended: the reason is the outcome, and its output was never approved
            self.registry.withhold(handle)
            self.registry.end(handle, outcome, ended_by, exit_code, signal)

    def _delivered(self, outcome: Outcome, exit_code: int | None, signal: int | None, shown: Outcome) -> None:
        """Record the outcome as far as it may be seen (P1)."""
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
        self.withdraw()  # the function that asked has returned
        self._cancel_timers()
        self._parking = parking(pending, self.registry.clock.now(), tool)
        self.registry.park(handle, self._parking, self._parked)

    def _parked(self) -> None:
        handle, ending = self.handle, self._ending
        self.released()
        if ending is not None:  # its end was requested while that was being written
            self._host.end(handle, *ending)

    def released(self) -> None:
        handle = self.handle
        if self._force is not None:
            self._force.cancel()
        if handle.run is not self or (self._attempts is not None and self._attempts.between):
            return
        if self.delivering:
            self._released = True
            return
        handle.run = self.live = None  # the live call refers to this, and to its result, which may be large
        if self._gone is not None:
            self._gone.set()
        if handle.lingering:
            self.registry.released(handle)
        self._host.leave(handle)

    # Requests to the tool

    def write(self, arguments: Mapping[str, Any], cause: bytes) -> None:
        """Send the input of an `apply` to the running tool (C6); `cause` names the call that sends it."""
        assert self.live is not None
        if "eof" in arguments:  # beside something else
            self.write({name: value for name, value in arguments.items() if name != "eof"}, cause)
            self.write({"input": None}, cause + b":eof")
        elif isinstance(self.live, SupportsApply):
            self.live.apply(arguments, cause)
        elif isinstance(self.live, SupportsRecordedInput):
            self.live.write_recorded(arguments["input"], cause)
        else:
            self.live.write(arguments["input"])
        self._reads_no_more()

    def answer(self, value: Any, cause: bytes) -> None:
        """Record the answer to the open question, then pass it to the tool."""
        asked = self._asked
        assert asked is not None
        also = (asked.record(value, cause),) if asked.record is not None else ()
        self._close_question()
        self.registry.apply_event(
            self.handle, QuestionAnswered(self.registry.clock.now()), lambda: asked.then(Ok(value)), also
        )

    def end(self, error: Failure, ended_by: EndedBy) -> None:
        """End it for this reason. The first reason counts; the handle stops when the tool has ended."""
        if self._ending is not None or isinstance(self.handle.decided, Stopped):
            return
        if self._parking is not None and ended_by in ("turn_end", "shutdown"):
            return  # parked calls stay (T4, R6), and it is as good as parked
        self._ending = (error, ended_by)
        if self._parking is not None:
            return  # it has returned; `_parked` sees to it
        if self.delivering:  # it has ended; a result that was not shown stays hidden
            self._host.closed(self.handle)
            self._undelivered(error, ended_by)
            return
        self._close_question()
        self._reads_no_more()  # from now on nobody waits for the caller (A6)
        if self._returning:
            return  # `take_back` sees to it
        if self.live is None:  # its start is being written, or it is between two attempts
            if self._attempts is not None:
                self._attempts.between = False
            self.stop(Failure("Tool execution cancelled.", "cancelled"))
            self.released()
            return
        self._end_live()

    def _end_live(self) -> None:
        assert self.live is not None
        grace = self.handle.tool.spawn.abort_grace_ms / 1000
        self._force = asyncio.get_running_loop().call_later(grace + FORCE_SECS, self.abandon)
        self.live.end(grace)

    def _undelivered(self, error: Failure, ended_by: EndedBy) -> None:
        self.delivering = False
        self.registry.withhold(self.handle)
        self.registry.end(self.handle, error, ended_by)
        if self._released:
            self.released()

    def hand_over(self) -> None:
        """Stop working on it and record no end, because the runtime is closing: the next runtime resumes it (R6)."""
        self.handing_over = True
        self._cancel_timers()
        if self.delivering:
            self.delivering = False
            self._host.closed(self.handle)
            if self._released:
                self.released()
        handle, output = self.handle, self.handle.output
        release = getattr(self.live, "release", None) if self.kept else None  # SupportsKeeping
        if release is not None:
            release()
            self.released()
            return
        if output is not None and self.registry.store.durable and not self._returning:
            op = Wrote(handle.uid, handle.fence, output.keep(self.registry.store.inline_output))
            self.registry.write_soon(op)
        if self.live is not None:
            self.live.end(0)

    async def gone(self) -> None:
        """Wait until nothing of a call that was handed over runs any more."""
        if self.handle.run is self and self.live is not None and self._parking is None:
            self._gone = asyncio.Event()
            await self._gone.wait()

    def lost(self) -> None:
        """Stop working on it without a report: another process runs it (E6)."""
        self.hand_over()

    def abandon(self) -> None:
        """Stop the handle although something of the call still runs; it lingers, with its lane and resources (Y2)."""
        if isinstance(self.handle.decided, Stopped):
            return
        self.handle.lingering = True
        self.stop(Failure("The tool did not end when it was cancelled.", "cancelled"))

    @property
    def kept(self) -> bool:
        """Whether its process runs on without this runtime (R7)."""
        return self._returning or bool(getattr(self.live, "kept", False))

    @property
    def can_be_taken_over(self) -> bool:
        """Whether another runtime can take its kept process over now."""
        return bool(getattr(self.live, "started", False))  # SupportsKeeping

    @property
    def has_key(self) -> bool:
        """Whether it has taken its completion key (D1)."""
        return bool(getattr(self.live, "has_key", False))

    @property
    def records_input(self) -> bool:
        """Whether its input is stored before it is acknowledged (E10)."""
        return bool(getattr(self.live, "records_input", False))

    @property
    def can_park(self) -> bool:
        """Whether it is a tool that can wait for an outside result: a function that may return `Pending` (D1)."""
        return bool(getattr(self.live, "can_park", False))

    @property
    def open_to_caller(self) -> bool:
        """Whether the caller may answer the open question."""
        return self._asked is not None and self._asked.route.caller

    @property
    def unseen(self) -> bool:
        """Whether it is a terminal that does not echo what is typed now."""
        return bool(getattr(self.live, "unseen", False))

    @property
    def typing(self) -> bool:
        """Whether part of the input is still to be typed."""
        return bool(getattr(self.live, "typing", False))

    @property
    def ending(self) -> bool:
        return self._ending is not None

    @property
    def is_parking(self) -> bool:
        """Whether the `Pending` that it returned is being written."""
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
        """Check now whether it reads its input; if so, the handle's watchers are notified."""
        if self._probing is not None:
            self._probing.now()

    def probe_soon(self) -> None:
        """Check whether it reads its input once its output is quiet."""
        if self._probing is not None:
            self._probing.when_quiet()

    @property
    def can_probe(self) -> bool:
        return self._probing is not None

    def _cancel_timers(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._force is not None:
            self._force.cancel()
        if self._attempts is not None:
            self._attempts.cancel()
        if self._probing is not None:
            self._probing.stop()
        if self.content is not None:
            self.content.stop()
        if self._ready is not None:
            self._ready.cancel()
            self._ready = None

    def _close_question(self) -> None:
        if self._asked is not None:
            if self._asked.route.person and self._timeout is not None:
                self._timeout.resume()
            self._asked = None
            self.handle.asks_caller = False
            self.registry.conversation(self.handle.conversation).open_questions -= 1
            self._host.closed(self.handle)

    # The user at its terminal

    def drive(self, by_person: bool) -> None:
        """The user takes over its terminal or hands it back. The tool's timeout is paused meanwhile (P4)."""
        handle = self.handle
        if (handle.driver is not None) == by_person:
            return
        handle.driver, handle.reading = "person" if by_person else None, False
        driven = getattr(self.live, "driven", None)  # SupportsScreen
        if driven is not None:
            driven(by_person)
        if self._timeout is not None:
            (self._timeout.pause if by_person else self._timeout.resume)()
        if handle.watchers:
            self.probe_soon()
        self.registry.notify_watchers(handle)
        self.registry.facts.tell(handle)

    @property
    def deadline(self) -> float | None:
        """When the timeout ends this attempt; None without a timeout or while the user is asked (P4)."""
        secs, patience = self.handle.tool.timeout_secs, self._timeout
        if secs is None or patience is None or patience.paused:
            return None
        return self._began + secs + patience.waited

    def awaited(self) -> None:
        """An `await` watches it."""
        if self._asked is not None:
            self._host.awaited(self.handle)
        self.probe_soon()


def _is_closing(outcome: Outcome) -> bool:
    """Whether a call failed because its effects refuse further steps (R6)."""
    return isinstance(outcome, Failure) and outcome.code == "runtime_closing"
