"""Clients that go away, and clients that change their mind (M3): what ends with them, and what does not."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from tests.mcp.clients import ERAS, MODERN, KnowsTasks, connected, read, texts
from tests.mcp.serving import Here, Office, serving, until


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
        (seen,) = (await client.read_resource("holdfast://handles", cache_mode="bypass")).contents
        assert json.loads(getattr(seen, "text", "")) == {"handles": [], "truncated": False}
        await asyncio.sleep(0.3)  # what the call would become if it were not cancelled
        (seen,) = (await client.read_resource("holdfast://handles", cache_mode="bypass")).contents
        assert json.loads(getattr(seen, "text", "")) == {"handles": [], "truncated": False}
