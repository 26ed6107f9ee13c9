"""Replay (E2, E3, E4, E5, E7, E10): after a power cut the whole call is run again, and what it did is not."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, Story, journaled, ok, power_cut, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Call, Key, Runtime, ToolError
from keephold.outcomes import Failure, Ok
from keephold.tools.function import FunctionTool


@pytest.fixture
def story() -> Story:
    return Story()


async def relive(
    tool: FunctionTool, story: Story, directory: Path, *, clock: HandClock | None = None, until_dead: float = 0
) -> keephold.HandleInfo:
    """Spawn the tool as `w`, cut the power where the story says, and see what the next life makes of it."""
    clock = clock or HandClock()
    store = stored_in(directory)
    async with Runtime([tool], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn(tool.name, "w")])
        async with asyncio.timeout(PATIENCE):
            await story.reached.wait()
        await rt.registry.write(())  # what was said so far is written
        cut = power_cut(store)
    story.dies = False
    clock.at += until_dead
    async with Runtime([tool], store=cut, clock=clock) as rt:
        return await stopped(rt, "w")


async def test_E2_what_is_recorded_is_returned_and_not_done_again(tmp_path: Path, story: Story) -> None:
    attempts: list[int] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        attempts.append(call.attempt)
        fx = call.durable()
        first = await fx.run_json("first", {"n": 1}, story.step("first", {"made": [1, None]}))
        await story.cut_here()
        return [first, await fx.run_json("second", first, story.step("second"))]

    info = await relive(work, story, tmp_path)
    assert info.outcome == Ok([{"made": [1, None]}, {"made": [1, None]}])
    assert story.did == ["first", "second"] and attempts == [1, 2]
    assert (info.attempt, info.ended_by) == (2, "self")


async def test_E2_a_recorded_error_is_raised_again(tmp_path: Path, story: Story) -> None:
    error = ToolError("the till is locked", code="mine", transient=True)

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        fx = call.durable()
        told = []
        for id, raised in (("own", error), ("any", KeyError("x"))):
            try:
                await fx.run_json(id, None, story.step(id, raised))
            except ToolError as caught:
                told.append([caught.message, caught.code, caught.transient])
        await story.cut_here()
        return told

    info = await relive(work, story, tmp_path)
    assert info.outcome == Ok([["the till is locked", "mine", True], ["KeyError: 'x'", "tool_error", False]])
    assert story.did == ["own", "any"]


async def test_E3_another_input_on_replay_is_a_conflict_and_nothing_runs(tmp_path: Path, story: Story) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> None:
        fx = call.durable()
        await fx.run_json("same", {"a": 1, "b": [{}]}, story.step("same"))
        await fx.run_json("step", {"attempt": call.attempt}, story.step("step"))
        await story.cut_here()

    info = await relive(work, story, tmp_path)
    assert isinstance(info.outcome, Failure) and info.outcome.code == "durable_effect_hash_conflict"
    assert "`step`" in info.outcome.message
    assert story.did == ["same", "step"]


async def test_E3_the_order_of_the_keys_is_no_other_input(tmp_path: Path, story: Story) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        given = {"a": 1, "b": {"c": 2, "d": 3}} if call.attempt == 1 else {"b": {"d": 3, "c": 2}, "a": 1}
        made = await call.durable().run_json("step", given, story.step("step", "made"))
        await story.cut_here()
        return made

    assert (await relive(work, story, tmp_path)).outcome == Ok("made")
    assert story.did == ["step"]


async def test_E3_a_result_that_is_not_json_is_recorded_as_nothing(tmp_path: Path, story: Story) -> None:
    """The step failed, but not with an error of its function: the next life runs it again."""

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        result = object() if call.attempt == 1 else "json"
        try:
            return await call.durable().run_json("step", None, story.step("step", result))
        except ToolError:
            await story.cut_here()

    assert (await relive(work, story, tmp_path)).outcome == Ok("json")
    assert story.did == ["step", "step"]


async def test_E4_a_step_that_was_cut_off_runs_again_and_the_tool_can_see_that(tmp_path: Path, story: Story) -> None:
    seen: list[tuple[int, str]] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        fx = call.durable()
        await fx.run_json("before", None, story.step("before"))

        async def pay(given: Any) -> str:
            seen.append((call.attempt, call.idempotency_key))
            await story.cut_here()
            return "paid"

        return await fx.run_json("pay", None, pay)

    assert (await relive(work, story, tmp_path)).outcome == Ok("paid")
    assert story.did == ["before"]
    assert [attempt for attempt, _ in seen] == [1, 2] and seen[0][1] == seen[1][1]


async def test_E4_a_step_costs_one_commit(tmp_path: Path, story: Story) -> None:
    commits: list[int] = []

    @keephold.tool(on_crash="replay")
    async def work(call: Call) -> None:
        fx = call.durable()
        for n in range(5):
            commits.append(store.commits)
            await fx.run_json(f"s{n}", n, story.step("s"))
        commits.append(store.commits)

    async with Runtime([work], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        store: Any = rt.registry.store
        await turn.run([keephold.ToolCall("1", "work")])
    assert [after - before for before, after in pairwise(commits)] == [1] * 5


# E5


async def test_E5_a_replay_sleeps_the_rest(tmp_path: Path, story: Story) -> None:
    clock, store = HandClock(), stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> str:
        story.reached.set()
        await call.durable().sleep(3600)
        return "rested"

    async with Runtime([work], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("work", "w")])
        await until(lambda: journaled(rt, "w"))
        cut = power_cut(store)
    clock.at += 3599.9
    async with Runtime([work], store=cut, clock=clock) as rt:
        await asyncio.sleep(0.25)  # longer than the rest, but the clock of the day stands
        assert (await rt.handle("w", conversation="main")).state == "running"
        clock.at += 0.2
        assert (await stopped(rt, "w")).outcome == Ok("rested")


async def test_E5_a_sleep_whose_time_has_passed_is_over(tmp_path: Path, story: Story) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> str:
        fx = call.durable()
        await fx.sleep(0.001 if call.attempt > 1 else 0)
        asyncio.get_running_loop().call_later(0.05, story.reached.set)
        await fx.sleep(7 * 86_400)
        return "rested"

    info = await relive(work, story, tmp_path, until_dead=7 * 86_400)
    assert info.outcome == Ok("rested")


@pytest.mark.parametrize("when", ["before", "while dead", "after"])
async def test_E5_an_event_finds_the_call_in_whichever_life(tmp_path: Path, story: Story, when: str) -> None:
    clock, store = HandClock(), stored_in(tmp_path)
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        fx = call.durable()
        keys.append(await fx.external_event_key("approved"))
        if when == "before":
            await fx.await_event_json(keys[0])
            await story.cut_here()
        return [await fx.await_event_json(keys[-1]), call.attempt]

    async with Runtime([work], store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("work", "w")])
        await until(lambda: len(keys) == 1)
        if when == "before":
            await rt.resolve(keys[0], ok("yes"))
            await story.reached.wait()
        cut = power_cut(store)
    story.dies = False
    if when == "while dead":
        async with Runtime(store=cut, clock=clock) as rt:
            assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
    async with Runtime([work], store=cut, clock=clock) as rt:
        if when == "after":
            await until(lambda: len(keys) == 2)
            assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert (await stopped(rt, "w")).outcome == Ok(["yes", 2])
    assert keys[0] == keys[1]


# E7


async def test_E7_a_gather_replays_in_whatever_order_its_steps_are_reached(tmp_path: Path, story: Story) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        fx = call.durable()
        names = ["a", "b", "c", "d", "e"]
        order = names if call.attempt == 1 else names[::-1]

        async def one(name: str) -> Any:
            made = await fx.run_json(name, name, story.step(name))
            if name == "c" and call.attempt == 1:
                await story.cut_here()
            return made

        done = await asyncio.gather(*(one(name) for name in order))
        return sorted(done)

    info = await relive(work, story, tmp_path)
    assert info.outcome == Ok(["a", "b", "c", "d", "e"])
    assert sorted(story.did) == ["a", "b", "c", "d", "e"]
