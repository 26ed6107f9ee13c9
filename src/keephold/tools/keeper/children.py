"""A kept process as a runtime sees it, with the methods of `Process` and of `Pty`.

The object exists before the process does: requests wait until the keeper has answered, and a failure to start is
reported to `Hooks.failed`. The keeper does all input and output. Whether the program waits for input is found out here,
without a round trip, by the descriptors that the keeper passes.
"""

import contextlib
import logging
import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from keephold.errors import ToolError
from keephold.platforms import BUSY, Look, machine
from keephold.platforms.unix import fcntl, termios
from keephold.tools.child import UNREAD_LIMIT, input_closed, input_not_read
from keephold.tools.keeper import protocol
from keephold.tools.keeper.protocol import SETTLED, Page
from keephold.tools.keeper.record import KeptExit
from keephold.tools.session import Exit
from keephold.tools.terminal.pty import HOLDS, TerminalSide

if TYPE_CHECKING:
    from keephold.tools.keeper.client import KeeperLink

_log = logging.getLogger("keephold.tools")


class ProcessEnd(NamedTuple):
    """How a kept process ended. `Exit(None, None)`: nobody knows, because its keeper has died."""

    exit: Exit
    total: int
    """Bytes that it printed in all; the spool has them."""
    reason: str = ""
    """Why it was ended, in words, if neither it nor an `end` was the cause: `keep_secs` passed."""
    causes: tuple[bytes, ...] = ()
    """The causes of the last input that it got."""


