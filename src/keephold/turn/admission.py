"""From a registered handle to a running one: the serial lane, resources and slots, then the start (B4, B5, W11).

Admission also ends handles from outside, because the way to end one depends on how far it has come.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

from keephold.errors import ToolError
from keephold.handles.gate import RESOURCE, Ticket
from keephold.handles.handle import Handle, OnStop
from keephold.handles.observing import answered
from keephold.handles.question import Open, Question
from keephold.handles.registry import Registry
from keephold.handles.state import EndedBy, Failure, Outcome, Pending, Stopped, error_of
from keephold.store.endings import CANCELLED
from keephold.tools.base import Invocation, Tool
from keephold.tools.guard import Guard
from keephold.tools.run import Run
from keephold.tools.toolbox import Toolbox
from keephold.turn.crash_loops import CrashLoops
from keephold.turn.permission import Permission
from keephold.turn.prompt_queue import Asking
from keephold.turn.questions import Questions
from keephold.turn.replies import Replies
from keephold.turn.serial_lanes import SerialLanes, lane_of

_ENDED_AT_ONCE = 64
"""Number of running handles that are ended before the event loop runs."""


class Admission:
    """Starts the handles of one runtime when their turn has come."""

    def __init__(
        self,
        registry: Registry,
        toolbox: Toolbox,
        questions: Questions,
        permission: Permission,
        replies: Replies,
        guard: Guard,
    ) -> None:
        self._registry = registry
        self.guard = guard
        self._toolbox = toolbox
        self._questions = questions
        self._permission = permission
        self._replies = replies
        self.loops = CrashLoops(registry)
        self.lanes = SerialLanes(registry)
        self._deliveries: dict[str, Asking] = {}
        """By uid: open prompts for results that the user has to release."""

    def queues(self, tool: Tool) -> bool:
        """Return whether a call of the tool may have to queue before it starts."""
        return tool.scheduling == "serial" or self._toolbox.has_names(tool)

    def resources(self, invocation: Invocation) -> tuple[str, ...]:
        """Return the resources a call needs; none if they cannot be determined, which `admit` reports."""
        if not invocation.tool.resources:
            return ()
        try:
            return tuple(resources(self._toolbox.names(invocation)))
        except ToolError:
            return ()

    def admit(self, handle: Handle, invocation: Invocation) -> None:
        """Start a call, now or when it may start. A serial one passes its conversation's lane first."""
        try:
            names = self._toolbox.names(invocation)
        except ToolError as error:
            self._registry.end(handle, error_of(error))
            return
        if handle.tool.scheduling == "serial":
            # One-shot calls have a lane of their own (B4). A batch starts them one at a time anyway; the lane is for
            # one that was ended and lingers (Y2).
            lane, queue = lane_of(handle), partial(self._queue, handle, invocation, names)
            start = partial(self.lanes.take, lane, handle, queue)
            handle.lane = Ticket(self._registry.serial, handle, {lane: 1}, start)
            self._registry.serial.enter(handle.lane)
        else:
            self._queue(handle, invocation, names)
        if isinstance(handle.state, Pending):
            self._registry.notify_watchers(handle)
            if handle.queueing is not None:
                self._registry.facts.queued(handle)

    async def take_back(self, handle: Handle, invocation: Invocation) -> None:
        """Resume a call whose process has run on (R7): it holds its names beside their holders, and does not queue."""
        try:
            names = self._toolbox.names(invocation)
        except ToolError:  # of a configuration that was changed meanwhile
            names = {}
        if handle.tool.scheduling == "serial":
            lane = lane_of(handle)
            handle.lane = Ticket(self._registry.serial, handle, {lane: 1}, lambda: None)
            self._registry.serial.take(handle.lane)
            self.lanes.keep(lane, handle)
        if names:
            handle.ticket = Ticket(self._registry.gate, handle, names, lambda: None)
            self._registry.gate.take(handle.ticket)
        await Run(self._registry, handle, self).take_back(invocation)
        if _interactive(handle):
            self._recheck_queue(handle)

    def _queue(self, handle: Handle, invocation: Invocation, names: Mapping[str, int]) -> None:
        if isinstance(handle.decided, Stopped):  # it is being ended with others, see `end_all`
            return
        if not names:
            self._start(handle, invocation)
            return
        start = partial(self._start, handle, invocation)
        ticket = handle.ticket = Ticket(self._registry.gate, handle, names, start, priority=handle.priority)
        self._registry.gate.enter(ticket)
        if handle.lane is not None and not ticket.held:
            self._registry.notify_watchers(
                handle
            )  # it has moved to another queue, perhaps behind a blocked handle (A6)
            self._registry.facts.queued(handle)

    def _start(self, handle: Handle, invocation: Invocation) -> None:
        if not self.loops.active or not self.loops.holds(handle, partial(self._run, handle, invocation)):
            self._run(handle, invocation)

    def _run(self, handle: Handle, invocation: Invocation) -> None:
        if isinstance(handle.decided, Stopped) or self._registry.closing:
            return
        Run(self._registry, handle, self).start(invocation)
        self._registry.facts.started(handle)
        if _interactive(handle):
            self._recheck_queue(handle)

    def _recheck_queue(self, handle: Handle) -> None:
        """Recheck the one-shot calls that queue for a resource whose holder stays: they are hopeless (B5)."""
        lines = handle.ticket.lines() if handle.ticket is not None else ()
        for call in [ticket.handle for line in lines for ticket in line.queue if not ticket.handle.stateful]:
            self._registry.notify_watchers(call)

    # RunHost

    def route(self, handle: Handle, question: Question) -> Outcome | Open:
        return self._questions.route(handle, question)

    def opened(self, handle: Handle) -> None:
        self._questions.opened(handle)

    def awaited(self, handle: Handle) -> None:
        self._questions.awaited(handle)

    def closed(self, handle: Handle) -> None:
        self._questions.closed(handle)
        delivery = self._deliveries.pop(handle.uid, None)
        if delivery is not None:
            delivery.withdraw()

    def is_delivering(self, uid: str) -> bool:
        """Return whether the user is being asked about the result of that call."""
        return uid in self._deliveries

    def deliver(self, handle: Handle, outcome: Outcome, then: Callable[[Outcome], None]) -> None:
        """Call `then` with the part of an outcome that may be seen (P5)."""

        def delivered(shown: Outcome) -> None:
            self._deliveries.pop(handle.uid, None)
            notify(shown)

        notify = then
        asking = self._permission.to_deliver(handle, outcome, lambda: self._replies.preview(handle, outcome), delivered)
        if asking is not None:
            notify = answered(self._registry, handle.uid, "result", then)
            self._deliveries[handle.uid] = asking

    def leave(self, handle: Handle) -> None:
        """Release its place in the lane and its resources."""
        lane, ticket = handle.lane, handle.ticket
        if lane is None and ticket is None:
            return
        handle.lane = handle.ticket = None
        if handle.parked and ticket is not None and (names := resources(ticket.names)):
            self.hold(handle, names)  # before the ticket is released, so that no other call comes in between (B5)
        for each in (ticket, lane):
            if each is not None:
                each.gate.leave(each)
        for name in lane.names if lane is not None else ():
            self.lanes.leave(name, handle)

    def hold(self, handle: Handle, names: Mapping[str, int]) -> None:
        """A parked call keeps its resources until it stops; its slots and its place in the lane are free (B5, D10)."""
        handle.ticket = Ticket(self._registry.gate, handle, names, lambda: None)
        self._registry.gate.take(handle.ticket)
        handle.watch(OnStop(self.leave))
        self._recheck_queue(handle)

    def end(self, handle: Handle, error: Failure, ended_by: EndedBy) -> None:
        """End a handle. A queued one never starts; a running one is asked to end and stops when it has."""
        if handle.run is not None:
            handle.run.end(error, ended_by)
        elif not isinstance(handle.decided, Stopped):
            if handle.parked:
                error = CANCELLED  # in these words, for every way to end it (D2)
            self._registry.end(handle, error, ended_by)
            self.leave(handle)

    def end_all(self, handles: Sequence[Handle], error: Failure, ended_by: EndedBy) -> None:
        """End several. No queued one starts because another one leaves (S3)."""
        queued = [handle for handle in handles if handle.run is None and not isinstance(handle.decided, Stopped)]
        for handle in queued:
            self._registry.end(handle, CANCELLED if handle.parked else error, ended_by)
        for handle in queued:
            self.leave(handle)
        self._end_running(deque(handle for handle in handles if handle.run is not None), error, ended_by)

    def _end_running(self, handles: deque[Handle], error: Failure, ended_by: EndedBy) -> None:
        """End a portion now and the others after that: each of them has its end, and all that follows from it."""
        for _ in range(min(_ENDED_AT_ONCE, len(handles))):
            handle = handles.popleft()
            if handle.run is not None or ended_by not in ("turn_end", "shutdown"):  # one that has parked stays (T4, R6)
                self.end(handle, error, ended_by)
        if handles:
            asyncio.get_running_loop().call_soon(self._end_running, handles, error, ended_by)

    async def release(self, handles: Sequence[Handle]) -> None:
        """Stop working on calls without an end, and give up their ownership: somebody will start them again (B9)."""
        for run in [handle.run for handle in handles if handle.run is not None]:
            run.hand_over()
            await run.gone()
        for handle in handles:
            self.leave(handle)
            await self._registry.release(handle)

    def hopeless(self, handle: Handle, already_handled: Container[str]) -> Handle | None:
        """B5: return the handle that holds up a one-shot call and will not stop by itself, if there is one."""
        stuck = handle.behind(already_handled)
        if stuck is not None:
            return stuck
        for ticket in (handle.lane, handle.ticket):
            if ticket is None:
                continue
            for group in ticket.in_front():
                if all(_stays(other, already_handled) for other in group):
                    return group[0]
        return None


def resources(names: Mapping[str, int]) -> dict[str, int]:
    """Return the names that are resources, not slots."""
    return {name: capacity for name, capacity in names.items() if name.startswith(RESOURCE)}


def _stays(holder: Handle, already_handled: Container[str]) -> bool:
    return holder.parked or _interactive(holder) or holder.blocked_on_caller(already_handled)


def _interactive(holder: Handle) -> bool:
    run = holder.run
    return run is not None and not run.ending and run.spawned and "apply" in holder.tool.actions
