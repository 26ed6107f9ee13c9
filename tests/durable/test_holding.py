"""What a parked call holds and what it does not (B3, B4, B5, K6, W11), and who may see its result (P1)."""

import asyncio
from pathlib import Path

import pytest
from tests.durable.lives import (
    HandClock,
    approval,
    notifications,
    ok,
    only,
    parked,
    parsed,
    power_cut,
    stopped,
    stored_in,
)
from tests.turn.calls import STATEFUL, abort, call, fetch, opened, replies, reply, settings, spawn, wait_all

import keephold
from keephold import Key, Pending, Runtime
from keephold.outcomes import Failure, Ok
from keephold.testing import VirtualClock

LOCK = ("lock:{{ tool.arguments.what }}",)


@keephold.tool(actions=STATEFUL, resources=LOCK)
async def deploy(what: str = "it") -> str:
    return f"deployed {what}"


async def test_B5_a_one_shot_call_errs_at_once_and_names_the_parked_holder(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, resources=LOCK), deploy]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        begun = clock.now()
        held, other = await turn.run([call("deploy"), call("deploy", what="other")])
        assert clock.now() == begun
        assert held.code == "resource_held" and "`a`" in held.result and "`approve`" in held.result
        assert other.result == "deployed other"
        await rt.resolve(keys[0], ok("yes"))
        assert (await only(turn, call("deploy"))).result == "deployed it"


async def test_B5_one_that_queues_when_the_holder_parks_errs_then(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, resources=LOCK)
    async def thinks(call: keephold.Call, what: str = "it") -> Pending:
        await asyncio.sleep(10)
        await call.completion_key()
        return Pending()

    async with opened(clock, [thinks, deploy]) as (_, turn):
        await reply(turn, spawn("thinks", "t"))
        begun = clock.now()
        response = await only(turn, call("deploy"))
        assert response.code == "resource_held" and "`t`" in response.result
        assert clock.now() - begun == pytest.approx(10)


@pytest.mark.parametrize("end", ["resolve", "deadline", "abort", "revoke"])
async def test_B5_a_spawned_call_queues_and_starts_when_the_parked_one_stops(clock: VirtualClock, end: str) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, Pending(deadline=60), resources=LOCK), deploy]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        assert await reply(turn, spawn("deploy", "d")) == {"id": "d", "state": "pending"}
        await clock.advance(1)
        if end == "resolve":
            await rt.resolve(keys[0], ok("yes"))
        elif end == "abort":
            await reply(turn, abort("approve", "a"))
        elif end == "revoke":
            await rt.revoke_keys("main")
        waited = await reply(turn, wait_all("d"))
        assert waited["completed"][0]["result"] == "deployed it"
        assert (clock.now() > 1_767_225_659) == (end == "deadline")


async def test_B5_a_parked_one_shot_call_holds_too(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, resources=LOCK), deploy]) as (rt, turn):
        await turn.run([keephold.ToolCall("c1", "approve")], park_after=1)
        held = await only(turn, call("deploy"))
        assert held.code == "resource_held" and "`call:c1`" in held.result
        await rt.resolve(keys[0], ok("yes"))
        assert (await only(turn, call("deploy"))).result == "deployed it"


async def test_B5_several_names_are_held_together(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, resources=("lock:a", "lock:b")), deploy]) as (rt, turn):
        await reply(turn, spawn("approve", "x"))
        await clock.advance(1)
        responses = await turn.run([call("deploy", what="a"), call("deploy", what="b")])
        assert [response.code for response in responses] == ["resource_held"] * 2
        await rt.resolve(keys[0], ok(1))
        responses = await turn.run([call("deploy", what="a"), call("deploy", what="b")])
        assert [response.is_error for response in responses] == [False, False]


@pytest.mark.parametrize("crash", [False, True])
async def test_B5_what_is_parked_holds_after_a_restart(tmp_path: Path, crash: bool) -> None:
    keys: list[Key] = []
    clock, store = HandClock(), stored_in(tmp_path)
    tools = [approval(keys, resources=LOCK), deploy]
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        cut = power_cut(store)
    async with Runtime(tools, store=cut if crash else store, clock=clock) as rt, rt.turn("other") as turn:
        held = await only(turn, call("deploy"))
        assert held.code == "resource_held" and "`a`" in held.result
        assert await reply(turn, spawn("deploy", "d")) == {"id": "d", "state": "pending"}
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert (await stopped(rt, "d", "other")).outcome == Ok("deployed it")
        assert (await only(turn, call("deploy"))).result == "deployed it"


