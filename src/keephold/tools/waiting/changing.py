"""`complete_wait_handle`, `update_wait_handle` and `cancel_wait_handle`: settle, annotate or end a handle (D8, W6, W8).

By id, `complete_wait_handle` settles only handles of `create_wait_handle`: a model must not approve its own request.
The key of any wait completes that one wait. One conditional write decides, so the first of several wins, in any
process.
"""

from typing import Any

from keephold.durable.keys import is_key
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Failure, Progress, Reply, Stopped
from keephold.store.base import Annotated, Record, Resolution, user_metadata
from keephold.text import instant
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.create import NAME as CREATE
from keephold.tools.waiting.create import PRIORITY, given, small
from keephold.tools.waiting.tasks import CREATE as TASK
from keephold.tools.waiting.tool import ENDS, WRITES, Arguments, Refused, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import elapsed, fitting, label, milliseconds, progress_of, reply, status, text

PARAMETERS = object_schema(
    "handleId",
    handleId=text("ID of a handle of `create_wait_handle`, or the key of any wait."),
    result={"description": "Result data (if successful): any JSON value. Default: null."},
    error=text("Error message (if failed). Leave it out on success: any text, even empty, means failure."),
)
RETURNS = reply("success handleId type status result? error? elapsedMs elapsedTime startTime endTime?")
_STATUS = {"ok": "completed", "err": "failed", "timeout": "timeout", "cancelled": "failed"}


def complete_tool(host: WaitToolHost) -> Tool:
    @wait_tool(host, PARAMETERS, RETURNS, names="handleId", hints=WRITES | {"title": "Complete a wait handle"})
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
        handle = host.named(call, id)
        if handle.tool.name != CREATE:
            raise _refusal(handle)
        if isinstance(handle.state, Stopped):
            raise settled(id, status(handle))
        result = await host.waits.complete(handle, resolution)
        if result.status != "accepted":
            known = result.terminal  # None: another call was faster
            raise settled(id, _STATUS[known.status] if known else status(await host.find(call, id)))
        return _completed(handle, resolution)

    async def _by_key(key: str, resolution: Resolution) -> Reply:
        waits, registry = host.waits, host.registry
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
        over = not handle.active or handle.tool.name == CREATE
        payload, good = resolution.payload, resolution.status == "ok"
        outcome = {"result": fitting(payload)} if good else {"error": payload["message"]}
        answer = _ended(handle, _STATUS[resolution.status] if over else "pending", outcome, host.now())
        if not over:
            del answer["endTime"]
        return host.replies.object(answer, shown=() if handle.active else (handle,))

    return complete_wait_handle


def _ended(handle: Handle, status: str, outcome: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the reply to a call that has ended a handle, with what it came to."""
    state = handle.state
    end = state.stopped if isinstance(state, Stopped) else now
    took = milliseconds(end - state.created)
    return {
        "success": True,
        "handleId": handle.id,
        "type": handle.kind,
        "status": status,
        **outcome,
        "elapsedMs": took,
        "elapsedTime": elapsed(took),
        "startTime": instant(state.created),
        "endTime": instant(end),
    }


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
            how = "the holder of its completion key does, with the key as `handleId`"
        case _ if "abort" in handle.tool.actions:
            how = f'`{handle.tool.name}` ends by itself, or with its action "abort"'
        case _:
            how = f"`{handle.tool.name}` ends by itself"
    return ToolError(
        f"Wait handle {handle.id} was not made by {CREATE} and cannot be completed by its id; {how}",
        code="handle_of_another_tool",
    )


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
    message=label("The current activity."),
    priority=PRIORITY,
    metadata={"type": "object", "description": "Keys to set; null removes one."},
)
UPDATE_RETURNS = reply("success handleId type status progress? priority? metadata?")
CANCEL_PARAMETERS = object_schema(
    "handleId", handleId=_HANDLE, reason=text("Why, for those who wait for it. Default: none.")
)
CANCEL_RETURNS = reply("success handleId type status error? elapsedMs elapsedTime startTime endTime")


def update_tool(host: WaitToolHost) -> Tool:
    hints = WRITES | {"title": "Update a wait handle", "idempotentHint": True}

    @wait_tool(host, UPDATE_PARAMETERS, UPDATE_RETURNS, names="handleId", hints=hints)
    async def update_wait_handle(call: Call, arguments: Arguments) -> Reply:
        """Say how far an async operation is, or change its priority or metadata. Arguments left out change nothing. To
        end the operation, use `complete_wait_handle`. Returns the handle; one that has settled is not changed.
        """
        handle = await host.find(call, arguments["handleId"])
        if not handle.active:
            raise settled(handle.id, status(handle))
        if handle.tool.name == TASK and "metadata" in arguments:
            why = f"Wait handle {handle.id} is a task; its metadata is changed by `update_task_status`"
            raise ToolError(why, code="handle_of_another_tool")
        registry = host.registry
        said = given(arguments)
        small({**user_metadata(handle.metadata), **said})  # the whole of it, with earlier keys
        changes = Annotated(handle.uid, _progress(handle, arguments), arguments.get("priority"), said)
        try:
            (record,) = await registry.write((changes,), keep=False)
        except KeepholdError as error:
            if error.code != "already_stopped":
                raise
            raise settled(handle.id, status(await host.find(call, arguments["handleId"]))) from None
        registry.annotated(handle, record)
        return host.replies.object(_updated(record))

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
    metadata = user_metadata(record.metadata)
    return answer | progress_of(record.progress) | {"priority": record.priority, "metadata": metadata}


def cancel_tool(host: WaitToolHost) -> Tool:
    hints = ENDS | {"title": "Cancel a wait handle"}

    @wait_tool(host, CANCEL_PARAMETERS, CANCEL_RETURNS, names="handleId", hints=hints)
    async def cancel_wait_handle(call: Call, arguments: Arguments) -> Reply:
        """Cancel an async operation: a wait handle, an agent, a workflow, a timer, or a call that runs by itself. Those
        who wait for it get an error. Abort tools that you started in the background by their own action. Returns the
        final status.
        """
        handle, reason = await host.find(call, arguments["handleId"]), arguments.get("reason")
        if not handle.active:
            raise settled(handle.id, status(handle))
        if handle.tool.name == CREATE:
            why = f"Cancelled: {reason}" if reason else "Cancelled"
            payload = {"code": "cancelled", "message": why}
            result = await host.waits.complete(handle, Resolution("err", payload))
            if result.status != "accepted":
                raise settled(handle.id, status(await host.find(call, handle.id)))
        elif handle.kind in ("agent", "workflow", "timer") or _left_alone(handle):
            why = f"Cancelled by the assistant: {reason}" if reason else "Cancelled by the assistant."
            await host.services.end(handle, Failure(why, "aborted"), "abort")
        else:
            raise _not_cancelled(handle)
        state = handle.state
        if isinstance(state, Stopped) and isinstance(state.outcome, Failure):
            why = state.outcome.message
        answer = _ended(handle, "failed" if handle.active else status(handle), {"error": why}, host.now())
        return host.replies.object(answer, shown=() if handle.active else (handle,))

    return cancel_wait_handle


def _left_alone(handle: Handle) -> bool:
    """Whether it is a one-shot call whose caller no longer waits (D10), and whose tool has no `abort`."""
    return handle.id.startswith("call:") and "abort" not in handle.tool.actions


def _not_cancelled(handle: Handle) -> ToolError:
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
