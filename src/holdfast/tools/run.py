"""The life of one started call: between a tool's runtime, which tells what happens, and the registry, which records it.

A run is the `Sink` its runtime talks to. It turns news into events of the state machine, keeps the tool's timeout, and
is how everyone else ends a call: `end` says why, the runtime does it, and the end that comes back carries that reason.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from holdfast.durable.deferred import Pending, parking
from holdfast.errors import HoldfastError, ToolError
from holdfast.handles.handle import Handle, Progress
from holdfast.handles.question import Question
from holdfast.handles.registry import Registry
from holdfast.handles.state import Answered, Asked, EndedBy, Error, Ok, Outcome, Running, Stopped, error_of
from holdfast.store.base import Attempted, Op, Parking, Wrote
from holdfast.tools.base import Invocation, Live, RetryPolicy

_log = logging.getLogger("holdfast.tools")

_READ_AGAIN_SECS = 1.0
FORCE_SECS = 3.0
"""How long after its grace a call may still take to end before it is left to linger."""


class Surroundings(Protocol):
    """What a call meets outside its tool. One object for all runs: there may be a hundred thousand of them."""

    def route(self, handle: Handle, question: Question) -> Outcome | None:
        """Who answers a question: an outcome at once, or None when it stays open for the caller."""

    def deliver(self, handle: Handle, outcome: Outcome) -> Outcome:
        """What of an outcome may be delivered (P1's result modes)."""

    def leave(self, handle: Handle) -> None:
        """Nothing of the call runs any more."""

    def end(self, handle: Handle, error: Error, ended_by: EndedBy) -> None:
        """End a call that was told to end while its parking was being written."""


class Run:
    """One call from its start to the last trace of it."""

    __slots__ = (
        "_answer_to", "_around", "_between", "_ending", "_force", "_gone", "_invocation", "_last_output", "_parking",
        "_probe", "_probe_timer", "_record", "_settled", "_timeout", "handle", "letting_go", "listeners", "live",
        "registry",
    )  # fmt: skip

    def __init__(self, registry: Registry, handle: Handle, around: Surroundings) -> None:
        self.registry = registry
        self.handle = handle
        self.live: Live | None = None
        self.letting_go = False
        self._invocation: Invocation | None = None
        self._between = False
        """Its next attempt is planned; nothing of it runs."""
        self._gone: asyncio.Event | None = None
        self._settled: Callable[[], Awaitable[None]] | None = None
        self._parking: Parking | None = None
        """It has returned `Pending`; that is being written."""
        self._record: Callable[[Any, bytes], Op] | None = None
        self._around = around
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
        try:
            self.live = tool.runtime.start(self._invocation, self)
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

    # Another attempt (R5)

    def _again(self) -> bool:
        """After a transient failure: whether there is to be another attempt, which is then on its way."""
        handle, retry = self.handle, self.handle.tool.retry
        if self.letting_go or handle.lingering:
            return False
        if self._ending is not None and self._ending[1] != "timeout":
            return False
        if retry.policy == "never" or handle.attempt >= retry.max_attempts or self.has_key:
            return False
        self.plan(_pause(retry, handle.attempt))
        return True

    def plan(self, delay: float) -> None:
        """The next attempt begins in so many seconds; that it will is written first, so a crash cannot lose it."""
        handle, registry = self.handle, self.registry
        self._cancel_timers()
        if self._force is not None:
            self._force.cancel()
        self._settled = getattr(self.live, "settled", None)
        self.live, self._probe, self._ending, self._between = None, None, None, True
        handle.attempt += 1
        handle.next_attempt_at = registry.clock.now() + delay
        op = Attempted(handle.uid, handle.fence, handle.attempt, handle.next_attempt_at)
        registry.store.commit((op,), lambda _: self.resume_in(delay), self._refused, keep=True)

    def resume_in(self, delay: float) -> None:
        """Wait for the time of a planned attempt."""
        self._between = True
        if not isinstance(self.handle.decided, Stopped) and not self.letting_go:
            self._timeout = asyncio.get_running_loop().call_later(delay, self._attempt)

    def _attempt(self) -> None:
        handle = self.handle
        op = Attempted(handle.uid, handle.fence, handle.attempt, None)
        handle.next_attempt_at = None
        self.registry.store.commit((op,), lambda _: self.registry.run_soon(self._load()), self._refused, keep=True)

    async def _load(self) -> None:
        """Begin an attempt with what the ones before have recorded."""
        assert self._invocation is not None
        handle = self.handle
        if self._settled is not None:
            await self._settled()  # what the attempt before has not finished recording
        try:
            entries = await self.registry.store.journal(handle.uid) if handle.tool.on_crash == "replay" else ()
        except HoldfastError as error:
            _log.warning("the journal of call %s cannot be read: %s", handle.uid, error)
            self.resume_in(_READ_AGAIN_SECS)
            return
        self._invocation = replace(self._invocation, attempt=handle.attempt, fence=handle.fence, entries=entries)
        if self._ending is None and not self.letting_go:
            self._between = False
            self.mark_attempt()
            self._begin()

    def mark_attempt(self) -> None:
        """A line in the output that tells the attempts apart (E10)."""
        output = self.handle.output
        if output is not None and output.total:
            start = b"" if output.before(output.total, 1) == b"\n" else b"\n"
            output.append(start + f"--- attempt {self.handle.attempt} ---\n".encode())

    def _refused(self, error: Exception) -> None:
        self.lost()

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

    def ask(
        self, question: Question, then: Callable[[Outcome], None], record: Callable[[Any, bytes], Op] | None = None
    ) -> None:
        handle = self.handle
        if isinstance(handle.decided, Stopped) or self._ending is not None:
            return
        if self._probe is not None:
            handle.reading = False  # what it reads next is the answer
        outcome = self._around.route(handle, question)
        registry, now = self.registry, self.registry.clock.now()
        if outcome is None:
            self._answer_to, self._record = then, record
            registry.conversation(handle.conversation).open_questions += 1
            handle.asks_caller = True
            registry.apply_event(handle, Asked(now, question), lambda: registry.touch(handle))
        else:
            registry.apply_event(handle, Asked(now, question))
            also = (record(outcome.value, b""),) if record is not None and isinstance(outcome, Ok) else ()
            registry.apply_event(handle, Answered(now), lambda: then(outcome), also)

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
        if self._answer_to is not None:
            self._close_question()
        if self._timeout is not None or self._probe_timer is not None:
            self._cancel_timers()
        if self.letting_go or (self.registry.closing and _is_closing(outcome)):
            return  # what it says when it is let go is not its end; if it was, a replay says it again (R6)
        if isinstance(outcome, Error) and outcome.transient and self._again():
            return
        if ended_by == "self" and handle.tool.result != "unattended":  # the others are told in our words
            delivered = self._around.deliver(handle, outcome)
            if delivered is not outcome:
                outcome = delivered
                self.registry.withhold(handle)
        self.registry.end(handle, outcome, ended_by, exit_code, signal)

    def park(self, pending: Pending) -> None:
        handle, tool = self.handle, self.handle.tool
        if isinstance(handle.decided, Stopped):
            self.released()
            return
        self._cancel_timers()
        hold = tool.result != "unattended"
        self._parking = parking(pending, self.registry.clock.now(), hook=tool.has_cancel_hook, hold=hold)
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
        handle.run = None
        if self._gone is not None:
            self._gone.set()
        self.registry.released(handle)
        self._around.leave(handle)

    # What the world tells the tool

    def write(self, data: Any, cause: bytes) -> None:
        """Input for a running tool (C6); `cause` names the call that sends it."""
        assert self.live is not None
        write = getattr(self.live, "write_recorded", None)  # SupportsRecordedInput
        if write is not None:
            write(data, cause)
        else:
            self.live.write(data)
        self.handle.reading = False

    def answer(self, value: Any, cause: bytes) -> None:
        """The answer to the open question: recorded, then given to the tool."""
        then = self._answer_to
        assert then is not None
        also = (self._record(value, cause),) if self._record is not None else ()
        self._close_question()
        self.registry.apply_event(self.handle, Answered(self.registry.clock.now()), lambda: then(Ok(value)), also)

    def end(self, error: Error, ended_by: EndedBy) -> None:
        """End it for this reason. The first reason counts; the handle stops when the tool has ended."""
        if self._ending is not None or isinstance(self.handle.decided, Stopped):
            return
        if self._parking is not None and ended_by in ("turn_end", "shutdown"):
            return  # parked calls stay (T4, R6), and it is as good as parked
        self._ending = (error, ended_by)
        if self._parking is not None:
            return  # it has returned; `_parked` sees to it
        self._close_question()
        self.handle.reading = False  # from now on nobody waits for the caller (A6)
        if self.live is None:  # its start is being written, or it is between two attempts
            self._between = False
            self.stop(Error("Tool execution cancelled.", "cancelled"))
            self.released()
            return
        grace = self.handle.tool.spawn.abort_grace_ms / 1000
        self._force = asyncio.get_running_loop().call_later(grace + FORCE_SECS, self.abandon)
        self.live.end(grace)

    def let_go(self) -> None:
        """The runtime is closing: stop working on it and record no end; the next runtime takes it up (R6)."""
        self.letting_go = True
        self._cancel_timers()
        handle, output = self.handle, self.handle.output
        if output is not None and self.registry.store.durable:
            op = Wrote(handle.uid, handle.fence, output.keep(self.registry.store.inline_output))
            self.registry.store.commit((op,), lambda _: None, lambda _: None, keep=True)
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
        self.stop(Error("The tool did not end when it was told to.", "cancelled"))

    @property
    def ending(self) -> bool:
        return self._ending is not None

    @property
    def is_parking(self) -> bool:
        """Whether it has returned `Pending`, and that is being written."""
        return self._parking is not None

    @property
    def has_key(self) -> bool:
        """Whether it has taken its completion key (D1)."""
        return bool(getattr(self.live, "has_key", False))

    @property
    def waits_in_effects(self) -> bool:
        """Whether it waits for an event or sleeps (T1)."""
        return bool(getattr(self.live, "waits_in_effects", False))

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
            self._answer_to = self._record = None
            self.handle.asks_caller = False
            self.registry.conversation(self.handle.conversation).open_questions -= 1


def _is_closing(outcome: Outcome) -> bool:
    """Whether a call failed because its effects refuse further steps (R6)."""
    return isinstance(outcome, Error) and outcome.code == "runtime_closing"


def _pause(retry: RetryPolicy, attempt: int) -> float:
    """Seconds to wait after a failed attempt: exponential, up to half of it taken away by chance (R5)."""
    longest = retry.base_delay_ms * 2.0 ** min(attempt - 1, 60)
    if retry.max_delay_ms:
        longest = min(longest, retry.max_delay_ms)
    return longest / 1000 * (1 - random.random() / 2)
