"""Virtual time: an hour of waiting takes no time, and a wait that can never end is an error.

    from keephold.testing import VirtualClock

    async def nap() -> float:
        await asyncio.sleep(3600)
        return clock.now()

    clock = VirtualClock()
    assert clock.run(nap()) == 1_767_225_600 + 3600      # at once

`VirtualClock.run` runs a coroutine on a fresh asyncio loop. Whenever the loop would sleep until its next timer, time
jumps there instead, so `asyncio.sleep`, `asyncio.timeout` and `loop.call_later` are virtual without knowing it. Time
passes only while everything waits; the same code makes the same steps at the same times in every run.

Time does not jump past work that is done outside the loop. While file descriptors are registered with the loop (a child
process, a socket), it waits for real, and timers take as long as they say. Threads are invisible to the loop: hold the
clock with `clock.real()` while they work. Worker processes of ours compute for the loop: it waits for them, and time
stands still as it does while the loop computes.

When nothing is ready, nothing is timed and nothing real is under way, nothing will ever happen again: `run` raises
`VirtualDeadlock`, which names the waiting tasks and where they wait, instead of hanging.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from keephold import worker

T = TypeVar("T")
_RESOLUTION = time.get_clock_info("monotonic").resolution


class VirtualDeadlock(Exception):
    """Every task waits for something that cannot happen. The message says which tasks, and where."""


class VirtualClock:
    """A clock for tests: implements `keephold.handles.clock.Clock`, and runs coroutines in its time.

    One clock may `run` several coroutines, one after the other; time continues from one to the next. That is how a test
    lets a program die, and checks what the next one finds.
    """

    def __init__(self, start: float = 1_767_225_600.0) -> None:
        self._start = start
        self._passed = 0.0
        self._holds = 0

    def now(self) -> float:
        """The virtual time of day, in seconds since the epoch. Begins at `start` (2026-01-01 00:00 UTC)."""
        return self._start + self._passed

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on a fresh loop in virtual time and return its result, like `asyncio.run`.

        Tasks that are left at the end are cancelled and waited for. Raises `VirtualDeadlock` if all of them hang.
        """
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            return runner.run(coroutine)

    async def advance(self, seconds: float) -> None:
        """Let that much time pass, with everything that is due in it."""
        await asyncio.sleep(seconds)

    @contextmanager
    def real(self) -> Iterator[None]:
        """Inside the block, waiting takes real time: use it around work that is done in threads.

            with clock.real():
                await asyncio.to_thread(compress, path)

        asyncio's own child processes need it too on Python 3.11, where a thread waits for them. Enter and leave it on
        the loop's thread. Blocks may nest and overlap; time jumps again when the last one is left.
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def _pass(self, seconds: float) -> None:
        self._passed += seconds
        # The loop runs a timer when its time is less than now plus a resolution. After some months the steps of a float
        # are wider than that resolution: a timer due exactly now would never be due. One step further it is.
        if self._passed + _RESOLUTION == self._passed:
            self._passed = math.nextafter(self._passed, math.inf)


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with the clock's time and a selector that passes it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        selector = _Selector(clock, lambda: VirtualDeadlock(_explain(self)))
        super().__init__(selector)
        # So far only the loop's own self-pipe is registered; it is there always and means no work under way.
        selector.idle_size = len(selector.get_map())

    def time(self) -> float:
        return self._clock._passed

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        with self._clock.real():  # it joins threads
            await super().shutdown_default_executor(*timeout)


class _Selector(selectors.DefaultSelector):
    """The platform's selector, except that waiting with nothing to wait for passes virtual time at once."""

    def __init__(self, clock: VirtualClock, deadlock: Callable[[], VirtualDeadlock]) -> None:
        super().__init__()
        self.idle_size = 0
        self._clock = clock
        self._deadlock = deadlock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        workers = [worker.owing[number] for number in self.get_map() if number in worker.owing]
        if any(workers):
            return super().select()
        if self._clock._holds or len(self.get_map()) > self.idle_size + len(workers):
            return self._wait(timeout)
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise self._deadlock()
        self._clock._pass(timeout)
        return []

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for real; virtual time passes as much, but never beyond the next timer."""
        began = time.monotonic()
        ready = super().select(timeout)
        passed = time.monotonic() - began
        if timeout is not None:
            passed = min(passed, timeout) if ready else timeout
        self._clock._pass(passed)
        return ready


def where(task: asyncio.Task[Any]) -> str:
    """Describe a task: its name, and the lines it waits in, outermost first."""
    lines = [f"  task {task.get_name()}"]
    step: Any = task.get_coro()
    while (kind := next((kind for kind in ("cr", "gi") if hasattr(step, f"{kind}_frame")), None)) is not None:
        if frame := getattr(step, f"{kind}_frame"):
            lines.append(f"    {frame.f_code.co_qualname} at {frame.f_code.co_filename}:{frame.f_lineno}")
        step = step.cr_await if kind == "cr" else step.gi_yieldfrom
    return "\n".join(lines)


def _explain(loop: asyncio.AbstractEventLoop) -> str:
    # all_tasks is a set; names count upwards, so the shorter of two names is the older task's.
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: (len(task.get_name()), task.get_name()))
    return "\n".join(
        [
            "nothing is ready, no timer is set and nothing real is under way, so these tasks would wait forever "
            "(if a thread is at work, hold the clock: `with clock.real():`):",
            *map(where, tasks),
        ]
    )
