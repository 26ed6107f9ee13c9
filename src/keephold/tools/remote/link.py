"""One open connection to a server: from the handshake to its loss.

Everything of `mcp` that belongs to a connection and not to a call is here: the negotiation of an era, the list of tools
and its changes, messages that a server sends unasked. `run` returns why the connection has ended and never raises.
"""

import asyncio
import logging
import os
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import PurePath
from typing import TYPE_CHECKING

import anyio
import mcp.types as types
from mcp.client import ClientRequestContext
from mcp.client._transport import TransportStreams
from mcp.client.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from pydantic import FileUrl

from keephold.tools.remote.asking import Asker
from keephold.tools.remote.tasks import TasksExtension
from keephold.tools.remote.transport import Stderr, on_pipes, over_http, speaks_only_sse

if TYPE_CHECKING:
    from keephold.tools.remote.connection import Connection

_log = logging.getLogger("keephold.mcp")

_PAGES = 100
_NO_POST = (400, 404, 405, 406, 415)
"""How a server that has only the old transport answers a message sent to its address."""
_RELISTEN_SECS = 5.0

current: ContextVar[Asker | None] = ContextVar("current", default=None)
"""The call in whose task something happens. Over HTTP `mcp` carries it to the server's requests in that call."""


class ServerLink:
    """A connection, open or about to be."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.server = connection.server
        self.calls: set[Asker] = set()
        """Those that run."""
        self.was_up = False
        """It has been open."""
        self.no_login = ""
        """Why the user's login could not be used."""
        self.tasks = TasksExtension()
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._late = False
        self._status: int | None = None
        self._reason = ""
        self._errors = Stderr()
        self.client = Client(
            self._transport(),
            elicitation_callback=self._asked,
            list_roots_callback=self._roots if self.server.url is None else None,
            logging_callback=self._logged,
            message_handler=self._told,
            client_info=types.Implementation(name="keephold", version=version("keephold")),
            extensions=[self.tasks],
            cache=None,  # a list is requested when it has changed, so it must be the new one
        )

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        if self.server.url is None:
            return on_pipes(self.server, self._connection.guard, self._errors, self._program_ended)
        return over_http(self.server, self._refused, self._no_login)

    # Its life

    async def run(self) -> str:
        """Connect, and stay until the connection is lost or ended; return why."""
        timer = asyncio.get_running_loop().call_later(self.server.timeout_secs, self._too_late)
        with self._scope:
            try:
                async with self.client:
                    tools = await self._list()
                    timer.cancel()
                    self.was_up = True
                    self._connection.up(self, tools)
                    await self._stay()
            except Exception as error:
                self._reason = self._reason or self._words(error)
            finally:
                timer.cancel()
        reason = self._reason or "the connection was closed"
        if self._status in _NO_POST and not self.was_up and await speaks_only_sse(self.server):
            reason = (
                "it speaks only the HTTP+SSE transport of protocol 2024-11-05, which is not supported; use its address "
                "for streamable HTTP, which often ends in /mcp"
            )
        if self._late:
            reason = f"it did not answer within {self.server.timeout_secs:g} s"
        said = self._errors.last_words
        return f"{reason}; its program said: {said}" if said else reason

    def end(self, reason: str) -> None:
        """Leave the connection."""
        self._reason = self._reason or reason
        self._ended.set()
        self._connection.down()

    def cancel(self) -> None:
        """End it in any state; its program is ended as well."""
        self._scope.cancel()

    def _too_late(self) -> None:
        self._late = True
        self._scope.cancel()

    def _program_ended(self) -> None:
        self.end("its program has ended")

    def _refused(self, status: int) -> None:
        self._status = status
        if status == 404 and self.was_up and not self.is_modern:
            self.end("it has forgotten our session")  # it was started again

    def _no_login(self, reason: str) -> None:
        self.no_login = self.server.without_secrets(reason)
        self.end(reason)

    async def _stay(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow_list)
            if self.is_modern:
                group.start_soon(self._listen)
            await self._ended.wait()
            group.cancel_scope.cancel()

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes over it."""
        return self._ended.is_set()

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks a protocol without sessions, from 2026-07-28 on."""
        return self.client.session.discover_result is not None

    def _words(self, error: BaseException) -> str:
        """Say why an attempt failed."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, OSError) and error.strerror:
            words = f"{error.filename or 'it'}: {error.strerror}"
        else:
            words = (str(error).splitlines() or [type(error).__name__])[0][:300]
        return words if self._status is None else f"{words} (HTTP {self._status})"

    # Its tools

    async def _list(self) -> list[types.Tool]:
        tools: list[types.Tool] = []
        cursor: str | None = None
        with anyio.fail_after(self.server.timeout_secs):
            for _ in range(_PAGES):  # a server that never ends its list is cut off
                page = await self.client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
        return tools

    async def _follow_list(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._connection.listed(await self._list())

    async def _listen(self) -> None:
        """Listen to a modern server's changes. A server that sends none is not asked again."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                async with self.client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._changed.set()
            except SubscriptionLost:
                pass
            except (MCPError, TimeoutError) as error:
                _log.debug("MCP server `%s` tells no changes of its tools: %s", self.server.name, error)
                return
            if loop.time() - began < _RELISTEN_SECS:
                await asyncio.sleep(_RELISTEN_SECS)
            self._changed.set()  # changes since then are lost

    # Messages that the server sends unasked

    async def _told(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def _logged(self, params: types.LoggingMessageNotificationParams) -> None:
        text = self.server.without_secrets(str(params.data))
        _log.info("MCP server `%s` says (%s): %.2000s", self.server.name, params.level, text)

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        """Name the directory that a program works in. A service elsewhere gets no path of this machine."""
        directory = PurePath(os.getcwd(), self.server.cwd or "")  # noqa: PTH109 (a Path would not be pure)
        return types.ListRootsResult(roots=[types.Root(uri=FileUrl(directory.as_uri()), name=directory.name)])

    async def _asked(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Return the call that a server's request belongs to. Old servers on pipes do not say."""
        asker = current.get()
        if asker is None and len(self.calls) == 1:
            (asker,) = self.calls
        if asker is None:
            many = "several calls are running, and it does not say which of them asks" if self.calls else "no call runs"
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"Nobody can be asked: {many}")
        answer = await asker.answer(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        return types.ElicitResult.model_validate(answer.response)
