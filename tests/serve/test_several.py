"""Several servers on one store, behind a proxy that sends every request to another one than the one before."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp.client.streamable_http import MCP_SESSION_ID
from tests.interop.shipped import behind_proxy
from tests.mcp.clients import ERAS, connected
from tests.patience import PATIENCE, until
from tests.serve.serving import served
from tests.soak import postgres_in_soak

CONFIG = """
[mcp]
answer_within_secs = 0

[conversation.tools."*"]
run = "unattended"

[conversation.tools.asks]
source = "local"
command = ["sh", "-c", "echo allowed"]
run = "ask"

[conversation.tools.slow]
source = "local"
command = ["sh", "-c", "touch begun; sleep 1000; echo over"]
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@postgres_in_soak
@pytest.mark.parametrize("era", ERAS)
async def test_M3_a_user_answers_a_question_of_one_server_through_another(tmp_path: Path, store: str, era: Any) -> None:
    async def person(context: Any, params: Any) -> mcp_types.ElicitResult:
        return mcp_types.ElicitResult(action="accept", content={"approve": True})

    async with behind_proxy(tmp_path, CONFIG, 2, "--store", store) as proxy:
        for _ in range(2):
            async with connected(proxy.url, mode=era, elicitation_callback=person) as client:
                said: Any = (await client.call_tool("asks", {})).content[0]
                assert said.text == "allowed\n", said


@postgres_in_soak
async def test_M3_a_session_that_was_ended_at_one_server_has_ended_at_all(tmp_path: Path, store: str) -> None:
    async with (
        behind_proxy(tmp_path, CONFIG, 2, "--store", store) as proxy,
        httpx2.AsyncClient(timeout=PATIENCE) as client,
    ):
        begun = await client.post(proxy.url, json=INITIALIZE, headers=ACCEPT)
        session = {MCP_SESSION_ID: begun.headers[MCP_SESSION_ID]}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

        async def pings() -> set[int]:
            posts = [await client.post(proxy.url, json=ping, headers=session | ACCEPT) for _ in proxy.servers]
            return {post.status_code for post in posts}

        assert await pings() == {200}
        assert (await client.delete(proxy.url, headers=session)).status_code == 200
        assert await pings() == {404}
        with served(tmp_path, CONFIG, "--store", store, "--url", proxy.url.removesuffix("/mcp")) as later:
            proxy.servers = [later]
            assert await pings() == {404}, "a server that was started afterwards knows it, too"


async def test_M3_a_call_of_one_server_is_cancelled_through_another(tmp_path: Path, store: str) -> None:
    async with (
        behind_proxy(tmp_path, CONFIG, 2, "--store", store) as proxy,
        connected(proxy.url, mode="legacy") as client,
    ):
        calling = asyncio.create_task(client.call_tool("slow", {}))
        await until((tmp_path / "begun").exists)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        async with proxy.servers[0].client() as api:

            async def nothing_runs() -> bool:
                return not (await api.get("/api/handles?state=live&oneshot=yes")).json()["handles"]

            await until(nothing_runs)
