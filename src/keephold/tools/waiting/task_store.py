"""Tasks, each in the metadata of its handle `task_<taskId>`, so that a task can be waited for (W9).

The handle is parked from its first commit on. Completing the task completes the handle, with the task as result;
reopening the task makes a new handle of the same id. A task's timer runs only while the task is in progress and not
paused.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.registry import check_id
from keephold.handles.state import Running
from keephold.store.base import Annotated, HandleQuery, Parking, Record, Registered, Resolution, Store
from keephold.tools.call import Call
from keephold.tools.waiting.tool import WaitToolHost
from keephold.tools.waiting.view import elapsed, instant, milliseconds

TaskStatus = Literal["not-started", "in-progress", "completed", "blocked"]
STATUSES: tuple[TaskStatus, ...] = ("not-started", "in-progress", "completed", "blocked")


class Task(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task, as the metadata of its handle holds it. Times are seconds since the epoch."""

    task_id: str
    task_name: str
    status: TaskStatus = "not-started"
    metadata: dict[str, Any] = {}
    started: float | None = None
    ended: float | None = None
    worked: float = 0.0
    """Seconds, up to the last pause of the timer."""
    since: float | None = None
    """When the timer was started; None: it is stopped."""
    paused: bool = False

    def running(self, now: float) -> "Task":
        """Return the task with the timer running."""
        if self.since is not None:
            return self
        return replace(self, since=now, started=self.started or now, paused=False)

    def standing(self, now: float, *, paused: bool) -> "Task":
        """Return the task with the timer stopped."""
        worked = self.worked if self.since is None else self.worked + now - self.since
        return replace(self, worked=worked, since=None, paused=paused)

    def moved(self, status: TaskStatus, now: float, *, timer: bool = True) -> "Task":
        """Return the task in another status. `timer`: it runs while the task is in progress."""
        task = replace(self, status=status, ended=None)
        if status == "completed":
            return replace(task.standing(now, paused=False), ended=now)
        if not timer:
            return task
        if status == "in-progress":
            return task.running(now)
        return task.standing(now, paused=status == "blocked" and task.started is not None)

    def elapsed_ms(self, now: float) -> int:
        return milliseconds(self.standing(now, paused=self.paused).worked)

    def timer(self, now: float) -> dict[str, Any]:
        """Return the timer's fields of a reply."""
        took = self.elapsed_ms(now)
        shown: dict[str, Any] = {"timerActive": self.since is not None, "isPaused": self.paused}
        shown |= {"elapsedMs": took, "elapsedTime": elapsed(took)}
        shown |= {} if self.started is None else {"startTime": instant(self.started)}
        return shown | ({} if self.ended is None else {"endTime": instant(self.ended)})

    def shown(self, now: float) -> dict[str, Any]:
        """Return the task's fields of a reply."""
        named = {"taskId": self.task_id, "taskName": self.task_name, "status": self.status}
        return named | self.timer(now) | {"metadata": self.metadata}


def to_metadata(task: Task) -> dict[str, Any]:
    """Return a task as the metadata of a handle; None removes a key."""
    metadata: dict[str, Any] = msgspec.to_builtins(task)
    return metadata


def from_metadata(metadata: dict[str, Any]) -> Task:
    return msgspec.convert(metadata, Task)


CREATE = "create_task"
_PAGE = 1000


def handle_id(task_id: str) -> str:
    """Return the id of a task's handle."""
    return check_id(f"task_{task_id}")


async def load(around: WaitToolHost, call: Call, task_id: str) -> tuple[Task, Handle] | None:
    """Return the task of that id and its handle, or None."""
    try:
        handle = await around.find(call, handle_id(task_id))
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


async def create(around: WaitToolHost, call: Call, task: Task) -> Handle:
    """Make the handle of a task, in one commit. Raises `KeepholdError`, `batch_rejected`, if its id is active."""
    registry = around.registry
    now, tool = around.now(), registry.tool(CREATE)
    new = registry.new_handle(
        id=handle_id(task.task_id),
        tool=tool,
        conversation=call.conversation,
        turn=call.turn,
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
        turn=call.turn,
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
    await registry.write((Registered(record), await around.waits.opening(new.uid, call.conversation)), keep=False)
    handle = registry.adopt(record)
    registry.on_created((handle,))
    return handle


async def change(around: WaitToolHost, handle: Handle, task: Task) -> None:
    """Write a changed task, and complete its handle if the task is completed.

    Raises `KeepholdError` `already_stopped` if it was completed meanwhile.
    """
    registry, changes = around.registry, Annotated(handle.uid, metadata=to_metadata(task))
    if task.status != "completed":
        (record,) = await registry.write((changes,), keep=False)
        registry.annotated(handle, record)
        return
    result = Resolution("ok", task.shown(around.now()))
    resolved = await around.waits.complete(handle, result, (changes,))
    if resolved.status != "accepted":
        raise KeepholdError("the task was completed by somebody else", code="already_stopped")
    handle.metadata = {key: value for key, value in to_metadata(task).items() if value is not None}


async def all_tasks(store: Store, conversation: str) -> Sequence[Task]:
    """Return the tasks of the conversation, in the order they were made."""
    newest: dict[str, Record] = {}
    after = None
    while records := await store.handles(
        HandleQuery(conversation=conversation, kind="custom", after=after, limit=_PAGE)
    ):
        after = records[-1].uid
        newest |= {record.id: record for record in records if record.tool == CREATE}
    return [from_metadata(record.metadata) for record in newest.values() if record.metadata is not None]
