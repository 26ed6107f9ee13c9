"""Runs of a life in this process: for everything that ends otherwise than by a kill."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from tests.crash.child import PATIENCE
from tests.crash.driver import LATER, Life, Run
from tests.crash.stage import Commits, play
from tests.crash.world import World, enter


async def run_here(life: Life, work: Callable[[World, Commits], Awaitable[str]], commits: Commits) -> Run:
    """Let it work, and compare what it said and left with what was before."""
    run = Run(len(life.runs), os.getpid())
    world = World(life.directory, bytes, run=run.number, clock=LATER if life.late else 0.0, told=life.told)
    enter(world)
    try:
        async with asyncio.timeout(PATIENCE):
            verdict = await work(world, commits)
        world.say("end", verdict=verdict, commits=commits.count)
    finally:
        world.close()
    run.reports = [report for report in world.reports if report["run"] == run.number]
    run.code = 0
    life.runs.append(run)
    life.compare(run)
    return run


async def play_here(life: Life, commits: Commits | None = None) -> Run:
    """Play its scenes."""
    return await run_here(life, lambda world, commits: play(life.scenes, world, commits), commits or Commits())


async def finish_here(life: Life) -> None:
    """Play it undisturbed until it is done; then all must be well."""
    while not life.runs or life.runs[-1].verdict != "done":
        assert len(life.runs) < 5, f"it never comes to its end\n{life}"
        await play_here(life)
    life.end()
