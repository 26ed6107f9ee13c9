"""10,000 async function handles, spawned through `turn.run` in batches of 1,000, then one `await` of all of them.

They finish in random order: each waits at a gate of its own, and the gates are opened in shuffled order once the
`await` waits. Timed from the first batch to the answer of the `await`. Against `asyncio.gather` of 10,000 tasks with
the same function and the same gates. Nobody sleeps, so the ratio is of work alone.
"""

import asyncio
import gc
import random
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

import keephold
from bench.rounds import Bar, Plan, Row, measure

COUNT = 10_000
BATCH = 1_000


class Gates:
    """One for each function; opened in an order that is the same in every round."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._gates: list[asyncio.Future[None]] = [loop.create_future() for _ in range(COUNT)]

    async def work(self, n: int) -> str:
        await self._gates[n]
        return "done"

    def open(self) -> None:
        for n in random.Random(1).sample(range(COUNT), COUNT):
            self._gates[n].set_result(None)


async def _bare() -> float:
    gates = Gates()
    began = perf_counter()
    everything = asyncio.gather(*(gates.work(n) for n in range(COUNT)))
    await asyncio.sleep(0)  # now they wait
    gates.open()
    results = await everything
    took = perf_counter() - began
    assert results == ["done"] * COUNT
    return took


async def _ours() -> float:
    gates = Gates()

    @keephold.tool(actions=("spawn", "fetch", "abort"))
    async def work(n: int) -> str:
        return await gates.work(n)

    async with keephold.Runtime([work]) as rt, rt.turn("bench") as turn:
        began = perf_counter()
        for first in range(0, COUNT, BATCH):
            await turn.run([_spawn(n) for n in range(first, first + BATCH)])
        everything = keephold.ToolCall("all", "await", {"all": [f"h{n}" for n in range(COUNT)]})
        waiting = asyncio.create_task(turn.run([everything]))
        for _ in range(3):  # the batch starts, the tool `await` starts, now it waits
            await asyncio.sleep(0)
        gates.open()
        (response,) = await waiting
        took = perf_counter() - began
    assert response.result.count('"result":"done"') == COUNT, response.result[:500]
    return took


def _spawn(n: int) -> keephold.ToolCall:
    return keephold.ToolCall(str(n), "work", {"action": "spawn", "id": f"h{n}", "n": n})


async def _repeated(once: Callable[[], Awaitable[float]], length: float) -> float:
    times: list[float] = []
    until = perf_counter() + length
    while not times or perf_counter() < until:
        gc.collect()
        times.append(await once())
    return statistics.median(times)


def run(plan: Plan) -> list[Row]:
    what = f"{COUNT:,} function handles through `turn.run`, `await` all, random order, against `asyncio.gather`"
    return [measure(what, plan, Bar(10), partial(_repeated, _bare), partial(_repeated, _ours))]
