"""An agent at `keephold serve`: two parallel builds, one `await` for both, and a question to the user.

First `pip install '.[serve]'` in a clone, or `make run` and `export PATH=$PWD/build/run/bin:$PATH`.

Run it: `python examples/parallel_builds.py`. It starts its own server and plays the user. With the address that
`make run` prints, it works on that server, and you are the user, in the dashboard:

    python examples/parallel_builds.py 'http://127.0.0.1:8420/?token=…'
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

CONFIG = Path(__file__).parent / "serve" / "keephold.toml"
KEEPHOLD = [sys.executable, "-m", "keephold"]


def say(text: str) -> None:
    print(text, flush=True)


# The agent


async def call(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool as a model would, and return the JSON of its reply."""
    say(f"  agent: {name} {json.dumps(arguments)}")
    result = await client.call_tool(name, arguments)
    assert isinstance(result.content[0], TextContent)
    reply = json.loads(result.content[0].text)
    say(f"    → {json.dumps(reply)}")
    return reply


async def work(http: httpx2.AsyncClient, number: str) -> None:
    """Build two targets at once, then deploy."""
    app, docs, ship = f"app-{number}", f"docs-{number}", f"ship-{number}"
    async with Client(streamable_http_client(f"{http.base_url}/mcp", http_client=http)) as client:
        await call(client, "build", action="spawn", id=app, target="app", steps=1)
        await call(client, "build", action="spawn", id=docs, target="docs", steps=1)
        await call(client, "await", all=[app, docs])
        await call(client, "deploy", action="spawn", id=ship, target="app")
        await call(client, "await", all=[ship])


# The user


async def answer(http: httpx2.AsyncClient) -> None:
    """Wait for an open request and decide it, as a click in the dashboard does."""
    while not (requests := (await http.get("/api/requests")).json()):  # noqa: ASYNC110 (a user looks now and then)
        await asyncio.sleep(0.05)
    [request] = requests
    say(f"  user: {request['question']['text']} staging")
    decided = await http.post(f"/api/requests/{request['id']}", json={"decision": "answer", "value": "staging"})
    assert decided.json()["status"] == "taken"


# The demonstration


def address_of(server: subprocess.Popen[str]) -> str:
    """Return the address that the server prints. If it ends instead, show what it said, and end, too."""
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("keephold at "):
            return line.split()[2]
        print(line, end="", file=sys.stderr)
    sys.exit("the server has ended")


@contextmanager
def serving(directory: str) -> Iterator[str]:
    """Run a server and yield its address with the token, which it prints only to a terminal."""
    store = Path(directory) / "b.db"
    command = [*KEEPHOLD, "serve", "--quiet", "--config", str(CONFIG), "--port", "0", "--store", f"sqlite:///{store}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield f"{address_of(server)}?token={Path(f'{store}-token').read_text().strip()}"
        finally:
            server.terminate()


async def main(address: str, *, alone: bool) -> None:
    split = urlsplit(address)
    token = parse_qs(split.query).get("token")
    if token is None:
        raise SystemExit("pass the whole address that `keephold serve` printed, with its token")
    headers = {"Authorization": f"Bearer {token[0]}"}
    async with (
        httpx2.AsyncClient(base_url=f"http://{split.netloc}", headers=headers, timeout=None) as http,
        asyncio.TaskGroup() as tasks,
    ):
        last = (await http.get("/api/stats")).json()["store"]["last_event"]
        if alone:
            tasks.create_task(answer(http))
        else:
            say("  (answer it in the dashboard)")
        await work(http, str(last))  # ids that no earlier run used


def at(address: str) -> None:
    """Work on a server that another process started and may stop."""
    lost: BaseException | None = None
    try:
        asyncio.run(main(address, alone=False))
    except* (MCPError, httpx2.TransportError) as errors:
        lost = errors
    while isinstance(lost, BaseExceptionGroup):
        lost = lost.exceptions[0]
    if lost is not None:
        raise SystemExit(f"the server does not answer ({lost}); its handles are kept: start it again and look")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        at(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory, serving(directory) as address:
            asyncio.run(main(address, alone=True))
