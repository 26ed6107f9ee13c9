"""From a registered handle to a running one: the serial lane, resources and slots, then the start (B4, B5, W11).

Admission is also how a handle is ended from outside, because what that means depends on how far it has come.
"""

from collections.abc import Container, Mapping, Sequence
from functools import partial

from holdfast.errors import ToolError
from holdfast.handles.gate import Ticket
from holdfast.handles.handle import Handle
from holdfast.handles.registry import Registry
from holdfast.handles.state import EndedBy, Error, Pending, Stopped, error_of
from holdfast.tools.base import Invocation
from holdfast.tools.run import Run
from holdfast.tools.toolbox import Toolbox
from holdfast.turn.permission import Permission
from holdfast.turn.questions import Questions


class Admission:
    """Lets handles of one runtime run when their time has come."""

    def __init__(self, registry: Registry, toolbox: Toolbox, questions: Questions, permission: Permission) -> None:
        self._registry = registry
        self._toolbox = toolbox
        self._questions = questions
        self._permission = permission

    def admit(self, handle: Handle, invocation: Invocation) -> None:
        """Start it, now or when it may. A serial one passes its conversation's lane first."""
        try:
            names = self._toolbox.names(invocation)
        except ToolError as error:
            self._registry.end(handle, error_of(error))
            return
        if handle.tool.scheduling == "serial":
            # One-shot calls have a lane of their own (B4). A batch starts them one at a time anyway; the lane is for
            # what lingers of one that was ended (Y2).
            lane = {f"{'serial' if handle.stateful else 'call'}:{handle.conversation}": 1}
            handle.lane = Ticket(self._registry.serial, handle, lane, partial(self._queue, handle, invocation, names))
            self._registry.serial.enter(handle.lane)
        else:
            self._queue(handle, invocation, names)
        if isinstance(handle.state, Pending):
            self._registry.touch(handle)

    def _queue(self, handle: Handle, invocation: Invocation, names: Mapping[str, int]) -> None:
        if isinstance(handle.decided, Stopped):  # one of several that are being ended, see `end_all`
            return
        if not names:
            self._start(handle, invocation)
            return
        start = partial(self._start, handle, invocation)
        ticket = handle.ticket = Ticket(self._registry.gate, handle, names, start, priority=handle.priority)
        self._registry.gate.enter(ticket)
        if handle.lane is not None and not ticket.held:
            self._registry.touch(handle)  # it has left one queue and stands in another: behind someone blocked? (A6)

    def _start(self, handle: Handle, invocation: Invocation) -> None:
        if isinstance(handle.decided, Stopped):
            return
        run = Run(self._registry, handle, self._questions.route, self._permission.to_deliver)
        run.on_released = self._leave
        run.start(invocation)
        if handle.ticket is not None and _interactive(handle):
            queues = [ticket.handle for line in handle.ticket.lines() for ticket in line.queue]
            for call in [other for other in queues if not other.stateful]:
                self._registry.touch(call)  # with such a holder it is hopeless (B5)

    def _leave(self, handle: Handle) -> None:
        lane, ticket = handle.lane, handle.ticket
        handle.lane = handle.ticket = None
        for each in (ticket, lane):
            if each is not None:
                each.gate.leave(each)

    def end(self, handle: Handle, error: Error, ended_by: EndedBy) -> None:
        """End it, for a reason. What has not started never will; what runs is told to end and stops when it has."""
        if handle.run is not None:
            handle.run.end(error, ended_by)
        elif not isinstance(handle.decided, Stopped):
            self._registry.end(handle, error, ended_by)
            self._leave(handle)

    def end_all(self, handles: Sequence[Handle], error: Error, ended_by: EndedBy) -> None:
        """End several. None of those that queue starts because another one leaves (S3)."""
        queued = [handle for handle in handles if handle.run is None and not isinstance(handle.decided, Stopped)]
        for handle in queued:
            self._registry.end(handle, error, ended_by)
        for handle in queued:
            self._leave(handle)
        for handle in handles:
            self.end(handle, error, ended_by)

    def hopeless(self, handle: Handle, spare: Container[str]) -> Handle | None:
        """B5: whoever holds up a one-shot call and will not go by itself, if there is such a handle."""
        stuck = handle.behind(spare)
        if stuck is not None:
            return stuck
        for ticket in (handle.lane, handle.ticket):
            if ticket is None:
                continue
            for group in ticket.in_front():
                if all(_stays(other, spare) for other in group):
                    return group[0]
        return None


def _stays(holder: Handle, spare: Container[str]) -> bool:
    return _interactive(holder) or holder.blocked_on_caller(spare)


def _interactive(holder: Handle) -> bool:
    run = holder.run
    return run is not None and not run.ending and holder.stateful and "apply" in holder.tool.actions
