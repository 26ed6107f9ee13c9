"""The server that foreign programs are tried on: `python -m tests.interop.fixture --port N`, at /mcp.

It says where it listens on its standard output as soon as it does, and ends on SIGTERM.
"""

import argparse
import asyncio
import socket

import uvicorn
from mcp.server import ServerRequestContext
from mcp.server.mcpserver import MCPServer, RequestStateSecurity
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    EmptyResult,
    PromptReference,
    ResourceTemplateReference,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from tests.interop.asking import add_asking
from tests.interop.contents import add_contents
from tests.interop.events import Events


def add_fixtures(server: MCPServer) -> None:
    """Give the server everything that the conformance suite asks of one, apart from tasks."""
    add_contents(server)
    add_asking(server)
    # MCPServer has no public way to answer these; all that is asked here is that they are answered.
    handlers = server._lowlevel_server
    handlers.add_request_handler("logging/setLevel", SetLevelRequestParams, _noted)
    handlers.add_request_handler("resources/subscribe", SubscribeRequestParams, _noted)
    handlers.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _noted)
    server.completion()(_complete)  # type: ignore[no-untyped-call]


async def _noted(ctx: ServerRequestContext, params: object) -> EmptyResult:
    return EmptyResult()


async def _complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    return Completion(values=[], total=0, has_more=False)


async def serve(port: int) -> None:
    security = RequestStateSecurity(keys=[b"a key of the fixture server, of 32 bytes or more"])
    server = MCPServer("holdfast-fixture", version="1", request_state_security=security)
    add_fixtures(server)
    app = server.streamable_http_app(event_store=Events(), retry_interval=100)
    with socket.create_server(("127.0.0.1", port)) as listening:
        print(f"http://localhost:{listening.getsockname()[1]}/mcp", flush=True)
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
