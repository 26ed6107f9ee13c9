"""`wait_for` and `wait_for_multiple` (W2–W5, A6)."""

import asyncio
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, TALKING, spawn
from tests.unit.waiting.calls import Caller, calling
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Question
from keephold.store.base import Resolution
from keephold.testing import VirtualClock
from keephold.tools.waiting.view import elapsed


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0ms"),
        (250, "250ms"),
        (999, "999ms"),
        (1000, "1s"),
        (3999, "3s"),
        (60_000, "1m 0s"),
        (123_456, "2m 3s"),
        (3_723_000, "1h 2m 3s"),
        (90_000_000, "25h 0m 0s"),
    ],
)
def test_W3_elapsed_times_are_floored(ms: int, shown: str) -> None:
    assert elapsed(ms) == shown


async def later(ask: Caller, secs: float, id: str, **arguments: Any) -> None:
    await asyncio.sleep(secs)
    await ask.complete(id, **arguments)


async def test_waiting_is_answered_as_the_seed_writes_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("agent-execution-789", type="agent")
        await clock.advance(10)
        result = {"agentId": "research-agent", "response": "Research complete..."}
        group.create_task(later(ask, 5.432, "agent-execution-789", result=result))
        waited = await ask.wait_for("agent-execution-789", timeoutMs=60_000, pollIntervalMs=100)
        assert waited == {
            "handleId": "agent-execution-789",
            "type": "agent",
            "status": "completed",
            "result": result,
            "operationElapsedMs": 15_432,
            "operationElapsedTime": "15s",
            "waitedMs": 5432,
            "waitedTime": "5s",
            "startTime": "2026-01-01T00:00:00.000Z",
            "endTime": "2026-01-01T00:00:15.432Z",
        }


