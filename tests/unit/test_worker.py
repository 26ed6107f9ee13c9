"""A worker (K6): work that crashes, hangs or takes too much memory ends there, and only that request fails."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import PATIENCE

from keephold import worker as worker_module
from keephold.testing import VirtualClock
from keephold.worker import RequestTooLarge, Worker, WorkerDied, WorkerTooSlow, WorkerUnavailable

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


@asynccontextmanager
async def working(seconds: float = 0.2) -> AsyncIterator[Worker]:
    worker = Worker("tests.unit.worker_role", memory=256 * MIB, seconds=seconds)
    try:
        yield worker
    finally:
        worker.close()


async def ends(worker: Worker, *bodies: object) -> list[Any]:
    """What requests that are under way at once end with, replies or errors."""
    return await asyncio.gather(*map(worker.request, bodies), return_exceptions=True)


async def test_K6_one_process_answers_all_requests_in_order() -> None:
    async with working() as worker:
        assert worker.pid is None, "it starts with the first request"
        bodies = [None, True, 2**63, -1.5, "é", [1, {"a": []}], "x" * 2_000_000, *range(500)]
        assert await asyncio.gather(*map(worker.request, bodies)) == bodies
        pid = worker.pid
        assert await worker.request("again") == "again" and worker.pid == pid


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("spin", "it took more than 0.2 s of processor time"),
        (["allocate", 500 * MIB], "it needed more than 256 MiB of memory"),
        ("abort", "it needed more than 256 MiB of memory, or crashed its process (signal 6)"),
        ("raise", "it needed more than 256 MiB of memory, or crashed its process (exit code 1)"),
    ],
)
async def test_K6_a_request_that_kills_the_process_fails_and_no_other(body: object, why: str) -> None:
    async with working() as worker:
        first, one, large, other, last = await ends(worker, 1, body, "x" * MIB, body, 2)
        assert (first, large, last) == (1, "x" * MIB, 2)
        for died in (one, other):
            assert type(died) is (WorkerTooSlow if body == "spin" else WorkerDied) and str(died) == why


async def test_K6_a_process_that_died_while_nothing_was_asked_is_replaced_without_blame() -> None:
    async with working() as worker:
        await worker.request(1)
        for _ in range(3):
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
            assert await worker.request(2) == 2


async def test_K6_a_process_that_has_grown_makes_room_for_another() -> None:
    async with working(seconds=5) as worker:
        await worker.request(0)
        pid = worker.pid
        assert await asyncio.gather(*map(worker.request, ["keep", 1, 2])) == ["keep", 1, 2]
        assert worker.pid != pid


async def test_K6_a_stopped_process_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with working() as worker:
        await worker.request(0)
        assert worker._watchdog is not None
        worker._watchdog.cancel()  # it looks after half a minute, the next one sooner
        worker._watchdog = None
        with monkeypatch.context() as impatient:
            impatient.setattr(worker_module, "_STUCK_SECS", 0.5)
            requests = [asyncio.ensure_future(worker.request(body)) for body in ("stop", 1)]
            with pytest.raises(WorkerTooSlow):
                await requests[0]
        assert await requests[1] == 1  # of another process, which may take its time


@pytest.mark.parametrize("content", ["", "c1", "a1ff", "91" * 100_000])
async def test_K6_a_reply_that_is_not_msgpack_is_a_death(content: str) -> None:
    async with working() as worker:
        async with asyncio.timeout(PATIENCE):
            bad, after = await ends(worker, ["reply", content], 1)
        assert type(bad) is WorkerDied and after == 1


async def test_K6_it_has_no_environment_no_descriptors_and_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    with open(__file__) as held:  # noqa: PTH123
        os.set_inheritable(held.fileno(), True)
        async with working() as worker:
            seen = await worker.request("limits")
            assert set(seen["environment"]) <= {"PYTHONPATH", "LD_LIBRARY_PATH", "PYTHONHOME", "LC_CTYPE"}
            assert seen["descriptors"] <= 6  # three standard ones, the socket, its parent's pidfd, its own size
            with pytest.raises(WorkerDied, match=f"signal {int(signal.SIGXFSZ)}|exit code 1"):
                await worker.request("write")
            assert Path("/tmp/keephold-worker-writes").stat().st_size == 0
            Path("/tmp/keephold-worker-writes").unlink()


async def test_K6_a_request_that_is_too_large_is_not_sent() -> None:
    worker = Worker("tests.unit.worker_role", memory=256 * MIB, seconds=1, most=100)
    with pytest.raises(RequestTooLarge, match="202 bytes, more than 100"):
        await worker.request("x" * 200)
    assert worker.pid is None
    worker.close()


async def test_a_role_that_cannot_be_loaded_is_named() -> None:
    worker = Worker("tests.unit.no_such_role", memory=256 * MIB, seconds=1)
    with pytest.raises(WorkerUnavailable, match=r"did not start: ModuleNotFoundError: No module named"):
        await worker.request(1)
    worker.close()
    with pytest.raises(WorkerUnavailable, match="closed"):
        await worker.request(1)


async def test_a_process_that_cannot_be_started_fails_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with working() as worker:
        first, second = await ends(worker, 1, 2)
        assert isinstance(first, WorkerUnavailable) and isinstance(second, WorkerUnavailable)
        assert "could not be started (No such file or directory): make sure that /nowhere/python can" in str(first)


async def test_a_cancelled_request_does_not_disturb_the_next() -> None:
    async with working() as worker:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await worker.request("x" * 2_000_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await worker.request("spin")
        assert await worker.request(3) == 3


async def test_closing_fails_what_is_under_way() -> None:
    async with working() as worker:
        asked = asyncio.gather(worker.request("spin"), worker.request(2), return_exceptions=True)
        await asyncio.sleep(0)
        worker.close()
        assert [str(each) for each in await asked] == ["the worker was closed"] * 2


async def test_no_virtual_time_passes_while_it_computes_and_none_waits_for_an_idle_one(clock: VirtualClock) -> None:
    async with working() as worker:
        began = clock.now()
        sleeping = asyncio.create_task(asyncio.sleep(3600))
        assert await worker.request(1) == 1
        assert clock.now() == began
        real = time.monotonic()
        await sleeping
        assert clock.now() == began + 3600 and time.monotonic() - real < 1800


PROGRAM = """
import asyncio, os, sys, time
sys.path.insert(0, os.getcwd())
from keephold.worker import Worker

async def main():
    worker = Worker("tests.unit.worker_role", memory=256 * 1024 * 1024, seconds=60)
    await worker.request(1)
    if "forked" in sys.argv and not os.fork():
        time.sleep(600)  # holds the socket of its parent
    asyncio.ensure_future(worker.request(sys.argv[-1]))
    await asyncio.sleep(0)
    print(worker.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("forked", ["forked", "alone"])
def test_R2_it_ends_with_a_runtime_that_is_killed(forked: str) -> None:
    argv = [sys.executable, "-c", PROGRAM, forked, "x"]
    program = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    with program.stdout as printed:
        pid = int(printed.readline())
    process = psutil.Process(pid)
    others = psutil.Process(program.pid).children()
    program.kill()
    program.wait()
    process.wait(60)
    for each in others:
        if each.is_running():
            each.kill()
