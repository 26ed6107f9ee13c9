"""Virtual time: it jumps when everything waits, keeps still while something real is under way, and tells of a hang."""

import asyncio
import os
import subprocess
import threading
import time

import pytest

from keephold.handles.clock import Clock, SystemClock
from keephold.testing import VirtualClock, VirtualDeadlock

START = 1_767_225_600.0


def test_system_clock_tells_the_time_of_day() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    assert before <= clock.now() <= time.time()


def test_virtual_clock_is_a_clock_that_starts_where_told() -> None:
    clock: Clock = VirtualClock()
    assert clock.now() == START
    assert VirtualClock(5.0).now() == 5.0


def test_a_year_passes_at_once() -> None:
    clock = VirtualClock()
    assert clock.run(asyncio.sleep(365 * 86_400, "slept")) == "slept"
    assert clock.now() == START + 365 * 86_400


async def test_sleeps_timeouts_and_timers_share_one_time(clock: VirtualClock) -> None:
    loop = asyncio.get_running_loop()
    seen: list[tuple[str, float]] = []
    loop.call_later(2.5, lambda: seen.append(("timer", loop.time())))

    async def sleeper() -> None:
        await asyncio.sleep(1)
        seen.append(("sleep", loop.time()))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.gather(sleeper(), loop.create_future())
    assert seen == [("sleep", 1.0), ("timer", 2.5)]
    assert clock.now() == START + 60


async def test_advance_lets_everything_happen_that_is_due(clock: VirtualClock) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    for second in range(1, 10):
        loop.call_later(second, seen.append, second)
    await clock.advance(4.5)
    assert seen == [1, 2, 3, 4]
    await clock.advance(100)
    assert seen == list(range(1, 10))


def test_small_steps_add_up_however_long_time_has_run() -> None:
    async def steps() -> int:
        count = 0
        for _ in range(1000):
            await asyncio.sleep(0.001)
            count += 1
        return count

    clock = VirtualClock()
    clock.run(asyncio.sleep(3e9))  # from here on the float's own steps are wider than the loop's resolution
    assert clock.run(steps()) == 1000
    assert clock.now() - (START + 3e9) == pytest.approx(1.0, abs=0.01)


def test_time_goes_on_from_one_run_to_the_next() -> None:
    clock = VirtualClock()
    clock.run(clock.advance(10))
    clock.run(clock.advance(5))
    assert clock.now() == START + 15


def test_a_hang_is_an_error_that_names_tasks_and_lines() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        other = asyncio.create_task(waits_for_nothing(), name="the other one")
        await other

    with pytest.raises(VirtualDeadlock) as caught:
        VirtualClock().run(main())
    message = str(caught.value)
    assert "task the other one" in message
    assert "waits_for_nothing at " in message
    assert "Event.wait at " in message
    assert f"{__file__}:" in message
    assert "clock.real()" in message


def test_a_hang_runs_the_cleanup_of_its_tasks() -> None:
    cleaned = []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append(True)

    with pytest.raises(VirtualDeadlock):
        VirtualClock().run(hangs())
    assert cleaned == [True]


def test_left_over_tasks_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def left_over() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.create_task(left_over())
        await asyncio.sleep(0)
        assert not task.done()

    clock = VirtualClock()
    clock.run(main())
    assert ended == ["cancelled"]
    assert clock.now() == START


async def test_time_waits_for_a_real_process(clock: VirtualClock) -> None:
    """A timer of an hour must not fire before a process that takes a moment has said its word."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[bytes] = loop.create_future()
    with subprocess.Popen(["sh", "-c", "sleep 0.05; echo done"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pipe = child.stdout.fileno()
        loop.add_reader(pipe, lambda: said.set_result(os.read(pipe, 100)))
        async with asyncio.timeout(3600):
            assert await said == b"done\n"
        loop.remove_reader(pipe)
    assert 0 < clock.now() - START < 60
    await asyncio.sleep(3600)
    assert clock.now() - START >= 3600


async def test_timers_beside_real_work_take_their_real_duration(clock: VirtualClock) -> None:
    read, write = os.pipe()
    try:
        asyncio.get_running_loop().add_reader(read, lambda: None)
        began = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - began >= 0.049
        assert clock.now() == pytest.approx(START + 0.05)
        asyncio.get_running_loop().remove_reader(read)
    finally:
        os.close(read)
        os.close(write)


async def test_a_held_clock_waits_for_threads(clock: VirtualClock) -> None:
    def work() -> str:
        time.sleep(0.02)
        return "worked"

    with clock.real():
        async with asyncio.timeout(3600):
            assert await asyncio.to_thread(work) == "worked"
    assert clock.now() - START < 60


async def test_without_a_hold_a_thread_is_invisible(clock: VirtualClock) -> None:
    go = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600):
            await asyncio.to_thread(go.wait)
    assert clock.now() == START + 3600
    go.set()


def test_holds_nest() -> None:
    clock = VirtualClock()

    async def main() -> None:
        with clock.real():
            with clock.real():
                pass
            await asyncio.to_thread(time.sleep, 0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.get_running_loop().create_future()

    clock.run(main())
    assert START + 3600 <= clock.now() < START + 3660


def test_every_run_makes_the_same_steps_at_the_same_times() -> None:
    def trace() -> list[tuple[float, int]]:
        clock = VirtualClock()
        steps: list[tuple[float, int]] = []

        async def worker(number: int) -> None:
            for turn in range(20):
                await asyncio.sleep((number * 7 + turn * 3) % 5 / 10)
                steps.append((clock.now(), number))

        async def main() -> None:
            await asyncio.gather(*(worker(number) for number in range(20)))

        clock.run(main())
        return steps

    first = trace()
    assert len(first) == 400
    assert trace() == first
