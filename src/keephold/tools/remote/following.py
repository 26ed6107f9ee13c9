"""A task of a server, followed to its end: its requests are asked, its messages are progress, and a lost connection is
waited out.

The task's id and every answer to it are in the call's journal. A runtime that resumes the call after a crash follows
the same task, and asks no question twice.

`outcome_of` makes the outcome of a call from a server's result: text, JSON, or an error. Nothing is dropped.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import mcp.types as types
import msgspec
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from keephold.content import described, media
from keephold.errors import ToolError
from keephold.handles.state import Ok
from keephold.tools.remote import tasks
from keephold.tools.remote.asking import Asker
from keephold.tools.remote.connection import AWAY_SECS, Connection
from keephold.tools.remote.server import McpServer

if TYPE_CHECKING:
    from keephold.tools.remote.link import ServerLink


_LOST = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)
_HTTP_TROUBLE = (types.INTERNAL_ERROR, "Server returned an error response")
"""How `mcp` words a response with an error status and no JSON-RPC in it: from a proxy, or an overloaded server."""


def outcome_of(result: types.CallToolResult) -> Ok:
    """Return a result as an outcome: its structured content, else its text, and the blocks that are not text.

    Raises `ToolError` for an error.
    """
    blocks = [part.model_dump(by_alias=True, mode="json", exclude_none=True) for part in result.content]
    shown = [described(block) for block in blocks]
    text = "\n".join(shown)
    if result.is_error:
        raise ToolError(text or "The tool failed and did not say why.")
    value: Any = text
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        structured = result.structured_content
        other = [said for said, block in zip(shown, blocks, strict=True) if block["type"] != "text"]
        if other:
            value = {"structuredContent": structured, "content": other}
        elif structured != {"result": text}:  # an object that only wraps the text does not add anything
            value = structured
    return Ok(value, media(blocks) or msgspec.UNSET)


def is_lost(error: MCPError) -> bool:
    """Whether the error says that the server was not reached or is gone, so that trying again may help."""
    return error.code in _LOST or (error.code, error.message) == _HTTP_TROUBLE


def failure(server: McpServer, error: Exception) -> ToolError:
    """Return the error of a call that the server refused, or answered in an invalid form."""
    if isinstance(error, MCPError):
        text = f"MCP server `{server.name}` answered with an error: {error.message} ({error.code})"
    elif isinstance(error, ValidationError):
        text = f"MCP server `{server.name}` answered with something that is not the result of a tool"
    else:
        text = f"MCP server `{server.name}`: {error}"
    return ToolError(server.without_secrets(text), code="mcp_error")


POLL_SECS, _LEAST_POLL_SECS = 1.0, 0.02
_CANCEL_SECS = 1.5
_STEP = "input "
"""Prefix of the names of the journal's steps with answers; the task and the key of the request follow."""


