"""One-shot calls that wait outside (D10, D11): the batch stays open, the lane does not, and `park_after` lets go."""

import asyncio
import json

import pytest
from tests.durable.lives import approval, notifications, ok, only, parsed
from tests.turn.calls import STATEFUL, call, fetch, opened, replies, reply, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Pending, Runtime, ToolCall
from keephold.errors import TurnFailed
from keephold.testing import VirtualClock

TIMED_OUT = "pending tool completion timed out"


@keephold.tool(scheduling="serial")
async def write() -> str:
    return "written"


@keephold.tool
async def slow(secs: float = 600) -> str:
    await asyncio.sleep(secs)
    return "slept"


async def test_D10_the_batch_waits_for_the_completion(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys), slow]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("approve"), call("slow", secs=5)]))
        await clock.advance(3600)
        assert not batch.done() and rt.live() == []
        await rt.resolve(keys[0], ok({"by": "ann"}))
        first, second = await batch
        assert (first.result, first.is_error) == ('{"by":"ann"}', False)
        assert second.result == "slept"


async def test_D10_what_a_parked_one_shot_call_fails_with(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("approve")]))
        await clock.advance(1)
        await rt.resolve(keys[0], {"status": "err", "payload": {"code": "denied", "message": "Ann said no"}})
        (response,) = await batch
        assert (response.result, response.is_error, response.code) == ("Ann said no", True, "denied")


async def test_D10_waiting_costs_no_task(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        calls = [call("approve") for _ in range(100)]
        batch = asyncio.create_task(turn.run(calls))
        await clock.advance(1)
        assert len(asyncio.all_tasks()) == 2  # this test and the batch
        for key in keys:
            await rt.resolve(key, ok("yes"))
        assert [response.result for response in await batch] == ["yes"] * 100


async def test_D10_the_serial_lane_does_not_wait_for_it(clock: VirtualClock) -> None:
    keys: list[Key] = []
    ran: list[float] = []

    @keephold.tool(scheduling="serial")
    async def note() -> str:
        ran.append(clock.now())
        return "noted"

    async with opened(clock, [approval(keys, scheduling="serial"), note]) as (rt, turn):
        begun = clock.now()
        batch = asyncio.create_task(turn.run([call("approve"), call("note"), call("approve"), call("note")]))
        await clock.advance(1)
        assert ran == [begun, begun] and len(keys) == 2
        for key in keys:
            await rt.resolve(key, ok("yes"))
        assert [response.result for response in await batch] == ["yes", "noted", "yes", "noted"]


async def test_D10_a_parallel_call_that_parked_has_returned_for_the_serial_lane(clock: VirtualClock) -> None:
    """B3: serial calls start when every parallel one has returned, and a one-shot call has when it parked."""
    keys: list[Key] = []
    ran: list[str] = []

    @keephold.tool(scheduling="serial")
    async def note() -> str:
        ran.append("noted")
        return "noted"

    async with opened(clock, [approval(keys), note]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("note"), call("approve")]))
        await clock.advance(1)
        assert ran == ["noted"]
        await rt.resolve(keys[0], ok("yes"))
        await batch


async def test_D10_park_after_answers_with_a_handle(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys), slow]) as (rt, turn):
        begun = clock.now()
        responses = await turn.run([ToolCall("c1", "approve"), call("slow", secs=5)], park_after=30)
        assert clock.now() - begun == 30
        assert parsed(responses[0]) == {"id": "call:c1", "state": "running", "parked": True}
        assert responses[1].result == "slept"
        fetched, waited = await replies(turn, fetch("approve", "call:c1"), wait_all("call:c1", timeout_secs=1))
        assert fetched == {"id": "call:c1", "state": "running", "parked": True}
        assert waited["pending"] == [fetched]
        assert [(info.id, info.parked) for info in await rt.handles()] == [("call:c1", True)]
        await rt.resolve(keys[0], ok("yes"))
        assert await notifications(rt) == [("tool.stopped", "info")]
        assert await reply(turn, fetch("approve", "call:c1")) == {"id": "call:c1", "state": "stopped", "result": "yes"}
        assert await notifications(rt) == []


async def test_D10_the_deadline_is_in_that_answer_too(clock: VirtualClock) -> None:
    async with opened(clock, [approval([], Pending(deadline=60))]) as (rt, turn):
        (response,) = await turn.run([ToolCall("c1", "approve")], park_after=10)
        assert parsed(response)["deadline"] == "2026-01-01T00:01:00Z"
        waited = await rt.wait(all=["call:c1"], conversation="main")
        assert waited["completed"][0]["result"] == TIMED_OUT
        assert clock.now() == pytest.approx(1_767_225_660)


