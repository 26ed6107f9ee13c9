"""Deferred completion (D1, D2, D4, D6, D9): a call that waits for something outside, in virtual time."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.durable.lives import approval, ok, only
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, fetch, opened, reply, spawn, wait_all

import keephold
from keephold import Call, Key, Pending
from keephold.handles.handle import Handle
from keephold.outcomes import Failure, Ok
from keephold.testing import VirtualClock

SOON = "2026-01-01T00:01:00Z"


async def test_D1_taking_the_key_twice_gives_the_same_key(clock: VirtualClock) -> None:
    @keephold.tool
    async def twice(call: Call) -> bool:
        first, second = await asyncio.gather(call.completion_key(), call.completion_key())
        return first == second == await call.completion_key()

    async with opened(clock, [twice]) as (_, turn):
        assert (await only(turn, call("twice"))).result == "true"


async def test_D1_the_keys_of_two_calls_are_two_keys(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await clock.advance(0.1)
        assert keys[0] != keys[1] and keys[0].key_id != keys[1].key_id
        await rt.resolve(keys[1], ok("yes"))
        states = {info.id: info.state for info in await rt.handles()}
        assert states == {"a": "running", "b": "stopped"}


async def test_D1_pending_without_a_key_is_an_error(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def keyless() -> Pending:
        return Pending()

    @keephold.tool
    def threaded() -> Pending:
        return Pending()

    async with opened(clock, [keyless, threaded]) as (rt, turn):
        with clock.real():
            responses = await turn.run([call("keyless"), call("threaded"), spawn("keyless", "k")])
        codes = [response.code for response in responses[:2]]
        assert codes == ["pending_tool_missing_completion_key"] * 2
        assert all(response.is_error and "completion_key()" in response.result for response in responses[:2])
        await clock.advance(0.1)
        outcome = (await rt.handle("k", conversation="main")).outcome
        assert isinstance(outcome, Failure) and outcome.code == "pending_tool_missing_completion_key"


@pytest.mark.parametrize(
    ("returned", "terminal"),
    [
        ("done", ok("done")),
        ({"deep": [1, None]}, ok({"deep": [1, None]})),
        (
            keephold.ToolError("no", code="mine"),
            {"status": "err", "payload": {"code": "mine", "message": "no"}},
        ),
    ],
)
async def test_D1_a_key_taken_and_a_plain_result(clock: VirtualClock, returned: Any, terminal: dict[str, Any]) -> None:
    keys: list[Key] = []

    @keephold.tool
    async def changes_its_mind(call: Call) -> Any:
        keys.append(await call.completion_key())
        if isinstance(returned, Exception):
            raise returned
        return returned

    async with opened(clock, [changes_its_mind]) as (rt, turn):
        await turn.run([call("changes_its_mind")])
        outcome = await rt.resolve(keys[0], ok("late"))
        assert (str(outcome), outcome.terminal) == ("already_resolved", terminal)


async def test_D1_a_key_taken_and_then_aborted(clock: VirtualClock) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL)
    async def slow(call: Call) -> str:
        keys.append(await call.completion_key())
        await asyncio.sleep(600)
        return "never"

    async with opened(clock, [slow]) as (rt, turn):
        await reply(turn, spawn("slow", "s"))
        await clock.advance(1)
        await reply(turn, abort("slow", "s"))
        outcome = await rt.resolve(keys[0], ok("late"))
        assert (str(outcome), outcome.terminal) == ("already_resolved", {"status": "cancelled"})


# D2: the terms


@pytest.mark.parametrize("deadline", [60, 60.0, datetime.fromtimestamp(1_767_225_660, UTC)])
async def test_D2_the_deadline_ends_the_call(clock: VirtualClock, deadline: float | datetime) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, Pending(deadline=deadline))]) as (rt, turn):
        begun = clock.now()
        response = await only(turn, call("approve"))
        assert clock.now() - begun == pytest.approx(60)
        assert response.is_error and response.code == "tool_completion_timeout"
        assert response.result == "pending tool completion timed out"
        outcome = await rt.resolve(keys[0], ok("late"))
        assert (str(outcome), outcome.terminal) == ("already_resolved", {"status": "timeout"})


async def test_D2_the_deadline_of_a_spawned_call(clock: VirtualClock) -> None:
    async with opened(clock, [approval([], Pending(deadline=60))]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        waited = await reply(turn, wait_all("a"))
        assert waited["completed"] == [
            {"id": "a", "state": "stopped", "result": "pending tool completion timed out", "is_error": True}
        ]
        info = await rt.handle("a", conversation="main")
        assert info.ended_by == "timeout" and info.stopped == pytest.approx(info.created + 60)


async def test_D2_a_zone_other_than_utc_and_a_time_that_has_passed(clock: VirtualClock) -> None:
    kyiv = timezone(timedelta(hours=2))
    soon = datetime(2026, 1, 1, 2, 1, tzinfo=kyiv)
    past = datetime(2025, 12, 31, tzinfo=UTC)
    tools = [approval([], Pending(deadline=soon), "soon"), approval([], Pending(deadline=past), "past")]
    async with opened(clock, tools) as (rt, turn):
        await turn.run([spawn("soon", "s"), spawn("past", "p")])
        await clock.advance(1)
        assert (await rt.handle("p", conversation="main")).ended_by == "timeout"
        assert (await reply(turn, fetch("soon", "s")))["deadline"] == SOON


async def test_D2_without_a_deadline_it_waits_for_ever(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(400 * 86_400)
        assert await reply(turn, fetch("approve", "a")) == {"id": "a", "state": "running", "parked": True}
        assert str(await rt.resolve(keys[0], ok("at last"))) == "accepted"


async def test_D2_each_deadline_fires_at_its_own_time(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call, secs: float) -> Pending:
        await call.completion_key()
        return Pending(deadline=secs)

    async with opened(clock, [approve]) as (rt, turn):
        order = [50, 10, 90_000, 30, 30, 4000]
        await turn.run([spawn("approve", f"a{n}", secs=secs) for n, secs in enumerate(order)])
        await rt.wait(all=[f"a{n}" for n in range(len(order))], conversation="main")
        assert [info.stopped and info.stopped - info.created for info in await rt.handles()] == pytest.approx(order)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"deadline": datetime(2027, 1, 1)}, "time zone"),
        ({"deadline": 0}, "above 0"),
        ({"deadline": float("inf")}, "above 0"),
        ({"deadline": float("nan")}, "above 0"),
        ({"on_timeout": "explode"}, "on_timeout"),
        ({"on_cancel": "explode"}, "on_cancel"),
    ],
)
def test_D2_terms_that_mean_nothing_are_refused(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Pending(**terms)


# D4: every resolution


@pytest.mark.parametrize(
    ("resolution", "outcome", "ended_by"),
    [
        (ok("text"), Ok("text"), "self"),
        (ok({"a": [1, 2.5, None]}), Ok({"a": [1, 2.5, None]}), "self"),
        (ok(None), Ok(None), "self"),
        (
            {"status": "err", "payload": {"code": "denied", "message": "no", "raw": {"x": 1}}},
            Failure("no", "denied"),
            "self",
        ),
        ({"status": "timeout"}, Failure("pending tool completion timed out", "tool_completion_timeout"), "timeout"),
        ({"status": "cancelled"}, Failure("pending tool completion cancelled", "cancelled"), "cancel"),
    ],
)
async def test_D4_what_a_resolution_makes_of_the_call(
    clock: VirtualClock, resolution: dict[str, Any], outcome: Ok | Failure, ended_by: str
) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        assert str(await rt.resolve(keys[0], resolution)) == "accepted"
        info = await rt.handle("a", conversation="main")
        assert (info.state, info.outcome, info.ended_by) == ("stopped", outcome, ended_by)
        again = await rt.resolve(keys[0], ok("other"))
        assert (str(again), again.terminal) == ("already_resolved", resolution)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"status": "done"},
        {"status": "ok", "payload": 1, "more": 2},
        {"status": "ok", "payload": object()},
        {"status": "err"},
        {"status": "err", "payload": "no"},
        {"status": "err", "payload": {"message": "no"}},
        {"status": "err", "payload": {"code": 1, "message": "no"}},
        {"status": "timeout", "payload": 1},
        "ok",
        None,
    ],
)
async def test_D4_what_is_no_resolution_is_refused_and_the_call_waits_on(clock: VirtualClock, wrong: Any) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        with pytest.raises(keephold.ToolError) as caught:
            await rt.resolve(keys[0], wrong)
        assert caught.value.code == "invalid_resolution"
        assert str(await rt.resolve(keys[0], ok("right"))) == "accepted"


@pytest.mark.parametrize("levels", [64, 100_000])
async def test_K6_a_resolution_is_not_nested_deeper_than_arguments_may_be(clock: VirtualClock, levels: int) -> None:
    deep: list[Any] = []
    for _ in range(levels - 1):
        deep = [deep]
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        with pytest.raises(keephold.ToolError, match=r"nested deeper than 64 levels \(\[limits\] nesting\)"):
            await rt.resolve(keys[0], ok(deep))
        while levels > 63:  # it is inside the resolution, which is a level
            (deep,) = deep
            levels -= 1
        assert str(await rt.resolve(keys[0], ok(deep))) == "accepted"


# D6, D9


async def test_D6_a_parked_call_costs_no_task_and_no_memory_of_its_own(clock: VirtualClock) -> None:
    async with opened(clock, [approval([], Pending(deadline=3600))]) as (rt, turn):
        before = len(asyncio.all_tasks())
        for batch in range(5):
            await turn.run([spawn("approve", f"a{batch}-{n}") for n in range(600)])
        await clock.advance(1)
        assert len(asyncio.all_tasks()) == before
        assert rt.live() == []
        gc.collect()
        assert sum(isinstance(each, Handle) for each in gc.get_objects()) <= 2100
        assert len(await rt.handles(state="running", limit=5000)) == 3000
        assert (await reply(turn, fetch("approve", "a0-0")))["parked"] is True  # one that was let go of is found


async def test_D9_a_parked_call_is_running_parked_and_has_its_deadline_in_every_reply(clock: VirtualClock) -> None:
    terms = Pending(deadline=datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
    async with opened(clock, [approval([], terms, actions=TALKING)]) as (rt, turn):
        parked = {"id": "a", "state": "running", "parked": True, "deadline": SOON}
        assert await reply(turn, spawn("approve", "a")) == parked
        assert await reply(turn, fetch("approve", "a")) == parked
        waited = await reply(turn, wait_all("a", timeout_secs=0))
        assert waited == {"completed": [], "pending": [parked], "timed_out": True}
        refused = await only(turn, apply("approve", "a", "x"))
        assert refused.is_error and "waits for its completion" in refused.result
        info = await rt.handle("a", conversation="main")
        assert (info.state, info.parked, info.deadline) == ("running", True, clock.now() // 60 * 60 + 60)


async def test_D9_what_it_printed_is_shown_while_it_is_parked(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def deploy(call: Call) -> Pending:
        call.emit("asked the boss\n")
        await call.completion_key()
        return Pending()

    async with opened(clock, [deploy]) as (_, turn):
        spawned = await reply(turn, spawn("deploy", "d"))
        assert (spawned["parked"], spawned["content"]) == (True, "asked the boss\n")
        assert "content" not in await reply(turn, fetch("deploy", "d"))


async def test_D9_its_resolution_wakes_whoever_waits(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        waiting = asyncio.create_task(turn.run([wait_all("a")]))
        python = asyncio.create_task(rt.wait(all=["a"], conversation="main"))
        await clock.advance(500)
        assert not waiting.done() and not python.done()
        await rt.resolve(keys[0], ok({"n": 1}))
        assert (await python)["completed"] == [{"id": "a", "state": "stopped", "result": {"n": 1}, "is_error": False}]
        (response,) = await waiting
        assert '"result":"{\\"n\\":1}"' in response.result


async def test_D9_the_timeout_of_the_run_does_not_count_while_it_is_parked(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys, timeout_secs=5)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(3600)
        info = await rt.handle("a", conversation="main")
        assert (info.parked, info.deadline) == (True, None)
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"


async def test_O3_what_a_resolution_brings_is_cut_like_any_result(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        await rt.resolve(keys[0], ok("x" * 100_000))
        shown = (await reply(turn, fetch("approve", "a")))["result"]
        assert len(shown) < 20_000 and "bytes truncated" in shown
        rest = await reply(turn, call("read_output", id="a", offset=99_990))
        assert rest["content"] == "x" * 10 and rest["total"] == 100_000
