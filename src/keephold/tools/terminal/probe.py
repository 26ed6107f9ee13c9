"""Whether the program in a terminal's foreground waits for input: known where Linux can tell (C4, A6).

If a process is blocked in a read of our terminal and nothing typed is left to be read, it waits for more. In line mode
that is certain. A program that has switched lines off draws its own screen and may wait for other things as well,
mostly by `poll`; then the answer is `raw`, and the caller decides by whether the output is quiet.

Typed input reaches its reader through a worker of the kernel, so right after a write a reader still looks blocked.
Asking the terminal's other side whether it has input waits for that worker: an answer is never stale.
"""

import os
import select
import termios
from dataclasses import dataclass
from typing import Literal

from keephold.tools import marks
from keephold.tools.search import FEW
from keephold.tools.session import tree

State = Literal["reading", "password", "raw", "busy", "unknown"]
"""`reading`: a line, with echo. `password`: a line, without echo. `raw`: keys, or something else. `busy`: nothing."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at a terminal."""

    state: State
    reader: str | None = None
    """The thread that is blocked in a read of the terminal: its directory in /proc."""


@dataclass(frozen=True, slots=True)
class _Calls:
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
_TTY_NR = 4  # position of the controlling terminal in /proc/<pid>/stat, counted after the name

BUSY, UNKNOWN = Look("busy"), Look("unknown")


def look(master: int, slave: int, leader: int) -> Look:
    """Look at the terminal of these two descriptors, whose session has this leader."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return UNKNOWN
    if has_input(slave):
        return BUSY
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
            call, _, rest = marks.read(f"{thread}/syscall").partition(b" ")
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


def may_come_back(reader: str) -> bool:
    """Whether one that does not read may only have been interrupted, as by the end of a child: it runs right now."""
    try:
        return marks.read(f"{reader}/syscall").startswith(b"running")
    except OSError:
        return False


def has_input(slave: int) -> bool:
    """Whether typed input is still to be read: in line mode a whole line, else a character."""
    poll = select.poll()
    poll.register(slave, select.POLLIN)
    return bool(poll.poll(0))


def _waits_for_input_alone(arguments: bytes) -> bool:
    """Whether a select waits for descriptor 0 only, without a timeout: readline's prompts do."""
    count, _, _, _, timeout = (int(each, 16) for each in arguments.split()[:5])
    return count == 1 and timeout == 0


def _sleeps(pid: int) -> bool:
    """Whether a process waits for something, as far as that can be known."""
    try:
        return marks.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] == b"S"
    except OSError:
        return False


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
    number = int(marks.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[_TTY_NR])
    return os.makedev(number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00) == device
