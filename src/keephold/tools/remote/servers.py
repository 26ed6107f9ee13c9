"""The MCP servers of a runtime, and the tools it has from them at the moment.

Whenever a server lists its tools, all names are assigned again, in the order of the servers: a name that two of them
have belongs to the first, regardless of which answered first. Our own tools take precedence over all of them.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from keephold.errors import ConfigError
from keephold.schema.faults import cut
from keephold.store.rows import Level
from keephold.tools.base import Tool
from keephold.tools.guard import Guard
from keephold.tools.remote.connection import Connection
from keephold.tools.remote.server import McpServer
from keephold.tools.remote.tool import listed, unlisted
from keephold.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

_log = logging.getLogger("keephold.mcp")

_MAX_WARNED, _MAX_WARNING = 20, 500
"""How many tools of a server that are left out are named, and in how many characters."""
_MAX_GONE = 1000
"""How many tools that servers list no longer are remembered: a server may list others every time."""

Tell = Callable[[str, Level, str, str], None]
"""Queue a notification: its kind, level and message, and the conversation."""


class Servers:
    """Connections to servers, and their tools in a toolbox."""

    def __init__(
        self,
        servers: Iterable[McpServer],
        guard: Guard,
        toolbox: Toolbox,
        tell: Tell,
        arrived: Callable[[], None],
        owner: str | None = None,
    ) -> None:
        """`owner` is the conversation that brought them; None: they are those of the configuration."""
        self._owner = owner
        self._toolbox = toolbox
        self._guard = guard
        self._tell = tell
        self._arrived = arrived
        self._connections = [Connection(server, guard, self) for server in servers]
        self._warned: dict[str, None] = {}
        names = [connection.server.name for connection in self._connections]
        problems = [f"two MCP servers are named `{name}`" for name in dict.fromkeys(names) if names.count(name) > 1]
        named = [name for connection in self._connections for name in connection.server.named]
        problems += [f"two tools are named `{name}`" for name in named if toolbox.get(name) is not None]
        if problems:
            raise ConfigError([f"{problem}; give one of them another name" for problem in problems])
        self._offer()

    def open(self) -> None:
        """Begin to connect; return at once."""
        for connection in self._connections:
            connection.open()

    def add(self, server: McpServer) -> None:
        """Connect one more. The same one again changes nothing; another of its name is a `ConfigError`."""
        for connection in self._connections:
            if connection.server.name == server.name:
                if connection.server.place != server.place:
                    raise ConfigError([f"two MCP servers are named `{server.name}`; give one of them another name"])
                return
        connection = Connection(server, self._guard, self)
        self._connections.append(connection)
        connection.open()

    async def close(self) -> None:
        """End all connections and the programs behind them."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def ready(self, timeout: float | None) -> bool:
        """Wait until each has listed its tools or has failed; return whether all have listed them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(connection.first() for connection in self._connections))
        return all(connection.tools is not None for connection in self._connections)

    def problems(self) -> list[str]:
        """Return a sentence for each server that cannot be reached and each tool that was left out."""
        away = [each for each in self._connections if each.link is None]
        return [
            *(f"MCP server `{each.server.name}` cannot be reached: {each.reason}; it is tried again" for each in away),
            *self._warned,
        ]

    # Changes of a connection

    def listed(self, connection: Connection) -> None:
        self._offer()
        self._arrived()

    def lost(self, connection: Connection, reason: str) -> None:
        text = f"The connection to MCP server `{connection.server.name}` is lost: {reason}. It is made again."
        _log.warning("%s", text)
        self._tell_users(connection, "mcp.disconnected", "warning", f"{text} Calls of its tools fail until then.")

    def regained(self, connection: Connection) -> None:
        text = f"MCP server `{connection.server.name}` is connected again."
        _log.info("%s", text)
        self._tell_users(connection, "mcp.reconnected", "info", text)

    def _tell_users(self, connection: Connection, kind: str, level: Level, message: str) -> None:
        for conversation in connection.users:
            self._tell(kind, level, message, conversation)

    # The list of tools

    def _offer(self) -> None:
        tools: dict[str, Tool] = {}
        for connection in self._connections:
            for name, tool in self._tools(connection):
                if name in tools or self._toolbox.held(name):
                    self._clash(connection, name)
                else:
                    tools[name] = tool
        gone = [tool for tool in self._toolbox.remote() if tool.name not in tools]
        for tool in gone[:_MAX_GONE]:  # so that a conversation that knew it learns why it is gone
            tools[tool.name] = replace(tool, offered=False)
        self._toolbox.replace_remote(tools.values())
        self._toolbox.unlisted = tuple(each.server.name for each in self._connections if each.tools is None)

    def _tools(self, connection: Connection) -> Iterator[tuple[str, Tool]]:
        server, found = connection.server, connection.tools or {}
        for name, (tool, like) in server.named.items():
            made = self._made(connection, name, found[tool], like) if tool in found else None
            if connection.tools is not None and tool not in found:
                self._leave_out(connection, f"its tool `{tool}`, which is `{name}` here, is not among those it lists")
            yield name, made or unlisted(connection, name, tool, like)
        own = {tool for tool, _ in server.named.values()}
        for each in found.values():
            if each.name not in own and (server.tools is None or each.name in server.tools):
                name = re.sub("[^A-Za-z0-9_-]", "_", server.prefix + each.name)[:64] or "_"
                made = self._made(connection, name, each, server.like)
                if made is not None:
                    yield name, made

    def _made(self, connection: Connection, name: str, tool: "ListedTool", like: Tool) -> Tool | None:
        try:
            return listed(connection, name, tool, like)
        except ConfigError as error:
            self._leave_out(connection, f"its tool `{tool.name}` is left out: {error.problems[0]}")
            return None

    def _clash(self, connection: Connection, name: str) -> None:
        server = connection.server.name
        cure = (
            f"set `prefix` in [mcp.servers.{server}], or give it a name of its own by a table "
            '[conversation.tools.<name>] with source = "mcp"'
        )
        if self._owner is not None:
            cure = "rename the other tool, or configure the server in keephold.toml with a `prefix`"
        self._leave_out(connection, f"its tool `{name}` is left out: there is another tool of that name; {cure}")

    def _leave_out(self, connection: Connection, why: str) -> None:
        start = f"MCP server `{connection.server.name}`: "
        before = sum(each.startswith(start) for each in self._warned)
        text = cut(start + why, _MAX_WARNING) if before < _MAX_WARNED else f"{start}more of its tools are left out"
        if text not in self._warned:
            self._warned[text] = None
            _log.warning("%s", text)
            self._tell_users(connection, "mcp.tool_left_out", "warning", text)
