"""A batch: a response for every call, nothing runs on a conflict, nobody waits for what never started (B1, B2, B6)."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from tests.turn.calls import STATEFUL, call, fetch, opened, replies, reply, settings, spawn, texts, wait_all

import keephold
from keephold import KeepholdError, Runtime, ToolCall, ToolError
from keephold.testing import VirtualClock

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@keephold.tool(actions=STATEFUL)
async def work(name: str = "", secs: float = 0, fail: bool = False) -> str:
    ran.append(name)
    await asyncio.sleep(secs)
    if fail:
        raise ToolError(f"{name} failed")
    return f"{name} done"


async def test_B1_every_call_gets_one_response_in_request_order(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        calls = [
            call("work", name="slow", secs=5),
            call("unknown"),
            spawn("work", "w", name="spawned", secs=1),
            ToolCall(id="same label", name="work", arguments={"name": "a"}),
            ToolCall(id="same label", name="work", arguments={"name": "b"}),
            wait_all("w"),
            ToolCall(id="", name="work", arguments="not json"),
            call("work", name="fails", fail=True),
        ]
        responses = await turn.run(calls)
        assert [response.id for response in responses] == [each.id for each in calls]
        assert [response.is_error for response in responses] == [False, True, False, False, False, False, True, True]
        assert [responses[at].result for at in (0, 3, 4, 7)] == ["slow done", "a done", "b done", "fails failed"]


async def test_B1_an_empty_batch_is_answered(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        assert await turn.run([]) == []


async def test_B1_one_open_turn_a_conversation(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main"), rt.turn("other"):
            with pytest.raises(KeepholdError) as caught:
                async with rt.turn("main"):
                    pass
            assert caught.value.code == "turn_open"
        async with rt.turn("main"):
            pass


async def test_B1_a_turn_is_used_once(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt:
        turn = rt.turn("main")
        async with turn:
            pass
        with pytest.raises(KeepholdError) as caught:
            async with turn:
                pass
        assert caught.value.code == "turn_ended"
        with pytest.raises(KeepholdError, match="ended"):
            await turn.run([call("work")])
        async with rt.turn("main"):  # and the conversation is free
            pass


async def test_B1_one_batch_at_a_time(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        first = asyncio.create_task(turn.run([call("work", name="slow", secs=5)]))
        await clock.advance(1)
        with pytest.raises(KeepholdError) as caught:
            await turn.run([call("work")])
        assert caught.value.code == "batch_open"
        assert (await first)[0].result == "slow done"
        assert await texts(turn, call("work", name="next")) == ["next done"]


async def test_B2_a_batch_may_name_what_it_spawns_in_any_order(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        waited, fetched, spawned = await replies(
            turn, wait_all("w"), fetch("work", "w"), spawn("work", "w", name="w", secs=3)
        )
        assert waited["completed"][0]["result"] == "w done"
        assert spawned["state"] == fetched["state"] == "running"


async def test_B2_two_spawns_with_one_id_reject_the_whole_batch(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        responses = await turn.run(
            [
                call("work", name="innocent"),
                spawn("work", "twice", name="1"),
                spawn("work", "other", name="2"),
                call("unknown"),
                spawn("work", "twice", name="3"),
                wait_all("other"),
            ]
        )
        assert all(response.is_error and "`twice`" in response.result for response in responses)
        await clock.advance(1)
        assert ran == [] and await rt.handles() == [] and rt.live() == []


async def test_B2_an_invalid_spawn_counts_too(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        responses = await turn.run([spawn("work", "w", name=5), spawn("work", "w", name="1")])
        assert all(response.is_error and "`w`" in response.result for response in responses)
        assert ran == []


async def test_B2_an_active_id_rejects_the_whole_batch(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w", name="first", secs=60))
        before = await rt.handle("w", conversation="main")
        responses = await turn.run([call("work", name="innocent"), spawn("work", "w", name="second")])
        assert all(response.is_error and "`w`" in response.result for response in responses)
        await clock.advance(1)
        assert ran == ["first"]
        assert await rt.handle("w", conversation="main") == before


async def test_B2_ids_of_rejected_batches_are_free(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        await turn.run([spawn("work", "w"), spawn("work", "w")])
        assert (await reply(turn, spawn("work", "w")))["state"] == "running"


async def awaited(turn: keephold.Turn, spawned: ToolCall, id: str) -> tuple[dict[str, object], dict[str, object]]:
    """What a spawn answers, and what an await of it in the same batch says of it."""
    first, waited = await replies(turn, spawned, wait_all(id))
    assert waited["pending"] == []
    return first, waited["completed"][0]


async def test_B6_a_spawn_that_is_refused_is_stopped_with_that_outcome(clock: VirtualClock) -> None:
    modes: list[Literal["ask", "edit"]] = ["ask", "edit"]
    for mode in modes:
        async with opened(clock, [replace(work, run=mode)]) as (rt, turn):
            first, found = await awaited(turn, spawn("work", "w"), "w")
            assert first == found and found["is_error"] and "permission" in str(found["result"])
            assert (await rt.handle("w", conversation="main")).started is None
    assert ran == []


async def test_B6_a_spawn_that_is_skipped_is_stopped_with_that_outcome(clock: VirtualClock) -> None:
    async with opened(clock, [replace(work, run="skip")]) as (_, turn):
        first, found = await awaited(turn, spawn("work", "w"), "w")
        assert first == found == {"id": "w", "state": "stopped", "result": "Tool skipped by user."}
    assert ran == []


async def test_B6_a_spawn_that_is_invalid_is_stopped_with_that_outcome(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        first, found = await awaited(turn, spawn("work", "w", secs="long"), "w")
        assert first == found and found["is_error"] and "`secs` must be a number" in str(found["result"])
    assert ran == []


async def test_B6_a_spawn_that_fails_to_start_is_stopped_with_that_outcome(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.missing]
        source = "local"
        run = "unattended"
        command = ["no-such-program-anywhere"]
        spawn.stateful = true

        [conversation.tools.untold]
        source = "local"
        run = "unattended"
        command = ["true"]
        resources = ["file:{{ tool.arguments.path }}"]
        spawn.stateful = true
        parameters.path.type = "string"
        """,
    )
    async with opened(clock, [], config=config) as (rt, turn):
        first, found = await awaited(turn, spawn("missing", "m"), "m")
        assert first == found and found["is_error"] and "no-such-program-anywhere" in str(found["result"])
        first, found = await awaited(turn, spawn("untold", "u"), "u")
        assert first == found and found["is_error"] and "resources" in str(found["result"])
        one_shot = await turn.run([call("missing"), call("untold")])
        assert [response.is_error for response in one_shot] == [True, True]
        assert rt.live() == []


async def test_B6_an_await_of_what_has_no_handle_says_so(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        unknown = ToolCall(id="1", name="unknown", arguments={"action": "spawn", "id": "x"})
        broken = ToolCall(id="2", name="work", arguments='{"action":"spawn","id":"y"')
        responses = await turn.run([unknown, broken, wait_all("x", "y")])
        assert responses[2].result == "Handle `x` not found. Handle `y` not found"


async def test_B7_a_failing_call_never_cancels_its_siblings(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        responses = await turn.run(
            [
                call("work", name="bad", fail=True),
                call("work", name="good", secs=5),
                spawn("work", "s", name="failing", fail=True),
                spawn("work", "t", name="fine", secs=9),
                wait_all("s", "t"),
            ]
        )
        assert [response.is_error for response in responses] == [True, False, False, False, False]
        found = json.loads(responses[4].result)["completed"]
        assert [(entry["result"], entry.get("is_error", False)) for entry in found] == [
            ("failing failed", True),
            ("fine done", False),
        ]
