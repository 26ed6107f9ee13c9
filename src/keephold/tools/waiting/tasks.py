"""The task tools (W9): `create_task`, `update_task_status`, `get_task`, `list_tasks` and two for the timer.

Each task is in the metadata of its handle `task_<taskId>`, so that a task can be waited for. The handle is parked from
its first commit on. Completing the task completes the handle, with the task as result; reopening the task makes a new
handle of the same id. A task's timer runs only while the task is in progress and not paused.

The tools run in the serial lane, so that those of one batch run in order.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Reply, Running
from keephold.ids import check_id
from keephold.store.base import Annotated, HandleQuery, Parking, Record, Registered, Resolution
from keephold.text import instant
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.create import small
from keephold.tools.waiting.listing import PAGE_LIMIT, page
from keephold.tools.waiting.tool import READS, WRITES, Arguments, Refused, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import COUNT, elapsed, label, milliseconds, one_of, reply

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


_ID = {"type": "string", "minLength": 1, "maxLength": 100, "description": "The task's id, which you choose."}
_NAME = {"minLength": 1, **label("The work to do.")}
_STATUS = {"type": "string", "enum": list(STATUSES)}
_METADATA = {"type": "object", "description": "Labels, up to 8 KiB. Default: none."}
_TIMER = "timerActive{0} isPaused{0} elapsedMs{0} elapsedTime{0} startTime? endTime?"
_TASK = f"taskId taskName status {_TIMER.format('')} metadata"

CREATE_PARAMETERS = object_schema(
    "taskId taskName",
    taskId=_ID,
    taskName=_NAME,
    initialStatus=one_of(("not-started", "in-progress"), "`in-progress` starts the timer. Default: not-started."),
    metadata=_METADATA,
)
UPDATE_PARAMETERS = object_schema(
    "taskId status",
    taskId=_ID,
    taskName={**_NAME, "description": "The work to do. Needed if the task is new. Default: as it is."},
    status=one_of(STATUSES, "The new status."),
    metadata={"type": "object", "description": "Keys to set; others stay. Default: none."},
    autoTimer={"type": "boolean", "description": "The timer runs while the task is in progress. Default: true."},
)
LIST_PARAMETERS = object_schema(
    status=one_of([*STATUSES, "all"], "Default: all."),
    sortBy=one_of(("longest-running", "recently-started", "recently-completed"), "Default: in order of creation."),
    includeStats={"type": "boolean", "description": "Also count the tasks of each status. Default: true."},
)
_ONE = object_schema("taskId", taskId=_ID)
PAUSE_PARAMETERS = object_schema(
    "taskId action", taskId=_ID, action=one_of(("pause", "resume"), "Pause or resume the timer.")
)

CREATED = reply(f"success timerInitialized? {_TASK}", status=_STATUS)
UPDATED = reply(
    f"success taskId taskName previousStatus newStatus {_TIMER.format('?')} metadata? message",
    previousStatus={"type": ["string", "null"]},
    newStatus=_STATUS,
)
SHOWN = reply(_TASK, status=_STATUS)
TIMER = reply(
    "success? taskId taskName? status? timerActive isPaused elapsedMs? elapsedTime? startTime? endTime? "
    "metadata? message?",
    status=_STATUS,
)
LISTED = reply(
    "tasks count omittedCount? stats?",
    tasks={"type": "array", "items": SHOWN},
    omittedCount={**COUNT, "description": "The number of tasks that did not fit into the reply."},
    stats={"type": "object"},
)


class Tasks:
    """The tasks of all conversations, and the tools for them."""

    def __init__(self, host: WaitToolHost) -> None:
        self._host = host
        self._changing = asyncio.Lock()
        """Held between reading a task and writing it."""

    # Reading and writing

    async def _load(self, call: Call, task_id: str) -> tuple[Task, Handle] | None:
        """Return the task of that id and its handle, or None."""
        try:
            handle = await self._host.find(call, f"task_{task_id}")
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

    async def _find(self, call: Call, arguments: Arguments) -> tuple[Task, Handle]:
        found = await self._load(call, arguments["taskId"])
        if found is None:
            raise ToolError(f"Task {arguments['taskId']} not found", code="handle_not_found")
        return found

    async def _all(self, conversation: str) -> Sequence[Task]:
        """Return the tasks of the conversation, in the order they were made."""
        newest: dict[str, Record] = {}
        after = None
        while records := await self._host.registry.store.handles(
            HandleQuery(conversation=conversation, kind="custom", after=after, limit=_PAGE)
        ):
            after = records[-1].uid
            newest |= {record.id: record for record in records if record.tool == CREATE}
        return [from_metadata(record.metadata) for record in newest.values() if record.metadata is not None]

    async def _make(self, call: Call, task: Task) -> Handle:
        """Make the handle of a task, in one commit. Raises `ToolError` if its id is active."""
        registry, now = self._host.registry, self._host.now()
        record = Record(
            uid=registry.new_uid(),
            id=check_id(f"task_{task.task_id}"),
            tool=CREATE,
            conversation=call.conversation,
            turn=call.turn,
            batch=0,
            position=0,
            call_id="",
            stateful=True,
            state=Running(now, now),
            arguments={"taskId": task.task_id, "taskName": task.task_name},
            kind="custom",
            metadata=_kept(task),
            parking=Parking(),
        )
        opening = await self._host.waits.opening(record.uid, call.conversation)
        try:
            await registry.write((Registered(record), opening), keep=False)
        except KeepholdError as error:
            raise (_exists(task.task_id) if error.code == "batch_rejected" else error) from None
        handle = registry.adopt(record)
        registry.on_created((handle,))
        return handle

    async def _write(self, call: Call, handle: Handle | None, task: Task) -> Handle:
        """Write a task: to its handle, or to a new one if it has none or that has settled."""
        if handle is None or not handle.active:
            begun = task if task.status != "completed" else _open(task)
            handle = await self._make(call, begun)
            if begun is task:
                return handle
        try:
            await self._change(handle, task)
        except KeepholdError as error:
            raise (_completed(task) if error.code == "already_stopped" else error) from None
        return handle

    async def _change(self, handle: Handle, task: Task) -> None:
        """Write a changed task, and complete its handle if the task is completed. Raises `KeepholdError`."""
        registry, changes = self._host.registry, Annotated(handle.uid, metadata=to_metadata(task))
        if task.status != "completed":
            (record,) = await registry.write((changes,), keep=False)
            registry.annotated(handle, record)
            return
        result = Resolution("ok", task.shown(self._host.now()))
        resolved = await self._host.waits.complete(handle, result, (changes,))
        if resolved.status != "accepted":
            raise _completed(task)
        handle.metadata = _kept(task)

    # Tools

    async def create_task(self, call: Call, arguments: Arguments) -> Reply:
        """Create a task with a timer. Use it to keep track of work in several steps, and to measure it; it runs
        nothing. To change a task, use `update_task_status`. Returns the task, whose handle `task_<taskId>` others can
        wait for.
        """
        id, now = arguments["taskId"], self._host.now()
        async with self._changing:
            if await self._load(call, id) is not None:
                raise _exists(id)
            new = Task(task_id=id, task_name=arguments["taskName"], metadata=small(arguments.get("metadata") or {}))
            task = new.moved(arguments.get("initialStatus") or "not-started", now)
            await self._make(call, task)
        return self._host.replies.object({"success": True, "timerInitialized": True, **task.shown(now)})

    async def update_task_status(self, call: Call, arguments: Arguments) -> Reply:
        """Set the status of a task. Completing it completes its wait handle, task_<taskId>. Use it when work on the
        task begins, stops or ends; with `taskName` it also creates the task. Returns the status before and after, and
        the time worked.
        """
        id, status, now = arguments["taskId"], arguments["status"], self._host.now()
        async with self._changing:
            found = await self._load(call, id)
            if found is None and "taskName" not in arguments:
                raise ToolError(f"Task {id} not found; `taskName` would make it", code="handle_not_found")
            before = None if found is None else found[0].status
            task, handle = found or (Task(task_id=id, task_name=arguments["taskName"]), None)
            if before == status == "completed":
                raise _completed(task)
            task = _said(task, arguments).moved(status, now, timer=arguments.get("autoTimer", True))
            handle = await self._write(call, handle, task)
        moved = f'Task "{task.task_name}" status updated: {before or "new"} → {status}'
        answer = {
            "success": True,
            "taskId": id,
            "taskName": task.task_name,
            "previousStatus": before,
            "newStatus": status,
            **task.timer(now),
            "metadata": task.metadata,
        }
        answer["message"] = f"{moved} (timer: {answer['elapsedTime']})"
        return self._host.replies.object(answer, shown=() if handle.active else (handle,))

    async def get_task(self, call: Call, arguments: Arguments) -> Reply:
        """Get a task. Use it if you know the id; `list_tasks` finds it. Returns its status, timer and metadata."""
        return self._host.replies.object((await self._find(call, arguments))[0].shown(self._host.now()))

    async def get_task_timer(self, call: Call, arguments: Arguments) -> Reply:
        """Get how long a task has been worked on. Use it for the time alone; `get_task` has everything. Returns the
        milliseconds, and whether the timer runs.
        """
        return await self.get_task(call, arguments)

    async def pause_resume_task_timer(self, call: Call, arguments: Arguments) -> Reply:
        """Pause or resume the timer of a task. Use it for interruptions; when work ends, set the status instead.
        Returns the timer. The status stays as it is.
        """
        pause, now = arguments["action"] == "pause", self._host.now()
        async with self._changing:
            task, handle = await self._find(call, arguments)
            if pause and task.since is None:
                message = "Timer is already paused" if task.paused else "Timer is not running"
            elif not pause and not task.paused:
                message = "Timer is not paused"
            else:
                task = task.standing(now, paused=True) if pause else task.running(now)
                await self._write(call, handle, task)
                message = "Timer paused" if pause else "Timer resumed"
        return self._host.replies.object({"success": True, **task.shown(now), "message": message})

    async def list_tasks(self, call: Call, arguments: Arguments) -> Reply:
        """List the tasks. Use it to see what is left to do; for one task use `get_task`. Returns the tasks with their
        timers, and counts by status.
        """
        now, wanted = self._host.now(), arguments.get("status") or "all"
        every = await self._all(call.conversation)
        chosen = [task for task in every if wanted in ("all", task.status)]
        match arguments.get("sortBy"):
            case "longest-running":
                chosen.sort(key=lambda task: -task.elapsed_ms(now))
            case "recently-started":
                chosen.sort(key=lambda task: -(task.started or 0))
            case "recently-completed":
                chosen.sort(key=lambda task: -(task.ended or 0))
        shown = page([task.shown(now) for task in chosen])
        answer: dict[str, Any] = {"tasks": shown, "count": len(chosen)}
        if len(shown) < len(chosen):
            answer["omittedCount"] = len(chosen) - len(shown)
        if arguments.get("includeStats", True):
            counts = {status: sum(task.status == status for task in every) for status in STATUSES}
            answer["stats"] = {"total": len(every), "byStatus": counts}
        return self._host.replies.object(answer, limit=PAGE_LIMIT)


def task_tools(host: WaitToolHost) -> list[Tool]:
    tasks, tool = Tasks(host), partial(wait_tool, host, scheduling="serial")
    return [
        tool(CREATE_PARAMETERS, CREATED, hints=WRITES)(tasks.create_task),
        tool(UPDATE_PARAMETERS, UPDATED, hints=WRITES)(tasks.update_task_status),
        tool(_ONE, SHOWN, hints=READS)(tasks.get_task),
        tool(LIST_PARAMETERS, LISTED, hints=READS)(tasks.list_tasks),
        tool(_ONE, TIMER, hints=READS)(tasks.get_task_timer),
        tool(PAUSE_PARAMETERS, TIMER, hints=WRITES)(tasks.pause_resume_task_timer),
    ]


def _open(task: Task) -> Task:
    """Return the open form of a task that is completed at once: its handle is made first."""
    return Task(task_id=task.task_id, task_name=task.task_name, status="in-progress", metadata=task.metadata)


def _said(task: Task, arguments: Arguments) -> Task:
    """Return the task with the changes of a call."""
    return replace(
        task,
        task_name=arguments.get("taskName") or task.task_name,
        metadata=small({**task.metadata, **(arguments.get("metadata") or {})}),
    )


def _kept(task: Task) -> dict[str, Any]:
    """Return the metadata of a handle whose task this is."""
    return {key: value for key, value in to_metadata(task).items() if value is not None}


def _completed(task: Task) -> Refused:
    why = f"Task {task.task_id} is already completed"
    return Refused(why, code="already_stopped", currentStatus="completed")


def _exists(id: str) -> ToolError:
    return ToolError(
        f"Task {id} already exists. Use update_task_status to modify existing tasks.", code="batch_rejected"
    )
