"""Whether the program in a terminal's foreground waits for input: known where Linux can tell (C4, A6).

If a process is blocked in a read of our terminal and nothing typed is left to be read, it waits for more. In line mode
that is certain. A program that has switched lines off draws its own screen and may wait for other things as well,
mostly by `poll`; then the answer is `raw`, and the caller decides by whether the output is quiet.

Typed input reaches its reader through a worker of the kernel, so right after a write a reader still looks blocked.
Asking the terminal's other side whether it has input waits for that worker: an answer is never stale.
"""

import os
import termios
from collections.abc import Iterator
from typing import NamedTuple

from keephold.platforms.linux import STATE, TERMINAL, stat_of
from keephold.platforms.portable import BUSY, FEW, UNKNOWN, Look, State, read

_BLOCKED = {"x86_64": b"0 0x0 ", "aarch64": b"63 0x0 "}  # how /proc/<pid>/syscall begins in a read(2) of descriptor 0


class _Calls(NamedTuple):
    """Numbers of system calls, as /proc/<pid>/syscall begins."""

    read: frozenset[bytes]
    """read and readv: musl's stdio uses the second."""
    select: frozenset[bytes]
    """select and pselect: which descriptors, and for how long, are among the arguments."""
    wait: frozenset[bytes]
    """poll, select and epoll in all their forms."""


_CALLS = {
    "x86_64": _Calls(
        frozenset({b"0", b"19"}),
        frozenset({b"23", b"270"}),
        frozenset({b"7", b"23", b"232", b"270", b"271", b"281", b"441"}),
    ),
    "aarch64": _Calls(frozenset({b"63", b"65"}), frozenset({b"72"}), frozenset({b"22", b"72", b"73", b"441"})),
}
_ANY_TTY = os.makedev(5, 0)  # /dev/tty: the controlling terminal of the process that opens it


def look(master: int, slave: int, leader: int) -> Look:
    """Look at the terminal of these two descriptors, whose session has this leader. It must have no unread input."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return UNKNOWN
    group, device = os.tcgetpgrp(master), os.fstat(slave).st_rdev
    waits = unsure = False
    unseen: str | None = None
    for count, (pid, thread) in enumerate(tree(leader)):
        if count == FEW:
            unsure = True
            break
        try:
            if os.getpgid(pid) != group:
                continue
            call, _, rest = read(f"{thread}/syscall").partition(b" ")
            if call in calls.read and _is_terminal(pid, int(rest.split(b" ", 1)[0], 16), device):
                return Look(_state_of_reader(master), thread)
            if call in calls.select and _waits_for_input_alone(rest) and _is_terminal(pid, 0, device):
                return Look("reading", thread)
            waits |= call in calls.wait
        except PermissionError:
            unsure = True
            unseen = unseen or (thread if _sleeps(pid) else None)
        except OSError:
            continue  # it has just ended
    if unseen is not None and _state_of_reader(master) == "password":
        # A program of another user, such as sudo, cannot be inspected. Without echo, it most likely waits for input.
        return Look("password", unseen)
    if waits and _state_of_reader(master) == "raw":
        return Look("raw")
    return UNKNOWN if unsure else BUSY


def _waits_for_input_alone(arguments: bytes) -> bool:
    """Whether a select waits for descriptor 0 only, without a timeout: readline's prompts do."""
    count, _, _, _, timeout = (int(each, 16) for each in arguments.split()[:5])
    return count == 1 and timeout == 0


def _sleeps(pid: int) -> bool:
    """Whether a process waits for something, as far as that can be known."""
    stat = stat_of(pid)
    return stat is not None and stat[STATE] == b"S"


def _state_of_reader(master: int) -> State:
    """Return how a process that was found reading reads. Checked after that: echo may have been switched off just
    before.
    """
    flags = termios.tcgetattr(master)[3]
    if not flags & termios.ICANON:
        return "raw"
    return "reading" if flags & termios.ECHO else "password"


def _is_terminal(pid: int, fd: int, device: int) -> bool:
    """Whether a descriptor of a process is our terminal, opened by its own name or as the controlling one."""
    opened = os.stat(f"/proc/{pid}/fd/{fd}").st_rdev  # noqa: PTH116
    if opened != _ANY_TTY:
        return opened == device
    stat = stat_of(pid)
    number = 0 if stat is None else int(stat[TERMINAL])
    return os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00) == device


def tree(leader: int) -> Iterator[tuple[int, str]]:
    """Yield every thread of a process and its descendants: its pid and its directory in /proc.

    There may be any number of them: a caller that must not block the loop stops after a `FEW`.
    """
    pids = [leader]
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (this must cost next to nothing)
                place = f"/proc/{pid}/task/{thread}"
                pids += map(int, read(f"{place}/children").split())
                yield pid, place
        except OSError:
            continue  # it has just ended


def reading_pipe(leader: int, pipe: str) -> bool | None:
    """Whether a thread of the leader or its descendants is blocked in read(2) on descriptor 0 that is this pipe."""
    blocked = _BLOCKED.get(os.uname().machine)
    if blocked is None:
        return None
    pid, ours, unknown = 0, False, False
    for count, (owner, thread) in enumerate(tree(leader)):
        if count == FEW:
            return None
        try:
            if owner != pid:
                pid, ours = owner, False
                ours = os.readlink(f"/proc/{pid}/fd/0") == pipe  # noqa: PTH115 (this must cost next to nothing)
            if ours and read(f"{thread}/syscall").startswith(blocked):
                return True
        except PermissionError:
            unknown = True
        except OSError:
            continue  # it has just ended
    return None if unknown else False
