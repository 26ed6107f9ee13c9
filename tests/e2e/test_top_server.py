"""`keephold top --server`: the same screen over HTTP, with permissions; and when the server is gone."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.tops import Watched
from tests.mcp.clients import connected, read, texts
from tests.serve.serving import TOKEN, Served, served
from textual.widgets import Log, Static

from keephold.cli.store import Where
from keephold.cli.top_app import Detail, Top
from keephold.cli.top_source import open_source

CONFIG = """
[conversation.tools.gate]
source = "local"
command = ["sh", "-c", "echo it is shut; until test -e open; do sleep 0.02; done; echo it is open"]
run = "unattended"
spawn.stateful = true
[conversation.tools.deploy]
source = "local"
command = ["echo", "deployed to {{ tool.arguments.env }}"]
run = "ask"
[conversation.tools.deploy.parameters.env]
type = "string"
"""


@asynccontextmanager
async def watching(server: Served) -> AsyncIterator[Watched]:
    token = server.directory / "token"
    token.write_text(TOKEN)
    async with open_source(Where(server=server.base, token_file=token)) as source:
        app = Top(source)
        async with app.run_test(size=(80, 24)) as pilot:
            yield Watched(pilot)


async def call(client: Any, tool: str, **arguments: Any) -> Any:
    answered = await client.call_tool(tool, arguments)
    return texts(answered) if answered.is_error else read(answered)


async def test_L_what_a_server_runs_is_live_and_can_be_ended(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        async with connected(server.mcp, token=TOKEN) as client, watching(server) as here:
            await call(client, "gate", action="spawn", id="north")
            await here.until(lambda: here.row("north")[0] == "running")
            await here.until(lambda: here.row("north")[5] == "it is shut")
            assert f"the server {server.base}" in here.status
            await here.choose("north")
            await here.press("enter")
            await here.until(lambda: isinstance(here.app.screen, Detail))
            detail = here.app.screen
            await here.until(lambda: "it is shut" in detail.query_one(Log).lines)
            await here.press("a")
            await here.asked()
            await here.press("y")
            await here.until(lambda: here.row("north")[0] == "stopped, abort")


@pytest.mark.parametrize(("key", "answer"), [("y", "deployed to staging"), ("n", "Tool skipped by user.")])
async def test_P_a_permission_is_given_or_denied(tmp_path: Path, key: str, answer: str) -> None:
    with served(tmp_path, CONFIG) as server:
        async with connected(server.mcp, token=TOKEN) as client, watching(server) as here:
            calling = asyncio.ensure_future(client.call_tool("deploy", {"env": "staging"}))
            try:
                await here.until(lambda: here.rows and here.rows[0][0] == "permission")
                await here.until(lambda: here.status.startswith("1 live"))
                (row,) = here.rows  # a permission and a call, and one line
                assert row[1].startswith("call:") and row[2] == "deploy"
                assert "1 needs you" in here.status
                await here.press("home", "r")
                box = await here.asked()
                assert '"env":"staging"' in str(box.query_one("#asked", Static).render()).replace(" ", "")
                await here.press(key)
                await here.until(calling.done)
                assert answer in str(texts(calling.result()))
                await here.until(lambda: not here.rows or here.rows[0][0] != "permission")
            finally:
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)


async def test_L_a_server_that_is_gone_is_told_and_found_again(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        async with watching(server) as here:
            await here.until(lambda: here.status.startswith("0 live"))
            server.kill()
            await here.until(lambda: here.status.startswith("! ") and server.base in here.status)
            server.restart()
            async with connected(server.mcp, token=TOKEN) as client:
                await call(client, "gate", action="spawn", id="north")
                await here.until(lambda: here.row("north")[0] == "running")
                assert here.status.startswith("1 live")
                server.open("open")
                await here.until(lambda: here.row("north")[0] == "stopped, ok")


def test_L3_a_snapshot_of_a_server(tmp_path: Path) -> None:
    with served(tmp_path, CONFIG) as server:
        (tmp_path / "token").write_text(TOKEN)
        words = [sys.executable, "-m", "keephold", "top", "--json", "--server", server.base]
        done = subprocess.run(
            [*words, "--token-file", "token"], cwd=tmp_path, capture_output=True, timeout=60, check=True
        )
        assert json.loads(done.stdout) == {"handles": [], "requests": [], "more": False}
