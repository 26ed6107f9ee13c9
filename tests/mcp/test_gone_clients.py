"""Clients that go away, and clients that change their mind (M3): what ends with them, and what does not."""

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from tests.mcp.clients import ERAS, MODERN, KnowsTasks, connected, post_modern, read, texts
from tests.mcp.serving import Here, Office, serving
from tests.patience import PATIENCE, until


def calling(client: Client, name: str, **arguments: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(client.call_tool(name, arguments))


async def gone(calling: "asyncio.Task[Any]") -> None:
    """The call has ended on the client's side, however."""
    calling.cancel()
    with suppress(asyncio.CancelledError, MCPError):
        await calling


def handles_of(here: Here) -> list[str]:
    return [handle.id for handle in here.runtime.registry.live()]


@pytest.mark.parametrize("era", ERAS)
async def test_M3_a_call_whose_client_goes_is_found_by_the_next_one(era: str, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    async with serving() as here:
        async with connected(here.url, era) as client:
            lost = calling(client, "wait_at", gate=gate)
            await until(Path(gate + ".begun").exists)
            if era == MODERN:
                await gone(lost)  # closes the stream of its answer, which is all that such a client can do
        await gone(lost)  # the client has left with its call open
        await until(lambda: any(id.startswith("call:") for id in handles_of(here)))
        await until(lambda: not here.runtime.batches)
        async with connected(here.url, era) as client:
            (found,) = handles_of(here)
            waiting = calling(client, "wait_for", handleId=found, timeoutMs=20_000)
            Path(gate).touch()
            assert read(await waiting)["result"] == "through gate"
            again = await client.call_tool("await", {"all": [found]})
            assert read(again)["completed"][0]["result"] == "through gate"
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_M5_the_end_of_such_a_call_is_news_on_the_next_result_once(era: str, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    async with serving() as here:
        async with connected(here.url, era) as client:
            lost = calling(client, "wait_at", gate=gate)
            await until(Path(gate + ".begun").exists)
            if era == MODERN:
                await gone(lost)
        await gone(lost)
        await until(lambda: not here.runtime.batches)
        (found,) = handles_of(here)
        Path(gate).touch()
        await until(lambda: not handles_of(here))
        async with connected(here.url, era) as client:
            first, second = [texts(await client.call_tool("echo", {"text": "hi"})) for _ in range(2)]
        assert first[0] == "hi" and len(first) == 2
        assert found in first[1]
        assert second == ["hi"]


async def test_M3_a_client_with_tasks_that_goes_before_its_call_is_one(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    async with serving(task_after=30) as here:
        async with connected(here.url, MODERN, tasks=KnowsTasks()) as client:
            lost = asyncio.create_task(client.session.call_tool("wait_at", {"gate": gate}, allow_claimed=True))
            await until(Path(gate + ".begun").exists)
            await gone(lost)
        await until(lambda: not here.runtime.batches)
        async with connected(here.url) as client:
            (found,) = handles_of(here)
            Path(gate).touch()
            assert read(await client.call_tool("wait_for", {"handleId": found}))["result"] == "through gate"
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_M3_a_spawned_handle_outlives_its_connection(era: str, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    async with serving() as here:
        async with connected(here.url, era) as client:
            await client.call_tool("work", {"action": "spawn", "id": "w", "gate": gate})
        async with connected(here.url, era) as client:
            assert read(await client.call_tool("work", {"action": "fetch", "id": "w"}))["state"] == "running"
            Path(gate).touch()
            assert read(await client.call_tool("await", {"all": ["w"]}))["completed"][0]["result"] == "worked at gate"


@pytest.mark.parametrize("waits", ["wait_for", "wait_for_multiple", "await"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("how", ["cancels", "leaves"])
async def test_A8_a_wait_that_nobody_wants_ends_and_leaves_the_handle_alone(waits: str, era: str, how: str) -> None:
    named: dict[str, dict[str, Any]] = {
        "wait_for": {"handleId": "h"},
        "wait_for_multiple": {"handleIds": ["h"], "mode": "all"},
        "await": {"all": ["h"]},
    }
    async with serving() as here:
        async with connected(here.url, era) as client:
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
            lost = calling(client, waits, **named[waits])
            registry = here.runtime.registry
            await until(lambda: any(handle.tool.name == waits for handle in registry.live()))
            handle = registry.find("h", "mcp")
            await until(lambda: bool(handle.watchers))
            if how == "cancels":
                await gone(lost)
                await until(lambda: not handle.watchers)
        await gone(lost)
        await until(here.idle)
        assert handle.active
        async with connected(here.url, era) as client:
            done = await client.call_tool("complete_wait_handle", {"handleId": "h", "result": 1})
            assert read(done)["status"] == "completed"
            assert len(texts(done)) == 1  # a wait that was given up is no news


async def test_B7_a_legacy_client_that_cancels_a_call_ends_it(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    async with serving() as here, connected(here.url, "legacy") as client:
        lost = calling(client, "wait_at", gate=gate)
        await until(Path(gate + ".begun").exists)
        await gone(lost)
        await until(lambda: not handles_of(here))
        await until(here.idle)
        assert texts(await client.call_tool("echo", {"text": "still here"})) == ["still here"]


@pytest.mark.parametrize("era", ERAS)
async def test_B7_a_cancelled_call_ends_over_stdio_in_both_eras(era: str, office: Office) -> None:
    async with Client(office.stdio(), mode=era) as client:
        lost = calling(client, "wait_at", gate=office.path("gate"))
        await until(Path(office.path("gate.begun")).exists)
        await gone(lost)
        (seen,) = (await client.read_resource("keephold://handles", cache_mode="bypass")).contents
        assert json.loads(getattr(seen, "text", "")) == {"handles": [], "truncated": False}
        await asyncio.sleep(0.3)  # what the call would become if it were not cancelled
        (seen,) = (await client.read_resource("keephold://handles", cache_mode="bypass")).contents
        assert json.loads(getattr(seen, "text", "")) == {"handles": [], "truncated": False}


async def test_M3_a_legacy_connection_that_breaks_is_a_client_that_goes(tmp_path: Path) -> None:
    """Nothing is cancelled and the session stays: the process of the client may be gone all the same."""
    gate = str(tmp_path / "gate")
    async with serving() as here:
        async with httpx2.AsyncClient(
            timeout=PATIENCE, headers={"Accept": "application/json, text/event-stream"}
        ) as http:
            info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
            opened = await http.post(here.url, json=message(1, "initialize", **info))
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-11-25"}
            http.headers.update(session)
            await http.post(here.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            call = message(7, "tools/call", name="wait_at", arguments={"gate": gate})
            lost = asyncio.create_task(http.post(here.url, json=call))
            await until(Path(gate + ".begun").exists)
            await gone(lost)
        await until(lambda: not here.runtime.batches)
        Path(gate).touch()
        async with connected(here.url, "legacy") as client:
            assert read(await client.call_tool("wait_for", {"handleId": "call:7"}))["result"] == "through gate"


@pytest.mark.parametrize("id", ["a b\nc", "x" * 500, "", "ü/?#%"])
async def test_S6_the_id_of_a_left_call_is_a_handle_id(id: str, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    async with serving() as here:
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            lost = asyncio.create_task(post_modern(http, here.url, id, "wait_at", gate=gate))
            await until(Path(gate + ".begun").exists)
            await gone(lost)
        await until(lambda: not here.runtime.batches)
        (found,) = handles_of(here)
        assert found.startswith("call:") and len(found) <= 128 and found.isprintable() and " " not in found
        Path(gate).touch()
        async with connected(here.url) as client:
            assert read(await client.call_tool("wait_for", {"handleId": found}))["result"] == "through gate"


def message(id: int | str, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


@pytest.mark.parametrize("era", [*ERAS, "tasks"])
async def test_M3_a_storm_of_clients_that_go_leaves_nothing(era: str, tmp_path: Path) -> None:
    """At whatever moment they go, each call ends by itself, and nothing of it stays behind."""
    chance = random.Random(era)
    tasks = KnowsTasks() if era == "tasks" else None
    mode = MODERN if era == "tasks" else era
    async with serving(task_after=0.01) as here:
        async with connected(here.url, mode) as client:
            await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})

        async def comes_and_goes(number: int) -> None:
            gate = str(tmp_path / f"{number % 3}")
            calls: list[tuple[str, dict[str, Any]]] = [
                ("wait_at", {"gate": gate}),
                ("work", {"action": "spawn", "id": f"w{number}", "gate": gate}),
                ("wait_for", {"handleId": "h"}),
                ("await", {"all": ["h"]}),
                ("confirm", {"what": "it"}),
                ("echo", {"text": "x"}),
            ]
            name, arguments = chance.choice(calls)
            pause = chance.random() * 0.1
            async with connected(here.url, mode, tasks=tasks, elicitation_callback=never) as client:
                lost = asyncio.create_task(
                    client.session.call_tool(name, arguments, allow_claimed=True, allow_input_required=True)
                )
                await asyncio.sleep(pause)
                if number % 2 or era != "legacy":  # a client of 2026 fails if it is left with its call open
                    await gone(lost)
            await gone(lost)

        for first in range(0, 40, 20):
            await asyncio.gather(*(comes_and_goes(first + number) for number in range(20)))
        for number in range(3):
            (tmp_path / f"{number}").touch()
        async with connected(here.url, mode) as client:
            assert not (await client.call_tool("complete_wait_handle", {"handleId": "h"})).is_error
        await until(lambda: {handle.tool.name for handle in here.runtime.registry.live()} <= {"confirm"})
        for handle in here.runtime.registry.live():  # nobody will answer these; they can be ended
            await here.server.tasks.cancel(handle)
        await until(lambda: not here.runtime.registry.live())
        assert not here.server.tasks._askers and not here.server.calls._asking
        await until(here.idle)


async def never(context: Any, params: Any) -> mcp_types.ElicitResult:
    """A person who does not answer."""
    await asyncio.Event().wait()
    raise AssertionError("it is cancelled before")
