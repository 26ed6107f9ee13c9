"""The rules of `[mcp.servers.<name>]`, and of the tables of tools that belong to such a server."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from keephold.config.explain import not_one_of
from keephold.config.locate import KeyPath
from keephold.config.model import McpServerSettings, ToolSettings

SERVERS: KeyPath = ("mcp", "servers")
Problem = tuple[KeyPath, str]

_FOR_PROGRAMS = ("args", "env", "cwd")


def server_problems(servers: Mapping[str, McpServerSettings]) -> Iterator[Problem]:
    """Every broken rule of the tables of servers."""
    for name, table in servers.items():
        where = (*SERVERS, name)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            yield where, "a server's name has 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`; choose another"
        if (table.command is None) == (table.url is None):
            right = '`command = ["program", "argument"]` for a program, `url = "https://…"` for one that serves HTTP'
            yield where, f"write either: {right}"
            continue
        written = table.model_fields_set
        for key in _FOR_PROGRAMS if table.url is not None else ("headers",):
            if key in written:
                what = "is for a server with a `command`" if table.url is not None else "is for a server with a `url`"
                yield (*where, key), what


def tool_server_problems(tool: ToolSettings, name: str, servers: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the server that a tool's table names; keys are those of the table."""
    if tool.server is None:
        listed = ", ".join(f'"{each}"' for each in servers) or "write a table [mcp.servers.<name>] first"
        yield ("server",), f"missing; what would be right: {listed}"
        return
    table = servers.get(tool.server)
    if not isinstance(table, dict):
        known = not_one_of(tool.server, servers) if servers else f"there is no table [mcp.servers.{tool.server}]"
        yield ("server",), known
        return
    taken, wanted = table.get("tools"), tool.tool or name
    if isinstance(taken, list) and wanted not in taken:
        yield ("tool",), f'`tools` in [mcp.servers.{tool.server}] does not take "{wanted}"; add it there'
