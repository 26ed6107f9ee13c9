"""Things that happen in the same pass of the loop, or the same instant, staged by hand (A5, A6, S2, S3, B4, B5)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.directed import rest, theatre
from tests.simulation.ops import Abort, Apply, Fetch, Once, Spawn
from tests.simulation.stores import NextPassStore

import keephold
from keephold.errors import AlreadyStopped
from keephold.handles.state import Ended, Failure, Ok
from keephold.store.base import Store
from keephold.store.memory import MemoryStore
from keephold.testing import VirtualClock


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def nap(secs: float) -> str:
    await asyncio.sleep(secs)
    return "slept"


@pytest.mark.parametrize("emitted_first", ["spawn", "await"])
@pytest.mark.parametrize("secs", [5, 6])
async def test_A5_a_timeout_in_the_instant_of_completion_is_a_completion(
    clock: VirtualClock, emitted_first: str, secs: int
) -> None:
    calls = [
        keephold.ToolCall("spawn", "nap", {"action": "spawn", "id": "a", "secs": secs}),
        keephold.ToolCall("await", "await", {"all": ["a"], "timeout_secs": 5}),
    ]
    async with keephold.Runtime([nap], clock=clock) as rt, rt.turn() as turn:
        responses = await turn.run(calls if emitted_first == "spawn" else calls[::-1])
        answer = {response.id: response.result for response in responses}["await"]
    assert answer == (
        '{"completed":[{"id":"a","state":"stopped","result":"slept"}],"pending":[]}'
        if secs == 5
        else '{"completed":[],"pending":[{"id":"a","state":"running"}],"timed_out":true}'
    )


@pytest.mark.parametrize("timer_set_first", ["timeout", "end"])
async def test_A5_whichever_timer_fires_first(clock: VirtualClock, timer_set_first: str) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("w1"))
        await rest()
        end_at = here.world.now + 1.0
        if timer_set_first == "end":
            here.world.at(end_at, lambda: here.tell("w1", "ok", "done"))
        answer = here.world.wait(0, [], ["w1"], 1.0)
        if timer_set_first == "timeout":
            await asyncio.sleep(0)  # the wait begins, and sets its timer
            here.world.at(end_at, lambda: here.tell("w1", "ok", "done"))
        await asyncio.sleep(2)
        assert answer.at == pytest.approx(end_at)
        assert answer.values == [_done("w1", result="done")]


def _done(*ids: str, **entry: Any) -> dict[str, Any]:
    completed = [{"id": id, "state": "stopped", "is_error": False, **entry} for id in ids]
    return {"completed": completed, "pending": []}


@pytest.mark.parametrize("first", ["end", "abort"])
async def test_S2_of_two_racing_ends_the_first_wins(clock: VirtualClock, first: str) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("w1"))
        await rest()
        if first == "end":
            here.tell("w1", "ok", "done")
        answer = here.run(Abort("w1"))
        if first == "abort":
            here.tell("w1", "ok", "done")
        await rest()
        ((_, entry),) = answer.values
        if first == "end":
            assert entry == {"id": "w1", "state": "stopped", "result": "done"}
        else:
            assert (entry["state"], entry["ended_by"]) == ("stopped", "abort")
            assert "done" not in entry["result"]


async def test_S2_whoever_comes_late_is_told_the_first_outcome(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("w1"))
        await rest()
        here.tell("w1", "fail", "broken")
        await rest()
        handle, before = here.handle("w1"), here.handle("w1").info()
        assert not here.registry.end(handle, Ok("late"))
        with pytest.raises(AlreadyStopped, match=r"already stopped: error .*broken"):
            here.registry.apply_event(handle, Ended(clock.now(), Ok("late")))
        assert handle.info() == before and before.outcome == Failure("broken")


@pytest.mark.parametrize("store", [MemoryStore, NextPassStore])
@pytest.mark.parametrize("first", ["wait", "abort"])
async def test_C5_a_wait_in_python_takes_no_output_from_the_reply_of_an_abort(
    clock: VirtualClock, first: str, store: Callable[[], Store]
) -> None:
    async with theatre(clock, store()) as here:
        here.run(Spawn("w1"))
        await rest()
        here.tell("w1", "emit", "news")
        await rest()
        if first == "wait":
            waited = here.world.wait(0, [], ["w1"], None)
        aborted = here.run(Abort("w1"))
        if first == "abort":
            waited = here.world.wait(0, [], ["w1"], None)
        await rest()
        assert waited.at == aborted.at
        ((_, entry),) = aborted.values
        assert (entry["ended_by"], entry["content"]) == ("abort", "news")
        later = here.world.wait(0, [], ["w1"], None)
        await rest()
        assert "content" not in later.values[0]["completed"][0]


async def test_C5_a_wait_in_python_moves_no_cursor(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("w1"))
        await rest()
        here.tell("w1", "emit", "news")
        await rest()
        here.world.end_turn(0, False)
        await rest()
        for _ in range(2):
            waited = here.world.wait(0, [], ["w1"], None)
            await rest()
            assert waited.values[0]["completed"][0]["content"] == "news"
        fetched = here.run(Fetch("w1"))
        await rest()
        assert fetched.values[0][1]["content"] == "news"


async def test_A6_a_wait_goes_on_if_somebody_answered_before_it_could_say_that_input_is_needed(
    clock: VirtualClock,
) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("c1"))
        await clock.advance(2)
        answer = here.world.wait(0, [], ["c1"], None)
        await rest()
        here.tell("c1", "ask")  # in one pass it asks, the wait hears of it,
        here.run(Apply("c1", True))  # and the question is answered
        await rest()
        assert here.state("c1") == "running" and answer.at is None
        here.tell("c1", "ok", "done")
        await rest()
        assert answer.values == [_done("c1", result="done")]


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def fickle(call: keephold.Call) -> str:
    await asyncio.sleep(1)
    reading = asyncio.create_task(call.input())
    await asyncio.sleep(0)  # in the pass in which it begins to read, it ends
    reading.cancel()
    return "done"


async def test_A6_what_has_stopped_needs_no_input(clock: VirtualClock) -> None:
    async with keephold.Runtime([fickle], clock=clock) as rt, rt.turn("main") as turn:
        spawn = asyncio.create_task(turn.run([keephold.ToolCall("1", "fickle", {"action": "spawn", "id": "a"})]))
        await rest()
        assert await rt.wait(all=["a"], conversation="main") == _done("a", result="done")
        await spawn


async def test_A6_what_is_being_ended_is_not_blocked_on_the_caller(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("w1"), Spawn("c1"))
        await clock.advance(2)
        here.tell("c1", "read")
        answer = here.world.wait(0, [], ["w1", "c1"], None)
        await rest()
        here.world.end_turn(0, False)  # w1 stops first, and c1 has been told by then
        await rest()
        (waited,) = answer.values
        assert [entry["id"] for entry in waited["completed"]] == ["w1", "c1"] and "needs_input" not in waited


async def test_A6_leaving_one_queue_for_another_may_block(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("v1", ("r",)), Spawn("l1"))
        await clock.advance(2)
        here.tell("v1", "read")
        here.run(Spawn("t1", ("r",)))  # behind l1 in the serial lane, which is not blocked
        await rest()
        answer = here.world.wait(0, [], ["t1"], None)
        await rest()
        assert answer.at is None
        here.tell("l1", "ok")  # now it queues for v1's resource
        await rest()
        (waited,) = answer.values
        assert waited["pending"] == [{"id": "t1", "state": "pending", "behind": "v1"}] and waited["needs_input"]


async def test_A6_nobody_passes_one_that_queues_behind_a_blocked_one(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("v1", ("r",)), Spawn("k1", ("s",)))
        await clock.advance(2)
        here.tell("v1", "read")
        here.run(Spawn("k2", ("r", "s")), Spawn("v2", ("s",)))  # v2 waits for k1, and for k2, which waits for v1
        await rest()
        answer = here.world.wait(0, [], ["v2"], None)
        await rest()
        (waited,) = answer.values
        assert waited["pending"] == [{"id": "v2", "state": "pending", "behind": "v1"}] and waited["needs_input"]


@pytest.mark.parametrize("cancel", [False, True])
async def test_S3_what_queues_never_starts_when_the_turn_ends(clock: VirtualClock, cancel: bool) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("k1", ("r",)), conversation=1)
        await rest()
        here.run(Spawn("t1", ("r",)), Spawn("t2", ("s",)))  # t1 has the serial lane and waits for k1, t2 for the lane
        await rest()
        ended = here.world.end_turn(0, cancel)
        await rest()
        assert ended.at is not None
        assert [(info.state, info.started) for info in here.world.infos(0)] == [("stopped", None)] * 2


async def test_B7_what_queues_never_starts_when_the_turn_is_cancelled(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("k1", ("r",)), conversation=1)
        await rest()
        answer = here.run(Once("k8", ("r", "s")), Once("k9", ("s",)))  # k9 may not pass k8
        await rest()
        here.world.end_turn(0, True)
        await rest()
        assert answer.values == [(False, "Tool execution cancelled.")] * 2
        assert [(await here.registry.find_call(label, "directed.0")).info().started for label in "01"] == [None, None]


async def test_B4_the_next_serial_spawn_does_not_wait_for_one_that_has_stopped(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        answer = here.run(Spawn("d1"), Spawn("l1"))
        await rest()
        here.tell("d1", "fail", "broken")  # while its spawn still settles
        await rest()
        (_, first), (_, second) = answer.values
        assert first["result"] == "broken"
        assert second == {"id": "l1", "state": "running"}


async def test_B5_a_one_shot_call_is_not_held_up_by_one_that_has_stopped(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        answer = here.run(Spawn("v1", ("r",)), Once("t8", ("r",)))
        await rest()
        here.tell("v1", "fail", "broken")
        await rest()
        here.tell("t8", "ok", "done")
        await rest()
        assert answer.values[1] == (False, "done")


async def test_B5_a_one_shot_call_gives_up_when_the_resource_goes_to_one_with_apply(clock: VirtualClock) -> None:
    async with theatre(clock) as here:
        here.run(Spawn("k1", ("r",)))
        await rest()
        answer = here.run(Spawn("v1", ("r",)), Once("k8", ("r",)))
        await rest()
        assert answer.at is None
        here.tell("k1", "ok")
        await rest()
        is_error, text = answer.values[1]
        assert is_error and "`v1`" in text


async def test_B5_a_call_that_is_dealt_with_hides_nobody_else_in_the_line(clock: VirtualClock) -> None:
    # Over this store k2 leaves the line before its end is visible, and so before anyone is told.
    async with theatre(clock, NextPassStore()) as here:
        here.run(Spawn("v1", ("r",)), Spawn("k1", ("r", "s")), conversation=1)
        await clock.advance(2)
        here.tell("v1", "read", conversation=1)
        here.run(Spawn("k2", ("s",)))  # behind k1, which is behind v1
        await rest()
        answer = here.run(Once("k8", ("s",)), Abort("k2"))  # k2 is already_handled for k8, k1 is not
        await rest()
        is_error, text = answer.values[0]
        assert is_error and "`v1`" in text
