"""`complete_wait_handle`: settle a handle from outside, by its id or its whole key (D8, W6).

By id it settles only handles of `create_wait_handle`: a model must not approve its own request. The key of any wait
completes that one wait. One conditional write decides, so the first of several wins, in any process.
"""

from typing import Any

from keephold.durable.keys import is_key
from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Reply, Stopped
from keephold.store.base import Resolution
from keephold.text import instant
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.create import NAME as CREATE
from keephold.tools.waiting.tasks import CREATE as TASK
from keephold.tools.waiting.tool import WRITES, Arguments, Refused, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import elapsed, fitting, milliseconds, reply, status, text

PARAMETERS = object_schema(
    "handleId",
    handleId=text("ID of a handle of `create_wait_handle`, or the key of any wait."),
    result={"description": "Result data (if successful): any JSON value. Default: null."},
    error=text("Error message (if failed). Leave it out on success: any text, even empty, means failure."),
)
RETURNS = reply("success handleId type status result? error? elapsedMs elapsedTime startTime endTime?")
_STATUS = {"ok": "completed", "err": "failed", "timeout": "timeout", "cancelled": "failed"}


def complete_tool(around: WaitToolHost) -> Tool:
    @wait_tool(around, PARAMETERS, RETURNS, names="handleId", hints=WRITES | {"title": "Complete a wait handle"})
    async def complete_wait_handle(call: Call, arguments: Arguments) -> Reply:
        """Manually complete or fail a wait handle (used by external systems). Use it when the work that the handle
        stands for has ended; those who wait for it get the result. Agents, workflows and tools end by themselves.
        Returns the final status.
        """
        id, error = arguments["handleId"], arguments.get("error")
        if error is None:
            resolution = Resolution("ok", arguments.get("result"))
        else:
            resolution = Resolution("err", {"code": "tool_error", "message": error})
        if is_key(id):
            return await _by_key(id, resolution)
        handle = around.named(call, id)
        if handle.tool.name != CREATE:
            raise _refusal(handle)
        if isinstance(handle.state, Stopped):
            raise settled(id, status(handle))
        result = await around.waits.complete(handle, resolution)
        if result.status != "accepted":
            known = result.terminal  # None: another call was faster
            raise settled(id, _STATUS[known.status] if known else status(await around.find(call, id)))
        return _completed(handle, resolution)

    async def _by_key(key: str, resolution: Resolution) -> Reply:
        waits, registry = around.waits, around.registry
        row = await waits.verify(key)
        record = None if row is None else await registry.store.handle(row.uid)
        if row is None or record is None:
            raise ToolError("No wait has this key, or it was revoked", code="await_event_unknown_or_revoked")
        handle = registry.adopt(record)
        outcome = await waits.resolve(key, resolution)
        if outcome.status == "already_resolved" and outcome.terminal is not None:
            raise settled(handle.id, _STATUS[outcome.terminal["status"]])
        if outcome.status != "accepted":
            raise ToolError("No wait has this key, or it was revoked", code="await_event_unknown_or_revoked")
        return _completed(handle, resolution)

    def _completed(handle: Handle, resolution: Resolution) -> Reply:
        # One of ours that is not parked yet is about to stop with it. A call that waited for an event continues,
        # and one whose result the user has to approve first has not ended.
        state = handle.state
        over = not handle.active or handle.tool.name == CREATE
        end = state.stopped if isinstance(state, Stopped) else around.now()
        took = milliseconds(end - state.created)
        answer: dict[str, Any] = {
            "success": True,
            "handleId": handle.id,
            "type": handle.kind,
            "status": _STATUS[resolution.status] if over else "pending",
        }
        if resolution.status == "ok":
            answer["result"] = fitting(resolution.payload)
        else:
            answer["error"] = resolution.payload["message"]
        answer |= {"elapsedMs": took, "elapsedTime": elapsed(took)}
        answer |= {"startTime": instant(state.created)} | ({"endTime": instant(end)} if over else {})
        return around.show(answer, shown=() if handle.active else (handle,))

    return complete_wait_handle


def settled(id: str, now: str) -> Refused:
    return Refused(f"Wait handle {id} is already {now}", code="already_stopped", currentStatus=now)


def _refusal(handle: Handle) -> ToolError:
    """Say what would end the handle instead (D8)."""
    match handle.kind:
        case "agent" | "workflow":
            how = "it ends by itself, and `cancel_wait_handle` ends it before that"
        case "custom" if handle.tool.name == TASK:
            how = '`update_task_status` with status "completed" does'
        case _ if handle.parking is not None:
            how = "whoever has its completion key does, with that as `handleId`"
        case _ if "abort" in handle.tool.actions:
            how = f'`{handle.tool.name}` ends by itself, or with its action "abort"'
        case _:
            how = f"`{handle.tool.name}` ends by itself"
    return ToolError(
        f"Wait handle {handle.id} was not made by {CREATE} and cannot be completed by its id; {how}",
        code="handle_of_another_tool",
    )
