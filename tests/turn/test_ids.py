"""Who a handle is and how long it can be found: retention and tombstones in memory (S5), ids and uids (S6)."""

import asyncio
from pathlib import Path

import pytest
from tests.turn.calls import (
    STATEFUL,
    TALKING,
    abort,
    apply,
    call,
    fetch,
    opened,
    replies,
    reply,
    settings,
    spawn,
    texts,
    wait_all,
)

import keephold
from keephold import Call, Runtime, ToolError
from keephold.handles.state import Ok
from keephold.store.base import TOMBSTONES
from keephold.testing import VirtualClock

HOUR = 3600.0
DAY = 24 * HOUR


@keephold.tool(actions=STATEFUL)
async def work(secs: float = 0, result: str = "done") -> str:
    await asyncio.sleep(secs)
    return result


async def expiry(rt: Runtime, handle: str) -> str:
    """`stopped`, or the code of the error that finding the handle raises."""
    try:
        return (await rt.handle(handle, conversation="main")).state
    except ToolError as error:
        return error.code


async def test_S5_a_stopped_handle_is_readable_for_an_hour_then_expired_then_forgotten(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"), wait_all("w"))
        await clock.advance(HOUR - 1)
        assert await expiry(rt, "w") == "stopped"
        await clock.advance(1)
        assert await expiry(rt, "w") == "handle_expired"
        await clock.advance(90 * DAY - 1)
        assert await expiry(rt, "w") == "handle_expired"
        await clock.advance(1)
        assert await expiry(rt, "w") == "handle_not_found"
        assert await expiry(rt, "never") == "handle_not_found"


async def test_S5_a_tombstone_answers_calls_with_expired(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"), wait_all("w"))
        await clock.advance(2 * HOUR)
        async with rt.turn("main") as turn:
            results = await texts(turn, fetch("work", "w"), wait_all("w"), call("read_output", id="w"), wait_all("x"))
            assert all("Handle `w` expired" in result for result in results[:3])
            assert results[3] == "Handle `x` not found"


async def test_S5_never_less_than_to_the_end_of_the_turn(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"), wait_all("w"))
            await clock.advance(5 * HOUR)
            assert (await reply(turn, fetch("work", "w")))["result"] == "done"
        assert await expiry(rt, "w") == "handle_expired"


async def test_S5_a_live_handle_does_not_expire(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def long() -> str:
        await asyncio.sleep(10 * HOUR)
        return "done"

    async with Runtime([long], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("long", "l"))
        await clock.advance(9 * HOUR)
        assert (await rt.handle("l", conversation="main")).state == "running"
        await clock.advance(1.5 * HOUR)
        assert await expiry(rt, "l") == "stopped"
        await clock.advance(HOUR)
        assert await expiry(rt, "l") == "handle_expired"


async def test_S5_retention_is_a_setting(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(tmp_path, "[store]\nretention_secs = 10\n")
    async with Runtime([work], clock=clock, config=config) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"), wait_all("w"))
        await clock.advance(9)
        assert await expiry(rt, "w") == "stopped"
        await clock.advance(1)
        assert await expiry(rt, "w") == "handle_expired"


async def test_S5_at_most_ten_thousand_tombstones_a_conversation(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TOMBSTONES == 10_000
    monkeypatch.setattr("keephold.store.memory.retention.TOMBSTONES", 20)
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "first"), wait_all("first"))
            names = [f"w{number}" for number in range(20)]
            await turn.run([spawn("work", name) for name in names])
            await rt.wait(all=names, conversation="main")
        await clock.advance(2 * HOUR)
        assert await expiry(rt, "w0") == "handle_expired"
        assert await expiry(rt, "w19") == "handle_expired"
        assert await expiry(rt, "first") == "handle_not_found"  # the oldest made room


async def test_S5_reusing_an_expired_id_makes_a_new_handle(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"), wait_all("w"))
        await clock.advance(2 * HOUR)
        async with rt.turn("main") as turn:
            _, waited = await replies(turn, spawn("work", "w", result="new"), wait_all("w"))
            assert waited["completed"][0]["result"] == "new"


@pytest.mark.parametrize(
    "id",
    ["", "a b", "a\nb", "a\tb", "\u2028", "a\u00a0b", "\x00", "\x1b[0m", "\x9b", "x" * 129, "call:1", 5, ["a"], True],
)
async def test_S6_an_id_that_is_none_is_refused(clock: VirtualClock, id: object) -> None:
    async with opened(clock, [work]) as (rt, turn):
        (response,) = await turn.run([call("work", action="spawn", id=id)])
        assert response.is_error and await rt.handles() == []
        assert "handle id" in response.result


@pytest.mark.parametrize("id", ["a", "x" * 128, "größe/1:2", "🙂", "call", "';rm", "__proto__"])
async def test_S6_any_other_id_is_the_callers_to_choose(clock: VirtualClock, id: str) -> None:
    async with opened(clock, [work]) as (_, turn):
        _, waited = await replies(turn, spawn("work", id), wait_all(id))
        assert waited["completed"] == [{"id": id, "state": "stopped", "result": "done"}]


async def test_S6_an_id_is_unique_among_the_active_handles_of_its_conversation_only(clock: VirtualClock) -> None:
    async with Runtime([work], clock=clock) as rt, rt.turn("one") as one, rt.turn("two") as two:
        assert (await reply(one, spawn("work", "w", secs=9)))["state"] == "running"
        assert (await reply(two, spawn("work", "w", secs=9, result="other")))["state"] == "running"
        (waited,) = await replies(two, wait_all("w"))
        assert waited["completed"][0]["result"] == "other"
        with pytest.raises(ToolError, match="not found"):
            await rt.handle("w", conversation="three")


async def test_S6_reusing_a_stopped_id_makes_a_new_handle_with_a_new_uid(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        uids = set()
        for number in range(5):
            await replies(turn, spawn("work", "w", result=str(number)), wait_all("w"))
            info = await rt.handle("w", conversation="main")  # an id names the newest handle that bears it
            assert info.outcome == Ok(str(number))
            uids.add(info.uid)
        assert len(uids) == 5
        assert {info.uid for info in await rt.handles(conversation="main")} == uids


async def test_S6_a_wait_is_bound_to_the_handle_it_began_with(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (rt, turn):
        await replies(turn, spawn("work", "w", secs=60))
        waiting = asyncio.create_task(rt.wait(all=["w"], conversation="main"))
        await clock.advance(1)
        # In one batch the old handle ends; in the next, before anything else can run, its id is used again.
        await replies(turn, abort("work", "w"))
        await replies(turn, spawn("work", "w", secs=60, result="new"))
        found = await waiting
        assert [entry["ended_by"] for entry in found["completed"]] == ["abort"] and found["pending"] == []
        assert (await rt.handle("w", conversation="main")).state == "running"


async def test_S6_apply_and_abort_reach_the_newest_handle_of_the_id(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def echo(call: Call, name: str) -> str:
        return f"{name} got {await call.input()}"

    async with opened(clock, [echo]) as (_, turn):
        await replies(turn, spawn("echo", "e", name="old"), apply("echo", "e", "x"))
        _, answer, stopped = await replies(
            turn, spawn("echo", "e", name="new"), apply("echo", "e", "y"), abort("echo", "e")
        )
        assert answer["result"] == stopped["result"] == "new got y"


async def test_S6_one_shot_calls_have_uids_but_no_id_that_a_model_could_use(clock: VirtualClock) -> None:
    seen: list[str] = []

    @keephold.tool(actions=STATEFUL)
    async def look(call: Call) -> str:
        seen.append(call.uid)
        return "done"

    async with opened(clock, [look]) as (rt, turn):
        first, second = call("look"), call("look")
        await turn.run([first, second])
        assert len(set(seen)) == 2
        assert await texts(turn, fetch("look", f"call:{first.id}")) == [f"Handle `call:{first.id}` not found"]
        assert await rt.handles() == []
