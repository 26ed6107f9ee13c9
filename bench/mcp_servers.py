"""The servers that the MCP benchmarks call, each in a process of its own: ours, a bare one, and one that polls.

All are served by uvicorn with the same options, on a loopback port. `echo` is the same function on each. On ours it is
a tool of the runtime; `empty`, the SDK's own tool on the same server object, passes keephold by.
"""

import asyncio
import gc
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import psutil
import uvicorn
from mcp.server import MCPServer

import keephold
from keephold.mcp.http import http_app
from keephold.mcp.server import Server

MEMORY = "memory:"
POLL_SECS = 0.1

_S = TypeVar("_S", bound=MCPServer[Any])


async def echo(text: str) -> str:
    """Say it back."""
    return text


async def empty() -> str:
    """Do nothing."""
    return ""


def resident() -> str:
    """How many bytes this process has in memory, garbage collected."""
    gc.collect()
    return str(psutil.Process().memory_info().rss)


def bare() -> MCPServer[Any]:
    """The SDK's server. A text is all that its tools answer with, as it is on ours."""
    return _with(MCPServer("bare", log_level="WARNING"), echo)


@asynccontextmanager
async def ours(store: str) -> AsyncIterator[Server]:
    """Our server on an open runtime."""
    async with keephold.Runtime([keephold.tool(echo)], store=store) as runtime:
        yield _with(Server(runtime), empty, resident)


def polling() -> MCPServer[Any]:
    """The wait tools as they were: handles in a dict, looked at every 100 ms; replies are indented JSON."""
    handles: dict[str, dict[str, Any]] = {}

    async def create_wait_handle(handleId: str, type: str) -> str:  # noqa: N803
        handles[handleId] = {"handleId": handleId, "type": type, "status": "pending"}
        return json.dumps(handles[handleId], indent=2)

    async def wait_for(handleId: str) -> str:  # noqa: N803
        began = perf_counter()
        while handles[handleId]["status"] == "pending":  # noqa: ASYNC110 (that is what is measured)
            await asyncio.sleep(POLL_SECS)
        waited = int((perf_counter() - began) * 1000)
        return json.dumps({**handles[handleId], "waitedMs": waited}, indent=2)

    async def complete_wait_handle(handleId: str, result: Any) -> str:  # noqa: N803
        handles[handleId] |= {"status": "completed", "result": result}
        return json.dumps(handles[handleId], indent=2)

    return _with(MCPServer("polling", log_level="WARNING"), create_wait_handle, wait_for, complete_wait_handle)


def _with(server: _S, *functions: Callable[..., Any]) -> _S:
    for function in functions:
        server.add_tool(function, structured_output=False)
    return server


# The processes


@contextmanager
def served(what: str) -> Iterator[str]:
    """A process that serves `bare`, `polling` or ours on a store: the URL of it."""
    with subprocess.Popen(command("http", what), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def command(transport: str, what: str) -> list[str]:
    """Return the command that starts such a process. `transport` is `http` or `stdio`."""
    return [sys.executable, "-m", "bench.mcp_servers", transport, what]


def sqlite(directory: str, name: str) -> str:
    """A store of its own."""
    return f"sqlite:///{Path(directory) / name}.db"


async def _main(transport: str, what: str) -> None:
    if what in ("bare", "polling"):
        server = bare() if what == "bare" else polling()
        await (server.run_stdio_async() if transport == "stdio" else _http(server.streamable_http_app()))
        return
    async with ours(what) as ourselves:
        await (ourselves.run_stdio_async() if transport == "stdio" else _http(http_app(ourselves)))


async def _http(app: Any) -> None:
    # Named TCP, or asyncio leaves Nagle's algorithm on, and every reply takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        print(f"http://127.0.0.1:{bound.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(app, access_log=False, log_level="warning", timeout_keep_alive=75)
        await uvicorn.Server(config).serve([bound])


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
