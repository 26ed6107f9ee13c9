"""The guard and the marks: when a runtime is gone, so is everything its tools have started (R2)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.e2e.driver import until
from tests.leaks import children
from tests.patience import PATIENCE

from keephold.platforms import machine
from keephold.platforms.portable import read
from keephold.tools import marks
from keephold.tools.environment import inherited
from keephold.tools.guard import Guard, adopt, release

pytestmark = pytest.mark.slow

STUBBORN = "trap '' TERM HUP INT; while :; do sleep 30; done"

RUNTIME = f"""
import asyncio, os, sys, time
from keephold.tools import marks
from keephold.tools.guard import Guard
from keephold.tools.process import Process

async def main():
    guard = Guard()
    guard.ensure()
    if "forked" in sys.argv and not os.fork():
        time.sleep(30)                                # a child without exec has a copy of the guard's pipe
        os._exit(0)
    script = '''
        setsid sh -c "{STUBBORN}" </dev/null >/dev/null 2>&1 &
        setsid setsid sh -c "{STUBBORN}" </dev/null >/dev/null 2>&1 &
        ({STUBBORN}) &
        {STUBBORN}
    '''
    for uid in ("u1", "u2"):
        Process(
            ["sh", "-c", script], env={{"PATH": os.environ["PATH"], **guard.environ(uid)}}, cwd=None, stdin=False,
            merge_stderr=True, mark=marks.call_mark(guard.mark, uid),
            on_output=print, on_stderr=None, on_exit=print,
        )
    print(guard.mark, flush=True)
    if "early" not in sys.argv:
        while len(marks.find(guard.mark)) < 16:       # two calls of four shells, each with its sleep
            await asyncio.sleep(0.01)
    print("up", flush=True)
    if "exit" not in sys.argv:
        await asyncio.sleep(600)

asyncio.run(main())
"""


@contextmanager
def sleeping(**environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process somewhere on the machine, with this environment."""
    process = subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True)
    try:
        until(lambda: marks.marks_of(process.pid) is not None)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


def naming(mark: str) -> Iterator[int]:
    """Processes with the mark in their arguments: guards."""
    for pid in machine.pids():
        try:
            if mark.encode() in read(f"/proc/{pid}/cmdline"):
                yield pid
        except OSError:
            continue


def program(guard: Guard) -> int:
    """The pid of the guard's program, found as anyone would: the child of ours that names the mark."""
    until(lambda: any(naming(guard.mark)))
    (pid,) = naming(guard.mark)
    return pid


def armed(guard: Guard) -> int:
    """The pid of the guard's program once it waits for the end of the pipe."""
    pid = program(guard)
    until(lambda: b"poll" in read(f"/proc/{pid}/wchan"))
    return pid


def dead_owner() -> str:
    """The mark of a runtime of this namespace that has ended."""
    namespace, _, start, random = marks.new_runtime_mark().split("-")
    ended = subprocess.Popen(["true"])
    ended.wait()
    return f"{namespace}-{ended.pid}-{start}-{random}"


# Marks


def test_R2_a_mark_names_namespace_pid_and_start_of_its_runtime() -> None:
    mark = marks.new_runtime_mark()
    namespace, pid, start, random = mark.split("-")
    assert int(namespace) == machine.namespace()
    assert int(pid) == os.getpid()
    assert int(start) == machine.started(os.getpid())
    assert len(random) == 16
    assert mark != marks.new_runtime_mark()


def test_R2_a_process_is_found_by_its_call_and_by_its_runtime_and_by_no_other() -> None:
    guard, other = Guard(), Guard()
    with sleeping(**guard.environ("u1")) as one, sleeping(**guard.environ("u10")) as ten, sleeping(OTHER=guard.mark):
        assert sorted(marks.find(guard.mark)) == sorted([one.pid, ten.pid])
        assert marks.find(marks.call_mark(guard.mark, "u1")) == [one.pid]
        assert marks.find(guard.mark[:-1]) == []
        assert marks.find(other.mark) == []


def test_R2_marks_of_nested_runtimes_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = Guard(), Guard()
    monkeypatch.setenv(marks.NAME, outer.environ("o")[marks.NAME])
    entry = inner.environ("i")
    assert entry == {marks.NAME: f"{outer.mark}/o {inner.mark}/i"}
    with sleeping(**entry) as process:
        for mark in (outer.mark, f"{outer.mark}/o", inner.mark, f"{inner.mark}/i"):
            assert marks.find(mark) == [process.pid]


def test_R2_a_process_that_outlives_a_command_inherits_the_marks_around_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(marks.NAME, "1-2-3-outer/o")
    adopt()
    try:
        own = os.environ[marks.NAME].removeprefix("1-2-3-outer/o ")
        assert inherited()[marks.NAME] == "1-2-3-outer/o"
        guard = Guard()
        assert guard.environ("u") == {marks.NAME: f"1-2-3-outer/o {guard.mark}/u"}
        assert guard.mark.startswith(f"{own}/") and guard.mark != Guard().mark
    finally:
        release()
    assert os.environ[marks.NAME] == "1-2-3-outer/o"


