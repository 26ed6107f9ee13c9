"""The task tools (W9): `create_task`, `update_task_status`, `get_task`, `list_tasks` and two for the timer.

They run in the serial lane, so that those of one batch run in order.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Reply
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting import task_store as tasks
from keephold.tools.waiting.create import small
from keephold.tools.waiting.listing import PAGE_LIMIT, page
from keephold.tools.waiting.task_store import STATUSES, Task
from keephold.tools.waiting.tool import (
    READS,
    WRITES,
    Arguments,
    Refused,
    Schema,
    WaitToolHost,
    object_schema,
    wait_tool,
)
from keephold.tools.waiting.view import COUNT, reply

_ID = {"type": "string", "minLength": 1, "maxLength": 100, "description": "The task's id, chosen by the caller."}
_NAME = {"type": "string", "minLength": 1, "description": "What is to be done."}
_STATUS = {"type": "string", "enum": list(STATUSES)}
_TIMER = "timerActive{0} isPaused{0} elapsedMs{0} elapsedTime{0} startTime? endTime?"
_TASK = f"taskId taskName status {_TIMER.format('')} metadata"

CREATE_PARAMETERS = object_schema(
    {
        "taskId": _ID,
        "taskName": _NAME,
        "initialStatus": {"type": "string", "enum": ["not-started", "in-progress"], "description": "not-started."},
        "metadata": {"type": "object"},
    },
    ["taskId", "taskName"],
)
UPDATE_PARAMETERS = object_schema(
    {
        "taskId": _ID,
        "taskName": {"type": "string", "minLength": 1, "description": "Needed if the task is new."},
        "status": _STATUS,
        "metadata": {"type": "object", "description": "Keys to set; others stay."},
        "autoTimer": {"type": "boolean", "description": "The timer follows the status; default true."},
    },
    ["taskId", "status"],
)
LIST_PARAMETERS = object_schema(
    {
        "status": {"type": "string", "enum": [*STATUSES, "all"], "description": "Default: all."},
        "sortBy": {"type": "string", "enum": ["longest-running", "recently-started", "recently-completed"]},
        "includeStats": {"type": "boolean", "description": "How many there are of each status; default true."},
    }
)
_ONE = object_schema({"taskId": _ID}, ["taskId"])
PAUSE_PARAMETERS = object_schema(
    {"taskId": _ID, "action": {"type": "string", "enum": ["pause", "resume"]}}, ["taskId", "action"]
)


class TaskTools:
    """The tools of one runtime."""

    def __init__(self, around: WaitToolHost) -> None:
        self._around = around
        self._changing = asyncio.Lock()
        """Held between reading a task and writing it."""

    def all(self) -> list[Tool]:
        """Make all six."""
        created = reply(f"success timerInitialized? {_TASK}", status=_STATUS)
        updated = reply(
            f"success taskId taskName previousStatus newStatus {_TIMER.format('?')} metadata? message",
            previousStatus={"type": ["string", "null"]},
            newStatus=_STATUS,
        )
        task = reply(_TASK, status=_STATUS)
        timer = reply(
            "success? taskId taskName? status? timerActive isPaused elapsedMs? elapsedTime? startTime? endTime? "
            "metadata? message?",
            status=_STATUS,
        )
        listed = reply(
            "tasks count omittedCount? stats?",
            tasks={"type": "array", "items": task},
            omittedCount={**COUNT, "description": "So many more would not fit into the reply."},
            stats={"type": "object"},
        )
        return [
            self._tool("create_task", "Create a task with a timer.", CREATE_PARAMETERS, created, self._create, WRITES),
            self._tool(
                "update_task_status",
                "Set the status of a task. Completing it completes its wait handle, task_<taskId>.",
                UPDATE_PARAMETERS,
                updated,
                self._update,
                WRITES,
            ),
            self._tool("get_task", "Get a task.", _ONE, task, self._get, READS),
            self._tool("list_tasks", "List the tasks.", LIST_PARAMETERS, listed, self._list, READS),
            self._tool("get_task_timer", "How long a task has been worked on.", _ONE, timer, self._get, READS),
            self._tool(
                "pause_resume_task_timer",
                "Pause or resume the timer of a task.",
                PAUSE_PARAMETERS,
                timer,
                self._pause,
                WRITES,
            ),
        ]

    def _tool(
        self,
        name: str,
        description: str,
        parameters: Schema,
        returns: Schema,
        function: Callable[[Call, Arguments], Awaitable[Reply]],
        hints: dict[str, Any],
    ) -> Tool:
        return wait_tool(
            self._around, name, description, parameters, returns, function, scheduling="serial", hints=hints
        )

    async def _create(self, call: Call, arguments: Arguments) -> Reply:
        id, now = arguments["taskId"], self._around.now()
        async with self._changing:
            if await tasks.load(self._around, call, id) is not None:
                raise _exists(id)
            new = Task(task_id=id, task_name=arguments["taskName"], metadata=small(arguments.get("metadata") or {}))
            task = new.moved(arguments.get("initialStatus") or "not-started", now)
            await self._make(call, task)
        return self._around.show({"success": True, "timerInitialized": True, **task.shown(now)})

    async def _make(self, call: Call, task: Task) -> Handle:
        try:
            return await tasks.create(self._around, call, task)
        except KeepholdError as error:
            raise (_exists(task.task_id) if error.code == "batch_rejected" else error) from None

    async def _update(self, call: Call, arguments: Arguments) -> Reply:
        id, status, now = arguments["taskId"], arguments["status"], self._around.now()
        async with self._changing:
            found = await tasks.load(self._around, call, id)
            if found is None and "taskName" not in arguments:
                raise ToolError(f"Task {id} not found; `taskName` would make it", code="handle_not_found")
            before = None if found is None else found[0].status
            if before == status == "completed":
                raise Refused(f"Task {id} is already completed", code="already_stopped", currentStatus="completed")
            task, handle = found or (Task(task_id=id, task_name=arguments["taskName"]), None)
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
        return self._around.show(answer, shown=() if handle.active else (handle,))

    async def _write(self, call: Call, handle: Handle | None, task: Task) -> Handle:
        """Write a task: to its handle, or to a new one if it has none or that has settled."""
        if handle is None or not handle.active:
            begun = task if task.status != "completed" else _open(task)
            handle = await self._make(call, begun)
            if begun is task:
                return handle
        try:
            await tasks.change(self._around, handle, task)
        except KeepholdError as error:
            if error.code != "already_stopped":
                raise
            why = f"Task {task.task_id} is already completed"
            raise Refused(why, code="already_stopped", currentStatus="completed") from None
        return handle

    async def _get(self, call: Call, arguments: Arguments) -> Reply:
        task, _ = await self._found(call, arguments)
        return self._around.show(task.shown(self._around.now()))

    async def _found(self, call: Call, arguments: Arguments) -> tuple[Task, Handle]:
        found = await tasks.load(self._around, call, arguments["taskId"])
        if found is None:
            raise ToolError(f"Task {arguments['taskId']} not found", code="handle_not_found")
        return found

    async def _pause(self, call: Call, arguments: Arguments) -> Reply:
        pause, now = arguments["action"] == "pause", self._around.now()
        async with self._changing:
            task, handle = await self._found(call, arguments)
            if pause and task.since is None:
                message = "Timer is already paused" if task.paused else "Timer is not running"
            elif not pause and not task.paused:
                message = "Timer is not paused"
            else:
                task = task.standing(now, paused=True) if pause else task.running(now)
                await self._write(call, handle, task)
                message = "Timer paused" if pause else "Timer resumed"
        return self._around.show({"success": True, **task.shown(now), "message": message})

    async def _list(self, call: Call, arguments: Arguments) -> Reply:
        now, wanted = self._around.now(), arguments.get("status") or "all"
        every = await tasks.all_tasks(self._around.registry.store, call.conversation)
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
        return self._around.show(answer, limit=PAGE_LIMIT)


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


def _exists(id: str) -> ToolError:
    return ToolError(
        f"Task {id} already exists. Use update_task_status to modify existing tasks.", code="batch_rejected"
    )
