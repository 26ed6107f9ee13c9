"""An approval by webhook: a call is parked until an HTTP request completes it. Run it:
`python examples/approval_webhook.py`.

`keephold serve` has a tool that sends its key to the approver and returns. The call is parked, and an agent waits for
it. The approval is a POST from anywhere. The key in the address is the only credential, and it works once.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

import keephold

MAIL = Path("approval.key")
"""The way the key reaches the approver: a file in a private directory. In a real program: a link in a message."""
TOKEN = "a token of this example alone"
CONFIG = """
[conversation.tools.purchase]
source = "python"
function = "approval_webhook:purchase"
run = "unattended"
"""


def say(text: str) -> None:
    print(text, flush=True)


def send(key: keephold.Key) -> None:
    MAIL.touch(mode=0o600)
    MAIL.write_text(key)


# The tool, in the server


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def purchase(call: keephold.Call, item: str) -> keephold.Pending:
    """Buy something. The user has to approve it."""
    send(await call.completion_key())
    return keephold.Pending(deadline=86_400)


# The agent, over MCP


async def call(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool and return the JSON of its reply."""
    result = await client.call_tool(name, arguments)
    assert isinstance(result.content[0], TextContent)
    return json.loads(result.content[0].text)


async def order(url: str) -> None:
    """Start a purchase and wait for the decision."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=None) as http,
        Client(streamable_http_client(f"{url}mcp", http_client=http)) as client,
    ):
        await call(client, "purchase", action="spawn", id="desk", item="a desk")
        desk = await call(client, "purchase", action="fetch", id="desk")
        say(f"  agent: desk is {desk['state']}, parked: {desk['parked']}")
        waiting = asyncio.create_task(call(client, "await", all=["desk"]))
        await asyncio.to_thread(approve, url)
        [desk] = (await waiting)["completed"]
        say(f"  agent: desk is {desk['state']}: {desk['result']}")


# The outside system, which has no token


def post(url: str, body: Any) -> str:
    """POST JSON and return the HTTP status and the status in the body."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request) as response:
            return f"{response.status} {json.load(response)['status']}"
    except HTTPError as response:
        with response:
            return f"{response.code} {json.load(response)['status']}"


def approve(url: str) -> None:
    key = MAIL.read_text()
    for by in ("Ada", "Bob"):
        said = post(f"{url}complete/{key}", {"status": "ok", "payload": {"approved_by": by}})
        say(f"  webhook: {by} approves: {said}")
    said = post(f"{url}complete/{key[:-2]}xx", {"status": "ok", "payload": {"approved_by": "Eve"}})
    say(f"  webhook: Eve has altered the key: {said}")


# The demonstration


@contextmanager
def serving() -> Iterator[str]:
    """Run a server on a free port, in the working directory, and yield its address."""
    Path("keephold.toml").write_text(CONFIG)
    options = ["--config", "keephold.toml", "--port", "0", "--store", "sqlite:///work.db", "--quiet"]
    command = [sys.executable, "-m", "keephold", "serve", *options]
    environment = {**os.environ, "KEEPHOLD_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).resolve().parent)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            yield server.stderr.readline().split()[-1]
        finally:
            server.terminate()


def main() -> None:
    print("A purchase that waits for a webhook:")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        with serving() as url:
            asyncio.run(order(url))
        os.chdir("/")


if __name__ == "__main__":
    main()
