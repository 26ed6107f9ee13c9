"""DBOS (PyPI `dbos`) on SQLite beside ours, in turns, each with its defaults: a step is on the disk before it counts.

DBOS has a process of its own, and async workflows and steps, as ours are. It keeps SQLite's rollback journal, with the
same `synchronous=FULL`, and looks for messages once a second. No bars: these rows are there to be known.

- *Steps one after another*: p50 of a step in one workflow, and in one call of ours.
- *Steps of 64 at once*: 64 workflows of 5 steps each, and 64 calls of ours with as many.
- *Wake*: `DBOS.send_async` until the workflow in `DBOS.recv_async` runs; eight wait at once and are sent to one after
  another, at random moments. Ours: `rt.resolve` until the tool in `fx.await_event_json` runs.
"""

import asyncio
import logging
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import durable_steps, durable_wake
from bench.raw import percentile
from bench.rounds import Bar, Plan, Round, Row, measure

CALLS, STEPS = 64, 5
WAITING = 8


class Peer:
    """The other end of the pipes of DBOS's process."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "bench.dbos_peer", str(path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def ask(self, what: str, length: float) -> float:
        """A figure, measured for about so long: `steps`, `crowd` or `wake`."""
        assert self._process.stdin is not None
        print(what, length, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"DBOS ended with {self._process.wait()}; see `python -m bench.dbos_peer dbos.sqlite`")
        return line

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:  # it is measured already
                self._process.kill()


def run(plan: Plan) -> list[Row]:
    name = f"DBOS {version('dbos')}"
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        peer = Peer(place / "dbos.sqlite")
        try:
            steps = _beside(
                f"journaled step, p50, against {name}: times as fast",
                plan,
                partial(peer.ask, "steps"),
                partial(durable_steps.p50, place / "steps.db"),
            )
            crowd = _beside(
                f"journaled steps of {CALLS} × {STEPS}, against {name}: times as fast",
                plan,
                partial(peer.ask, "crowd"),
                partial(durable_steps.crowd, place / "crowd.db", CALLS, STEPS),
                show=durable_steps.speed,
            )
            wake = _beside(
                f"resolve → waiting tool runs, p50, against send → recv of {name}: times as fast",
                plan,
                partial(peer.ask, "wake"),
                partial(durable_wake.p50, place / "wake.db"),
            )
        finally:
            peer.close()
    return [steps, crowd, wake]


def _beside(what: str, plan: Plan, theirs: Round, ours: Round, show: Callable[[float], str] | None = None) -> Row:
    """A ratio of speeds, without a bar."""
    return replace(measure(what, plan, Bar(0, "speed"), theirs, ours, show=show), bar="", met=None)


# DBOS's process


async def serve(path: str) -> None:
    """A line with what and how long in, a line with the figure out."""
    from dbos import DBOS

    times: list[float] = []
    began: dict[str, float] = {}

    @DBOS.step()
    async def trivial(given: Any) -> Any:
        return given

    @DBOS.workflow()
    async def for_seconds(length: float) -> None:
        until, numbers = perf_counter() + length, count()
        while (start := perf_counter()) < until:
            await trivial(next(numbers))
            times.append(perf_counter() - start)

    @DBOS.workflow()
    async def so_many(steps: int) -> None:
        for number in range(steps):
            await trivial(number)

    @DBOS.workflow()
    async def waits() -> None:
        await DBOS.recv_async("approval", timeout_seconds=60)
        assert DBOS.workflow_id is not None
        times.append(perf_counter() - began[DBOS.workflow_id])

    async def steps(length: float) -> float:
        times.clear()
        await for_seconds(length)
        return percentile(times, 0.5)

    async def crowd(_: float) -> float:
        start = perf_counter()
        handles = [await DBOS.start_workflow_async(so_many, STEPS) for _ in range(CALLS)]
        for handle in handles:
            await handle.get_result(polling_interval_sec=0.01)
        return (perf_counter() - start) / (CALLS * STEPS)

    async def wake(_: float) -> float:
        times.clear()
        handles = [await DBOS.start_workflow_async(waits) for _ in range(WAITING)]
        await asyncio.sleep(1)  # now they wait
        for handle in handles:
            await asyncio.sleep(random.uniform(0, 0.25))
            began[handle.workflow_id] = perf_counter()
            await DBOS.send_async(handle.workflow_id, 1, "approval")
        for handle in handles:
            await handle.get_result()
        return percentile(times, 0.5)

    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{path}",
            "application_version": "1",
            "log_level": "CRITICAL",
        }
    )
    logging.disable()
    DBOS.launch()
    measured = {"steps": steps, "crowd": crowd, "wake": wake}
    print("ready", flush=True)
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        what, length = line.split()
        print(await measured[what](float(length)), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
