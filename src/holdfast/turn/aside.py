"""What tools do with other calls: end a handle wherever it runs, and call a tool one-shot beside the conversation.

Nobody sees such a call: no news rides on its answer, and nothing counts as shown.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ToolError
from holdfast.handles.handle import Handle
from holdfast.handles.state import EndedBy, Error, Ok, Reply, Stopped
from holdfast.tools.base import Tool
from holdfast.tools.waiting import Around, wait_tools
from holdfast.tools.waiting.agents import Agents
from holdfast.tools.waiting.measure import Measure
from holdfast.turn.ending import all_stopped
from holdfast.turn.slot import Slot, ToolCall

if TYPE_CHECKING:
    from holdfast.runtime import Runtime
    from holdfast.turn.turn import Response


class Aside:
    """The runtime, as tools reach it."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime

    def tools(self, agents: Agents, measure: Measure) -> list[Tool]:
        """The wait tools of the runtime."""
        replies = self._runtime.replies
        return wait_tools(
            Around(
                show=replies.object,
                text=replies.printed,
                end=self.end,
                run=self.run,
                has_tool=self._has_tool,
                agents=agents,
                measure=measure,
            )
        )

    def _has_tool(self, name: str) -> bool:
        return self._runtime.toolbox.get(name) is not None

    async def end(self, handle: Handle, error: Error, ended_by: EndedBy) -> None:
        """End a handle; it has stopped when this returns. One of another process ends in that one's words."""
        relay = self._runtime.relay
        if not relay.elsewhere(handle):
            self._runtime.admission.end(handle, error, ended_by)
            await all_stopped([handle])
            return
        slot = Slot(ToolCall(handle.call_id, handle.tool.name), 0)
        slot.tool, slot.action, slot.handle_id = handle.tool, "abort", handle.id
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        relay.ask(handle, slot, lambda reply: None if answered.done() else answered.set_result(reply))
        reply = await answered
        if reply.is_error:
            raise ToolError(reply.result, code=reply.code or "tool_error")

    async def run(self, conversation: str, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; what it returned. Raises `ToolError`. Cancelling this cancels the call."""
        visit = await self._runtime.desk(conversation).begin(ToolCall(name, name, arguments), park_after=None)
        visit.left = True
        try:
            response = await visit.response()
        except asyncio.CancelledError:
            visit.cancel()
            raise
        return _value(visit.handle, response)


def _value(handle: Handle | None, response: "Response") -> Any:
    state = handle.state if handle is not None and not handle.stateful else None
    outcome = state.outcome if isinstance(state, Stopped) else None
    match outcome:
        case Ok(value):
            return value
        case Error(message, code, trace, transient):
            raise ToolError(message, code=code, transient=transient, trace=trace)
    if response.is_error:
        raise ToolError(response.result, code=response.code or "tool_error")
    if isinstance(outcome, Reply) or (handle is not None and handle.stateful):  # of a built-in, or a spawn
        try:
            return msgspec.json.decode(response.result)
        except msgspec.DecodeError:
            pass
    return response.result
