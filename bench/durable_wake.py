"""From `rt.resolve` to the coroutine of the tool that is in `await fx.await_event_json(key)`.

- *In the same process*, p50: from the call of `rt.resolve` to the first line after the `await`; in between the
  resolution has come to the disk. Against a raw commit, as for the steps.
- *From another process*, p50: a child with a runtime of its own on the same file resolves. Both read the same clock.
  Beside it the p50 of a raw commit at that time.
- *The same while the first process commits without pause*: 16 other calls of it make steps in a loop. The p99 of each
  round, and the median of those.
"""

import asyncio
import itertools
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from functools import partial
from pathlib import Path
from time import perf_counter

import keephold
from bench.durable_steps import inserting
from bench.gaps import TURN, Times, alternate, figure, gap
from bench.inside import Inside, inside, pause, trivial
from bench.raw import Raw, percentile
from bench.rounds import Plan, Row, seconds
from keephold.durable.effects import Effects

BAR, BAR_ELSEWHERE, BAR_BUSY = 200e-6, 2e-3, 20e-3
BUSY_CALLS = 16
_OK = {"status": "ok", "payload": 1}


class Waking:
    """Waits of one call, one after another, each resolved by the same process."""

    def __init__(self, rt: keephold.Runtime, effects: Effects) -> None:
        self._rt, self._effects = rt, effects
        self._names = itertools.count()
        self._began = 0.0

    async def once(self) -> float:
        """Seconds that a wake-up took."""
        key = await self._effects.external_event_key(f"e{next(self._names)}")
        resolving = asyncio.get_running_loop().create_task(self._resolve(key))
        await self._effects.await_event_json(key)
        took = perf_counter() - self._began
        await resolving
        return took

    async def _resolve(self, key: str) -> None:
        await pause()  # now it waits
        self._began = perf_counter()
        await self._rt.resolve(key, _OK)

    async def __call__(self, times: Times) -> None:
        for _ in range(TURN):
            times.append(await self.once())


class WakingFromElsewhere(Waking):
    """The same, resolved by another process."""

    def __init__(self, rt: keephold.Runtime, effects: Effects, child: Process) -> None:
        super().__init__(rt, effects)
        self._child = child

    async def _resolve(self, key: str) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        await pause()
        self._child.stdin.write(f"{key}\n".encode())
        self._began = float(await self._child.stdout.readline())

    async def once(self) -> float:
        key = await self._effects.external_event_key(f"e{next(self._names)}")
        resolving = asyncio.get_running_loop().create_task(self._resolve(key))
        await self._effects.await_event_json(key)
        woken = perf_counter()
        await resolving
        return woken - self._began


async def resolve_what_comes(path: str) -> None:
    """The other process: a key on a line in, the time when it began to resolve it out."""
    loop = asyncio.get_running_loop()
    async with keephold.Runtime(store=f"sqlite:///{path}") as rt:
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            began = perf_counter()
            outcome = await rt.resolve(line.strip(), _OK)
            assert outcome.status == "accepted", outcome
            print(began, flush=True)


async def _in_one_process(plan: Plan, directory: Path) -> Row:
    rounds: list[tuple[float, ...]] = []
    raw = Raw(directory / "raw.db")
    try:
        async with inside(directory / "ours.db") as call:

            async def work(effects: Effects) -> None:
                rounds.extend(await alternate(plan, [partial(inserting, raw), Waking(call.rt, effects)]))

            await call.run(work)
    finally:
        raw.close()
    pairs = [(raw, ours) for raw, ours in rounds]
    return gap("`rt.resolve` → waiting tool runs, p50, against a raw commit", BAR, pairs)


async def _between_processes(plan: Plan, directory: Path) -> list[Row]:
    path, raw = directory / "two.db", Raw(directory / "beside.db")
    quiet: list[Times] = []
    busy: list[Times] = []
    commits: Times = []
    async with inside(path) as call:
        command = [sys.executable, "-m", "bench.durable_wake", str(path)]
        child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert child.stdin is not None and child.stdout is not None
        await child.stdout.readline()  # it is ready

        async def work(effects: Effects) -> None:
            wake = WakingFromElsewhere(call.rt, effects, child)
            await _wakes(wake, plan.seconds / 5)
            for _ in range(plan.rounds):
                await inserting(raw, commits)
                quiet.append(await _wakes(wake, plan.seconds))
            async with _Busy(call):
                await _wakes(wake, plan.seconds / 5)
                for _ in range(plan.rounds):
                    busy.append(await _wakes(wake, plan.seconds))

        await call.run(work)
        child.stdin.close()
        assert await child.wait() == 0
    raw.close()
    beside = f"commit {seconds(statistics.median(commits))}"
    wakes = min(map(len, busy))
    return [
        figure(
            "the same resolved by another process, p50",
            BAR_ELSEWHERE,
            [percentile(times, 0.5) for times in quiet],
            against=beside,
        ),
        figure(
            f"… while {BUSY_CALLS} calls of the waiting process make steps, p99 of ≥ {wakes}",
            BAR_BUSY,
            [percentile(times, 0.99) for times in busy],
            against=beside,
        ),
    ]


async def _wakes(wake: Waking, length: float) -> Times:
    times: Times = []
    until = perf_counter() + length
    while perf_counter() < until:
        times.append(await wake.once())
    return times


class _Busy:
    """Calls that make steps as long as one is in here."""

    def __init__(self, call: Inside) -> None:
        self._call = call
        self._over = False

    async def _work(self, effects: Effects) -> None:
        for number in itertools.count():
            if self._over:
                return
            await effects.run_json(f"s{number}", number, trivial)

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._call.run(self._work, BUSY_CALLS))
        await asyncio.sleep(0.1)

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await self._task


async def p50(path: Path, length: float) -> float:
    """Wake-ups in one process for so long."""
    times: Times = []
    async with inside(path) as call:

        async def work(effects: Effects) -> None:
            times.extend(await _wakes(Waking(call.rt, effects), length))

        await call.run(work)
    return percentile(times, 0.5)


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        row = asyncio.run(_in_one_process(plan, directory))
        return [row, *asyncio.run(_between_processes(plan, directory))]


if __name__ == "__main__":
    asyncio.run(resolve_what_comes(sys.argv[1]))
