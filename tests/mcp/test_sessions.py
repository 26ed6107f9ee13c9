"""Sessions of 2025 clients that outlive the server, and the streams that they resume (M3)."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp.client import Client
from mcp.shared.message import ClientMessageMetadata
from mcp_types import CallToolResult
from tests.mcp.clients import connected, read, text
from tests.mcp.serving import Office, Process, serving
from tests.patience import PATIENCE, until

from keephold.mcp.sessions import Events, place_of

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25"}


async def begun(client: Client, tool: str, **arguments: Any) -> "asyncio.Task[CallToolResult]":
    """Begin a call, and wait until the client has an id by which it can resume the stream."""
    resumable = asyncio.Event()

    async def noted(id: str) -> None:
        resumable.set()

    request = mcp_types.CallToolRequest(params=mcp_types.CallToolRequestParams(name=tool, arguments=arguments))
    metadata = ClientMessageMetadata(on_resumption_token_update=noted)
    calling = asyncio.create_task(client.session.send_request(request, CallToolResult, metadata=metadata))
    async with asyncio.timeout(PATIENCE):
        await resumable.wait()
    return calling


async def test_M3_a_session_and_its_open_calls_outlive_a_killed_server(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client notices nothing: a call that is run again, a wait and a later call are answered in its session."""
    monkeypatch.setattr("mcp.client.streamable_http.MAX_RECONNECTION_ATTEMPTS", 50)  # a busy machine starts slowly
    server = Process(office)
    async with connected(server.url, "legacy") as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        hauling = await begun(client, "haul", gate=office.path("gate"))
        failing = await begun(client, "wait_at", gate=office.path("never"))
        waiting = await begun(client, "wait_for", handleId="h")
        await until(lambda: all(Path(office.path(f"{gate}.begun")).exists() for gate in ("gate", "never")))
        server.kill()
        server.start()
        done = await client.call_tool("complete_wait_handle", {"handleId": "h", "result": 7})
        assert read(done)["status"] == "completed"
        assert read(await waiting)["result"] == 7
        office.open("gate")
        assert text(await hauling) == "hauled in attempt 2"
        assert (await failing).is_error  # its tool is not run again


async def test_M3_a_lost_stream_is_resumed_without_a_restart(tmp_path: Path) -> None:
    """Its call has become a handle meanwhile; whether it has ended or not, the client gets its result."""
    async with serving() as here, httpx2.AsyncClient(timeout=PATIENCE) as http:
        opened = await http.post(here.url, json=INITIALIZE, headers=ACCEPT)
        session = {**ACCEPT, "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        await http.post(here.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        for number, over in enumerate((True, False), 1):
            gate = tmp_path / f"gate{number}"
            last = await _lost(http, here.url, session, number, "wait_at", gate=str(gate))
            await until(lambda: not here.runtime.batches)
            if over:
                gate.touch()
                await until(lambda: not here.runtime.registry.live())
            async with http.stream("GET", here.url, headers={**session, "Last-Event-ID": last}) as stream:
                gate.touch()
                found = await _answer(stream)
            assert found["id"] == number and found["result"]["content"][0]["text"] == f"through gate{number}"


async def _lost(http: httpx2.AsyncClient, url: str, session: dict[str, str], id: int, tool: str, **given: Any) -> str:
    """Begin a call and lose the connection after the first event; return its id."""
    call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": given}}
    async with http.stream("POST", url, json=call, headers=session) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id:"):
                await until(Path(given["gate"] + ".begun").exists)
                return line.removeprefix("id:").strip()
    raise AssertionError("no event had an id")


async def _answer(stream: httpx2.Response) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        async for line in stream.aiter_lines():
            if line.startswith("data:") and line != "data: ":
                return dict(mcp_types.jsonrpc_message_adapter.validate_json(line[5:]).model_dump(by_alias=True))
    raise AssertionError("there was no answer")


async def test_K1_a_session_is_taken_up_by_its_own_principal_only(tmp_path: Path) -> None:
    """Another one, a changed id, an id of another store and one that was ended are all unknown."""
    tokens = {"alice": "alice-0123456789abcdef", "bob": "bob-0123456789abcdef"}
    alice, bob = ({**ACCEPT, "Authorization": f"Bearer {token}"} for token in tokens.values())
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:

        async def status(url: str, headers: dict[str, str], id: str) -> int:
            return (await http.post(url, json=ping, headers={**headers, "Mcp-Session-Id": id})).status_code

        async with serving(store=store, tokens=tokens) as here:
            await here.server.open()
            id = (await http.post(here.url, json=INITIALIZE, headers=alice)).headers["mcp-session-id"]
            ended = (await http.post(here.url, json=INITIALIZE, headers=alice)).headers["mcp-session-id"]
            await http.delete(here.url, headers={**alice, "Mcp-Session-Id": ended})
            assert await status(here.url, alice, ended) == 404
        async with serving(store=store, tokens=tokens) as here:
            await here.server.open()
            changed = id[:-2] + ("A" if id[-2] != "A" else "B") + id[-1]
            assert [await status(here.url, *each) for each in ((bob, id), (alice, changed), (alice, "x" * 32))] == [
                404
            ] * 3
            assert await status(here.url, alice, id) == 200
            assert await status(here.url, bob, id) == 404
        async with serving(tokens=tokens) as other:
            assert await status(other.url, alice, id) == 404


async def test_M3_a_large_initialize_makes_an_ordinary_session() -> None:
    params = {**INITIALIZE["params"], "capabilities": {"experimental": {"x": {"y": "z" * 9000}}}}
    large = {**INITIALIZE, "params": params}
    async with serving() as here, httpx2.AsyncClient(timeout=PATIENCE) as http:
        assert len((await http.post(here.url, json=large, headers=ACCEPT)).headers["mcp-session-id"]) == 32


async def test_M3_events_are_bounded_and_their_ids_are_ours() -> None:
    events, sent = Events(), []
    answer = mcp_types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"text": "x" * 1000})
    first = await events.store_event("a.b_c\n", None)
    for _ in range(200):
        await events.store_event("a.b_c\n", answer)

    async def send(event: Any) -> None:
        sent.append(event)

    assert await events.replay_events_after(first, send) == "a.b_c\n"
    assert 0 < len(sent) <= 33 and "\n" not in first
    for wrong in ("", "1", "x.y.z", "1.y", "-1..a", "9" * 30 + "..a"):
        assert place_of(wrong) is None and await events.replay_events_after(wrong, send) is None
