"""Marks, which identify a process that a tool started, in any session and after any fork (R2).

Every child carries `KEEPHOLD_MARK="<runtime mark>/<call uid>"` in its environment, and its own children inherit it.
Marks add up: a runtime that was itself started by a tool keeps the mark it inherited and appends its own after a space,
so an outer runtime finds the processes of an inner one. A process that drops its environment (`env -i`) loses its mark;
it is still found by its process group.

A command of keephold (`serve`, `turn`, …) also has a mark in its own environment (`adopt`), so every process that a
Python tool starts with `subprocess` or a pool inherits that. Its own runtimes have marks below this one.

Linux only: processes are read from /proc. A process whose environment cannot be read belongs to another user and is
skipped.

This file is also the guard's program (`python -I -S marks.py PIPE MARK FORKS CGROUP`, see `guard.py`). It therefore
imports nothing of keephold: the guard starts quickly and stays small, and it works when the package does not.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

NAME = "KEEPHOLD_MARK"

Judge = Callable[[int], bool | None]
"""Says whether a process is meant; None while that is unknown because it is just changing its program."""

_STATE, _GROUP, _FLAGS, _START, _ENV_END = 0, 2, 6, 19, 48  # positions in /proc/<pid>/stat, counted after the name
_KERNEL_THREAD = 0x00200000
_GONE = (b"Z", b"X")

_adopted: str | None = None  # the mark in our own environment


def new_runtime_mark() -> str:
    """Return a mark for this runtime: `<pid namespace>-<pid>-<start time>-<random>`, which shows whether it lives.

    In a process with a mark of its own, `<that mark>/<random>`.
    """
    if _adopted is not None:
        return f"{_adopted}/{os.urandom(8).hex()}"
    pid = os.getpid()
    stat = _stat(pid)
    assert stat is not None, "a process can read its own /proc/<pid>/stat"
    return f"{_namespace()}-{pid}-{int(stat[_START])}-{os.urandom(8).hex()}"


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
    try:
        data = read(f"/proc/{pid}/environ")
    except OSError:
        return []
    if not data:
        return None if _changing_program(pid) else []
    prefix = NAME.encode() + b"="
    if prefix not in data:
        return []
    values = [entry[len(prefix) :] for entry in data.split(b"\0") if entry.startswith(prefix)]
    return [mark for value in values for mark in os.fsdecode(value).split()]


def bears(pid: int, mark: str) -> bool | None:
    """Whether a process has the mark, of a call or of a runtime; None while that is unknown."""
    found = marks_of(pid)
    if found is None:
        return None
    return any(each == mark or each.startswith(mark + "/") for each in found)


def in_group(pid: int, group: int) -> bool:
    """Whether a process belongs to the process group and still runs."""
    return group_of(pid) == group


def group_of(pid: int) -> int:
    """Return the process group of a process that still runs, else 0."""
    stat = _stat(pid)
    return 0 if stat is None or stat[_STATE] in _GONE else int(stat[_GROUP])


def owner_alive(mark: str) -> bool | None:
    """Whether the runtime of a mark lives; None if that cannot be known, as in another pid namespace."""
    try:
        namespace, pid, start, _ = mark.partition("/")[0].split("-")
        if int(namespace) != _namespace():
            return None
        owner, started = int(pid), int(start)
    except ValueError:
        return None
    stat = _stat(owner)
    if stat is not None:
        return int(stat[_START]) == started and stat[_STATE] not in _GONE
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return None  # it exists but is hidden from us, by the mount options of /proc


def find(mark: str) -> list[int]:
    """Return the pids of all processes with the mark, of a call or of a runtime."""
    return [pid for pid in arrivals(pids) if bears(pid, mark)]


def read(path: str) -> bytes:
    """Read a whole file of /proc, at a third of the cost of `open`."""
    fd = os.open(path, os.O_RDONLY)
    try:
        data = part = os.read(fd, 65536)
        while len(part) == 65536:
            part = os.read(fd, 65536)
            data += part
        return data
    finally:
        os.close(fd)


def pids() -> Iterable[int]:
    """Return the pid of every process."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (Path.iterdir costs thrice)


def last_pid() -> int:
    """Return the newest pid. Pids increase, so nothing was forked after the process that has it."""
    return int(read("/proc/loadavg").split()[4])


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
        for pid in arrivals(pids):
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


def guard(pipe: int, mark: str, *, forks: bool, cgroup: str) -> None:
    """Run the guard: kill the processes of dead runtimes, wait for the end of ours, kill its processes.

    With `forks`, also those that it forked without exec, such as the workers of a pool: they hold its end of the pipe.
    `cgroup` is the control group that has those of runtimes; empty: there are none.
    """
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 (it is at the end: no module of ours replaces another)
    import cgroups  # type: ignore[import-not-found] # the package need not be intact

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    myself = os.getpid()
    reap()
    if cgroup:
        cgroups.reap(cgroup, owner_alive)
    _wait_for_end(pipe, mark)
    meant = bears_or_holds(mark, os.readlink(f"/proc/self/fd/{pipe}") if forks else None)  # noqa: PTH115
    kill_all(lambda pid: pid != myself and meant(pid), looks=5)
    if cgroup:
        cgroups.end(cgroup, mark)


def bears_or_holds(mark: str, pipe: str | None) -> Judge:
    """Return a judge of processes that bear the mark or have the pipe open."""

    def meant(pid: int) -> bool | None:
        verdict = bears(pid, mark)
        return True if pipe is not None and not verdict and _holds(pid, pipe) else verdict

    return meant


def _holds(pid: int, pipe: str) -> bool:
    """Whether a process has the pipe open."""
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == pipe for fd in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH115, PTH208
    except OSError:
        return False


def _wait_for_end(pipe: int, mark: str) -> None:
    """Return when the pipe has no writer or the owner is dead: a child forked without exec may hold the pipe open."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    with contextlib.suppress(OSError):
        poll.register(os.pidfd_open(int(mark.split("-")[1])), select.POLLIN)
    if (
        owner_alive(mark) is not False
    ):  # checked after the pidfd holds it, otherwise another process could have that pid
        poll.poll()


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


def _changing_program(pid: int) -> bool:
    """Whether a process without environment is in the middle of execve, and not a zombie, a kernel thread, or bare.

    Between the old program and the new one, the address space has no environment: its end is at 0.
    """
    stat = _stat(pid)
    if stat is None or stat[_STATE] in _GONE or int(stat[_FLAGS]) & _KERNEL_THREAD:
        return False
    return int(stat[_ENV_END]) == 0


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat after the name; None if the process does not exist."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None


def _namespace() -> int:
    """Return the inode of our pid namespace: a pid means something only together with it."""
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], forks=sys.argv[3] == "1", cgroup=sys.argv[4])
