"""The one connection of a runtime to a server: made in the background, made again when it is lost, with backoff (M6).

It lives in a task of its own, because `mcp` enters and leaves its cancel scopes there. A call that comes while the
connection is being made waits for that attempt; one that comes in a longer pause is told at once. Nothing here waits
for ever: an attempt has the server's `timeout_secs`, and a lost connection ends every request on it.
"""

import asyncio
import contextlib
import importlib
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from keephold.errors import ToolError
from keephold.tools.guard import Guard
from keephold.tools.remote.server import McpServer

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

    from keephold.tools.remote.link import Link

_log = logging.getLogger("keephold.mcp")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
AWAY_SECS = 60.0
"""How long a server may be away before a task of it is given up."""
_STEADY_SECS = 30.0
"""A connection that lasted so long was a good one: the next pause is the first again."""
_SHORT_SECS = 1.0
"""A pause so short is waited for by those who call meanwhile."""
_USERS = 100
"""How many conversations are told that a server is gone."""
_CLOSE_SECS = 2.0
"""How long a session over HTTP may take to be ended."""


class RemoteHost(Protocol):
    """Who is told what becomes of a connection."""

    def listed(self, connection: "Connection") -> None:
        """Its server has told which tools it has."""

    def lost(self, connection: "Connection", reason: str) -> None: ...

    def regained(self, connection: "Connection") -> None: ...


class Connection:
    """The connection to one server."""

    def __init__(self, server: McpServer, guard: Guard, around: RemoteHost) -> None:
        self.server = server
        self.guard = guard
        self._around = around
        self.tools: dict[str, ListedTool] | None = None
        """What the server has listed, by its own names; None: nothing yet. Kept while the connection is lost."""
        self._users: dict[str, None] = {}
        self.reason = "it is not connected yet"
        """Why there is no connection."""
        self.link: Link | None = None
        """The open connection."""
        self._trying: Link | None = None
        """The one that is being made, is open or is being ended."""
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._next = 0.0
        """When the next attempt begins, or has begun, by the loop's time."""
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def users(self) -> tuple[str, ...]:
        """The conversations that called a tool of it last: others have no use for the news that it is gone."""
        return tuple(self._users)

    def used_by(self, conversation: str) -> None:
        """A conversation calls a tool of it."""
        self._users.pop(conversation, None)
        self._users[conversation] = None
        if len(self._users) > _USERS:
            del self._users[next(iter(self._users))]

    def open(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"mcp {self.server.name}")

    async def close(self) -> None:
        """End the connection, and its program."""
        self._closing.set()
        if self._task is None:
            return
        if self.link is not None:
            self.link.end("the runtime is being closed")
            await asyncio.wait([self._task], timeout=_CLOSE_SECS)
        if self._trying is not None:
            self._trying.cancel()
        await asyncio.wait([self._task])
        self._conclude()

    async def ready(self) -> "Link":
        """The open connection; one that is being made is waited for. Raises `ToolError`, transient, without one."""
        loop = asyncio.get_running_loop()
        if self.link is None and not self._closing.is_set() and self._next <= loop.time() + _SHORT_SECS:
            await self._concluded()
        if self.link is None:
            raise self.gone(self.reason)
        return self.link

    async def again(self, within: float) -> "Link":
        """The open connection, or the one that is made within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.link is None and not self._closing.is_set():
                    await self._concluded()
        return await self.ready()

    async def first(self) -> None:
        """Until the server has listed its tools, or an attempt has failed."""
        if self.tools is None and self._next == 0.0 and not self._closing.is_set():
            await self._concluded()

    def gone(self, reason: str) -> ToolError:
        """The error of a call that cannot reach the server."""
        text = f"MCP server `{self.server.name}` cannot be reached: {reason}; it is tried again"
        return ToolError(text, code="mcp_disconnected", transient=True)

    def listed(self, tools: Sequence["ListedTool"]) -> None:
        """The link has the list, for the first time or again."""
        self.tools = {tool.name: tool for tool in tools}
        self._around.listed(self)

    async def _concluded(self) -> None:
        """Until the present or next attempt has succeeded or failed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def _conclude(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _run(self) -> None:
        # It takes most of a second to import, which must not pass on the loop.
        await asyncio.to_thread(importlib.import_module, "keephold.tools.remote.link")
        loop, failures, logged = asyncio.get_running_loop(), 0, ""
        while not self._closing.is_set():
            began = loop.time()
            was_up = await self._connect()
            failures = 1 if was_up and loop.time() - began > _STEADY_SECS else failures + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 10)) * (1 - random.random() / 2)
            self._next = loop.time() + pause
            if not self._closing.is_set():
                if was_up:
                    self._around.lost(self, self.reason)
                else:
                    self._conclude()
                    level = logging.WARNING if self.reason != logged else logging.DEBUG  # once, not twice a minute
                    _log.log(level, "MCP server `%s` cannot be reached: %s", self.server.name, self.reason)
                    logged = self.reason
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closing.wait()

    async def _connect(self) -> bool:
        """One attempt, and the connection until it is lost; whether there was one."""
        from keephold.tools.remote.link import Link

        self._trying = link = Link(self)
        try:
            reason = await link.run()
        finally:
            self.link = self._trying = None
        self.reason = self.server.without_secrets(reason)
        return link.was_up

    def down(self) -> None:
        """The link is of no use any more; it is being left."""
        self.link = None

    def up(self, link: "Link", tools: Sequence["ListedTool"]) -> None:
        """The link is open and knows the tools."""
        again, self.link = self.tools is not None, link
        self.listed(tools)
        if again:
            self._around.regained(self)
        self._conclude()
