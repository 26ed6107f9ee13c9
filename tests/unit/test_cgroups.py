"""Control groups hold the processes that no mark shows any more, because they overwrote it (C7, R2)."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import until

from keephold.platforms import cgroups, machine
from keephold.tools import marks
from keephold.tools.guard import Guard
from keephold.tools.marks import reap
from keephold.tools.process import Exit, Process

own, why = cgroups.place()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(own is None, reason=f"no control groups here: {why}")]

HIDE = """
import ctypes, os, sys, time
sys.stdin.readline()
if os.fork():
    os.wait() if "stay" in sys.argv else None
    os._exit(0)
os.setsid()
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)            # as programs do that set their title
os.write(1, b"%d" % os.getpid())
os.close(1)
time.sleep(300)
"""
"""A program that, at a line of input, leaves a process with neither its mark nor its process group."""

RUNTIME = """
import asyncio, os, sys
from keephold.tools import marks
from keephold.tools.guard import Guard
from tests.unit.test_cgroups import started

async def main():
    guard = Guard()
    guard.ensure()
    print(guard.mark, flush=True)
    _, pid, _ = await started(guard, "stay")
    print(pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def members(guard: Guard, uid: str = "u") -> list[int]:
    try:
        return [int(pid) for pid in Path(f"{own}/keephold-{guard.mark}/{uid}/cgroup.procs").read_text().split()]
    except OSError:
        return []


def runs(pid: int) -> bool:
    return machine.group_of(pid) != 0


async def started(guard: Guard, *words: str) -> tuple[Process, int, "asyncio.Future[Exit]"]:
    """A command whose leader leaves a hidden process, and the pid of that."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Exit] = loop.create_future()
    printed: asyncio.Future[int] = loop.create_future()
    process = Process(
        [sys.executable, "-c", HIDE, *words],
        env={**os.environ, **guard.environ("u")},
        cwd=None,
        stdin=True,
        merge_stderr=True,
        mark=marks.call_mark(guard.mark, "u"),
        on_output=lambda data: printed.set_result(int(data)),
        on_stderr=None,
        on_exit=ended.set_result,
        grace=0.1,
    )
    await until(lambda: process.pid in members(guard))
    process.write(b"go\n")
    return process, await printed, ended


async def test_F3_a_process_that_hides_ends_with_its_leader() -> None:
    guard = Guard()
    guard.ensure()
    _, pid, ended = await started(guard)
    await ended
    await until(lambda: not runs(pid))  # it has left its group a moment before it is over
    groups = Path(f"{own}/keephold-{guard.mark}")
    await until(lambda: not (groups / "u").exists())
    guard.close()
    await until(lambda: not groups.exists())


async def test_C7_a_process_that_hides_ends_by_an_abort() -> None:
    guard = Guard()
    process, pid, ended = await started(guard, "stay")
    assert members(guard) == [process.pid, pid] and marks.find(guard.mark) == [process.pid]
    process.end(0.1)
    await ended
    await until(lambda: not runs(pid))  # it has left its group a moment before it is over
    await until(lambda: not Path(f"{own}/keephold-{guard.mark}/u").exists())


def killed_runtime() -> tuple[str, int]:
    """The mark of a runtime that was killed, and the pid of a process that hid in it; the guard may be at work."""
    with subprocess.Popen([sys.executable, "-c", RUNTIME], stdout=subprocess.PIPE, text=True) as runtime:
        assert runtime.stdout is not None
        mark, pid = runtime.stdout.readline().strip(), int(runtime.stdout.readline())
        runtime.kill()
    return mark, pid


async def test_R2_the_guard_ends_processes_that_hide() -> None:
    mark, pid = killed_runtime()
    await until(lambda: not runs(pid))
    await until(lambda: not Path(f"{own}/keephold-{mark}").exists())


async def test_R2_the_next_start_ends_processes_that_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RUNTIME", RUNTIME.replace("guard.ensure()", ""))  # the guard has died, too
    mark, pid = killed_runtime()
    await asyncio.to_thread(reap)
    await until(lambda: not runs(pid))
    assert not Path(f"{own}/keephold-{mark}").exists()
