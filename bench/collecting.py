"""The longest pause that deleting a million expired handles causes to a step.

A durable function records one step after the other, each on the disk, while retention deletes the handles in parts. The
figure is the longest step; beside it the longest step before that, for as long. The store is a file, with one event for
each handle, which is deleted, too. One round: it takes minutes. `--quick` deletes 20,000.
"""

import asyncio
import math
import tempfile
from pathlib import Path
from time import perf_counter

import keephold
from bench.gaps import figure
from bench.rounds import FULL, Plan, Row, seconds
from bench.serve_stock import stock

BAR = 0.05
MANY, FEW = 1_000_000, 20_000
BEFORE = 20.0
"""Seconds of steps before anything is deleted."""


class Steps:
    """Records steps until it is told to stop, and notes the longest."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.count = 0
        self.ends = False
        self.tool = keephold.tool(on_crash="replay", timeout_secs=None)(self.step_on)

    async def step_on(self, call: keephold.Call) -> int:
        """Records steps."""
        effects = call.durable()
        while not self.ends:
            began = perf_counter()
            await effects.run_json(str(self.count), self.count, _same)
            self.count += 1
            self.longest = max(self.longest, perf_counter() - began)
        return self.count

    def take(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest


async def _same(value: object) -> object:
    return value


async def collect(path: Path, before: float) -> tuple[float, float]:
    """Return the longest step before everything is deleted, and while it is."""
    steps = Steps()
    runtime = keephold.Runtime([steps.tool], store=f"sqlite:///{path}")
    runtime.registry.retention = math.inf
    async with runtime as rt, rt.turn("steps") as turn:
        running = asyncio.create_task(turn.run([keephold.ToolCall("1", "step_on", {})]))
        await asyncio.sleep(1.0)
        steps.take()
        await asyncio.sleep(before)
        quiet = steps.take()
        rt.registry.retention = 0.0
        await rt.registry.collect()
        paused = steps.take()
        steps.ends = True
        await running
    return quiet, paused


def run(plan: Plan) -> list[Row]:
    count = MANY if plan is FULL else FEW
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        asyncio.run(stock(path, stopped=count))
        quiet, paused = asyncio.run(collect(path, BEFORE if plan is FULL else 2.0))
    what = f"longest step while {count:,} expired handles are deleted, against the longest before"
    return [figure(what, BAR, [paused], against=seconds(quiet))]
