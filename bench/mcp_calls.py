"""One call of a tool that echoes its argument, through our server, p50. Against the same on a bare `MCPServer`.

Both answer with one text and nothing else. A server and its client are processes of their own, except in process; the
transports are streamable HTTP of 2026-07-28 on loopback, standard input and output, and the SDK's in-process pair. Ours
has a SQLite store, as `keephold mcp` has, where a call is written before it runs and when it has ended; or none. A raw
commit (see `durable-steps`) is measured in the same turns.

The client is the SDK's; the rows *by a plain socket* show the servers without it. The bar is for HTTP with SQLite.
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters

from bench.durable_steps import inserting
from bench.gaps import Turn, alternate
from bench.mcp_clients import Calling, Kind, connected
from bench.mcp_rows import beside, ratio
from bench.mcp_servers import MEMORY, bare, command, ours, served, sqlite
from bench.raw import Raw
from bench.rounds import Bar, Plan, Row

BAR = Bar(1.4)
HTTP, PLAIN, STDIO, INSIDE = "streamable HTTP", "streamable HTTP by a plain socket", "stdio", "in process"


async def _target(stack: AsyncExitStack, transport: str, what: str) -> Any:
    """Return the server that a client connects to."""
    if transport in (HTTP, PLAIN):
        return stack.enter_context(served(what))
    if transport == STDIO:
        program, *arguments = command("stdio", what)
        return StdioServerParameters(command=program, args=arguments)
    return bare() if what == "bare" else await stack.enter_async_context(ours(what))


async def _over(transport: str, plan: Plan, directory: str) -> list[Row]:
    kind: Kind = "plain" if transport == PLAIN else "sdk"
    async with AsyncExitStack() as stack:
        raw = stack.enter_context(closing(Raw(Path(directory) / f"{transport.replace(' ', '-')}-raw.db")))
        sides: list[Turn] = [partial(inserting, raw)]
        for what in ("bare", sqlite(directory, transport.replace(" ", "-")), MEMORY):
            target = await _target(stack, transport, what)
            sides.append(Calling(await stack.enter_async_context(connected(kind, target)), "echo", {"text": "hello"}))
        rounds = await alternate(plan, sides)
    name = f"call of a tool, p50, against a bare `MCPServer`, {transport}"
    return [
        ratio(f"{name}: SQLite", BAR if transport == HTTP else None, [(bare, ours) for _, bare, ours, _ in rounds]),
        ratio(f"{name}: memory", None, [(bare, ours) for _, bare, _, ours in rounds]),
        beside("… a raw commit meanwhile", [commit for commit, *_ in rounds]),
    ]


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        return [
            row for transport in (HTTP, PLAIN, STDIO, INSIDE) for row in asyncio.run(_over(transport, plan, directory))
        ]