def test_R2_of_two_runtimes_of_a_command_one_closes_alone() -> None:
    adopt()
    try:
        one, other = Guard(), Guard()
        one.ensure()
        with sleeping(**one.environ("u")) as first, sleeping(**other.environ("u")) as second:
            one.close()
            assert first.wait(PATIENCE) == -signal.SIGKILL
            assert second.poll() is None
            release()
            assert second.wait(PATIENCE) == -signal.SIGKILL
    finally:
        release()
    assert children() == {}


def test_R2_a_mark_is_found_in_a_large_environment() -> None:
    guard = Guard()
    with sleeping(A="a" * 100_000, B="b" * 100_000, **guard.environ("u")) as process:
        assert marks.find(guard.mark) == [process.pid]


def test_R2_a_process_without_environment_is_told_from_one_that_changes_its_program() -> None:
    process = subprocess.Popen(["sleep", "60"], env={})
    until(lambda: marks.marks_of(process.pid) == [])
    assert marks.bears(process.pid, "x") is False
    process.kill()
    until(lambda: "Z" in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2])
    assert marks.bears(process.pid, "x") is False
    process.wait()
    assert marks.bears(process.pid, "x") is False


def test_R2_whoever_comes_while_we_look_is_looked_at() -> None:
    listings = iter([[1, 3], [3, 2], [3, 2, 4], [3, 2, 4]])
    assert list(marks.arrivals(lambda: next(listings))) == [1, 3, 2, 4]


def test_R2_only_a_certainly_dead_owner_is_dead() -> None:
    mark = marks.new_runtime_mark()
    namespace, pid, start, random = mark.split("-")
    assert marks.owner_alive(mark) is True
    assert marks.owner_alive(f"{mark}/uid") is True
    assert marks.owner_alive(f"{namespace}-{pid}-{int(start) - 5000}-{random}") is False
    assert marks.owner_alive(dead_owner()) is False
    assert marks.owner_alive(f"{int(namespace) + 1}-{pid}-{int(start) - 5000}-{random}") is None
    assert marks.owner_alive("gibberish") is None


def test_R2_an_owner_that_is_a_zombie_is_dead() -> None:
    namespace, *_, random = marks.new_runtime_mark().split("-")
    process = subprocess.Popen(["sleep", "60"])
    mark = f"{namespace}-{process.pid}-{machine.started(process.pid)}-{random}"
    assert marks.owner_alive(mark) is True
    process.kill()
    until(lambda: marks.owner_alive(mark) is False)
    process.wait()


# The guard


def test_R2_the_guard_runs_once_in_a_session_of_its_own_and_bears_no_mark_of_its_runtime(guard: Guard) -> None:
    guard.ensure()
    pid = armed(guard)
    guard.ensure()
    assert program(guard) == pid
    assert os.getsid(pid) == pid
    assert marks.find(guard.mark) == []
    held = {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    assert [held.pop(number) for number in (0, 1, 2)] == ["/dev/null"] * 3
    assert sorted(target.partition(":")[0] for target in held.values()) == ["anon_inode"] * machine.probes + ["pipe"]


def test_R2_the_guard_ignores_signals_of_terminals_and_is_restarted_if_it_died(guard: Guard) -> None:
    guard.ensure()
    pid = armed(guard)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    guard.ensure()
    assert program(guard) == pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    guard.ensure()
    assert program(guard) != pid


def test_R2_closing_kills_what_is_left_and_leaves_no_guard(guard: Guard) -> None:
    guard.ensure()
    with sleeping(**guard.environ("u")) as process:
        guard.close()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    guard.close()
    assert children() == {}


def test_R2_closing_a_guard_that_was_never_needed_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "pids", lambda: pytest.fail("searched all processes"))
    Guard().close()


def test_R2_the_guard_takes_what_dead_runtimes_left_and_nothing_else(guard: Guard) -> None:
    namespace, pid, _, random = marks.new_runtime_mark().split("-")
    alive, dead, foreign = Guard().mark, dead_owner(), f"{int(namespace) + 1}-{pid}-1-{random}"
    with ExitStack() as stack:
        spared = [
            stack.enter_context(sleeping(KEEPHOLD_MARK=value))
            for value in (f"{alive}/u", f"{foreign}/u", f"{foreign}/o {alive}/i", "gibberish")
        ]
        taken = [
            stack.enter_context(sleeping(KEEPHOLD_MARK=value))
            for value in (f"{dead}/u", f"{alive}/o {dead}/i", f"{dead}/o {alive}/i")
        ]
        guard.ensure()
        armed(guard)
        assert [process.wait(60) for process in taken] == [-signal.SIGKILL] * 3
        assert [process.poll() for process in spared] == [None] * 4


@pytest.mark.parametrize("how", ["killed", "early", "forked", "exit"])
def test_R2_nothing_is_left_a_second_after_the_runtime(how: str) -> None:
    """Killed at work, killed before its guard could start, with a forked copy of it alive, and ended without a word."""
    runtime = subprocess.Popen([sys.executable, "-c", RUNTIME, how], stdout=subprocess.PIPE, text=True)
    assert runtime.stdout is not None
    mark = runtime.stdout.readline().strip()
    assert runtime.stdout.readline() == "up\n"
    if how != "exit":
        runtime.kill()
    runtime.wait()
    until(lambda: marks.find(mark) == [])
    until(lambda: not any(naming(mark)))
    runtime.stdout.close()