async def test_W5_a_timeout_limits_the_wait_and_ends_nothing(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h")
        assert await ask.wait_for("h", timeoutMs=60_000) == {
            "handleId": "h",
            "status": "timeout",
            "error": "Wait timed out after 60000ms",
            "elapsedMs": 60_000,
        }
        assert (await ask.wait_for("h", timeoutMs=0))["error"] == "Wait timed out after 0ms"
        assert (await ask.complete("h"))["status"] == "completed"


async def test_W5_the_handles_own_timeout_cannot_be_prolonged_and_the_waits_can_be_shorter(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("h", timeoutMs=1000)
        assert (await ask.wait_for("h", timeoutMs=400))["error"] == "Wait timed out after 400ms"
        waited = await ask.wait_for("h", timeoutMs=5000)
        assert (waited["error"], waited["waitedMs"]) == ("Operation timed out after 1000ms", 600)


async def test_A5_who_settles_in_the_instant_of_the_timeout_has_settled(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("h", timeoutMs=1000)
        waiting = group.create_task(ask.wait_for("h", timeoutMs=1000))
        await clock.advance(1)
        assert (await waiting)["error"] == "Operation timed out after 1000ms"


async def test_W5_states_are_read_again_at_the_timeout(clock: VirtualClock) -> None:
    """Another process has completed it and its bell was lost."""
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("h")
        waiting = group.create_task(ask.wait_for("h", timeoutMs=1000))
        await clock.advance(0.5)
        registry = ask.rt.registry
        registry.changed_elsewhere = lambda uid, state, what=None: None  # type: ignore[method-assign]
        await ask.rt.durability.waits.complete(registry.find("h", "main"), Resolution("ok", "late"))
        assert (await waiting)["result"] == "late"


async def test_W7_wait_for_what_does_not_exist(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert await ask.error("wait_for", handleId="x") == {"error": "Wait handle x not found", "isError": True}


async def test_W4_empty_repeated_and_unknown_ids(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        assert "At least one" in (await ask.error("wait_for_multiple", handleIds=[], mode="race"))["error"]
        await ask.create("a")
        wrong = await ask.error("wait_for_multiple", handleIds=["x", "a", "y", "x"], mode="any")
        assert wrong["error"] == "Wait handle x not found. Wait handle y not found"
        await ask.complete("a")
        assert (await ask.wait_for_multiple("all", "a", "a", "a"))["totalCount"] == 1


async def test_any_is_answered_as_the_seed_writes_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        for id in ("agent-1", "agent-2", "agent-3"):
            await ask.create(id, type="agent")
        group.create_task(later(ask, 10.5, "agent-2", result={"data": "Agent 2 result"}))
        waited = await ask.wait_for_multiple("any", "agent-1", "agent-2", "agent-3", timeoutMs=120_000)
        pending = {"type": "agent", "status": "pending", "elapsedMs": 10_500, "elapsedTime": "10s"}
        assert waited == {
            "mode": "any",
            "status": "completed",
            "totalCount": 3,
            "completedCount": 1,
            "failedCount": 0,
            "pendingCount": 2,
            "results": {
                "agent-1": pending,
                "agent-2": {
                    "type": "agent",
                    "status": "completed",
                    "result": {"data": "Agent 2 result"},
                    "elapsedMs": 10_500,
                    "elapsedTime": "10s",
                },
                "agent-3": pending,
            },
            "waitedMs": 10_500,
            "waitedTime": "10s",
        }


async def test_W3_any_waits_past_failures_for_a_success(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("a")
        await ask.create("b")
        group.create_task(later(ask, 1, "a", error="no"))
        group.create_task(later(ask, 2, "b", result="yes"))
        waited = await ask.wait_for_multiple("any", "a", "b")
        assert (waited["status"], waited["waitedMs"], waited["failedCount"]) == ("completed", 2000, 1)


async def test_W3_any_returns_at_once_when_all_have_failed(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("a")
        await ask.create("b", timeoutMs=2000)
        group.create_task(later(ask, 1, "a", error="no"))
        waited = await ask.wait_for_multiple("any", "a", "b")
        assert (waited["status"], waited["failedCount"], waited["waitedMs"]) == ("failed", 2, 2000)
        assert waited["results"]["b"]["status"] == "timeout"


async def test_W3_all_with_a_failure_is_partial(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("a")
        await ask.create("b")
        group.create_task(later(ask, 1, "a", error="no"))
        group.create_task(later(ask, 2, "b"))
        assert (await ask.wait_for_multiple("all", "b", "a"))["status"] == "partial"
        assert (await ask.wait_for_multiple("all", "b"))["status"] == "completed"


async def test_W3_race_with_nothing_settled_waits_for_the_first(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("a")
        await ask.create("b")
        group.create_task(later(ask, 1, "b", error="first"))
        group.create_task(later(ask, 2, "a"))
        waited = await ask.wait_for_multiple("race", "a", "b")
        assert (waited["status"], waited["winner"], waited["pendingCount"]) == ("failed", "b", 1)


async def test_W3_race_is_decided_by_time_and_not_by_order(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        for id, secs in (("a", 3), ("b", 1), ("c", 2)):
            await ask.create(id, timeoutMs=secs * 1000)
        await clock.advance(10)
        waited = await ask.wait_for_multiple("race", "a", "b", "c")
        assert (waited["status"], waited["winner"]) == ("timeout", "b") and "error" not in waited


async def test_W3_of_two_in_one_instant_the_first_wins_the_race(clock: VirtualClock) -> None:
    async with calling(clock) as ask, asyncio.TaskGroup() as group:
        await ask.create("a")
        await ask.create("b")
        waiting = group.create_task(ask.wait_for_multiple("race", "a", "b"))
        await clock.advance(1)
        waits, find = ask.rt.durability.waits, ask.rt.registry.find
        await asyncio.gather(*(waits.complete(find(id, "main"), Resolution("ok", id)) for id in ("b", "a")))
        waited = await waiting
        assert (waited["winner"], waited["completedCount"]) == ("b", 2)


async def test_W3_a_timeout_has_the_normal_shape(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        await ask.create("a")
        await ask.create("b")
        await ask.complete("a", result=1)
        waited = await ask.wait_for_multiple("all", "a", "b", timeoutMs=500)
        assert (waited["status"], waited["error"], waited["elapsedMs"]) == (
            "timeout",
            "Wait timed out after 500ms",
            500,
        )
        assert (waited["completedCount"], waited["pendingCount"]) == (1, 1)
        assert waited["results"]["a"]["result"] == 1


@keephold.tool(actions=TALKING, on_turn_end="keep")
async def asking(call: Call) -> str:
    answer = await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))
    return f"{answer}"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def slow(secs: float) -> dict[str, float]:
    await asyncio.sleep(secs)
    return {"slept": secs}


async def test_A6_what_waits_for_the_caller_is_told_at_once(clock: VirtualClock) -> None:
    async with calling(clock, asking, slow) as ask, ask.rt.turn("main") as turn:
        await turn.run([spawn("asking", "q"), spawn("slow", "s", secs=5)])
        await clock.advance(1)
        both = await ask.wait_for_multiple("all", "q", "s")  # goes on while one can
        assert (both["status"], both["needsInput"], both["completedCount"]) == ("pending", True, 1)
        waited = await ask.wait_for("q", timeoutMs=60_000)
        assert (waited["status"], waited["needsInput"], waited["waitedMs"]) == ("pending", True, 0)
        assert waited["question"]["text"] == "Sure?"
        assert both["results"]["q"]["question"]["id"] == "sure" and both["results"]["s"]["result"] == {"slept": 5.0}


async def test_handles_of_any_kind_can_be_waited_for(clock: VirtualClock) -> None:
    async with calling(clock, slow) as ask, ask.rt.turn("main") as turn:
        await turn.run([spawn("slow", "s", secs=2)])
        waited = await ask.wait_for("s")
        assert (waited["type"], waited["result"], waited["waitedMs"]) == ("tool", {"slept": 2.0}, 2000)


async def test_a_result_too_large_for_a_reply_leaves_it_json(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        for id in ("rows", "text"):
            await ask.create(id)
        await ask.complete("rows", result=[[n, n + 1] for n in range(10_000)])
        await ask.complete("text", result={"log": "x" * 100_000})
        waited = await ask.wait_for("rows")
        assert "truncated" in waited["result"] and "read_output" in waited["result"]
        assert "truncated" in (await ask.wait_for("text"))["result"]["log"]
        many = [f"h{n}" for n in range(60)]
        for id in many:
            await ask.create(id)
            await ask.complete(id, result=[[n, n + 1] for n in range(2000)])
        assert (await ask.wait_for_multiple("all", *many))["completedCount"] == 60


async def test_a_wait_does_not_outlive_its_runtime(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt:
        ask = Caller(rt)
        await ask.create("h")
        waiting = asyncio.create_task(ask.response("wait_for", handleId="h"))
        await clock.advance(1)
    assert (await waiting).code == "aborted"
