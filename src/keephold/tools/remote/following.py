"""A task of a server, followed to its end: its requests are asked, its messages are progress, and a lost connection is
waited out.

The task's id and every answer to it are in the call's journal. A runtime that resumes the call after a crash follows
the same task, and asks no question twice.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import mcp.types as types
import msgspec
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from keephold.errors import ToolError
from keephold.tools.remote import tasks
from keephold.tools.remote.asking import Asker
from keephold.tools.remote.connection import AWAY_SECS, Connection
from keephold.tools.remote.result import failure, is_lost

if TYPE_CHECKING:
    from keephold.tools.remote.link import Link

POLL_SECS, _LEAST_POLL_SECS = 1.0, 0.02
_CANCEL_SECS = 1.5
_STEP = "input "
"""Prefix of the names of the journal's steps with answers; the task and the key of the request follow."""


class Following:
    """One task that is followed."""

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

    async def _over(self, link: "Link") -> types.CallToolResult:
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

    async def _answer(self, link: "Link", state: tasks.TaskState, pushed: tasks.TaskNotifications) -> None:
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
        if self._asker.call._journal is None:
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

    async def _send(self, link: "Link", key: str, response: dict[str, Any]) -> None:
        await tasks.update(link.client.session, self._task, {key: response}, self._server.timeout_secs)
        self._unsent.pop(key, None)

    def _count_questions(self) -> None:
        """Advance the journal behind answers that are recorded with their requests, because these are not asked again:
        the next question of the same id is another one (E10).
        """
        journal = self._asker.call._journal
        for entry in self._asker.call._invocation.entries if journal is not None else ():
            if entry.kind == "step" and entry.name.startswith(_STEP) and entry.ok:
                for asked in msgspec.json.decode(entry.value)["asked"]:
                    assert journal is not None
                    journal.number("ask", asked)
