"""Marks, which identify a process that a tool started, in any session and after any fork (R2).

Every child carries `KEEPHOLD_MARK="<runtime mark>/<call uid>"` in its environment, and its own children inherit it.
Marks add up: a runtime that was itself started by a tool keeps the mark it inherited and appends its own after a space,
so an outer runtime finds the processes of an inner one. A process that drops its environment (`env -i`) loses its mark;
it is still found by its process group.

A command of keephold (`serve`, `turn`, …) also has a mark in its own environment (`adopt`), so every process that a
Python tool starts with `subprocess` or a pool inherits that. Its own runtimes have marks below this one.

A process whose environment cannot be read belongs to another user and is skipped. Where processes cannot be listed at
all, marks find nothing (`platforms/portable.py`).

This file is also the guard's program (`python -I -S marks.py PIPE MARK FORKS MODULES`, see `guard.py`). It therefore
imports nothing but `platforms`: the guard starts quickly, stays small, and has everything in memory once it runs.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

if __name__ == "__main__":  # at the end, so that no module there replaces one of Python's
    sys.path += [os.path.abspath(f"{__file__}/../../.."), *sys.argv[4:]]  # noqa: PTH100

from keephold.platforms import machine

NAME = "KEEPHOLD_MARK"

Judge = Callable[[int], bool | None]
"""Says whether a process is meant; None while that is unknown because it is just changing its program."""

_adopted: str | None = None  # the mark in our own environment


def new_runtime_mark() -> str:
    """Return a mark for this runtime: `<pid namespace>-<pid>-<start time>-<random>`, which shows whether it lives.

    In a process with a mark of its own, `<that mark>/<random>`.
    """
    if _adopted is not None:
        return f"{_adopted}/{os.urandom(8).hex()}"
    pid = os.getpid()
    return f"{machine.namespace()}-{pid}-{machine.started(pid)}-{os.urandom(8).hex()}"


def call_mark(runtime: str, uid: str) -> str:
    """Return the full mark of one call."""
    return f"{runtime}/{uid}"


def adopt() -> str:
    """Put a mark into the environment of this process, which its children inherit, and return it; a second time, the
    same one. For our own commands only: the environment of another program is not ours to change.
    """
    global _adopted
    if _adopted is None:
        mark = new_runtime_mark()
        os.environ |= environ(mark)
        _adopted = mark
    return _adopted


def release() -> None:
    """Take the mark out of our environment."""
    global _adopted
    entry = outer()
    if _adopted is not None and entry:
        os.environ[NAME] = entry
    elif _adopted is not None:
        os.environ.pop(NAME, None)
    _adopted = None


def outer() -> str:
    """Return the marks that this process inherited, without the one it gave itself."""
    return " ".join(mark for mark in os.environ.get(NAME, "").split() if mark != _adopted)


def environ(mark: str) -> dict[str, str]:
    """Return the environment entry that gives a child this mark, after those that we inherited."""
    return {NAME: f"{outer()} {mark}".lstrip()}


def marks_of(pid: int) -> list[str] | None:
    """Return the marks of a process, the outermost first; None while it is just changing its program."""
    values = machine.values(pid, NAME)
    return None if values is None else [mark for value in values for mark in value.split()]


def bears(pid: int, mark: str) -> bool | None:
    """Whether a process has the mark, of a call or of a runtime; None while that is unknown."""
    found = marks_of(pid)
    if found is None:
        return None
    return any(each == mark or each.startswith(mark + "/") for each in found)


def owner_alive(mark: str) -> bool | None:
    """Whether the runtime of a mark lives; None if that cannot be known, as in another pid namespace."""
    try:
        namespace, pid, start, _ = mark.partition("/")[0].split("-")
        return machine.runs(int(pid), int(start)) if int(namespace) == machine.namespace() else None
    except ValueError:
        return None


def find(mark: str) -> list[int]:
    """Return the pids of all processes with the mark, of a call or of a runtime."""
    return [pid for pid in arrivals(machine.pids) if bears(pid, mark)]


def arrivals(listing: Callable[[], Iterable[int]]) -> Iterator[int]:
    """Yield the listed pids, oldest first, then those that came meanwhile, until a listing shows nothing new.

    A process that ended before we read it had finished its forks, so the next listing shows its children: no process
    escapes by forking and exiting.
    """
    before: set[int] = set()
    while new := (now := set(listing())) - before:
        yield from sorted(new)
        before = now


def kill_all(meant: Judge, *, looks: int) -> None:
    """Send SIGKILL to every process that is meant, until `looks` listings in a row found none; blocks meanwhile.

    It waits for a process that cannot be judged, but with a limit: an exec may hang on a dead file system.
    """
    empty = unsure = 0
    while empty < looks:
        killed = changing = False
        for pid in arrivals(machine.pids):
            verdict = meant(pid)
            changing |= verdict is None
            killed |= bool(verdict) and _kill(pid)
        unsure += changing
        empty = 0 if killed or (changing and unsure < 50) else empty + 1
        if empty < looks:
            time.sleep(0.01)


def reap() -> None:
    """Kill the processes of dead runtimes that have marks; blocks meanwhile."""
    myself = os.getpid()
    kill_all(lambda pid: pid != myself and _orphaned(pid), looks=1)
    machine.reap_groups(owner_alive)


def guard(pipe: int, mark: str, *, forks: bool) -> None:
    """Run the guard: kill the processes of dead runtimes, wait for the end of ours, kill its processes.

    With `forks`, also those that it forked without exec, such as the workers of a pool: they hold its end of the pipe.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    myself = os.getpid()
    reap()
    machine.wait_for_end(pipe, int(mark.split("-")[1]), lambda: owner_alive(mark) is not False)
    meant = bears_or_holds(mark, machine.pipe_name(pipe) if forks else None)
    kill_all(lambda pid: pid != myself and meant(pid), looks=5)
    machine.end_groups(mark)


def bears_or_holds(mark: str, pipe: str | None) -> Judge:
    """Return a judge of processes that bear the mark or have the pipe open."""

    def meant(pid: int) -> bool | None:
        verdict = bears(pid, mark)
        return True if pipe is not None and not verdict and machine.holds(pid, pipe) else verdict

    return meant


def _orphaned(pid: int) -> bool | None:
    """Whether a process was left by a runtime that is certainly dead; one dead owner of several is enough."""
    found = marks_of(pid)
    return None if found is None else any(owner_alive(mark) is False for mark in found)


def _kill(pid: int) -> bool:
    """Send SIGKILL; return False if the process was gone or is not ours to kill."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], forks=sys.argv[3] == "1")
