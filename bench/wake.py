"""From the moment a handle is told to stop to the moment a coroutine that awaits it runs.

Measured twice, each time the median of thousands of single wake-ups.

*A runtime says stop*: a tool's runtime calls `sink.stop` and `sink.released`; a coroutine in `await rt.wait(all=[id])`
runs when that has returned A3's dict. Against a bare future: `set_result`, and the coroutine that awaits it runs.

*A function returns*: the same coroutine, from the last line of an async function tool. Against a task: from the last
line of its function to the coroutine that awaits the task.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from time import perf_counter, perf_counter_ns
from typing import Any

import holdfast
from bench.rounds import Bar, Plan, Row, measure
from holdfast.handles.state import Error, Ok
from holdfast.tools.base import Invocation, Sink

BAR = Bar(5)
BATCH = 1000


class Held:
    """A tool runtime whose calls do nothing until they are told to stop."""

    def __init__(self) -> None:
        self.calls: dict[str, HeldCall] = {}

    def start(self, invocation: Invocation, sink: Sink) -> "HeldCall":
        call = self.calls[invocation.call_id] = HeldCall(sink)
        return call


class HeldCall:
    """One of them."""

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: Any) -> None:
        raise NotImplementedError

    def end(self, grace: float) -> None:
        self._stop(Error("ended", "cancelled"))

    def stop(self) -> None:
        self._stop(Ok("done"))

    def _stop(self, outcome: Ok | Error) -> None:
        self._sink.stop(outcome)
        self._sink.released()


class Stopwatch:
    """Times from `start`, in whatever stops, to the return of whatever waits for it."""

    def __init__(self) -> None:
        self._began = 0
        self._times: list[int] = []

    def start(self) -> None:
        self._began = perf_counter_ns()

    async def time(self, waiting: Awaitable[object], stop: Callable[[], object]) -> None:
        """One wake-up. `stop` starts the watch, or makes something start it that then stops."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_task(self._wait(waiting))
        await asyncio.sleep(0)  # now it waits
        loop.call_soon(stop)
        await waiter

    async def _wait(self, waiting: Awaitable[object]) -> None:
        await waiting
        self._times.append(perf_counter_ns() - self._began)

    def median(self) -> float:
        return statistics.median(self._times) / 1e9


# A runtime says stop


async def bare_future(length: float) -> float:
    """Wake-ups by a bare future."""
    loop, watch, until = asyncio.get_running_loop(), Stopwatch(), perf_counter() + length
    while perf_counter() < until:
        future: asyncio.Future[str] = loop.create_future()

        def stop(future: "asyncio.Future[str]" = future) -> None:
            watch.start()
            future.set_result("done")

        await watch.time(future, stop)
    return watch.median()


def held_tool(held: Held) -> holdfast.Tool:
    return holdfast.Tool(name="held", runtime=held, actions=("spawn", "abort"))


async def handles(rt: holdfast.Runtime, held: Held, conversation: str, length: float) -> float:
    """Wake-ups by handles of a runtime that has the tool `held`."""
    watch, until = Stopwatch(), perf_counter() + length
    async with rt.turn(conversation) as turn:
        while perf_counter() < until:
            await _spawn(turn, "held")
            for id, call in held.calls.items():

                def stop(call: HeldCall = call) -> None:
                    watch.start()
                    call.stop()

                await watch.time(rt.wait(all=[id], conversation=conversation), stop)
            held.calls.clear()
    return watch.median()


async def _ours_by_runtime(length: float) -> float:
    held = Held()
    async with holdfast.Runtime([held_tool(held)]) as rt:
        return await handles(rt, held, "bench", length)


async def _spawn(turn: holdfast.Turn, tool: str) -> None:
    ids = [f"h{number}" for number in range(BATCH)]
    responses = await turn.run([holdfast.ToolCall(id, tool, {"action": "spawn", "id": id}) for id in ids])
    assert not any(response.is_error for response in responses), responses[0].result


# A function returns


async def _bare_task(length: float) -> float:
    loop, watch, until = asyncio.get_running_loop(), Stopwatch(), perf_counter() + length

    async def work(gate: "asyncio.Future[None]") -> str:
        await gate
        watch.start()
        return "done"

    while perf_counter() < until:
        gate: asyncio.Future[None] = loop.create_future()
        await watch.time(loop.create_task(work(gate)), lambda gate=gate: gate.set_result(None))  # type: ignore[misc]
    return watch.median()


async def _ours_by_function(length: float) -> float:
    loop, watch, until = asyncio.get_running_loop(), Stopwatch(), perf_counter() + length
    gates: dict[str, asyncio.Future[None]] = {}

    @holdfast.tool(actions=("spawn", "abort"))
    async def work(call: holdfast.Call) -> str:
        gates[call.id] = gate = loop.create_future()
        await gate
        watch.start()
        return "done"

    async with holdfast.Runtime([work]) as rt, rt.turn("bench") as turn:
        while perf_counter() < until:
            await _spawn(turn, "work")
            await asyncio.sleep(0)  # the functions have run to their gates
            for id, gate in gates.items():
                await watch.time(rt.wait(all=[id], conversation="bench"), lambda gate=gate: gate.set_result(None))  # type: ignore[misc]
            gates.clear()
    return watch.median()


def run(plan: Plan) -> list[Row]:
    """Both figures."""
    what = "handle stops → awaiting coroutine runs, p50"
    return [
        measure(
            f"{what}: a runtime says stop, against a bare future",
            plan,
            BAR,
            lambda length: asyncio.run(bare_future(length)),
            lambda length: asyncio.run(_ours_by_runtime(length)),
        ),
        measure(
            f"{what}: a function returns, against a task",
            plan,
            BAR,
            lambda length: asyncio.run(_bare_task(length)),
            lambda length: asyncio.run(_ours_by_function(length)),
        ),
    ]
