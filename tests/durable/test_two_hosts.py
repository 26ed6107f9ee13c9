"""Two machines and one PostgreSQL server: processes with a network, a host name and process numbers of their own.

They share no directory for sockets; only the database's socket is in both. The processes are MCP servers of one
conversation, as the hosts of two agents would start them.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from tests.postgres import own_server
from tests.serve.serving import environment
from tests.trusting import write_trusted

CONFIG = """
[mcp]
background_secs = 0

[conversation.tools."*"]
run = "unattended"

[conversation.tools.python]
source = "terminal"
command = ["python3", "-q", "-i"]

[conversation.tools.asks]
source = "python"
function = "tests.durable.two_hosts:asks"
"""
ALONE = ["unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "sh", "-c", 'hostname "$0" && exec "$@"']
pytestmark = pytest.mark.skipif(
    subprocess.run([*ALONE, "a", "true"], capture_output=True).returncode != 0, reason="may not make namespaces"
)


class Host:
    """A machine with one MCP server."""

    def __init__(self, client: Client, words: list[str]) -> None:
        self._client = client
        self._words = words

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        said: Any = (await self._client.call_tool(tool, arguments)).content[0]
        return dict(json.loads(said.text))

    def kill(self) -> None:
        """Kill its first process, and with it all others."""
        ours = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == self._words]
        ours[0].kill()


@asynccontextmanager
async def host(directory: Path, store: str, name: str) -> AsyncIterator[Host]:
    place = directory / name
    (place / "run").mkdir(parents=True)
    config = write_trusted(place / "keephold.toml", CONFIG, place / "state")
    shared = ["--store", store, "--conversation", "shared", "--config", str(config)]
    words = [sys.executable, "-m", "keephold", "mcp", *shared]
    env = {**environment(place), "XDG_RUNTIME_DIR": str(place / "run"), "TMPDIR": str(place / "run")}
    given = StdioServerParameters(command=ALONE[0], args=[*ALONE[1:], name, *words], env=env, cwd=str(place))
    async with Client(stdio_client(given)) as client:
        yield Host(client, words)


def logs(directory: Path, store: str) -> str:
    """Return the terminal's output as a command on a third machine prints it."""
    command = [sys.executable, "-m", "keephold", "logs", "repl", "--conversation", "shared", "--store", store]
    return subprocess.run(command, env=environment(directory), capture_output=True, text=True, check=True).stdout


async def test_A6_one_machine_uses_what_another_one_runs_until_that_dies(tmp_path: Path) -> None:
    with own_server("unix_socket_directories=/tmp") as server:
        store = f"postgresql://postgres@/postgres?host=/tmp&port={server.port}"
        async with host(tmp_path, store, "one") as one, host(tmp_path, store, "two") as two:
            await one.call("python", spawn="repl")
            assert (await two.call("await", any=["repl"]))["needs_input"]
            typed = await two.call("handle_apply", id="repl", input="import socket; socket.gethostname(), 6 * 7\n")
            assert "('one', 42)" in typed["content"]
            assert "('one', 42)" in await asyncio.to_thread(logs, tmp_path, store)

            await two.call("asks", spawn="question")
            assert (await one.call("await", any=["question"]))["needs_input"]
            await one.call("handle_apply", id="question", input=True)
            assert (await two.call("handle_fetch", id="question"))["result"] == "said True"

            line = "import time; time.sleep(1); print('rea' + 'dy', flush=True)\n"
            waiting = asyncio.create_task(two.call("await", output=[{"id": "repl", "pattern": "^ready"}]))
            await one.call("handle_apply", id="repl", input=line)
            assert (await waiting)["pending"][0]["matched"] == "ready"

            one.kill()
            ended = (await two.call("await", all=["repl"]))["completed"]
            assert ended[0]["result"] == "The process that ran this call ended before the call did."
