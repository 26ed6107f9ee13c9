"""One child process in a session of its own, on the running event loop.

What happens to it is told by callbacks: its output as it comes, and once its end. A command ends with its first
process, the leader (F3): what the leader wrote is read to the last byte, what others write for 50 ms more; then
whatever is left of the call is ended as by an abort (C7). When `on_exit` is called nothing of the call runs any more,
and no descriptor and no timer of it is left.

Linux only: the end is seen through a pidfd, the rest through /proc. What we may not signal (a program that became
another user) cannot be ended and is not counted as left.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import ToolError
from holdfast.tools import marks

UNREAD_LIMIT = 64 * 1024
"""Input that the program may leave unread before more is refused (C6)."""
LAST_OUTPUT = 0.05
"""Seconds for which the output of others is still read after the leader has ended (F3)."""

_CHUNK = 64 * 1024  # also the size of a pipe: who fills it gets a larger one
_LARGE_CHUNK, _LARGE_PIPE = 256 * 1024, 1024 * 1024
_YOUNG = 0.25  # seconds in which pids do not go round: those after the leader's are younger than it
_FEW = 64  # processes that may be looked at in one go without holding up the loop
_BLOCKED = {"x86_64": b"0 0x0 ", "aarch64": b"63 0x0 "}  # how /proc/<pid>/syscall begins in a read(2) of descriptor 0

_leaders: set[int] = set()  # they bear marks of their own: whoever looks for another need not look at them


@dataclass(frozen=True, slots=True)
class Exit:
    """How the leader ended: with a code, or by a signal."""

    code: int | None
    signal: int | None


class Process:
    """A started command. All calls and callbacks are on the loop's thread; no callback comes out of the constructor."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bool,
        merge_stderr: bool,
        mark: str,
        on_output: Callable[[bytes], None],
        on_stderr: Callable[[bytes], None] | None,
        on_exit: Callable[[Exit], None],
        grace: float = 2.0,
    ) -> None:
        """Start it, or raise `ToolError`. `env` must carry `mark`; `grace` is for what the leader leaves behind."""
        self._loop = asyncio.get_running_loop()
        self._mark = mark
        self._on_exit = on_exit
        self._grace = grace
        self._chunk = _CHUNK
        self._readers: dict[int, Callable[[bytes], None]] = {}
        self._stdin: int | None = None
        self._unsent = bytearray()
        self._sent = 0
        self._closing_stdin = False
        self._exit: Exit | None = None
        self._group = True  # whether the leader's process group may have members
        self._force: asyncio.TimerHandle | None = None  # set by the first `end`
        self._forced = False
        self._last_output: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._start(argv, env, cwd, stdin, on_output, subprocess.STDOUT if merge_stderr else on_stderr)

    def _start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bool,
        on_output: Callable[[bytes], None],
        stderr: Callable[[bytes], None] | int | None,
    ) -> None:
        theirs: list[int] = []
        try:
            self._popen = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=self._input_pipe(theirs) if stdin else subprocess.DEVNULL,
                stdout=self._output_pipe(theirs, on_output),
                stderr=self._output_pipe(theirs, stderr) if callable(stderr) else stderr or subprocess.DEVNULL,
                start_new_session=True,
            )
            self._started = time.monotonic()
            self._pidfd = self._open_pidfd()
        except (OSError, ValueError, IndexError) as error:
            self._close_stdin_now()
            for fd in self._readers:
                os.close(fd)
            raise _not_started(argv, cwd, error) from error
        finally:
            for fd in theirs:
                os.close(fd)
        _leaders.add(self.pid)
        for fd in self._readers:
            self._loop.add_reader(fd, self._read, fd)
        self._loop.add_reader(self._pidfd, self._leader_ended)

    @property
    def pid(self) -> int:
        """The leader's pid, which is also its process group and its session."""
        return self._popen.pid

    def _input_pipe(self, theirs: list[int]) -> int:
        read, self._stdin = os.pipe()
        theirs.append(read)
        os.set_blocking(self._stdin, False)
        return read

    def _output_pipe(self, theirs: list[int], deliver: Callable[[bytes], None]) -> int:
        read, write = os.pipe()
        theirs.append(write)
        self._readers[read] = deliver
        os.set_blocking(read, False)
        return write

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
            raise

    # Input

    def write(self, data: bytes) -> None:
        """Send input. Raises `ToolError`, and then nothing was written, if the program does not read or take it."""
        if self._stdin is None or self._closing_stdin:
            raise _input_closed()
        unread = self._unread()
        if unread + len(data) > UNREAD_LIMIT:
            raise ToolError(
                f"Nothing was written: the program has not read {unread} bytes of earlier input, and {len(data)} more "
                f"would exceed {UNREAD_LIMIT}. Wait until it has read them, or send less at once.",
                code="input_not_read",
            )
        self._sent += len(data)
        if not self._unsent:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                pass  # less than the limit is unread and yet the pipe is full: it counts in pages
            except BrokenPipeError:
                self._close_stdin_now()
                raise _input_closed() from None
            if data:
                self._loop.add_writer(self._stdin, self._flush)
        self._unsent += data

    def close_stdin(self) -> None:
        """End the input, after what was written before. Twice is harmless."""
        self._closing_stdin = True
        if not self._unsent:
            self._close_stdin_now()

    def _flush(self) -> None:
        assert self._stdin is not None
        try:
            del self._unsent[: os.write(self._stdin, self._unsent)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._close_stdin_now()
            return
        if not self._unsent:
            self._loop.remove_writer(self._stdin)
            if self._closing_stdin:
                self._close_stdin_now()

    def _close_stdin_now(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._unsent.clear()

    def _unread(self) -> int:
        """Bytes sent that the program has not read: still with us, or in the pipe."""
        assert self._stdin is not None
        in_pipe = fcntl.ioctl(self._stdin, termios.FIONREAD, b"\0" * 4)
        return len(self._unsent) + int.from_bytes(in_pipe, "little")

    def probe(self) -> bool | None:
        """Whether someone in the process tree is blocked reading our input, with nothing unread; None: unknown.

        If so, what it wrote before is delivered first: who hears "it waits" has heard what it said.
        """
        if self._stdin is None or self._exit is not None or self._unread():
            return False
        reading = _reading(self.pid, f"pipe:[{os.fstat(self._stdin).st_ino}]")
        if reading:
            sent = self._sent
            self._drain()
            return self._sent == sent  # what it said may have been answered at once
        return reading

    # Output

    def _read(self, fd: int) -> bool:
        """One bounded read; whether there may be more at once."""
        try:
            data = os.read(fd, self._chunk)
        except BlockingIOError:
            return False
        if data:
            if len(data) == _CHUNK == self._chunk:
                self._expect_much(fd)
            self._readers[fd](data)
            return True
        self._close_reader(fd)
        if self._exit is not None and not self._readers:
            self._output_ended()
        return False

    def _drain(self) -> None:
        """Read what is in the pipes now; sixteen reads empty the largest one."""
        for fd in list(self._readers):
            for _ in range(16):
                if not self._read(fd):
                    break

    def _expect_much(self, fd: int) -> None:
        # Only now, and not for every command: what all pipes of a user may hold together is limited.
        self._chunk = _LARGE_CHUNK
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)

    def _close_reader(self, fd: int) -> None:
        del self._readers[fd]
        self._loop.remove_reader(fd)
        os.close(fd)

    # The end

    def end(self, grace: float) -> None:
        """Begin to end it (C7): SIGTERM to the group, SIGKILL after `grace` seconds. Twice is harmless."""
        if self._force is None and self._group:
            self._signal_group(signal.SIGTERM)
            self._force = self._loop.call_later(grace, self._force_end)

    def _force_end(self) -> None:
        self._forced = True
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> bool:
        """Signal the group while it can only be ours; whether there is one. Zombies count as members."""
        if self._group:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                self._group = False
            except PermissionError:
                pass
        return self._group

    def _leader_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._popen.wait()
        _leaders.discard(self.pid)
        self._exit = Exit(code, None) if code >= 0 else Exit(None, -code)
        self._close_stdin_now()
        self._last_output = self._loop.call_later(LAST_OUTPUT, self._output_ended)
        self._drain()
        if not self._readers:
            self._output_ended()

    def _output_ended(self) -> None:
        if self._last_output is None:
            return
        self._last_output.cancel()
        self._last_output = None
        for fd in list(self._readers):
            self._close_reader(fd)
        if self._nothing_left():
            self._finish()
        else:
            self._ending = self._loop.create_task(self._end_rest())
            self._ending.add_done_callback(self._finish)

    def _nothing_left(self) -> bool:
        """Whether it is certain, at next to no cost, that nothing of the call runs any more: the usual case."""
        if self._signal_group(0) or time.monotonic() - self._started > _YOUNG:
            return False
        last = marks.last_pid()
        if last == self.pid:
            return True  # nobody has forked since it started
        if not self.pid < last <= self.pid + _FEW:
            return False
        younger = marks.arrivals(lambda: range(self.pid + 1, marks.last_pid() + 1))
        return all(self._bears_mark(pid) is False for pid in younger)

    async def _end_rest(self) -> None:
        """C7 for whatever outlived the leader: the group is asked, then forced; what else bears the mark is taken."""
        if self._signal_group(0):
            self.end(self._grace)
            await self._until_gone(self._in_group, lambda: signal.SIGKILL if self._forced else 0)
            self._group = False
        await self._until_gone(self._bears_mark, lambda: signal.SIGKILL)

    async def _until_gone(self, meant: marks.Judge, number: Callable[[], int]) -> None:
        while left := await _find(meant, number):
            # Not longer: one of the group may have left it, and is not waited for but taken by its mark.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    for pid in left:
                        await _gone(pid, meant)

    def _in_group(self, pid: int) -> bool:
        return marks.in_group(pid, self.pid)

    def _bears_mark(self, pid: int) -> bool | None:
        return False if pid in _leaders else marks.bears(pid, self._mark)

    def _finish(self, _: object = None) -> None:
        assert self._exit is not None
        self._group = False
        if self._force is not None:
            self._force.cancel()
        self._on_exit(self._exit)


async def _find(meant: marks.Judge, number: Callable[[], int]) -> list[int]:
    """Signal every process that is meant as soon as it is found: the next moment only its child may be there.

    Returns those that got the signal. The loop runs on while we look.
    """
    for _ in range(50):  # one that cannot be judged is waited for, but not for ever
        found, unsure = [], False
        for count, pid in enumerate(marks.arrivals(marks.pids), 1):
            verdict = meant(pid)
            unsure |= verdict is None
            if verdict and _signal(pid, number()):
                found.append(pid)
            if count % _FEW == 0:
                await asyncio.sleep(0)
        if found or not unsure:
            return found
        await asyncio.sleep(0.002)
    return []


async def _gone(pid: int, meant: marks.Judge) -> None:
    """Wait for the end of a process that is not our child. A zombie has ended, even if nobody ever reaps it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # no descriptor to be had
        await asyncio.sleep(0.01)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        if meant(pid):  # else the pid went to somebody else before the pidfd held it
            await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _signal(pid: int, number: int) -> bool:
    """Send a signal; whether it was ours to send, and somebody there to get it."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _reading(leader: int, pipe: str) -> bool | None:
    """Whether a thread of the leader or its descendants is blocked in read(2) on descriptor 0 that is this pipe."""
    blocked = _BLOCKED.get(os.uname().machine)
    if blocked is None:
        return None
    tree, threads, unknown = [leader], 0, False
    for pid in tree:
        try:
            ours = os.readlink(f"/proc/{pid}/fd/0") == pipe  # noqa: PTH115 (this must cost next to nothing)
            for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                threads += 1
                if threads > _FEW:
                    return None
                tree += map(int, marks.read(f"/proc/{pid}/task/{thread}/children").split())
                if ours and marks.read(f"/proc/{pid}/task/{thread}/syscall").startswith(blocked):
                    return True
        except PermissionError:
            unknown = True
        except OSError:
            continue  # it has just ended
    return None if unknown else False


def _not_started(argv: Sequence[str], cwd: str | None, error: Exception) -> ToolError:
    """The error in words: what was wrong, and what would be right."""
    return ToolError(f"The command was not started: {_reason(argv, cwd, error)}", code="command_not_started")


def _reason(argv: Sequence[str], cwd: str | None, error: Exception) -> str:
    if not argv:
        return "it is empty. Give at least the name of a program."
    if not isinstance(error, OSError):
        return f"{error}. Arguments and environment are text without NUL characters, names in it without `=`."
    program = argv[0]
    if cwd is not None and error.filename == cwd and not os.path.isdir(cwd):  # noqa: PTH112
        return f"its working directory `{cwd}` does not exist or is not a directory. Create it, or set another `cwd`."
    if cwd is not None and error.filename == cwd and cwd != program:
        return f"its working directory `{cwd}` may not be entered ({error.strerror}). Allow it, or set another `cwd`."
    match error.errno:
        case errno.ENOENT if "/" not in program:
            return f"there is no program `{program}` in any directory of PATH. Install it, or give its whole path."
        case errno.ENOENT | errno.ENOTDIR if not os.path.exists(os.path.join(cwd or "", program)):  # noqa: PTH110, PTH118
            return f"there is no program `{program}`. Correct the path, or give a name that is in PATH."
        case errno.ENOENT:
            return f"the interpreter that the first line of `{program}` names does not exist. Correct that line."
        case errno.EACCES:
            return f"`{program}` may not be executed. Make it executable (`chmod +x`), or start it by its interpreter."
        case errno.ENOEXEC:
            return (
                f"`{program}` is no program. Begin it with a line such as `#!/bin/sh`, or start it by its interpreter."
            )
        case errno.E2BIG:
            return "its arguments and environment are too long. Keep each below 128 KiB, or send them as input or file."
    return f"{error.strerror or error} (`{program}`). Make room for more processes and open files, then try again."


def _input_closed() -> ToolError:
    return ToolError(
        "Nothing was written: the program's standard input is closed. A program takes input only while it runs, "
        "until `null` is sent or it closes its input itself.",
        code="not_running",
    )
