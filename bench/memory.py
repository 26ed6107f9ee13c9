"""The memory of one live async function handle: the growth of the resident set by 100,000 of them, divided.

In a fresh process, garbage collected before and after. The function waits on a future of its own, so a bare asyncio
task of the same function takes something too; that is the other figure. Not a ratio: the bar is in bytes.
"""

import asyncio
import gc
import statistics
import subprocess
import sys

import psutil

import keephold
from bench.crowd import OTHERS, idle, spawn_idle
from bench.rounds import Plan, Row

BAR = 3 * 1024


def _resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


async def _ours() -> int:
    rt = keephold.Runtime([idle])
    await spawn_idle(rt, 1000)  # what is loaded and compiled once is not a handle's
    before = _resident()
    await spawn_idle(rt, OTHERS, start=1000)
    grown = _resident() - before
    await rt.close()
    return grown


async def _bare() -> int:
    await asyncio.sleep(0)
    before = _resident()
    tasks = [asyncio.create_task(idle()) for _ in range(OTHERS)]
    await asyncio.sleep(0)
    grown = _resident() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return grown


def _each(side: str) -> float:
    """Bytes for each, measured in a process of its own."""
    command = [sys.executable, "-m", "bench.memory", side]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(run.stdout) / OTHERS


def run(plan: Plan) -> list[Row]:
    """A few processes of each are enough: memory does not depend on who else works on the machine."""
    rounds = plan.rounds // 2
    bare = statistics.median(_each("bare") for _ in range(rounds))
    ours = [_each("ours") for _ in range(rounds)]
    each = statistics.median(ours)
    return [
        Row(
            what=f"memory for each live function handle, at {OTHERS:,}; a bare task of the same function beside it",
            bare=_kib(bare),
            ours=_kib(each),
            result=f"{_kib(each)} ({_kib(min(ours))}–{_kib(max(ours))})",
            bar=f"≤ {_kib(BAR)}",
            met=each <= BAR,
        )
    ]


def _kib(size: float) -> str:
    return f"{size / 1024:.2f} KiB"


if __name__ == "__main__":
    print(asyncio.run(_ours() if sys.argv[1] == "ours" else _bare()))
