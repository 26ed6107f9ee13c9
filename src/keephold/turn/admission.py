"""From a registered handle to a running one: the serial lane, resources and slots, then the start (B4, B5, W11).

Admission also ends handles from outside, because the way to end one depends on how far it has come.

The serial lane of a conversation is one in all processes of its store. A handle that is first in the lane of this
process takes the lane in the store: a post that only one process can have. The post ends with its process, so another
one takes the lane of a dead process. If a live process has the lane, the handle stays pending behind that process's
handle until the lane is free; processes get it in no promised order. The memory store has one process, and needs no
such post.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from keephold.errors import ToolError
from keephold.handles.facts import BehindElsewhere
from keephold.handles.gate import LANE_POST, RESOURCE, Ticket
from keephold.handles.handle import Handle, OnStop, Watcher
from keephold.handles.observing import answered
from keephold.handles.question import Open, Question
from keephold.handles.registry import Registry
from keephold.handles.state import EndedBy, Failure, Outcome, PendingState, Stopped, error_of
from keephold.store.base import Post, Posted, TakenDown
from keephold.store.rules import CANCELLED
from keephold.tools.base import Invocation, Tool
from keephold.tools.guard import Guard
from keephold.tools.run import Run
from keephold.tools.toolbox import Toolbox
from keephold.turn.crash_loops import CrashLoops
from keephold.turn.permission import Permission
from keephold.turn.prompt_queue import Asking
from keephold.turn.questions import Questions
from keephold.turn.replies import Replies

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
            lane, queue = _lane_of(handle), partial(self._queue, handle, invocation, names)
            start = partial(self.lanes.take, lane, handle, queue)
            handle.lane = Ticket(self._registry.serial, handle, {lane: 1}, start)
            self._registry.serial.enter(handle.lane)
        else:
            self._queue(handle, invocation, names)
        if isinstance(handle.state, PendingState):
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
            lane = _lane_of(handle)
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


# The serial lane in all processes


def _lane_of(handle: Handle) -> str:
    """Return the name of a serial handle's lane. One-shot calls of a conversation have a lane of their own."""
    return f"{'serial' if handle.stateful else 'call'}:{handle.conversation}"


class _LaneHolder(Watcher):
    """Watches the handle of another process that has the lane, for the handle that queues behind it."""

    __slots__ = ("_behind", "_registry")
    wants_reading = True

    def __init__(self, registry: Registry, behind: Handle) -> None:
        self._registry = registry
        self._behind = behind

    def handle_changed(self, handle: Handle) -> None:
        self._registry.notify_watchers(self._behind)


class _Queued(NamedTuple):
    """A handle that has the lane in this process, and waits for it in the store."""

    handle: Handle
    then: Callable[[], None]


class SerialLanes:
    """The lanes that this process has, takes or waits for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._holders: dict[str, Handle] = {}
        """By lane: the handle of this process that has it, or is to get it."""
        self._asking: set[str] = set()
        """Lanes that are being asked for."""
        self._rung: set[str] = set()
        """Those of them that have changed meanwhile."""
        self._queued: dict[str, _Queued] = {}
        self._watched: dict[str, tuple[Handle, _LaneHolder]] = {}
        """By lane: the handle of another process that has it."""

    def asking(self, handle: Handle) -> bool:
        """Return whether it is not known yet if the handle gets its lane at once."""
        return any(self._holders.get(lane) is handle for lane in self._asking)

    def take(self, lane: str, handle: Handle, then: Callable[[], None]) -> None:
        """Call `then` when the handle, which is first in its lane here, has the lane in the store."""
        self._stop_queueing(lane)  # the one before it may have queued, too, and leaves after this
        self._holders[lane] = handle
        if self._registry.store.durable:
            self._ask(lane, _Queued(handle, then))
        else:
            then()

    def keep(self, lane: str, handle: Handle) -> None:
        """Take the lane for a handle whose process runs already, unless another one has it or is to get it (R7)."""
        if self._registry.store.durable and lane not in self._holders:
            self._holders[lane] = handle
            self._ask(lane, _Queued(handle, lambda: None), kept=True)

    def _ask(self, lane: str, queued: _Queued, instead_of: str | None = None, *, kept: bool = False) -> None:
        registry, uid = self._registry, queued.handle.uid
        self._asking.add(lane)
        self._rung.discard(lane)
        op = Posted(LANE_POST + lane, "lane", registry.clock.now(), uid.encode(), instead_of)
        done = partial(self._asked, lane, queued, kept)
        registry.commit((op,), done, lambda _: self._asking.discard(lane), keep=True)

    def _asked(self, lane: str, queued: _Queued, kept: bool, results: Sequence[Any]) -> None:
        post: Post | None = results[0]
        if self._holders.get(lane) is not queued.handle:
            return  # it has left; what it wrote then comes after this
        self._asking.discard(lane)
        if post is None:
            self._stop_queueing(lane)
            queued.then()
        elif not self._registry.store.alive(post.owner):
            self._ask(lane, queued, post.owner, kept=kept)
        elif lane in self._rung:
            self._ask(lane, queued, kept=kept)
        elif not kept:
            self._queued[lane] = queued
            self._registry.run_soon(self._queue_behind(lane, queued, post.body.decode()))

    async def _queue_behind(self, lane: str, queued: _Queued, uid: str) -> None:
        """Let everyone see which handle holds it up (A6)."""
        record = await self._registry.store.handle(uid)
        if record is None or self._queued.get(lane) is not queued:
            return
        holder = self._registry.adopt(record)
        if lane not in self._watched or self._watched[lane][0] is not holder:
            self._unwatch(lane)
            watcher = _LaneHolder(self._registry, queued.handle)
            self._watched[lane] = (holder, watcher)
            holder.watch(watcher)
            self._registry.facts.sync(holder)
            queued.handle.ticket = BehindElsewhere(queued.handle, holder)
            self._registry.facts.queued(queued.handle)
        self._registry.notify_watchers(queued.handle)

    def _unwatch(self, lane: str) -> None:
        if lane in self._watched:
            holder, watcher = self._watched.pop(lane)
            holder.unwatch(watcher)
            self._registry.facts.sync(holder)

    def _stop_queueing(self, lane: str) -> None:
        queued = self._queued.pop(lane, None)
        self._unwatch(lane)
        if queued is not None:
            queued.handle.ticket = None

    def leave(self, lane: str, handle: Handle) -> None:
        """Free the lane, unless the next handle of this process has taken it already."""
        if self._holders.get(lane) is handle:
            del self._holders[lane]
            self._asking.discard(lane)
            self._stop_queueing(lane)
            if self._registry.store.durable:
                self._registry.write_soon(TakenDown((LANE_POST + lane,)))

    def heard(self, ids: frozenset[str] | None) -> None:
        """Ask again for lanes that another process may have freed."""
        for lane in tuple(self._holders):
            if ids is not None and LANE_POST + lane not in ids:
                continue
            if lane in self._asking:
                self._rung.add(lane)
            elif lane in self._queued:
                self._ask(lane, self._queued[lane])