def ended(end: protocol.ProcessEnded | KeptExit) -> ProcessEnd:
    """Return how a process ended, from a report or a record of its keeper."""
    return ProcessEnd(Exit(end.code, end.signal), end.total, end.reason, end.causes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """Calls that a kept process makes, on the loop's thread. None comes out of the call that makes it."""

    output: Callable[[int], None]
    """The total of bytes in the spool. When it returns, they count as read, unless `pause` was called."""
    exit: Callable[[ProcessEnd], None]
    """It has ended, and nothing of it is left. All output was reported."""
    failed: Callable[[ToolError], None]
    """It could not be started (`command_not_started`), or its keeper has died and it was killed (`crashed`)."""
    displaced: Callable[[], None]
    """Another runtime has taken it; this object is of no more use."""


class KeptChild:
    """A kept process. `KeptProcess` has pipes, `KeptPty` a terminal."""

    def __init__(self, uid: str, link: "KeeperLink", hooks: Hooks, total: int) -> None:
        self.uid = uid
        self.pid = 0
        """The leader's pid; 0 until it is started."""
        self.total = total
        """Bytes of its output that were reported."""
        self.stalled = ""
        """Why its output cannot be stored now, so that it waits; empty: it can."""
        self.answered = 0
        """The output up to here was read by an earlier runtime, which replied to the requests in it."""
        self._link = link
        self._hooks = hooks
        self._slot = self._generation = -1
        self._descriptors: dict[str, int] = {}
        self._number = 0  # of the last input
        self._untaken: deque[tuple[int, int]] = deque()  # numbers and sizes of input that the keeper may not have yet
        self._sent = 0
        self._paused = False
        self._seen_later = False
        self._over = False
        self._held: list[protocol.Report] | None = None  # reports that wait for `begin`

    @property
    def started(self) -> bool:
        """Whether the keeper has started it, and it has not ended."""
        return self.pid != 0 and not self._over

    def end(self, grace: float) -> None:
        """Begin to end it (C7). Twice is harmless."""
        self._send(protocol.EndProcess(uid=self.uid, grace=grace))

    def pause(self) -> None:
        """Do not count reported output as read: the keeper stops reading once it is some MiB ahead."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._seen_later:
            self._seen()

    def hold(self) -> None:
        """Call no hook before `begin`."""
        self._held = []

    def begin(self) -> None:
        """Call hooks from now on, for earlier reports as well."""
        held, self._held = self._held or [], None
        for report in held:
            self.handle(report, [])

    def release(self) -> None:
        """Forget it here: it continues, and another runtime may take it."""
        self._send(protocol.Leave(uid=self.uid))
        self.close()

    def _send(self, message: protocol.Request) -> None:
        if not self._over:
            self._link.send(message)

    def _input(self, data: bytes, later: bytes, cause: bytes) -> None:
        self._number += 1
        size = len(data) + len(later)
        self._sent += size
        self._untaken.append((self._number, size))
        self._send(protocol.Write(uid=self.uid, number=self._number, data=data, later=later, cause=cause))

    @property
    def _waiting(self) -> int:
        """Bytes of input that the keeper has not handed over yet."""
        taken, unsent = (0, 0) if self._page is None else self._page.input(self._slot)
        while self._untaken and self._untaken[0][0] <= taken:
            self._untaken.popleft()
        return unsent + sum(size for _, size in self._untaken)

    @property
    def _page(self) -> Page | None:
        return None if self._slot < 0 else self._link.page

    def _busy(self) -> bool:
        """Whether input or output is on its way, so that a look was premature; reports output that is new."""
        if self._page is None or self._waiting:
            return True
        state, total = self._page.output(self._slot, self._generation)
        if state != SETTLED:
            return True
        sent = self._sent
        self._printed(total)
        return self._sent != sent  # its output was answered at once

    # Reports of the keeper

    def handle(self, report: protocol.Report, descriptors: list[int]) -> None:
        """Take a report of the keeper."""
        if self._over:
            _close(descriptors)
            return
        if isinstance(report, protocol.ProcessRunning):
            self.pid, self.answered = report.pid, report.answered
            self._slot, self._generation = report.slot, report.generation
            self._descriptors = dict(zip(report.descriptors, descriptors, strict=True))
            return
        if self._held is not None:
            self._held.append(report)
            return
        match report:
            case protocol.Output():
                now = 0 if self._page is None else self._page.output(self._slot, self._generation)[1]
                self._printed(max(report.total, now))
                if not self._over:
                    self._seen()
            case protocol.Refused():
                _log.warning("input for call %s was refused after it had been accepted: %s", self.uid, report.reason)
            case protocol.Stalled():
                self.stalled = report.reason
                if report.reason:
                    _log.warning("call %s waits, its output cannot be stored: %s", self.uid, report.reason)
            case protocol.ProcessEnded():
                self._printed(report.total)
                self.close()
                self._hooks.exit(ended(report))
            case protocol.Failed():
                self.fail(ToolError(report.message, code=report.code))
            case protocol.Displaced():
                self.close()
                self._hooks.displaced()

    def fail(self, error: ToolError) -> None:
        """It was not started, or its keeper has died."""
        if self._held is not None:
            self._held.append(protocol.Failed(uid=self.uid, message=error.message, code=error.code))
        elif not self._over:
            self.close()
            self._hooks.failed(error)

    def _printed(self, total: int) -> None:
        if total > self.total and not self._over and self._held is None:
            self.total = total
            self._hooks.output(total)

    def _seen(self) -> None:
        self._seen_later = self._paused
        if not self._paused:
            self._send(protocol.Seen(uid=self.uid, total=self.total))

    def close(self) -> None:
        """Forget it. Twice is harmless."""
        self._over = True
        descriptors, self._descriptors = self._descriptors, {}
        _close(descriptors.values())
        self._link.gone(self)


class KeptProcess(KeptChild):
    """A kept command, on pipes: the methods of `Process`."""

    def __init__(self, uid: str, link: "KeeperLink", hooks: Hooks, total: int, *, stdin: bool) -> None:
        super().__init__(uid, link, hooks, total)
        self._stdin = stdin

    def write(self, data: bytes, cause: bytes = b"") -> None:
        """Send input. If the program does not read it, raises `ToolError`, and nothing was written."""
        if not self._stdin or self._over or self._is_unreadable():
            raise input_closed()
        unread = self._waiting + self._in_pipe("input", os.O_WRONLY)
        if unread + len(data) > UNREAD_LIMIT:
            raise input_not_read(unread, len(data))
        self._input(data, b"", cause)

    def close_stdin(self) -> None:
        """End the input, after earlier input. Twice is harmless."""
        if self._stdin:
            self._stdin = False
            self._number += 1
            self._send(protocol.CloseStdin(uid=self.uid, number=self._number))

    def probe(self) -> bool | None:
        """Whether a process of the tree is blocked reading our input, with nothing unread; None: unknown.

        If so, its earlier output is reported first.
        """
        pipe = self._descriptors.get("input")
        if not self._stdin or pipe is None or self._waiting or self._in_pipe("input", os.O_WRONLY):
            return False
        reading = machine.reads_pipe(self.pid, pipe)
        if not reading:
            return reading
        return not (self._in_pipe("output", os.O_RDONLY) or self._busy())

    def _in_pipe(self, which: str, end: int) -> int:
        """Return how many bytes are in the pipe of its output or input."""
        with self._opened(which, end) as pipe:
            return 0 if pipe is None else int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), "little")

    def _is_unreadable(self) -> bool:
        """Whether nobody can read its input any more: the keeper would refuse more of it, too late for its sender."""
        with self._opened("input", os.O_WRONLY) as pipe:
            if pipe is None:
                return False
            poll = select.poll()
            poll.register(pipe, 0)  # for errors alone: it has no reader
            return bool(poll.poll(0))

    @contextlib.contextmanager
    def _opened(self, which: str, end: int) -> Iterator[int | None]:
        """Open an end of a pipe for a moment; None if it is closed, or not known yet."""
        # The descriptor is only a path: it keeps neither end open, so that nobody misses the other's end.
        opened = None
        with contextlib.suppress(KeyError, OSError):
            opened = machine.reopen(self._descriptors[which], end | os.O_NONBLOCK)
        try:
            yield opened
        finally:
            if opened is not None:
                os.close(opened)


class KeptPty(KeptChild, TerminalSide):
    """A kept program in a terminal: the methods of `Pty`."""

    def __init__(self, uid: str, link: "KeeperLink", hooks: Hooks, total: int) -> None:
        super().__init__(uid, link, hooks, total)
        self._taken = 0  # bytes that were sent since the terminal was last seen empty
        self._pressing = False

    @property
    def master(self) -> int | None:
        return self._descriptors.get("master")

    def resize(self, rows: int, cols: int) -> None:
        """Resize the terminal; the program gets SIGWINCH. The keeper notes it where it happens in the output."""
        self._send(protocol.Resize(uid=self.uid, rows=rows, cols=cols))

    def hide(self, secret: str) -> None:
        """Mask this in the output from now on (K5)."""
        self._send(protocol.Hide(uid=self.uid, secret=secret))

    def _flags(self) -> int:
        will_start = self.master is None and not self._over
        return termios.ECHO | termios.ICANON if will_start else super()._flags()

    def write(self, data: bytes, cause: bytes = b"", later: bytes = b"") -> None:
        """Type `data`, and `later` 100 ms after it. If the program does not read or has ended, raises `ToolError`, and
        nothing was written."""
        self.check_room(data + later)
        if self.interrupts(data):
            self._taken = 0
        self._taken += len(data) + len(later)
        self._pressing = bool(later)
        self._input(data, later, cause)

    def check_room(self, data: bytes) -> None:
        """Raise the error that writing this would raise (C6)."""
        if self._over:
            raise input_closed()
        if self.interrupts(data):
            return  # it makes room itself
        if self._taken and not self._waiting and not self._has_input():
            self._taken = 0
        waiting = self._waiting
        unread = waiting + min(max(0, self._taken - waiting), HOLDS)
        if unread + len(data) > UNREAD_LIMIT:
            raise input_not_read(unread, len(data))

    def press(self) -> None:
        """The keeper presses keys that are due before it types more."""

    @property
    def typing(self) -> bool:
        """Whether keys are still to be pressed after the text of the last input."""
        self._pressing = self._pressing and self._waiting > 0
        return self._pressing

    def look(self) -> Look:
        """Whether the program waits for input, as it is right now."""
        if self.master is None or self._waiting:
            return BUSY
        with self._slave() as slave:
            return BUSY if slave is None else machine.look(self.master, slave, self.pid)

    def probe(self) -> Look:
        """Like `look`. Earlier output is reported first."""
        found = self.look()
        if found.reader is not None and self.master is not None and (machine.has_input(self.master) or self._busy()):
            return BUSY
        return found

    def _has_input(self) -> bool:
        with self._slave() as slave:
            return slave is not None and machine.has_input(slave)

    @contextlib.contextmanager
    def _slave(self) -> Iterator[int | None]:
        """Open the program's side for a moment: held longer, it would hide that the program has closed it."""
        slave = None
        if self.master is not None:
            with contextlib.suppress(OSError):
                slave = machine.other_side(self.master)
        try:
            yield slave
        finally:
            if slave is not None:
                os.close(slave)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
