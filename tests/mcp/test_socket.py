"""`keephold mcp` where a server runs on the same store: it passes its client on, and nothing ends with that (M3)."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.mcp.clients import ERAS
from tests.mcp.serving import end_background
from tests.serve.serving import Served, environment

CONFIG = """
[conversation.tools.work]
source = "local"
command = ["sh", "-c", "echo at work; while [ ! -e gate ]; do sleep 0.05; done; echo done"]
run = "unattended"
spawn = { stateful = true }
"""


def started(server: Served, cwd: str = ".") -> StdioServerParameters:
    words = ["-m", "keephold", "mcp", "--store", f"sqlite:///{server.store}", "--config", server.path("keephold.toml")]
    return StdioServerParameters(
        command=sys.executable, args=words, env=environment(server.directory), cwd=server.directory / cwd
    )


def text(result: object) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.content[0].text)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("era", ERAS)
async def test_M3_what_was_spawned_outlives_the_client_where_a_server_runs(era: str, tmp_path: Path) -> None:
    server = await asyncio.to_thread(Served, tmp_path, CONFIG)
    try:
        async with Client(stdio_client(started(server)), mode=era) as client:
            spawned = await client.call_tool("work", {"action": "spawn", "id": "w"})
            assert text(spawned) == {"id": "w", "state": "running"}
        server.open("gate")
        (tmp_path / "elsewhere").mkdir()
        async with Client(stdio_client(started(server, "elsewhere")), mode=era) as client:  # another project (M7)
            assert text(await client.call_tool("list_wait_handles", {}))["handles"] == []
        async with Client(stdio_client(started(server)), mode=era) as client:
            waited = text(await client.call_tool("await", {"all": ["w"], "timeout_secs": 30}))
            assert waited["completed"] == [{"id": "w", "state": "stopped", "result": "at work\ndone\n"}]
        assert (tmp_path / "store.db-server").exists()
        await asyncio.to_thread(server.stop)
        assert not (tmp_path / "store.db-server").exists()
    finally:
        await asyncio.to_thread(server.close)


async def test_M3_what_a_dead_server_left_behind_is_nobodys_address(tmp_path: Path) -> None:
    server = await asyncio.to_thread(Served, tmp_path, CONFIG)
    try:
        await asyncio.to_thread(server.kill)
        assert (tmp_path / "store.db-server").exists()
        server.open("gate")
        async with Client(stdio_client(started(server)), mode="legacy") as client:
            assert text(await client.call_tool("work", {"action": "spawn", "id": "w"}))["state"] == "running"
    finally:
        await end_background(tmp_path)
        await asyncio.to_thread(server.close)
