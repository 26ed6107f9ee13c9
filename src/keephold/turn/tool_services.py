"""Operations of tools on other calls: end a handle in any process, and call a tool one-shot beside the conversation.

The model does not see such a call: its answer carries no notifications and does not count as shown.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from keephold.errors import ToolError
from keephold.handles.handle import Handle, OnStop
from keephold.handles.state import EndedBy, Failure, Ok, Reply, Stopped
from keephold.handles.view import Handles
from keephold.text import to_json
from keephold.tools.toolbox import One
from keephold.turn.replies import CANCELLED
from keephold.turn.tool_call import ActiveCall, ToolCall, call_on

if TYPE_CHECKING:
    from keephold.turn.parts import Parts
    from keephold.turn.single_calls import CallQueues
    from keephold.turn.turn import Response


class ToolServices:
    """Gives the wait tools access to the runtime, which is made after them."""

    _parts: "Parts"
    _queues: "CallQueues"

    def connect(self, parts: "Parts", queues: "CallQueues") -> None:
        self._parts, self._queues = parts, queues

    async def end(self, handle: Handle, error: Failure, ended_by: EndedBy) -> None:
        """End a handle; it has stopped when this returns."""
        reply = await self._parts.actions.perform(handle, "abort", by="model", ends=(error, ended_by))
        if reply.is_error and handle.active:
            raise ToolError(reply.result, code=reply.code or "tool_error")

    async def run(
        self,
        conversation: str,
        name: str,
        arguments: dict[str, Any],
        *,
        label: str,
        again: bool,
        internal: bool = False,
    ) -> Any:
        """Call a tool and return its value. Raises `ToolError`. Cancelling this ends the call, unless the runtime is
        closing: then the call is left for the next one (R6). With `again`, see `_earlier`. With `internal` the tool is
        one that no conversation is offered."""
        earlier = await self._earlier(conversation, label, name, arguments if internal else None) if again else None
        if earlier is not None:
            return _value(earlier, self._parts.replies.outcome(earlier))
        tools = One(self._parts.toolbox, name) if internal else None
        asked = ToolCall(label, name, arguments)
        call = await self._queues.of(conversation).begin(asked, park_after=None, tools=tools, step=True)
        call.left = True
        try:
            response = await call.response()
        except asyncio.CancelledError:
            if not self._parts.lifecycle.closing:
                self._give_up(call.handle)
                call.cancel()
            raise
        return _value(call.handle, response)

    async def _earlier(
        self, conversation: str, label: str, name: str, arguments: dict[str, Any] | None
    ) -> Handle | None:
        """Wait for the call of that label from before a restart, and return it if its outcome counts.

        It must be a call of that tool, and with `arguments` one of exactly these: a permission is for what was asked.
        Arguments of other calls may differ, as the user may edit them (P5)."""
        try:
            handle = await Handles(self._parts.registry, conversation).find_call(label)
        except ToolError:
            return None
        if handle.tool.source == "builtin" or handle.tool.name != name:
            return None
        if arguments is not None and not await self._has_arguments(handle, arguments):
            return None
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watcher = OnStop(lambda _: None if over.done() else over.set_result(None))
        handle.watch(watcher)
        try:
            await over
        except asyncio.CancelledError:
            handle.unwatch(watcher)
            if not self._parts.lifecycle.closing:
                self._give_up(handle)
            raise
        return handle if isinstance(handle.state, Stopped) and _counts(handle.state) else None

    async def _has_arguments(self, handle: Handle, arguments: dict[str, Any]) -> bool:
        record = await self._parts.registry.store.handle(handle.uid)
        checked = self._parts.toolbox.of(handle.conversation).check(handle.tool, None)(arguments)
        return record is not None and to_json(record.arguments) == to_json(checked)

    def _give_up(self, handle: Handle | None) -> None:
        """Abort a call that is no longer wanted; `abort` distinguishes it from one cancelled from outside."""
        if handle is None or not handle.active or handle.stateful:
            return
        abort = replace(call_on(handle, "abort", {}, "model"), ends=(Failure(CANCELLED, "cancelled"), "abort"))
        self._parts.actions.act_anywhere(ActiveCall(abort, lambda *_: None, handle=handle))


def _counts(state: Stopped) -> bool:
    """Return whether the call ended by itself or from outside, and not by its caller; a transient error is retried, and
    a call that ended its process is not."""
    failure = state.outcome if isinstance(state.outcome, Failure) else None
    if failure is not None and failure.code == "crash_loop":
        return True
    return state.ended_by in ("self", "timeout", "cancel") and not (failure is not None and failure.transient)


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
