"""Drives an MCP server with the client of a framework: `python frameworks.py FRAMEWORK TARGET`, see `test_frameworks`.

It runs in an environment of its own (`make interop`) and does what it reads, a JSON object a line: `list`, `call` or
`asked`, each by a client that is named and connected when it is first used. Replies carry the line's `id`, and come in
any order. Every client has its framework's defaults.

TARGET is a JSON object: `url` and `headers`, or `command`, `args`, `env` and `cwd`.
"""
# mypy: ignore-errors
# The type checker knows the packages of the project, not these.

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

Target = dict[str, Any]
Said = tuple[str, bool]
"""The text of a result, and whether it is an error."""


class Connected(NamedTuple):
    """A client of a framework."""

    tools: Callable[[], Awaitable[list[str]]]
    call: Callable[[str, dict[str, Any]], Awaitable[Said]]


asked: list[int] = []
"""How many fields each form had."""


def filled_in(schema: dict[str, Any]) -> dict[str, Any]:
    """The user: keeps what is suggested, and else gives a value that fits."""
    asked.append(len(schema["properties"]))
    by_type = {"integer": 7, "number": 1.5, "boolean": True, "string": "Ada"}
    by_format = {"email": "ada@example.org", "date": "2026-01-02", "uri": "https://example.org/"}
    content = {}
    for name, field in schema["properties"].items():
        choices = field.get("enum") or [by_format.get(field.get("format"), by_type.get(field["type"]))]
        content[name] = field.get("default", choices[-1])
    return content


def said(result: Any) -> Said:
    """A result of either version of the SDK."""
    error = result.isError if hasattr(result, "isError") else result.is_error
    return "\n".join(block.text for block in result.content if block.type == "text"), bool(error)


def of_sdk(client: Any) -> Connected:
    """A session or a client of the Python SDK, of either version, or of FastMCP."""

    async def tools() -> list[str]:
        listed = await client.list_tools()
        return [tool.name for tool in getattr(listed, "tools", listed)]

    async def call(name: str, arguments: dict[str, Any]) -> Said:
        return said(await client.call_tool(name, arguments))

    return Connected(tools, call)


@asynccontextmanager
async def mcp1(target: Target) -> AsyncIterator[Connected]:
    import httpx
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import ElicitResult

    async def elicited(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=filled_in(params.requestedSchema))

    async with httpx.AsyncClient(headers=target.get("headers"), timeout=60) as http:
        if "url" in target:
            transport = streamable_http_client(target["url"], http_client=http)
        else:
            transport = stdio_client(StdioServerParameters(**target))
        async with (
            transport as (reading, writing, *_),
            ClientSession(reading, writing, elicitation_callback=elicited) as session,
        ):
            await session.initialize()
            yield of_sdk(session)


@asynccontextmanager
async def mcp2(target: Target) -> AsyncIterator[Connected]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import ElicitResult

    async def elicited(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=filled_in(params.requested_schema))

    async with httpx2.AsyncClient(headers=target.get("headers"), timeout=60) as http:
        if "url" in target:
            transport = streamable_http_client(target["url"], http_client=http)
        else:
            transport = stdio_client(StdioServerParameters(**target))
        async with Client(transport, elicitation_callback=elicited) as client:
            yield of_sdk(client)


@asynccontextmanager
async def langchain(target: Target) -> AsyncIterator[Connected]:
    """With its defaults: a session for every call, and on stdio a process."""
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from mcp.types import ElicitResult

    async def elicited(mcp_context: Any, params: Any, context: Any) -> ElicitResult:
        return ElicitResult(action="accept", content=filled_in(params.requestedSchema))

    connection = {"transport": "http" if "url" in target else "stdio", **target}
    client = MultiServerMCPClient({"keephold": connection}, callbacks=Callbacks(on_elicitation=elicited))
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def listed() -> list[str]:
        return list(tools)

    async def call(name: str, arguments: dict[str, Any]) -> Said:
        message = await tools[name].ainvoke({"type": "tool_call", "id": "1", "name": name, "args": arguments})
        content = message.content
        text = content if isinstance(content, str) else "\n".join(block["text"] for block in content)
        return text, message.status == "error"

    yield Connected(listed, call)


@asynccontextmanager
async def fastmcp(target: Target) -> AsyncIterator[Connected]:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    async def elicited(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
        return filled_in(params.requested_schema)

    transport = StreamableHttpTransport(**target) if "url" in target else StdioTransport(**target)
    async with Client(transport, elicitation_handler=elicited) as client:

        async def call(name: str, arguments: dict[str, Any]) -> Said:
            return said(await client.call_tool(name, arguments, raise_on_error=False))

        yield Connected(of_sdk(client).tools, call)


@asynccontextmanager
async def openai(target: Target) -> AsyncIterator[Connected]:
    """Has no elicitation, and gives up after 5 s."""
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    server = MCPServerStreamableHttp(params=target) if "url" in target else MCPServerStdio(params=target)
    async with server:
        yield of_sdk(server)


@asynccontextmanager
async def pydantic_ai(target: Target) -> AsyncIterator[Connected]:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai import ModelRetry
    from pydantic_ai.mcp import MCPToolset

    async def elicited(message: str, response_type: Any, params: Any, context: Any) -> dict[str, Any]:
        return filled_in(params.requested_schema)

    if "url" in target:
        toolset = MCPToolset(target["url"], headers=target["headers"], elicitation_handler=elicited)
    else:
        toolset = MCPToolset(StdioTransport(**target), elicitation_handler=elicited)

    async def call(name: str, arguments: dict[str, Any]) -> Said:
        try:
            value = await toolset.direct_call_tool(name, arguments)
        except ModelRetry as error:
            return error.message, True
        return value if isinstance(value, str) else json.dumps(value), False

    async with toolset:
        yield Connected(of_sdk(toolset).tools, call)


class Driver:
    """Does what it reads."""

    def __init__(self, framework: str, target: Target) -> None:
        self._open = {each.__name__: each for each in (mcp1, mcp2, langchain, fastmcp, openai, pydantic_ai)}[framework]
        self._target = target
        self._clients: dict[str, asyncio.Future[Connected]] = {}
        self._kept: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            self._start(self._do(**json.loads(line)))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def _do(self, id: int, do: str, client: str, tool: str = "", arguments: dict[str, Any] | None = None) -> None:
        try:
            if do == "asked":
                reply = {"asked": asked}
            elif do == "list":
                reply = {"tools": await (await self._client(client)).tools()}
            else:
                text, error = await (await self._client(client)).call(tool, arguments or {})
                reply = {"text": text, "error": error}
        except BaseException as error:
            reply = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps({"id": id, **reply}), flush=True)

    def _client(self, name: str) -> "asyncio.Future[Connected]":
        if name not in self._clients:
            self._clients[name] = asyncio.get_running_loop().create_future()
            self._start(self._stay(self._clients[name]))
        return asyncio.shield(self._clients[name])

    async def _stay(self, connected: "asyncio.Future[Connected]") -> None:
        """Be connected: some clients want to be closed by the task that opened them."""
        try:
            async with self._open(self._target) as client:
                connected.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:
            if not connected.done():
                connected.set_exception(error)


if __name__ == "__main__":
    asyncio.run(Driver(sys.argv[1], json.loads(sys.argv[2])).run())
