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
from keephold import Call, Key, Runtime
from keephold.outcomes import Ok
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
