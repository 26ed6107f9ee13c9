"""What tools do with other calls: end a handle wherever it runs, and call a tool one-shot beside the conversation.

Nobody sees such a call: no news rides on its answer, and nothing counts as shown.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle, OnStop
from keephold.handles.state import EndedBy, Failure, Ok, Reply, Stopped
from keephold.handles.view import Handles
from keephold.tools.base import Tool
from keephold.tools.waiting import WaitToolHost, wait_tools
from keephold.tools.waiting.agents import Agents
from keephold.tools.waiting.measure import Measure
from keephold.turn.ending import all_stopped
from keephold.turn.replies import CANCELLED
from keephold.turn.tool_call import ToolCall

if TYPE_CHECKING:
    from keephold.runtime import Runtime
    from keephold.turn.turn import Response


class ToolServices:
    """The runtime, as tools reach it."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    def tools(self, agents: Agents, measure: Measure, *, detached: str, private_addresses: bool) -> list[Tool]:
        """The wait tools of the runtime."""
        replies = self._runtime.replies
        return wait_tools(
            WaitToolHost(
                durability=lambda: self._runtime.durability,
                show=replies.object,
                text=replies.printed,
                end=self.end,
                run=self.run,
                has_tool=self._has_tool,
                agents=agents,
                measure=measure,
                detached=detached,
                private_addresses=private_addresses,
            )
        )

    def _has_tool(self, name: str) -> bool:
        return self._runtime.toolbox.get(name) is not None

    async def end(self, handle: Handle, error: Failure, ended_by: EndedBy) -> None:
        """End a handle; it has stopped when this returns. One of another process ends in that one's words."""
        if not self._runtime.relay.elsewhere(handle):
            self._runtime.admission.end(handle, error, ended_by)
            await all_stopped([handle])
            return
        reply = await self._runtime.actions.perform(handle, "abort", by="model")
        if reply.is_error:
            raise ToolError(reply.result, code=reply.code or "tool_error")

    async def run(self, conversation: str, name: str, arguments: dict[str, Any], *, label: str, again: bool) -> Any:
        """Call a tool; what it returned. Raises `ToolError`. Cancelling this ends the call, unless the runtime is being
        closed: then the call is left for the next one, as any other (R6). With `again`, see `_earlier`."""
        earlier = await self._earlier(conversation, label) if again else None
        if earlier is not None:
            return _value(earlier, self._runtime.replies.outcome(earlier))
        visit = await self._runtime.desk(conversation).begin(ToolCall(label, name, arguments), park_after=None)
        visit.left = True
        try:
            response = await visit.response()
        except asyncio.CancelledError:
            if not self._runtime.closing:
                self._give_up(visit.handle)
                visit.cancel()
            raise
        return _value(visit.handle, response)

    async def _earlier(self, conversation: str, label: str) -> Handle | None:
        """The call of that label from before a restart, when it is over and what it came to counts. One that is parked,
        or that recovery goes on with or is about to end, is followed to its end."""
        try:
            handle = await Handles(self._runtime.registry, conversation).find_call(label)
        except ToolError:
            return None
        if handle.tool.source == "builtin":
            return None
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watcher = OnStop(lambda _: None if over.done() else over.set_result(None))
        handle.watch(watcher)
        try:
            await over
        except asyncio.CancelledError:
            handle.unwatch(watcher)
            if not self._runtime.closing:
                self._give_up(handle)
            raise
        return handle if isinstance(handle.state, Stopped) and _counts(handle.state) else None

    def _give_up(self, handle: Handle | None) -> None:
        """Nobody wants the call any more: it is aborted, and by that told from one that was cancelled from outside."""
        if handle is None or not handle.active or handle.stateful:
            return
        error = Failure(CANCELLED, "cancelled")
        if self._runtime.relay.elsewhere(handle):
            self._runtime.registry.run_soon(self.end(handle, error, "abort"))
        else:
            self._runtime.admission.end(handle, error, "abort")


def _counts(state: Stopped) -> bool:
    """Whether the call has come to this by itself or from outside, and was not ended for whoever called it. A transient
    error asks to be tried again."""
    failed = isinstance(state.outcome, Failure) and state.outcome.transient
    return state.ended_by in ("self", "timeout", "cancel") and not failed


def _value(handle: Handle | None, response: "Response | Reply") -> Any:
    state = handle.state if handle is not None and not handle.stateful else None
    outcome = state.outcome if isinstance(state, Stopped) else None
    match outcome:
        case Ok(value):
            return value
        case Failure(message, code, trace, transient):
            raise ToolError(message, code=code, transient=transient, trace=trace)
    if response.is_error:
        raise ToolError(response.result, code=response.code or "tool_error")
    if isinstance(outcome, Reply) or (handle is not None and handle.stateful):  # of a built-in, or a spawn
        try:
            return msgspec.json.decode(response.result)
        except msgspec.DecodeError:
            pass
    return response.result
