"""Tasks for clients of 2025-11-25 (SEP-1686): the same tasks, requested by the client and written differently.

The SDK has the types of this extension but serves none of its methods, so a middleware does. A task's questions are
asked by requests while the client waits for its result.
"""

import os
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, CallToolRequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from keephold.handles.handle import Handle
from keephold.handles.state import Failure, Stopped
from keephold.mcp.calls import RESUMES, Calls, Context, by_request, elicits
from keephold.mcp.listen import Subscriptions
from keephold.mcp.results import may_be_task
from keephold.mcp.tasks import MARK, POLL_MS, Tasks, protocol_error, until_stopped
from keephold.store.base import HandleQuery
from keephold.text import instant

VERSION = "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"
CAPABILITY: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
_PAGE = 100


class _Answered(NamedTuple):
    """A task whose call was answered at once: a spawn, say."""

    conversation: str
    shown: dict[str, Any]
    result: dict[str, Any]


class _Answers:
    """The latest tasks of this kind: a client that asked for a task must get one. They end with the server."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Answered] = OrderedDict()

    def add(self, conversation: str, answer: HandlerResult, ttl: int) -> _Answered:
        now, id = instant(time.time()), os.urandom(16).hex()
        shown = {"taskId": id, "status": "completed", "createdAt": now, "lastUpdatedAt": now, "ttl": ttl}
        assert answer is not None, "every call has an answer"
        said = answer if isinstance(answer, dict) else answer.model_dump(by_alias=True, exclude_none=True, mode="json")
        said.pop("resultType", None)
        self._known[id] = answered = _Answered(conversation, {**shown, "pollInterval": POLL_MS}, said)
        if len(self._known) > _PAGE:
            self._known.popitem(last=False)
        return answered

    def get(self, conversation: str, id: object) -> _Answered | None:
        found = self._known.get(id) if isinstance(id, str) else None
        return found if found is not None and found.conversation == conversation else None


class Tasks2025:
    """The middleware."""

    def __init__(self, calls: Calls, tasks: Tasks, subscriptions: Subscriptions) -> None:
        self._calls = calls
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._answers = _Answers()
        self._methods = {
            "tasks/get": self._get,
            "tasks/result": self._result,
            "tasks/cancel": self._cancel,
            "tasks/list": self._list,
        }

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.method == "notifications/cancelled":
            self._calls.cancelled(ctx)
        if ctx.request_id is None:
            return await call_next(ctx)
        if ctx.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            self._subscriptions.joined(ctx)
        if ctx.method == "initialize":
            return _advertised(await call_next(ctx))
        if ctx.request is not None and RESUMES in ctx.request.scope:
            return await self._calls.resumed(ctx)
        if ctx.protocol_version != VERSION:
            return await call_next(ctx)
        if ctx.method == "tools/call":
            return await self._call(ctx, call_next)
        method = self._methods.get(ctx.method)
        return await (call_next(ctx) if method is None else method(ctx))

    async def _call(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Make a call a task from the start if its client wants that."""
        given = dict(ctx.params or {})
        tool = self._calls.tool(str(given.get("name")))
        if tool is None or (given.get("task") is None and tool.task != "required"):
            return await call_next(ctx)
        if given.get("task") is None:
            raise MCPError(METHOD_NOT_FOUND, f"Tool `{tool.name}` runs only as a task; send `task` with the call")
        if not may_be_task(tool):
            raise MCPError(METHOD_NOT_FOUND, f"Tool `{tool.name}` does not run as a task; leave `task` out")
        try:
            params = CallToolRequestParams.model_validate(given, by_name=False)
        except ValidationError as error:
            raise MCPError(INVALID_PARAMS, f"the call is not valid: {error.errors()[0]['msg']}") from None
        begun = await self._calls.begin(ctx, tool, params, park_after=None)
        if begun.handle is None or begun.handle.stateful:
            answer = await self._calls.answer(ctx, begun)
            return {"task": self._answers.add(self._calls.conversation(ctx), answer, self._tasks.ttl_ms).shown}
        return {"task": self._shown(await self._tasks.announce(begun, elicits(ctx)))}

    async def _get(self, ctx: Context) -> dict[str, Any]:
        answered = self._answer_of(ctx)
        return self._shown(await self._named(ctx)) if answered is None else answered.shown

    async def _cancel(self, ctx: Context) -> dict[str, Any]:
        if self._answer_of(ctx) is not None:
            raise MCPError(INVALID_PARAMS, "Task is completed already and cannot be cancelled")
        handle = await self._named(ctx)
        if not handle.active:
            raise MCPError(INVALID_PARAMS, f"Task is {self._tasks.status(handle)} already and cannot be cancelled")
        await self._tasks.cancel(handle)
        return self._shown(handle)

    async def _result(self, ctx: Context) -> dict[str, Any]:
        """Wait for a task's result. Meanwhile ask the client's user the task's questions."""
        answered = self._answer_of(ctx)
        if answered is not None:
            return {**answered.result, "_meta": {RELATED: {"taskId": answered.shown["taskId"]}}}
        handle = await self._named(ctx)
        related = {RELATED: {"taskId": handle.uid}}
        self._tasks.ask_by(handle, by_request(ctx, related) if ctx.session.can_send_request else None)
        try:
            await until_stopped(handle)
        finally:
            self._tasks.ask_by(handle, None)
        state = handle.state
        assert isinstance(state, Stopped)
        if self._tasks.status(handle) == "failed":
            error = protocol_error(state.outcome)
            raise MCPError(error["code"], error["message"])
        shown = await self._tasks.outcome(handle)
        del shown["resultType"]
        if state.deliberate and isinstance(state.outcome, Failure):
            shown["isError"] = True  # a cancelled call has no result of its own
        return {**shown, "_meta": related}

    async def _list(self, ctx: Context) -> dict[str, Any]:
        cursor = (ctx.params or {}).get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise MCPError(INVALID_PARAMS, "`cursor` must be the `nextCursor` of the page before")
        registry = self._calls.runtime.registry
        records = await registry.store.handles(
            HandleQuery(conversation=self._calls.conversation(ctx), stateful=None, after=cursor, limit=_PAGE)
        )
        tasks = [registry.adopt(record) for record in records if MARK in (record.metadata or {})]
        listed: dict[str, Any] = {"tasks": [self._shown(handle) for handle in tasks]}
        if len(records) == _PAGE:
            listed["nextCursor"] = records[-1].uid
        return listed

    def _answer_of(self, ctx: Context) -> "_Answered | None":
        return self._answers.get(self._calls.conversation(ctx), (ctx.params or {}).get("taskId"))

    async def _named(self, ctx: Context) -> Handle:
        task_id = (ctx.params or {}).get("taskId")
        if not isinstance(task_id, str):
            raise MCPError(INVALID_PARAMS, "`taskId` must be the id of a task")
        return await self._tasks.named(ctx, task_id)

    def _shown(self, handle: Handle) -> dict[str, Any]:
        shown = self._tasks.flat(handle)
        del shown["ttlMs"], shown["pollIntervalMs"]
        return {**shown, "ttl": self._tasks.ttl_ms, "pollInterval": POLL_MS}


def _advertised(served: HandlerResult) -> HandlerResult:
    """Add changing tools to the server's capabilities, and tasks for a client that may know them."""
    shown = (
        served.model_dump(by_alias=True, exclude_none=True, mode="json") if isinstance(served, BaseModel) else served
    )
    if shown is None:
        return served
    capabilities = {**shown.get("capabilities", {}), "tools": {"listChanged": True}}
    if shown.get("protocolVersion") == VERSION:
        capabilities["tasks"] = CAPABILITY
    return {**shown, "capabilities": capabilities}
