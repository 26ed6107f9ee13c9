"""From the moment a handle is asked to stop to the moment a coroutine that awaits it runs.

Each figure is the median of thousands of single wake-ups.

- *A runtime says stop*: a tool's runtime calls `sink.stop` and `sink.released`; a coroutine that is in
  `await call.handles.wait(all=[id])` runs. Against a bare future: `set_result`, and the coroutine that awaits it runs.
- *A function returns*: the same coroutine, from the last line of an async function tool. Against a task: from the last
  line of its function to the coroutine that awaits the task.
- *A line matches*: a tool's runtime calls `sink.output`; a coroutine that is in
  `await call.handles.wait(output={id: pattern})` runs. Against the first: the same coroutine in `wait(all=[id])`.
- *Through `rt.wait`*: as the first, but the coroutine is in `await rt.wait(all=[id], conversation=…)`, which also makes
  the dict that it returns. No bar: that is work after the wake-up.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Any

import keephold
from bench.rounds import Bar, Plan, Row, measure
from keephold.handles.state import Failure, Ok
from keephold.handles.view import Handles
from keephold.tools.base import Invocation, Sink

BAR = Bar(4.5)
BATCH = 1000


class Held:
    """A tool runtime whose calls do nothing until they are asked to stop."""

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
        self._stop(Failure("ended", "cancelled"))

    def stop(self) -> None:
        self._stop(Ok("done"))

    def print(self) -> None:
        self._sink.output(b"starting\nlistening on port 80\n")

    def _stop(self, outcome: Ok | Failure) -> None:
        self._sink.stop(outcome)
        self._sink.released()


class Stopwatch:
    """Times from `start`, in the code that stops, to the return of the code that waits for it."""

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


def held_tool(held: Held) -> keephold.Tool:
    return keephold.Tool(name="held", runtime=held, actions=("spawn", "abort"))


async def handles(
    rt: keephold.Runtime, held: Held, conversation: str, length: float, *, by_runtime: bool = False
) -> float:
    """Wake-ups by handles of a runtime that has the tool `held`; `by_runtime` waits through `rt.wait`."""
    watch, until = Stopwatch(), perf_counter() + length
    seen = Handles(rt.registry, conversation)  # what `call.handles` is
    wait = partial(rt.wait, conversation=conversation) if by_runtime else seen.wait
    async with rt.turn(conversation) as turn:
        while perf_counter() < until:
            await _spawn(turn, "held")
            for id, call in held.calls.items():

                def stop(call: HeldCall = call) -> None:
                    watch.start()
                    call.stop()

                await watch.time(wait(all=[id]), stop)
            held.calls.clear()
    return watch.median()


async def _ours(length: float, *, by_runtime: bool = False) -> float:
    held = Held()
    async with keephold.Runtime([held_tool(held)]) as rt:
        return await handles(rt, held, "bench", length, by_runtime=by_runtime)


async def _ours_by_output(length: float) -> float:
    held, watch, until = Held(), Stopwatch(), perf_counter() + length
    async with keephold.Runtime([held_tool(held)]) as rt, rt.turn("bench") as turn:
        seen = Handles(rt.registry, "bench")
        while perf_counter() < until:
            await _spawn(turn, "held")
            for id, call in held.calls.items():

                def print(call: HeldCall = call) -> None:
                    watch.start()
                    call.print()

                await watch.time(seen.wait(output={id: r"listening on port \d+"}), print)
            for call in held.calls.values():
                call.stop()
            held.calls.clear()
    return watch.median()


async def _spawn(turn: keephold.Turn, tool: str) -> None:
    ids = [f"h{number}" for number in range(BATCH)]
    responses = await turn.run([keephold.ToolCall(id, tool, {"action": "spawn", "id": id}) for id in ids])
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
        await watch.time(loop.create_task(work(gate)), partial(gate.set_result, None))
    return watch.median()


async def _ours_by_function(length: float) -> float:
    loop, watch, until = asyncio.get_running_loop(), Stopwatch(), perf_counter() + length
    gates: dict[str, asyncio.Future[None]] = {}

    @keephold.tool(actions=("spawn", "abort"))
    async def work(call: keephold.Call) -> str:
        gates[call.id] = gate = loop.create_future()
        await gate
        watch.start()
        return "done"

    async with keephold.Runtime([work]) as rt, rt.turn("bench") as turn:
        seen = Handles(rt.registry, "bench")
        while perf_counter() < until:
            await _spawn(turn, "work")
            await asyncio.sleep(0)  # the functions have run to their gates
            for id, gate in gates.items():
                await watch.time(seen.wait(all=[id]), partial(gate.set_result, None))
            gates.clear()
    return watch.median()


def run(plan: Plan) -> list[Row]:
    """All four figures."""
    what = "handle stops → awaiting coroutine runs, p50"
    return [
        measure(f"{what}: a runtime says stop, against a bare future", plan, BAR, bare_future, _ours),
        measure(f"{what}: a function returns, against a task", plan, BAR, _bare_task, _ours_by_function),
        measure(
            "line is printed → coroutine that awaits a match runs, p50, against a stop",
            plan,
            Bar(2),
            _ours,
            _ours_by_output,
        ),
        measure(
            f"{what}: through `rt.wait`, against a bare future",
            plan,
            None,
            bare_future,
            partial(_ours, by_runtime=True),
        ),
    ]
