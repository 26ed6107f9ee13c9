"""What a test may not leave behind: child processes, marked processes, file descriptors, threads.

Everything is compared with what was there before the test, so a test answers only for itself. Processes get a moment to
go, because the kernel and the loop need one to reap them; after a failure they are ended, so that they cannot disturb
the next test. A test that failed anyway is not blamed twice.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from tests import warm

GRACE = 60.0
"""Seconds that processes, threads, and the descriptors that threads use, have to go."""

K = TypeVar("K")
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def leave_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up first and torn down last, so that the test's own fixtures have cleaned up when it looks."""
    descriptors, threads, processes = open_descriptors(), set(threading.enumerate()), all_pids()
    yield
    left = _settled(lambda: children(but=processes))
    marked = _settled(lambda: marked_processes(but=processes))
    problems = [
        *(f"child process {pid}: {what}" for pid, what in left.items()),
        *(f"process {pid}, which bears this process' KEEPHOLD_MARK: {what}" for pid, what in marked.items()),
        *(
            f"file descriptor {number}: {target}"
            for number, target in _settled(lambda: _collected(descriptors)).items()
        ),
        *(f"thread {name}, not a daemon" for name in _settled(lambda: live_threads(threads)).values()),
    ]
    _end({*left, *marked})
    if problems and not request.node.stash.get(_failed, False):
        pytest.fail("\n".join(["the test left behind:", *problems]), pytrace=False)


def children(but: Container[int] = ()) -> dict[int, str]:
    """All descendants of this process, zombies included, but those."""
    found: dict[int, str] = {}
    if not _has_children():
        return found  # looking for descendants takes a millisecond: much, for thousands of tests
    for child in psutil.Process().children(recursive=True):
        if child.pid in but or child.pid == warm.pid():
            continue
        try:
            command = child.cmdline()
            if child.ppid() in but and any(word.endswith("/marks.py") for word in command):
                continue  # the guard of a server that several tests share comes with the first call
            found[child.pid] = f"{' '.join(command) or child.name()} ({child.status()})"
        except psutil.ZombieProcess:
            found[child.pid] = "zombie, nobody waited for it"
        except psutil.NoSuchProcess:
            continue
    return found


def _has_children() -> bool:
    """Whether any thread of this process has a child that was not reaped yet."""
    ours = warm.pid()
    lists = [*Path("/proc/self/task").iterdir(), *([Path(f"/proc/{ours}/task/{ours}")] if ours else ())]
    try:
        return any(set((task / "children").read_bytes().split()) - {str(ours).encode()} for task in lists)
    except OSError:  # a thread has just ended, or this kernel does not tell
        return True


def all_pids() -> set[int]:
    """Every process there is."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 (thousands of times)


def marked_processes(but: Container[int] = ()) -> dict[int, str]:
    """Processes anywhere that a runtime of this process started, by `KEEPHOLD_MARK` (R2), but those."""
    owner = f"{Path('/proc/self/ns/pid').stat().st_ino}-{os.getpid()}-"
    found = {}
    for pid in all_pids():
        if pid in but:
            continue
        entry = Path(f"/proc/{pid}")
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone, or another user's
            continue
        values = (line.removeprefix(b"KEEPHOLD_MARK=") for line in environment if line.startswith(b"KEEPHOLD_MARK="))
        if any(mark.startswith(owner) for value in values for mark in value.decode(errors="replace").split()):
            found[pid] = command
    return found


def open_descriptors() -> dict[int, str]:
    """Open file descriptors and what they point at."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except FileNotFoundError:  # the one the listing itself used
            continue
    return found


def live_threads(but: Container[threading.Thread]) -> dict[int | None, str]:
    """Threads that would keep the interpreter from ending, but those."""
    return {thread.ident: thread.name for thread in threading.enumerate() if thread not in but and not thread.daemon}


def _collected(before: Mapping[int, str]) -> dict[int, str]:
    """New descriptors. Garbage may hold some in a cycle, which is no leak; collecting is slow, so only if need be."""
    if not (left := _new(open_descriptors(), before)):
        return left
    gc.collect()
    return _new(open_descriptors(), before)


def _new(after: Mapping[int, str], before: Mapping[int, str]) -> dict[int, str]:
    return {key: value for key, value in after.items() if before.get(key) != value and key != warm.descriptor()}


def _settled(look: Callable[[], dict[K, str]]) -> dict[K, str]:
    """What is still there after the grace; at once if nothing is."""
    until = time.monotonic() + GRACE
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def _end(pids: set[int]) -> None:
    for pid in pids:
        try:
            process = psutil.Process(pid)
            process.kill()
            process.wait(1)
        except (psutil.NoSuchProcess, psutil.TimeoutExpired):
            continue
