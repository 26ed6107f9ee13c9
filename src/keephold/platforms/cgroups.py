"""Control groups: they hold the processes of a call that no mark shows any more (C7, R2).

A mark is in memory that a program may overwrite, as those do that set their title (redis, postgres, nginx, Perl's
`$0`). A program cannot leave its control group without permission to write to another one. So each command, terminal
and process of a function gets a group, where we may make one: below our own group of cgroup v2, which may be mounted
beside v1. Elsewhere, marks and process groups have to suffice.

The groups of a runtime are in `keephold-<mark of the process>` there. A leader is moved into its group right after its
start, by a thread, because the kernel may take milliseconds for it. Processes that it forked before that have its mark.

The guard's program uses this file too, so it imports nothing of keephold.
"""

import contextlib
import os
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import queue
    import threading

_PREFIX = "keephold-"
_LOOKS = 100  # ten milliseconds each: a killed process may take a moment to leave its group


@cache
def place() -> tuple[str | None, str]:
    """Return our own group, if we may make groups in it, and the reason if we may not."""
    try:
        own = _own()
    except (OSError, ValueError) as error:
        return None, f"cgroup v2 cannot be read: {error}"
    if own is None:
        return None, "cgroup v2 is not mounted"
    for path in (own, f"{own}/cgroup.procs"):
        if not os.access(path, os.W_OK):
            return None, f"{path} may not be written to"
    return own, ""


def _own() -> str | None:
    """Return the directory of our group in cgroup v2."""
    path = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), None)
    for line in _read("/proc/self/mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        if path is not None and kind.startswith("cgroup2 "):
            root, point = mount.split()[3:5]
            if root == "/" or f"{path}/".startswith(f"{root}/"):
                return os.path.normpath(point + "/" + path.removeprefix("" if root == "/" else root))
    return None


class CallGroup:
    """The control group of one call. Its methods do not block."""

    __slots__ = ("_entered", "_left", "_path")

    def __init__(self, own: str, mark: str, pid: int) -> None:
        runtime, _, call = mark.partition("/")
        self._path = f"{own}/{_PREFIX}{runtime}/{call.replace('/', '.') or 'call'}"
        self._entered = self._left = False
        _in_thread(lambda: self._enter(pid))

    def _enter(self, pid: int) -> None:
        if self._left:
            return
        with contextlib.suppress(OSError):  # it has ended, or the number of groups is limited
            _make(self._path)
            _write(f"{self._path}/cgroup.procs", pid)
            self._entered = True

    @property
    def populated(self) -> bool:
        """Whether a process is in the group."""
        return self._entered and _populated(self._path)

    def kill(self) -> None:
        """Send SIGKILL to every process in the group."""
        if self._entered:
            _kill(self._path)

    def leave(self) -> None:
        """Remove the group, which must be empty. That of the runtime stays for the next call until the guard ends."""
        self._left = True
        _in_thread(self._leave)

    def _leave(self) -> None:
        try:
            os.rmdir(self._path)  # noqa: PTH106
        except FileNotFoundError:
            pass  # the call was over before it could enter
        except OSError:
            _remove(self._path)  # a program of the call has made groups below


def enter(mark: str, pid: int) -> CallGroup | None:
    """Move a leader into a new group of its call; None if there can be none."""
    own, _ = place()
    return None if own is None else CallGroup(own, mark, pid)


def end(own: str, mark: str) -> None:
    """Kill everything in the groups of a runtime, and remove them; blocks meanwhile."""
    path = f"{own}/{_PREFIX}{mark.partition('/')[0]}"
    for _ in range(_LOOKS):
        if not _populated(path):
            break
        _kill(path)
        time.sleep(0.01)
    _remove(path)


def reap(own: str, alive: Callable[[str], bool | None]) -> None:
    """Kill everything in the groups of dead runtimes, and remove them; blocks meanwhile."""
    with contextlib.suppress(OSError), os.scandir(own) as entries:
        for mark in [each.name.removeprefix(_PREFIX) for each in entries if each.name.startswith(_PREFIX)]:
            if alive(mark) is False:
                end(own, mark)


def _populated(path: str) -> bool:
    try:
        return "populated 1" in _read(f"{path}/cgroup.events")
    except OSError:
        return False


def _kill(path: str) -> None:
    """Send SIGKILL to all processes of a group and of those below."""
    try:
        _write(f"{path}/cgroup.kill", 1)
    except FileNotFoundError:  # Linux before 5.14
        for directory, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                for pid in _read(f"{directory}/cgroup.procs").split():
                    os.kill(int(pid), 9)
    except OSError:
        pass


def _remove(path: str) -> None:
    """Remove a group, those below, and the one of the runtime if it was the last."""
    with contextlib.suppress(OSError):
        for directory, _, _ in os.walk(path, topdown=False):
            os.rmdir(directory)  # noqa: PTH106
        parent = os.path.dirname(path)  # noqa: PTH120
        if os.path.basename(parent).startswith(_PREFIX):  # noqa: PTH119
            os.rmdir(parent)  # noqa: PTH106


def _make(path: str) -> None:
    try:
        os.mkdir(path)  # noqa: PTH102
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
    except FileExistsError:
        pass


def _read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123 (pathlib would double the guard's start)
        return file.read()


def _write(path: str, value: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


_work: "queue.SimpleQueue[Callable[[], None]] | None" = None
_thread: "threading.Thread | None" = None


def _in_thread(work: Callable[[], None]) -> None:
    """Do this in the thread for groups, one thing after another."""
    global _thread, _work
    if _thread is None or _work is None or not _thread.is_alive():  # in a fork, it is not
        import queue
        import threading  # the guard needs neither

        _work = queue.SimpleQueue()
        _thread = threading.Thread(target=_run, args=(_work,), daemon=True, name="keephold-cgroups")
        _thread.start()
    _work.put(work)


def _run(work: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        work.get()()
