"""The wire of the tasks extension (SEP-2663), as a client speaks it: its requests, a task's state, its notifications.

A server alone decides that a call is a task. `mcp` then passes the claimed result to us; `TaskMade` carries it from the
call to the code that follows the task.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Literal

import mcp.types as types
from mcp.client import ClaimContext, ClientExtension, ClientSession, NotificationBinding, ResultClaim
from mcp.shared.exceptions import MCPError
from pydantic import Field

_log = logging.getLogger("keephold.mcp")

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]
ENDS: tuple[Status, ...] = ("completed", "failed", "cancelled")


class TaskCreated(types.Result):
    """The reply of `tools/call` instead of a result."""

    result_type: Literal["task"]
    task_id: str
    status: Status
    status_message: str | None = None
    poll_interval_ms: int | None = None


class TaskState(types.Result):
    """A task as `tasks/get` and `notifications/tasks` show it."""

    task_id: str
    status: Status
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, dict[str, Any]] = Field(default_factory=dict)


class TaskMade(Exception):
    """The call has become a task of the server."""

    def __init__(self, task: TaskCreated) -> None:
        super().__init__(task.task_id)
        self.task = task


class _OfTask(types.RequestParams):
    task_id: str


class _Answers(_OfTask):
    input_responses: dict[str, Any]


class _Get(types.Request[_OfTask, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class _Update(types.Request[_Answers, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class _Cancel(types.Request[_OfTask, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


async def get(session: ClientSession, task: str, timeout: float) -> TaskState:
    return await session.send_request(_Get(params=_OfTask(task_id=task)), TaskState, timeout)


async def update(session: ClientSession, task: str, responses: dict[str, Any], timeout: float) -> None:
    """Send the answers that the task has asked for."""
    params = _Answers(task_id=task, input_responses=responses)
    await session.send_request(_Update(params=params), types.EmptyResult, timeout)


async def cancel(session: ClientSession, task: str, timeout: float) -> None:
    await session.send_request(_Cancel(params=_OfTask(task_id=task)), types.EmptyResult, timeout)


class TaskNotifications:
    """States of one task that a server pushes. While it does, nothing needs to poll.

    Notifications may arrive in another order than they were sent, so all but the end of a task is only a hint.
    """

    def __init__(self) -> None:
        self._end: TaskState | None = None
        self._pushes = False
        self._changed = asyncio.Event()

    def put(self, state: TaskState) -> None:
        """A state was pushed."""
        self._pushes = True
        if state.status in ENDS:
            self._end = state
        self._changed.set()

    def over(self) -> None:
        """Nothing more is pushed."""
        self._pushes = False
        self._changed.set()

    def wake(self) -> None:
        """Something has happened here: poll now."""
        self._changed.set()

    async def next(self, seconds: float) -> TaskState | None:
        """Wait until it is time to poll, at most this long if nothing is pushed. Return the end if that was pushed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._pushes else seconds):
                await self._changed.wait()
        self._changed.clear()
        return self._end


class TasksExtension(ClientExtension):
    """Declares that we follow tasks, and distributes pushed states."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self._notifications: dict[str, TaskNotifications] = {}

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=TaskCreated, resolve=_made),)

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return (NotificationBinding(method="notifications/tasks", params_type=TaskState, handler=self._pushed),)

    async def _pushed(self, state: TaskState) -> None:
        pushed = self._notifications.get(state.task_id)
        if pushed is not None:
            pushed.put(state)

    async def listen(self, session: ClientSession, task: str, pushed: TaskNotifications) -> None:
        """Have the server push the task's states to `pushed`, as long as it does."""
        self._notifications[task] = pushed
        wanted = types.SubscriptionFilter.model_validate({"taskIds": [task]})
        params = types.SubscriptionsListenRequestParams(notifications=wanted)
        try:
            await session.send_request(types.SubscriptionsListenRequest(params=params), types.SubscriptionsListenResult)
        except (MCPError, ValueError) as error:
            _log.debug("nothing is pushed about a task: %s", error)
        finally:
            del self._notifications[task]
            pushed.over()


async def _made(task: TaskCreated, context: ClaimContext) -> types.CallToolResult:
    raise TaskMade(task)