class TaskFollower:
    def __init__(self, connection: Connection, asker: Asker, task: str, poll_ms: int | None) -> None:
        self._connection = connection
        self._server = connection.server
        self._asker = asker
        self._task = task
        self._poll = POLL_SECS if poll_ms is None else max(_LEAST_POLL_SECS, poll_ms / 1000)
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._unsent: dict[str, dict[str, Any]] = {}
        """Answers that did not reach the server."""
        self._heard = asyncio.get_running_loop().time()
        """When the server last reported the task."""
        self._ended = False

    async def result(self) -> types.CallToolResult:
        """Return the end of the task. Raises `ToolError` if it failed, was cancelled, or is gone."""
        self._count_questions()
        loop = asyncio.get_running_loop()
        try:
            while True:
                link = await self._connection.again(AWAY_SECS)
                try:
                    return await self._over(link)
                except ValidationError as error:
                    raise failure(self._server, error) from None
                except MCPError as error:
                    if not (is_lost(error) or link.is_over):
                        raise self._gone(error) from None
                    if loop.time() - self._heard > AWAY_SECS:
                        raise self._connection.gone("it does not answer about the task of this call") from None
                    await asyncio.sleep(_LEAST_POLL_SECS)  # until the connection, too, knows that it is lost
        finally:
            for answering in self._answering.values():
                answering.cancel()

    async def cancel(self) -> None:
        """Cancel the task on the server, if that can be done quickly."""
        link = self._connection.link
        if link is not None and not self._ended:
            with contextlib.suppress(MCPError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECS):
                    await tasks.cancel(link.client.session, self._task, _CANCEL_SECS)

    async def _over(self, link: "ServerLink") -> types.CallToolResult:
        """Follow it over one connection."""
        session, pushed = link.client.session, tasks.TaskNotifications()
        listening = asyncio.create_task(link.tasks.listen(session, self._task, pushed))
        try:
            state: tasks.TaskState | None = None
            while True:
                state = state or await tasks.get(session, self._task, self._server.timeout_secs)
                self._heard = asyncio.get_running_loop().time()
                if state.status_message:
                    self._asker.call.progress(0, None, state.status_message)
                if state.status in tasks.ENDS:
                    return self._end(state)
                await self._answer(link, state, pushed)
                state = await pushed.next(self._poll)
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    def _end(self, state: tasks.TaskState) -> types.CallToolResult:
        self._ended = True
        match state.status:
            case "completed":
                return types.CallToolResult.model_validate(state.result)
            case "failed":
                try:
                    told = types.ErrorData.model_validate(state.error)
                except ValidationError:
                    told = types.ErrorData(code=types.INTERNAL_ERROR, message="the task failed and does not say why")
                raise failure(self._server, MCPError.from_error_data(told))
            case _:
                text = f"MCP server `{self._server.name}` has cancelled the task"
                raise ToolError(text, code="mcp_error", transient=True)

    def _gone(self, error: MCPError) -> ToolError:
        if error.code != types.INVALID_PARAMS:
            return failure(self._server, error)
        text = f"MCP server `{self._server.name}` does not know the task of this call any more: {error.message}"
        return ToolError(self._server.without_secrets(text), code="mcp_error", transient=True)

    # Its requests

    async def _answer(self, link: "ServerLink", state: tasks.TaskState, pushed: tasks.TaskNotifications) -> None:
        for key, request in state.input_requests.items():
            if key not in self._answering:
                self._answering[key] = asyncio.create_task(self._ask(key, request))
                self._answering[key].add_done_callback(lambda _: pushed.wake())
            elif key in self._unsent:
                await self._send(link, key, self._unsent[key])
        for answering in self._answering.values():
            if answering.done() and not answering.cancelled():
                answering.result()  # raises the reason why it could not be answered
        for key in self._answering.keys() - state.input_requests.keys():
            self._answering[key].cancel()  # nobody waits for it any more

    async def _ask(self, key: str, request: dict[str, Any]) -> None:
        if self._asker.journal is None:
            recorded = await self._response(request)
        else:
            step = f"{_STEP}{self._task} {key}"
            recorded = await self._asker.call.durable().run_json(step, request, self._response)
        self._unsent[key] = recorded["response"]
        link = self._connection.link
        if link is not None:
            with contextlib.suppress(MCPError):  # the next look at the task sends it again
                await self._send(link, key, recorded["response"])

    async def _response(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("method") != "elicitation/create":
            what = str(request.get("method"))[:60]
            raise ToolError(
                f"MCP server `{self._server.name}` asks for `{what}`, which is not offered", code="mcp_error"
            )
        answer = await self._asker.answer(request.get("params") or {})
        return {"response": answer.response, "asked": answer.asked}

    async def _send(self, link: "ServerLink", key: str, response: dict[str, Any]) -> None:
        await tasks.update(link.client.session, self._task, {key: response}, self._server.timeout_secs)
        self._unsent.pop(key, None)

    def _count_questions(self) -> None:
        """Advance the journal behind answers that are recorded with their requests, because these are not asked again:
        the next question of the same id is another one (E10).
        """
        journal = self._asker.journal
        if journal is None:
            return
        for entry in self._asker.invocation.entries:
            if entry.kind == "step" and entry.name.startswith(_STEP) and entry.ok:
                for asked in msgspec.json.decode(entry.value)["asked"]:
                    journal.number("ask", asked)
