"""An MCP server whose calls outlive its clients and itself. Run it: `python examples/mcp_server.py`.

First `pip install '.[serve]'` in a clone.

A *server* has a slow tool. One client starts it twice, as a handle and as a one-shot call that it gives up on, and
disconnects. The server is killed and started again on the same store. Another client finds both calls and waits for
them. This program starts and kills the server, and plays both clients.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from mcp import Client
from mcp_types import TextContent, TextResourceContents

import keephold
from keephold.mcp.http import http_app
from keephold.mcp.server import Server


def say(text: str) -> None:
    print(text, flush=True)


# The server


async def bake_one(what: str) -> None:
    say(f"{what} is in the oven")
    await asyncio.sleep(0.4)


@keephold.tool(actions=("spawn", "fetch", "abort"), on_crash="replay", hints={"title": "Bake"})
async def bake(call: keephold.Call, what: str, count: int) -> str:
    """Bake several of one kind, one after the other."""
    fx = call.durable()
    for number in range(1, count + 1):
        await fx.run_json(f"{what} {number}", f"{what} {number}", bake_one)  # runs once: recorded in the store
        call.progress(number, count)
    return f"{count} x {what}"


async def serve(store: str) -> None:
    runtime = keephold.Runtime([bake], store=store)
    server = Server(runtime, name="bakery")  # before the runtime opens and resumes calls
    async with runtime:
        await server.open()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            say(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
            web = uvicorn.Server(uvicorn.Config(http_app(server), log_level="critical", access_log=False))
            await web.serve(sockets=[listening])


# The clients


async def call(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool and return the JSON of its reply."""
    result = await client.call_tool(name, arguments)
    assert isinstance(result.content[0], TextContent)
    return json.loads(result.content[0].text)


async def order(url: str) -> None:
    """Start two calls and wait for neither."""
    async with Client(url) as client:
        spawned = await call(client, "bake", action="spawn", id="bread", what="loaf", count=4)
        say(f"  first client: bread is {spawned['state']}")
        try:
            async with asyncio.timeout(0.2):
                await call(client, "bake", what="roll", count=3)
        except TimeoutError:
            say("  first client: gives up on the rolls, and goes")


async def collect(url: str) -> None:
    """List the handles and wait for all of them."""
    async with Client(url) as client:
        [listed] = (await client.read_resource("keephold://handles")).contents
        assert isinstance(listed, TextResourceContents)
        ids = [handle["id"] for handle in json.loads(listed.text)["handles"]]
        say(f"  second client: finds {' and '.join(ids)}")
        waited = await call(client, "await", all=ids, timeout_secs=20)
        for handle in waited["completed"]:
            say(f"  second client: {handle['id']}: {handle['result']}")


# The demonstration


@contextmanager
def serving(name: str, store: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Run a server and yield it with its address. It is killed when the block is left."""
    command = [sys.executable, str(Path(__file__).resolve()), store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server, follow(name, server, until="http").strip()
        finally:
            server.kill()  # SIGKILL: it cannot prepare for that


def follow(name: str, server: "subprocess.Popen[str]", until: str | None = None) -> str:
    """Print a server's output, up to a line with this beginning or to its end, and return the last line."""
    assert server.stdout is not None
    line = ""
    for line in server.stdout:
        print(f"  {name}: {line}", end="", flush=True)
        if until is not None and line.startswith(until):
            break
    return line


def play(store: str) -> None:
    with serving("server", store) as (server, url):
        asyncio.run(order(url))
        follow("server", server, until="loaf 3")
    print("  (kill -9)")
    with serving("next server", store) as (server, url):
        asyncio.run(collect(url))
        server.kill()
        follow("next server", server)  # the rest of its output


def main() -> None:
    print("A bakery over MCP, whose clients reconnect and whose server is killed:")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        play("sqlite:///bakery.db")
        os.chdir("/")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run(serve(sys.argv[1]))
