"""`update_wait_handle` and `cancel_wait_handle`: annotate a handle, or end it early (W8)."""

from typing import Any

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Failure, Progress, Reply, Stopped
from keephold.store.base import Annotated, Record, Resolution
from keephold.text import instant
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.complete import settled
from keephold.tools.waiting.create import NAME as CREATE
from keephold.tools.waiting.create import PRIORITY, given, small, without_ours
from keephold.tools.waiting.tasks import CREATE as TASK
from keephold.tools.waiting.tool import ENDS, WRITES, Arguments, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import elapsed, label, milliseconds, progress_of, reply, status, text

_HANDLE = text("ID of the handle.")
UPDATE_PARAMETERS = object_schema(
    "handleId",
    handleId=_HANDLE,
    progress={
        "type": "number",
        "maximum": 1e300,
        "minimum": -1e300,
        "description": "How much is done, in units of your choice.",
    },
    total={"type": "number", "maximum": 1e300, "minimum": -1e300, "description": "Of how much, in the same units."},
    message=label("What is being done."),
    priority=PRIORITY,
    metadata={"type": "object", "description": "Keys to set; null removes one."},
)
UPDATE_RETURNS = reply("success handleId type status progress? priority? metadata?")
CANCEL_PARAMETERS = object_schema(
    "handleId", handleId=_HANDLE, reason=text("Why, for those who wait for it. Default: none.")
)
CANCEL_RETURNS = reply("success handleId type status error? elapsedMs elapsedTime startTime endTime")


def update_tool(around: WaitToolHost) -> Tool:
    hints = WRITES | {"title": "Update a wait handle", "idempotentHint": True}

    @wait_tool(around, UPDATE_PARAMETERS, UPDATE_RETURNS, names="handleId", hints=hints)
    async def update_wait_handle(call: Call, arguments: Arguments) -> Reply:
        """Say how far an async operation is, or change its priority or metadata. Arguments left out change nothing. To
        end the operation, use `complete_wait_handle`. Returns the handle; one that has settled is not changed.
        """
        handle = await around.find(call, arguments["handleId"])
        if not handle.active:
            raise settled(handle.id, status(handle))
        if handle.tool.name == TASK and "metadata" in arguments:
            why = f"Wait handle {handle.id} is a task; its metadata is changed by `update_task_status`"
            raise ToolError(why, code="handle_of_another_tool")
        registry = around.registry
        said = given(arguments)
        small({**without_ours(handle.metadata), **said})  # the whole of it, with earlier keys
        changes = Annotated(handle.uid, _progress(handle, arguments), arguments.get("priority"), said)
        try:
            (record,) = await registry.write((changes,), keep=False)
        except KeepholdError as error:
            if error.code != "already_stopped":
                raise
            raise settled(handle.id, status(await around.find(call, arguments["handleId"]))) from None
        registry.annotated(handle, record)
        return around.show(_updated(record))

    return update_wait_handle


def _progress(handle: Handle, arguments: Arguments) -> Progress | None:
    """Return the new progress; fields that are not given keep their values."""
    if not any(key in arguments for key in ("progress", "total", "message")):
        return None
    before = handle.progress or Progress(0)
    return Progress(
        arguments.get("progress", before.done),
        arguments.get("total", before.total),
        arguments.get("message", before.message),
    )


def _updated(record: Record) -> dict[str, Any]:
    answer: dict[str, Any] = {"success": True, "handleId": record.id, "type": record.kind, "status": "pending"}
    metadata = without_ours(record.metadata)
    return answer | progress_of(record.progress) | {"priority": record.priority, "metadata": metadata}


def cancel_tool(around: WaitToolHost) -> Tool:
    hints = ENDS | {"title": "Cancel a wait handle"}

    @wait_tool(around, CANCEL_PARAMETERS, CANCEL_RETURNS, names="handleId", hints=hints)
    async def cancel_wait_handle(call: Call, arguments: Arguments) -> Reply:
        """Cancel an async operation: a wait handle, an agent, a workflow, a timer, or a call that runs by itself. Those
        who wait for it get an error. Abort tools that you started in the background by their own action. Returns the
        final status.
        """
        handle, reason = await around.find(call, arguments["handleId"]), arguments.get("reason")
        if not handle.active:
            raise settled(handle.id, status(handle))
        if handle.tool.name == CREATE:
            why = f"Cancelled: {reason}" if reason else "Cancelled"
            payload = {"code": "cancelled", "message": why}
            result = await around.waits.complete(handle, Resolution("err", payload))
            if result.status != "accepted":
                raise settled(handle.id, status(await around.find(call, handle.id)))
        elif handle.kind in ("agent", "workflow", "timer") or _left_alone(handle):
            why = f"Cancelled by the assistant: {reason}" if reason else "Cancelled by the assistant."
            await around.end(handle, Failure(why, "aborted"), "abort")
        else:
            raise _refusal(handle)
        return around.show(_cancelled(handle, why, around.now()), shown=() if handle.active else (handle,))

    return cancel_wait_handle


def _left_alone(handle: Handle) -> bool:
    """Whether it is a one-shot call whose caller no longer waits (D10), and whose tool has no `abort`."""
    return handle.id.startswith("call:") and "abort" not in handle.tool.actions


def _cancelled(handle: Handle, why: str, now: float) -> dict[str, Any]:
    state = handle.state
    end = state.stopped if isinstance(state, Stopped) else now
    error = state.outcome.message if isinstance(state, Stopped) and isinstance(state.outcome, Failure) else why
    took = milliseconds(end - state.created)
    return {
        "success": True,
        "handleId": handle.id,
        "type": handle.kind,
        "status": "failed" if handle.active else status(handle),
        "error": error,
        "elapsedMs": took,
        "elapsedTime": elapsed(took),
        "startTime": instant(state.created),
        "endTime": instant(end),
    }


def _refusal(handle: Handle) -> ToolError:
    if handle.tool.name == TASK:
        how = '`update_task_status` with status "completed" does'
    elif "abort" in handle.tool.actions:
        how = f'`{handle.tool.name}` with action "abort" does'
    else:
        how = "a person can"
    return ToolError(
        f"Wait handle {handle.id} belongs to tool `{handle.tool.name}` and is not ended by this; {how}",
        code="handle_of_another_tool",
    )
