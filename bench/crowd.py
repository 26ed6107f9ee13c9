"""A wake-up (see `wake`: a runtime says stop) while 100,000 other handles live, against the same with none.

Each side has a process of its own, or the crowd would weigh on the memory and the garbage collector of both. The
others are async functions, spawned through turns of twenty conversations and kept.
"""

import asyncio
import subprocess
import sys

import keephold
from bench.rounds import Bar, Plan, Row, measure
from bench.wake import Held, handles, held_tool

OTHERS = 100_000
CONVERSATIONS = 20  # each with no more than the 10,000 live handles it may have
BATCH = 1000


@keephold.tool(actions=("spawn", "abort"), on_turn_end="keep")
async def idle() -> str:
    """Waits forever."""
    await asyncio.get_running_loop().create_future()
    return "done"


async def spawn_idle(rt: keephold.Runtime, count: int, start: int = 0) -> None:
    """Spawn `count` live handles, numbered from `start`, in batches of a thousand, spread over conversations."""
    for first in range(start, start + count, BATCH):
        async with rt.turn(f"crowd-{first // BATCH % CONVERSATIONS}") as turn:
            ids = [f"h{number}" for number in range(first, first + BATCH)]
            responses = await turn.run([keephold.ToolCall(id, "idle", {"action": "spawn", "id": id}) for id in ids])
            assert not any(response.is_error for response in responses), responses[0].result
    await asyncio.sleep(0)  # now they wait


async def side(others: int) -> None:
    """One side's process: a line with a length in, a line with the median of that round out."""
    held = Held()
    rt = keephold.Runtime([idle, held_tool(held)])
    await spawn_idle(rt, others)
    assert len(rt.live()) == others
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        print(await handles(rt, held, f"round-{number}", float(line)), flush=True)
    await rt.close()


class Side:
    """The other end of its pipes."""

    def __init__(self, others: int) -> None:
        command = [sys.executable, "-m", "bench.crowd", str(others)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def __call__(self, length: float) -> float:
        assert self._process.stdin is not None
        print(length, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with the handles ended with {self._process.wait()}")
        return line

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
        assert self._process.returncode == 0


def run(plan: Plan) -> list[Row]:
    """With and without the others."""
    none, crowd = Side(0), Side(OTHERS)
    try:
        what = f"the same with {OTHERS:,} other live handles, against with none"
        return [measure(what, plan, Bar(1.5), none, crowd)]
    finally:
        none.close()
        crowd.close()


if __name__ == "__main__":
    asyncio.run(side(int(sys.argv[1])))
