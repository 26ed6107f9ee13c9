"""Journaled steps: `fx.run_json` with an async function that returns what it was given, inside running calls.

- *One after another*: p50 of a step. Against one insert in a transaction of its own on a raw connection (apsw, WAL,
  FULL, a table and an index like our journal's), on the same thread. Beside it what a thread costs by itself: the same
  insert by a bare thread that gets it through a `SimpleQueue` and answers with `call_soon_threadsafe`.
- *64 calls of 500 steps each*: from the batch that spawns them to the end of the last one. Against one thread that
  inserts the same number of rows, 64 in a transaction, with `executemany`, and does nothing else.
"""

import asyncio
import tempfile
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

from bench.gaps import TURN, Times, alternate, gap
from bench.inside import inside, step_on, trivial
from bench.raw import Raw
from bench.rounds import Bar, Plan, Row, measure
from keephold.durable.effects import Effects

BAR = 150e-6
CALLS, STEPS = 64, 500


class BareThread:
    """The least that a writer thread can be."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._queue: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while (told := self._queue.get()) is not None:
            self._raw.commit()
            self._loop.call_soon_threadsafe(told.set_result, None)

    async def __call__(self, times: Times) -> None:
        for _ in range(TURN):
            began = perf_counter()
            told = self._loop.create_future()
            self._queue.put(told)
            await told
            times.append(perf_counter() - began)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._raw.close()


class Stepping:
    """Steps of one call, one after another."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._steps = 0

    async def __call__(self, times: Times) -> None:
        for _ in range(TURN):
            self._steps += 1
            began = perf_counter()
            await self._effects.run_json(f"s{self._steps}", self._steps, trivial)
            times.append(perf_counter() - began)


async def inserting(raw: Raw, times: Times) -> None:
    """Inserts on the loop's thread."""
    for _ in range(TURN):
        raw.time(times)


async def _one_after_another(plan: Plan, directory: Path) -> list[Row]:
    rounds: list[tuple[float, ...]] = []
    raw, thread = Raw(directory / "raw.db"), BareThread(Raw(directory / "thread.db"))

    async def work(effects: Effects) -> None:
        rounds.extend(await alternate(plan, [partial(inserting, raw), thread, Stepping(effects)]))

    try:
        async with inside(directory / "ours.db") as call:
            await call.run(work)
    finally:
        thread.close()
        raw.close()
    return [
        gap("journaled step, p50, against a raw commit", BAR, [(raw, ours) for raw, _, ours in rounds]),
        gap("… of which a bare writer thread takes", None, [(raw, thread) for raw, thread, _ in rounds]),
    ]


async def p50(path: Path, length: float) -> float:
    """Steps for so long, one after another, in a call of its own."""
    times: Times = []

    async def work(effects: Effects) -> None:
        step, until = Stepping(effects), perf_counter() + length
        while perf_counter() < until:
            await step(times)

    async with inside(path) as call:
        await call.run(work)
    return sorted(times)[len(times) // 2]


async def crowd(store: Path | str, calls: int, steps: int, _: float) -> float:
    """Return the seconds for a step when this many calls run this many steps each."""
    async with inside(store) as call:
        began = perf_counter()
        await call.run(partial(step_on, count=steps), calls)
        return (perf_counter() - began) / (calls * steps)


def speed(step: float) -> str:
    return f"{1 / step:,.0f}/s"


def run(plan: Plan) -> list[Row]:
    steps = STEPS if plan.seconds >= 1 else STEPS // 10
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows = asyncio.run(_one_after_another(plan, directory))
        raw = Raw(directory / "group.db")
        try:
            rows.append(
                measure(
                    f"journaled steps of {CALLS} calls × {steps}, against raw group commits of {CALLS} rows",
                    plan,
                    Bar(0.4, "speed"),
                    lambda _: raw.in_thread(steps, CALLS),
                    partial(crowd, directory / "crowd.db", CALLS, steps),
                    show=speed,
                )
            )
        finally:
            raw.close()
    return rows