async def test_B4_a_parked_spawn_does_not_hold_the_serial_lane(clock: VirtualClock) -> None:
    """D6: nobody runs it. What is spawned after it starts."""
    ran: list[str] = []

    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def step(n: str) -> str:
        ran.append(n)
        return n

    async with opened(clock, [approval([], scheduling="serial"), step]) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("step", "s", n="1")])
        await stopped(rt, "s")
        assert ran == ["1"] and (await rt.handle("a", conversation="main")).parked


async def test_W11_a_parked_call_needs_no_slot(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, max_running=1)]) as (_, turn):
        await turn.run([spawn("approve", f"a{n}") for n in range(5)])
        await clock.advance(1)
        assert len(keys) == 5


async def test_K6_parked_calls_do_not_count_as_live_handles(clock: VirtualClock, tmp_path: Path) -> None:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await asyncio.sleep(600)
        return "done"

    config = settings(tmp_path, "[limits]\nlive_handles = 2\n")
    async with opened(clock, [approval([]), work], config=config) as (_, turn):
        for n in range(5):
            assert (await reply(turn, spawn("approve", f"a{n}")))["state"] == "running"
            await clock.advance(1)
        assert [each["state"] for each in await replies(turn, spawn("work", "x"), spawn("work", "y"))] == [
            "running"
        ] * 2
        refused = await only(turn, spawn("work", "z"))
        assert "live_handles" in refused.result


# P1: result modes act once, when the handle stops


async def test_P1_the_result_of_a_parked_call_can_be_withheld(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, result="skip")]) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await clock.advance(1)
        assert str(await rt.resolve(keys[0], ok("the secret"))) == "accepted"
        answer = await rt.resolve(keys[0], ok("again"))
        assert str(answer) == "already_resolved"
        info = await stopped(rt, "a")
        assert info.outcome == Ok("Result delivery skipped by configuration.")
        await rt.resolve(keys[1], {"status": "err", "payload": {"code": "mine", "message": "the secret"}})
        outcome = (await stopped(rt, "b")).outcome
        assert isinstance(outcome, Failure) and "secret" not in outcome.message and outcome.code == "mine"
        for id in ("a", "b"):
            assert "secret" not in (await only(turn, fetch("approve", id))).result


async def test_P1_with_nobody_to_ask_the_result_is_not_shown(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, result="ask")]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("approve")]))
        await clock.advance(1)
        await rt.resolve(keys[0], ok("the secret"))
        (response,) = await batch
        assert response.code == "permission_denied" and "secret" not in response.result


async def test_P1_a_withheld_result_is_there_at_once_on_a_store_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 3600)
    keys: list[Key] = []
    async with Runtime([approval(keys, result="skip")], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", "a")])
        await parked(rt)
        await rt.resolve(keys[0], ok("the secret"))
        info = await stopped(rt, "a")
        assert info.outcome == Ok("Result delivery skipped by configuration.")
        assert await notifications(rt) == [("tool.stopped", "info")]


async def test_P1_resolved_where_the_tool_is_not_it_waits_for_a_runtime_that_has_it(tmp_path: Path) -> None:
    keys: list[Key] = []
    clock, store = HandClock(), stored_in(tmp_path)
    approve = approval(keys, Pending(deadline=60), result="skip")
    async with Runtime([approve], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
    async with Runtime(store=store, clock=clock) as rt:
        assert str(await rt.resolve(keys[0], ok("the secret"))) == "accepted"
        answer = await rt.resolve(keys[0], ok("again"))
        assert (str(answer), answer.terminal) == ("already_resolved", ok("the secret"))
        assert (await rt.handle("a", conversation="main")).state == "running"
    clock.at += 3600  # what was accepted is not undone by its deadline
    async with Runtime([approve], store=store, clock=clock) as rt, rt.turn("main") as turn:
        info = await stopped(rt, "a")
        assert (info.outcome, info.ended_by) == (Ok("Result delivery skipped by configuration."), "self")
        assert parsed(await only(turn, fetch("approve", "a")))["result"] == "Result delivery skipped by configuration."
