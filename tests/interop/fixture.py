"""The server that foreign programs are tried on: `python -m tests.interop.fixture --port N`, at /mcp.

It is our own server with what the conformance suite asks for added. It says where it listens on its standard output as
soon as it does, and ends on SIGTERM. With `--stdio`, what was added is a server without ours, which a configuration of
ours can name.
"""

import argparse
import asyncio
import socket
import warnings

import uvicorn
from mcp.server import MCPServer, ServerRequestContext
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    EmptyResult,
    PromptReference,
    ResourceTemplateReference,
    SetLevelRequestParams,
)
from tests.interop.asking import add_asking
from tests.interop.contents import add_contents
from tests.interop.events import Events
from tests.interop.jobs import JOBS, name_first

from keephold import Runtime
from keephold.mcp.http import http_app
from keephold.mcp.server import Server


def add_fixtures(server: MCPServer) -> None:
    """Give the server everything that the conformance suite asks of one, apart from tasks."""
    add_contents(server)
    add_asking(server)
    # MCPServer has no public way to answer this; all that is asked here is that it is answered.
    server._lowlevel_server.add_request_handler("logging/setLevel", SetLevelRequestParams, _noted)
    server.completion()(_complete)  # type: ignore[no-untyped-call]


async def _noted(ctx: ServerRequestContext, params: SetLevelRequestParams) -> EmptyResult:
    return EmptyResult()


async def _complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    return Completion(values=[], total=0, has_more=False)


async def serve(port: int) -> None:
    """Serve until the process is told to end."""
    async with Runtime(JOBS) as runtime:
        server = Server(runtime, log_level="CRITICAL")
        server.middleware.append(name_first)
        add_fixtures(server)
        # Named as TCP, or asyncio leaves Nagle's algorithm on, which holds every answer for 40 ms.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
            listening.bind(("127.0.0.1", port))
            listening.listen()
            print(f"http://localhost:{listening.getsockname()[1]}/mcp", flush=True)
            await uvicorn.Server(
                uvicorn.Config(http_app(server, event_store=Events(), retry_interval=100), log_level="warning")
            ).serve(sockets=[listening])
        await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--stdio", action="store_true", help="serve only what was added, on stdio")
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # what is deprecated is asked for by older clients
    given = parser.parse_args()
    if given.stdio:
        server = MCPServer("fixtures", log_level="CRITICAL")
        add_fixtures(server)
        server.run()
    else:
        asyncio.run(serve(given.port))


if __name__ == "__main__":
    main()
