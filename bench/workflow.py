"""A workflow of 1,000 trivial steps, inside a running call on SQLite: `transform` with `data + 1`, one after another.

Timed from `run_workflow` to its result, the check of the workflow before that excepted; for each step. Against as many
raw journaled steps of ours: `fx.run_json` with an async function that returns what it was given, in a call like that.
Beside it what the check takes, expressions compiled, and what the worker process of the expressions adds: the same
workflow against one whose expressions are evaluated in this process.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from bench.inside import inside, step_on
from bench.rounds import Bar, Plan, Row, added, measure, seconds
from keephold.durable.effects import Effects
from keephold.tools import cel
from keephold.tools.workflow import read_workflow, run_workflow
from keephold.tools.workflow.expressions import Expressions

STEPS = 1000


class Nowhere:
    """Surroundings for steps that need none."""

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any: ...

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any: ...

    async def wait(self, ids: Sequence[str], mode: str) -> Any: ...

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...


class InProcess:
    """The worker's program without the worker."""

    async def request(self, body: Any) -> Any:
        return cel.answer(msgspec.to_builtins(body))

    def close(self) -> None: ...


def definition(steps: int) -> dict[str, Any]:
    added = {"type": "transform", "config": {"expression": "data + 1"}}
    return {"workflowId": "w", "name": "W", "input": 0, "steps": [{"id": f"s{n}", **added} for n in range(steps)]}


async def workflow(path: Path, steps: int, _: float, *, worker: bool = True) -> float:
    """Seconds for a step of a workflow."""
    expressions = Expressions() if worker else Expressions(InProcess())
    given, took = await read_workflow(definition(steps), expressions), 0.0

    async def work(effects: Effects) -> None:
        nonlocal took
        began = perf_counter()
        result = await run_workflow(given, effects, Nowhere(), expressions=expressions, now=time.time)
        took = perf_counter() - began
        assert result["finalOutput"] == steps

    async with inside(path) as call:
        await call.run(work)
    expressions.close()
    return took / steps


async def journaled(path: Path, steps: int, _: float) -> float:
    """Seconds for a step of the journal."""
    took = 0.0

    async def work(effects: Effects) -> None:
        nonlocal took
        began = perf_counter()
        await step_on(effects, steps)
        took = perf_counter() - began

    async with inside(path) as call:
        await call.run(work)
    return took / steps


async def check(steps: int) -> float:
    """Seconds to check a step, with a worker that runs."""
    expressions = Expressions()
    await read_workflow(definition(1), expressions)
    began = perf_counter()
    await read_workflow(definition(steps), expressions)
    took = perf_counter() - began
    expressions.close()
    return took / steps


def speed(step: float) -> str:
    return f"{1 / step:,.0f}/s"


def run(plan: Plan) -> list[Row]:
    steps = STEPS if plan.seconds >= 1 else STEPS // 10
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        row = measure(
            f"{steps:,} trivial steps of a workflow, against as many raw journaled steps",
            plan,
            Bar(0.5, "speed"),
            partial(journaled, directory / "raw.db", steps),
            partial(workflow, directory / "ours.db", steps),
            show=speed,
        )
        worker = added(
            "… with expressions in the worker, against in this process",
            plan,
            200e-6,
            partial(workflow, directory / "inline.db", steps, worker=False),
            partial(workflow, directory / "worker.db", steps),
        )
    checks = sorted(asyncio.run(check(steps)) for _ in range(plan.rounds))
    shown = f"{seconds(checks[len(checks) // 2])} ({seconds(checks[0])}–{seconds(checks[-1])})"
    check_row = Row("… the check of such a step before anything runs", "", seconds(checks[len(checks) // 2]), shown)
    return [row, worker, check_row]
