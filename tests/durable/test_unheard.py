"""Hints between processes are lost: no datagram and no NOTIFY arrives. Rows are the truth, and sweeps find them."""

import asyncio
from typing import Any

import pytest
from tests.durable.lives import approval, in_state, ok, parked, stopped
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, TALKING, apply, fetch, reply, spawn

import keephold
from keephold import Call, Key, Runtime
from keephold.outcomes import Ok


@pytest.fixture(autouse=True)
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 0.05)
    monkeypatch.setattr("keephold.store.sqlite.processes.Bell.ring", lambda *_: None)
    monkeypatch.setattr("keephold.store.postgres.presence.Presence._listen", lambda *_: None)


@keephold.tool(actions=TALKING, on_turn_end="keep", scheduling="serial")
async def alone(call: Call) -> str:
    return str(await call.input())


async def kept(rt: Runtime, *calls: keephold.ToolCall) -> None:
    """Spawn these in a turn that ends, so that another runtime may have the next one."""
    async with rt.turn("main") as turn:
        await turn.run(calls)


async def test_A7_a_sweep_finds_that_a_call_has_stopped(store: str) -> None:
    keys: list[Key] = []
    tools = [approval(keys), alone]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        await kept(one, spawn("approve", "a"), spawn("alone", "b"))
        await parked(one)
        waiting = asyncio.create_task(one.wait(all=["a"], timeout=PATIENCE, conversation="main"))
        assert str(await two.resolve(keys[0], ok("yes"))) == "accepted"
        assert (await waiting)["completed"][0]["result"] == "yes"
        waiting = asyncio.create_task(two.wait(all=["b"], timeout=PATIENCE, conversation="main"))
        await one.send("b", "over", conversation="main")
        assert (await waiting)["completed"][0]["result"] == "over"


async def test_E5_a_sweep_finds_the_event_that_a_call_waits_for(store: str) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
    async def listens(call: Call) -> Any:
        fx = call.durable()
        return await fx.await_event_json(await fx.external_event_key("go"))

    async with Runtime([listens], store=store) as one, Runtime(store=store) as two:
        await kept(one, spawn("listens", "l"))

        async def keyed() -> bool:
            return "go" in await two.keys("l", conversation="main")

        await until(keyed)
        await two.resolve((await two.keys("l", conversation="main"))["go"], ok("now"))
        assert (await stopped(one, "l")).outcome == Ok("now")


async def test_M3_a_sweep_finds_requests_and_their_replies(store: str) -> None:
    async with Runtime([alone], store=store) as one, Runtime([alone], store=store) as two:
        await kept(one, spawn("alone", "a"))
        async with two.turn("main") as turn, asyncio.timeout(PATIENCE):
            assert (await reply(turn, fetch("alone", "a")))["state"] == "running"
            assert (await reply(turn, apply("alone", "a", "x")))["result"] == "x"


async def test_B4_a_sweep_finds_that_the_lane_is_free(store: str) -> None:
    async with Runtime([alone], store=store) as one, Runtime([alone], store=store) as two:
        await kept(one, spawn("alone", "a"))
        await kept(two, spawn("alone", "b"))
        assert await in_state(two, "b", "pending")
        await one.send("a", "x", conversation="main")
        await until(lambda: in_state(two, "b", "running"))
        await two.send("b", "y", conversation="main")
        assert (await stopped(one, "b")).outcome == Ok("y")


async def test_P6_a_sweep_finds_what_others_have_posted(store: str) -> None:
    """That a process waits for a handle, and that the handle reads its input."""
    async with Runtime([alone], store=store) as one, Runtime([alone], store=store) as two:
        await kept(one, spawn("alone", "a"))
        waited = await two.wait(all=["a"], timeout=PATIENCE, conversation="main")
        assert waited["needs_input"]
        await one.send("a", "x", conversation="main")