async def test_D10_a_label_that_is_taken_gets_a_number(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        ids = []
        for _ in range(3):
            (response,) = await turn.run([ToolCall("c1", "approve")], park_after=1)
            ids.append(parsed(response)["id"])
        assert ids == ["call:c1", "call:c1_2", "call:c1_3"]
        await rt.resolve(keys[1], ok("second"))
        (response,) = await turn.run([ToolCall("c1", "approve")], park_after=1)
        assert parsed(response)["id"] == "call:c1_4"
        assert (await rt.handle("call:c1", conversation="main")).parked
        for key, id in ((keys[0], "call:c1"), (keys[3], "call:c1_4"), (keys[2], "call:c1_3")):
            await rt.resolve(key, ok(id))
            assert (await reply(turn, fetch("approve", id)))["result"] == id
        assert (await reply(turn, fetch("approve", "call:c1_2")))["result"] == "second"
        drawn = [await turn.run([ToolCall("c1", "approve")], park_after=1) for _ in range(8)]
        assert len({parsed(response)["id"] for (response,) in drawn}) == 8


async def test_D10_the_same_label_twice_in_a_batch(clock: VirtualClock) -> None:
    async with opened(clock, [approval([])]) as (_, turn):
        responses = await turn.run([ToolCall("c1", "approve"), ToolCall("c1", "approve")], park_after=1)
        assert sorted(parsed(response)["id"] for response in responses) == ["call:c1", "call:c1_2"]


async def test_D10_park_after_is_for_parked_calls_only(clock: VirtualClock) -> None:
    """What still runs is waited for; when it parks after that time, it is answered at once."""

    @keephold.tool
    async def thinks(call: Call) -> Pending:
        await asyncio.sleep(50)
        await call.completion_key()
        return Pending()

    async with opened(clock, [thinks, slow]) as (_, turn):
        begun = clock.now()
        responses = await turn.run([ToolCall("c1", "thinks"), call("slow", secs=70)], park_after=30)
        assert clock.now() - begun == 70
        assert parsed(responses[0])["parked"] is True and responses[1].result == "slept"


async def test_D10_park_after_nothing_waits_not_at_all(clock: VirtualClock) -> None:
    async with opened(clock, [approval([])]) as (_, turn):
        begun = clock.now()
        (response,) = await turn.run([ToolCall("c1", "approve")], park_after=0)
        assert parsed(response)["parked"] is True and clock.now() == begun


async def test_D10_completed_in_time_it_is_answered_as_ever(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        batch = asyncio.create_task(turn.run([ToolCall("c1", "approve")], park_after=30))
        await clock.advance(20)
        await rt.resolve(keys[0], ok("yes"))
        assert [response.result for response in await batch] == ["yes"]
        await clock.advance(60)
        assert await rt.handles() == []


async def test_D10_a_tool_without_actions_can_be_awaited_once_it_is_a_handle(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, actions=())]) as (rt, turn):
        await turn.run([ToolCall("c1", "approve")], park_after=1)
        await rt.resolve(keys[0], ok("yes"))
        assert (await reply(turn, wait_all("call:c1")))["completed"][0]["result"] == "yes"


# D11


async def test_D11_fail_turn_fails_the_turn_whose_batch_waits(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="await")
    async def server() -> str:
        await asyncio.sleep(600)
        return "never"

    keys: list[Key] = []
    tools = [approval([], Pending(deadline=10, on_timeout="fail_turn"), "strict"), approval(keys), slow, server, write]
    async with Runtime(tools, clock=clock) as rt:
        async with rt.turn("main") as turn:
            begun = clock.now()
            calls = [call("strict"), call("slow"), spawn("server", "s"), call("approve"), wait_all("s"), call("write")]
            responses = await turn.run(calls)
            assert 10 <= clock.now() - begun <= 10.5
            assert [response.id for response in responses] == [each.id for each in calls]
            assert (responses[0].result, responses[0].code) == (TIMED_OUT, "tool_completion_timeout")
            assert [responses[at].result for at in (1, 3, 4, 5)] == [
                "Tool execution cancelled.",
                "pending tool completion cancelled",
                "Tool execution cancelled.",
                "Tool execution cancelled.",
            ]
            assert json.loads(responses[2].result)["state"] == "running"
            assert turn.failed is not None and turn.failed.code == "tool_completion_timeout"
            with pytest.raises(TurnFailed) as caught:
                await turn.run([call("write")])
            assert caught.value.code == "turn_failed" and TIMED_OUT in str(caught.value)
            begun = clock.now()
        assert clock.now() - begun < 5  # T5: `await` counts as abort
        assert (await rt.handle("s", conversation="main")).ended_by == "cancel"
        assert rt.live() == []
        async with rt.turn("main") as turn:  # the conversation goes on
            assert turn.failed is None
            assert (await only(turn, call("write"))).result == "written"


async def test_D11_a_resolution_by_timeout_fails_it_too(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, Pending(on_timeout="fail_turn"))]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("approve")]))
        await clock.advance(1)
        await rt.resolve(keys[0], {"status": "timeout"})
        await batch
        assert turn.failed is not None


async def test_D11_completed_in_time_nothing_fails(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, Pending(deadline=10, on_timeout="fail_turn"))]) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("approve")]))
        await clock.advance(5)
        await rt.resolve(keys[0], {"status": "err", "payload": {"code": "no", "message": "no"}})
        await batch
        await clock.advance(60)
        assert turn.failed is None


async def test_D11_of_a_spawned_call_it_is_a_result_and_news(clock: VirtualClock) -> None:
    async with opened(clock, [approval([], Pending(deadline=10, on_timeout="fail_turn"))]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(20)
        assert turn.failed is None
        assert await notifications(rt) == [("tool.failed", "error")]
        (entry,) = (await reply(turn, wait_all("a")))["completed"]
        assert (entry["result"], entry["is_error"]) == (TIMED_OUT, True)
        assert turn.failed is None


async def test_D11_of_a_call_that_nobody_waits_for_any_more_too(clock: VirtualClock) -> None:
    async with opened(clock, [approval([], Pending(deadline=10, on_timeout="fail_turn"))]) as (rt, turn):
        await turn.run([ToolCall("c1", "approve")], park_after=5)
        await clock.advance(20)
        assert turn.failed is None and await notifications(rt) == [("tool.failed", "error")]
        assert (await reply(turn, fetch("approve", "call:c1")))["is_error"] is True
        assert turn.failed is None


async def test_R6_on_memory_closing_answers_nothing_and_says_so(clock: VirtualClock) -> None:
    async with Runtime([approval([])], clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("approve")]))
        await clock.advance(1)
    with pytest.raises(KeepholdError) as caught:
        await batch
    assert caught.value.code == "runtime_closed"
