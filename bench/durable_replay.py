"""A call with 10,000 recorded steps is taken up again: what each `run_json` takes that only returns what is recorded.

The steps are recorded by a child process that is then killed. A runtime on the same file claims the call, loads its
journal and runs the tool again; timed inside the tool, from the first step to the last, divided. Then the runtime is
closed, which releases the call, and the next round's runtime claims it. Beside it the time from opening the runtime
to the first step: claiming the call and loading the journal.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, Never

import keephold
from bench.gaps import figure
from bench.inside import trivial
from bench.rounds import Plan, Row, seconds

BAR = 20e-6
STEPS = 10_000
AT_ONCE = 500


async def _never(_: Any) -> Never:
    raise AssertionError("a recorded step ran again")


class Replayed:
    """The tool, and what it measured."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.began = self.took = 0.0
        self.done = asyncio.Event()

    def tool(self) -> keephold.Tool:
        @keephold.tool(actions=("spawn", "abort"), on_crash="replay")
        async def work(call: keephold.Call) -> str:
            effects = call.durable()
            self.began = perf_counter()
            if call.attempt == 1:
                for first in range(0, self._steps, AT_ONCE):
                    numbers = range(first, min(first + AT_ONCE, self._steps))
                    await asyncio.gather(*(effects.run_json(f"s{n}", {"number": n}, trivial) for n in numbers))
            else:
                for number in range(self._steps):
                    await effects.run_json(f"s{number}", {"number": number}, _never)
            self.took = perf_counter() - self.began
            self.done.set()
            await asyncio.get_running_loop().create_future()
            return "never"

        return work


async def record(path: str, steps: int) -> None:
    """The child: record them, and be gone."""
    replayed = Replayed(steps)
    async with keephold.Runtime([replayed.tool()], store=f"sqlite:///{path}") as rt, rt.turn("bench") as turn:
        await turn.run([keephold.ToolCall("1", "work", {"action": "spawn", "id": "w"})])
        await replayed.done.wait()
        os.kill(os.getpid(), signal.SIGKILL)


async def _replay(path: Path, steps: int) -> tuple[float, float]:
    """Seconds for each step, and until the first one."""
    replayed = Replayed(steps)
    opened = perf_counter()
    async with keephold.Runtime([replayed.tool()], store=f"sqlite:///{path}"):
        await replayed.done.wait()
    return replayed.took / steps, replayed.began - opened


def run(plan: Plan) -> list[Row]:
    steps = STEPS if plan.seconds >= 1 else STEPS // 10
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ours.db"
        command = [sys.executable, "-m", "bench.durable_replay", str(path), str(steps)]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        rounds = [asyncio.run(_replay(path, steps)) for _ in range(plan.rounds + 1)][1:]
    loading = statistics.median(loading for _, loading in rounds)
    what = f"a step of {steps:,} when replaying; beside it: claim the call and load its journal"
    return [figure(what, BAR, [step for step, _ in rounds], against=f"load {seconds(loading)}")]


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1], int(sys.argv[2])))
