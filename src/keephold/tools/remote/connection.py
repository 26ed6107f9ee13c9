"""The one connection of a runtime to a server: made in the background, made again when it is lost, with backoff (M6).

It lives in a task of its own, because `mcp` enters and leaves its cancel scopes there. A call that comes while the
connection is being made waits for that attempt; one that comes in a longer pause fails at once. Every wait is limited:
an attempt has the server's `timeout_secs`, and a lost connection ends every request on it.
"""

import asyncio
import contextlib
import importlib
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keephold.errors import ToolError
from keephold.tools.guard import Guard
from keephold.tools.remote.server import McpServer

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

    from keephold.tools.remote.link import ServerLink
    from keephold.tools.remote.servers import Servers

_log = logging.getLogger("keephold.mcp")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
AWAY_SECS = 60.0
"""Seconds for which a server may be away before its tasks are given up."""
_STEADY_SECS = 30.0
"""A connection that lasted this long was a good one: the next pause is the first again."""
_SHORT_SECS = 1.0
"""Calls wait for the end of a pause that is at most this long."""
_USERS = 100
"""Number of conversations that are notified of a lost server."""
_CLOSE_SECS = 2.0
"""Seconds for ending a session over HTTP."""


class Connection:
    def __init__(self, server: McpServer, guard: Guard, servers: "Servers") -> None:
        self.server = server
        self.guard = guard
        self._servers = servers
        self.tools: dict[str, ListedTool] | None = None
        """The tools that the server has listed, by its own names; None: not yet. Kept while the connection is lost."""
        self._users: dict[str, None] = {}
        self.reason = "it is not connected yet"
        """Why the server is not connected."""
        self.link: ServerLink | None = None
        """The open connection."""
        self._trying: ServerLink | None = None
        """The link that is being made, is open or is being ended."""
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._next = 0.0
        """When the next attempt begins, or has begun, by the loop's time."""
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def users(self) -> tuple[str, ...]:
        """The conversations that called one of its tools last. Only these are notified of its loss."""
        return tuple(self._users)

    def used_by(self, conversation: str) -> None:
        """Note that a conversation calls one of its tools."""
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

    async def ready(self) -> "ServerLink":
        """Return the open connection, after waiting for one that is being made. Raises a transient `ToolError` without
        one.
        """
        loop = asyncio.get_running_loop()
        if self.link is None and not self._closing.is_set() and self._next <= loop.time() + _SHORT_SECS:
            await self._concluded()
        if self.link is None:
            raise self.gone(self.reason)
        return self.link

    async def again(self, within: float) -> "ServerLink":
        """Return the open connection, or one that is made within `secs` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.link is None and not self._closing.is_set():
                    await self._concluded()
        return await self.ready()

    async def first(self) -> None:
        """Wait until the server has listed its tools, or an attempt has failed."""
        if self.tools is None and self._next == 0.0 and not self._closing.is_set():
            await self._concluded()

    def gone(self, reason: str) -> ToolError:
        """Return the error of a call that cannot reach the server."""
        text = f"MCP server `{self.server.name}` cannot be reached: {reason}; it is tried again"
        return ToolError(text, code="mcp_disconnected", transient=True)

    def listed(self, tools: Sequence["ListedTool"]) -> None:
        """The link has the list, for the first time or again."""
        self.tools = {tool.name: tool for tool in tools}
        self._servers.listed(self)

    async def _concluded(self) -> None:
        """Wait until the current or next attempt has succeeded or failed."""
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
        # Importing it takes most of a second, which must not block the loop.
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
                    self._servers.lost(self, self.reason)
                else:
                    self._conclude()
                    level = logging.WARNING if self.reason != logged else logging.DEBUG  # once, not twice a minute
                    _log.log(level, "MCP server `%s` cannot be reached: %s", self.server.name, self.reason)
                    logged = self.reason
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closing.wait()

    async def _connect(self) -> bool:
        """Make one attempt and stay connected until the connection is lost; return whether there was one."""
        from keephold.tools.remote.link import ServerLink

        self._trying = link = ServerLink(self)
        try:
            reason = await link.run()
        finally:
            self.link = self._trying = None
        self.reason = self.server.without_secrets(reason)
        return link.was_up

    def down(self) -> None:
        """The link is useless from now on; it is being left."""
        self.link = None

    def up(self, link: "ServerLink", tools: Sequence["ListedTool"]) -> None:
        """The link is open and knows the tools."""
        again, self.link = self.tools is not None, link
        self.listed(tools)
        if again:
            self._servers.regained(self)
        self._conclude()
