"""Where tasks are: each in the metadata of its handle `task_<taskId>`, so that a task can be waited for (W9).

The handle is parked from its first commit on. Completing the task completes it, with the task as result; reopening the
task makes a new handle of the same id.
"""

from collections.abc import Sequence

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.registry import check_id
from keephold.handles.state import Running
from keephold.store.base import Annotated, Parking, Record, Registered, Resolution
from keephold.tools.call import Call
from keephold.tools.waiting.find import find
from keephold.tools.waiting.tasks import Task, from_metadata, to_metadata

CREATE = "create_task"
_PAGE = 1000


def handle_id(task_id: str) -> str:
    """The id of a task's handle."""
    return check_id(f"task_{task_id}")


async def load(call: Call, task_id: str) -> tuple[Task, Handle] | None:
    """The task of that id and its handle, if there is one."""
    try:
        handle = await find(call, handle_id(task_id))
    except ToolError as error:
        if error.code in ("handle_not_found", "handle_expired"):
            return None
        raise
    if handle.tool.name != CREATE or handle.metadata is None:
        raise ToolError(
            f"Task {task_id} cannot be: its handle id {handle.id} is that of a handle of `{handle.tool.name}`",
            code="handle_of_another_tool",
        )
    return from_metadata(handle.metadata), handle


async def create(call: Call, task: Task) -> Handle:
    """Make the handle of a task, in one commit. Raises `KeepholdError`, `batch_rejected`, if its id is active."""
    durability, invocation = call._durability, call._invocation
    registry = durability.registry
    now, tool = registry.clock.now(), registry.tool(CREATE)
    new = registry.new_handle(
        id=handle_id(task.task_id),
        tool=tool,
        conversation=call.conversation,
        turn=invocation.turn,
        call_id=call.id,
        stateful=True,
        kind="custom",
    )
    kept = {key: value for key, value in to_metadata(task).items() if value is not None}
    record = Record(
        uid=new.uid,
        id=new.id,
        tool=tool.name,
        conversation=call.conversation,
        turn=invocation.turn,
        batch=0,
        position=0,
        call_id="",
        stateful=True,
        state=Running(now, now),
        arguments={"taskId": task.task_id, "taskName": task.task_name},
        kind="custom",
        metadata=kept,
        parking=Parking(),
    )
    await registry.write((Registered(record), await durability.waits.opening(new.uid, call.conversation)), keep=False)
    handle = registry.adopt(record)
    if registry.on_created is not None:
        registry.on_created((handle,))
    return handle


async def change(call: Call, handle: Handle, task: Task) -> None:
    """Write what has become of a task; if it is completed, its handle is. Raises `KeepholdError` `already_stopped` if
    somebody else has completed it."""
    registry, changes = call._durability.registry, Annotated(handle.uid, metadata=to_metadata(task))
    if task.status != "completed":
        (record,) = await registry.write((changes,), keep=False)
        registry.annotated(handle, record)
        return
    result = Resolution("ok", task.shown(registry.clock.now()))
    resolved = await call._durability.waits.complete(handle, result, (changes,))
    if resolved.status != "accepted":
        raise KeepholdError("the task was completed by somebody else", code="already_stopped")
    handle.metadata = {key: value for key, value in to_metadata(task).items() if value is not None}


async def all_tasks(call: Call) -> Sequence[Task]:
    """The tasks of the conversation, in the order they were made."""
    store = call._durability.registry.store
    newest: dict[str, Record] = {}
    after = None
    while records := await store.handles(conversation=call.conversation, kind="custom", after=after, limit=_PAGE):
        after = records[-1].uid
        newest |= {record.id: record for record in records if record.tool == CREATE}
    return [from_metadata(record.metadata) for record in newest.values() if record.metadata is not None]
