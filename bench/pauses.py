"""The longest pause of the event loop while much happens at once: no callback runs in it, and no other call is served.

- *500 commands start*: one batch spawns 500 commands that run for a minute. *End*: the end of the turn aborts them.
- *10,000 handles end*: async function handles, ended by the end of their turn. The pause is that of Python's garbage
  collector, which walks through all of them.

A callback that schedules itself again measures the time between two of its runs. The store is a file. Each of the two
kinds is measured in a process of its own, which has imported no other benchmark: the collector walks through what was
imported, too. Not a ratio: the bar is a time.
"""

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Awaitable
from time import perf_counter

import keephold
from bench.gaps import figure
from bench.rounds import Plan, Row

BAR = 0.1
COMMANDS, HANDLES, BATCH = 500, 10_000, 1_000


@keephold.tool(actions=("spawn", "abort"))
async def idle() -> None:
    """Waits until it is ended."""
    await asyncio.get_running_loop().create_future()


class Pauses:
    """The longest time between two runs of a callback, until it is asked for."""

    def __init__(self) -> None:
        self._longest, self._last = 0.0, perf_counter()
        self._beat()

    def _beat(self) -> None:
        now = perf_counter()
        self._longest, self._last = max(self._longest, now - self._last), now
        self._next = asyncio.get_running_loop().call_soon(self._beat)

    async def during(self, work: Awaitable[object]) -> float:
        """Do this and return the longest pause."""
        await asyncio.sleep(0.05)
        gc.collect()
        await asyncio.sleep(0)
        self._longest = 0.0
        await work
        return self._longest

    def stop(self) -> None:
        self._next.cancel()


async def _round(tool: keephold.Tool, count: int, directory: str) -> tuple[float, float]:
    """Return the longest pauses while so many are spawned, and while the end of the turn ends them."""
    pauses = Pauses()
    async with keephold.Runtime([tool], store=f"sqlite:///{directory}/store.db") as rt:
        turn = rt.turn("bench")
        await turn.__aenter__()
        calls = [keephold.ToolCall(str(n), tool.name, {"action": "spawn", "id": f"h{n}"}) for n in range(count)]
        started = 0.0
        for first in range(0, count, BATCH):
            started = max(started, await pauses.during(turn.run(calls[first : first + BATCH])))
        ended = await pauses.during(turn.end())
        await turn.__aexit__(None, None, None)
    pauses.stop()
    return started, ended


def _rounds(rounds: int, what: str) -> list[tuple[float, float]]:
    """Return the pauses while `commands` or `handles` start and while they end, of so many rounds in a new process."""
    command = [sys.executable, "-m", "bench.pauses", what, str(rounds)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [(start, end) for start, end in json.loads(run.stdout)]


def run(plan: Plan) -> list[Row]:
    commands, handles = _rounds(plan.rounds, "commands"), _rounds(plan.rounds, "handles")
    return [
        figure(f"longest pause of the loop while {COMMANDS} commands start", BAR, [start for start, _ in commands]),
        figure(f"longest pause of the loop while {COMMANDS} commands end", BAR, [end for _, end in commands]),
        figure(f"longest pause of the loop while {HANDLES:,} handles end", BAR, [end for _, end in handles]),
    ]


def _main(what: str, rounds: int) -> None:
    sleep = keephold.command(["sleep", "60"], name="sleep", actions=("spawn", "fetch", "abort"))
    tool, count = (sleep, COMMANDS) if what == "commands" else (idle, HANDLES)
    measured = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            measured.append(asyncio.run(_round(tool, count, directory)))
    print(json.dumps(measured))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
