"""Clients of the server: the SDK's, of both eras, with and without tasks, and what their answers say."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import mcp_types
from mcp.client import ClaimContext, Client, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Result
from pydantic import BaseModel, ConfigDict
from tests.patience import PATIENCE

TASKS = "io.modelcontextprotocol/tasks"
MODERN = "2026-07-28"
ERAS = (MODERN, "legacy")


class Anything(Result):
    """Any result, as it came."""

    model_config = ConfigDict(extra="allow")

    @property
    def fields(self) -> dict[str, Any]:
        return self.model_extra or {}


class TaskMade(Result):
    """A call that has become a task."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"

    @property
    def id(self) -> str:
        return str((self.model_extra or {})["taskId"])


class Told(BaseModel):
    """What a notification says."""

    model_config = ConfigDict(extra="allow")


class KnowsTasks(ClientExtension):
    """The extension of a client that knows tasks and looks after them itself."""

    identifier = TASKS

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskMade, resolve=self._resolve)]

    def notifications(self) -> list[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=Told, handler=self._notified)]

    async def _resolve(self, made: TaskMade, context: ClaimContext) -> CallToolResult:
        raise AssertionError("the tests follow their tasks themselves")

    async def _notified(self, told: Told) -> None:
        self.told.put_nowait(dict(told.model_extra or {}))

    async def heard(self, task: str, last: str) -> list[dict[str, Any]]:
        """What is told of a task, up to that status."""
        told: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            while not told or told[-1]["status"] != last:
                told.append(await self.told.get())
                assert told[-1]["taskId"] == task
        return told


TOKENS: dict[str, str] = {}
"""The tokens that servers have made, by address."""


@asynccontextmanager
async def connected(
    url: str, mode: str = MODERN, *, token: str | None = None, tasks: KnowsTasks | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of that era, over HTTP. Without a token, it has the one that the server has made, if it has."""
    token = TOKENS.get(url) if token is None else token
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(headers=headers, timeout=60, limits=limits) as http:
        if tasks is not None:
            options["extensions"] = [tasks]
        async with Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client:
            yield client


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    """Any request, and its result as it came."""
    request = mcp_types.Request[dict[str, Any], str](method=method, params=params)
    return (await client.session.send_request(request, Anything)).fields


async def post_modern(
    http: httpx2.AsyncClient, url: str, id: int | str, tool: str, **arguments: Any
) -> httpx2.Response:
    """A call as it is on the wire, under that id."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    return await http.post(url, json=message, headers=headers)


async def ask_for_task(client: Client, name: str, **arguments: Any) -> str:
    """Call a tool as a task, as clients of 2025-11-25 do; the SDK's own has no method for it."""
    params = {"name": name, "arguments": arguments, "task": {"ttl": 60_000}}
    made = await client.session._dispatcher.send_raw_request("tools/call", params, {})
    return str(made["task"]["taskId"])


@asynccontextmanager
async def listening(client: Client, **wanted: Any) -> AsyncIterator[asyncio.Future[dict[str, Any]]]:
    """A stream for tasks, which the SDK's client does not know how to ask for; gives what was acknowledged."""
    acknowledged: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    client.session._message_handler = _noting(acknowledged)
    stream = asyncio.create_task(ask(client, "subscriptions/listen", notifications=wanted))
    try:
        yield acknowledged
    finally:
        stream.cancel()
        await asyncio.wait([stream])


def _noting(acknowledged: "asyncio.Future[dict[str, Any]]") -> Any:
    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.SubscriptionsAcknowledgedNotification) and not acknowledged.done():
            acknowledged.set_result(message.params.notifications.model_dump(by_alias=True, exclude_none=True))

    return note


async def start_task(client: Client, name: str, **arguments: Any) -> str:
    """Call a tool that becomes a task."""
    made = await client.session.call_tool(name, arguments, allow_claimed=True)
    assert isinstance(made, TaskMade), made
    return made.id


async def task_is(client: Client, task: str, *statuses: str) -> dict[str, Any]:
    """The task, when it has one of these statuses."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await ask(client, "tasks/get", taskId=task)
            if found["status"] in statuses:
                return found
            await asyncio.sleep(0.01)


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if block.type == "text"]


def text(result: CallToolResult) -> str:
    """The one text of a result; there is nothing else in it."""
    (only,) = texts(result)
    return only


def read(result: CallToolResult) -> Any:
    """The JSON of a result's first text."""
    return json.loads(texts(result)[0])


class Person:
    """Whoever sits at a client: gives these answers one after the other, and notes what was asked."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        """A dict is the content of an accepted form; a string the action, without any."""
        self._answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, context: Any, params: Any) -> mcp_types.ElicitResult:
        self.asked.append((params.message, params.requested_schema))
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            return mcp_types.ElicitResult(action=answer)
        return mcp_types.ElicitResult(action="accept", content=answer)
