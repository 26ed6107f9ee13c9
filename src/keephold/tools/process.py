"""One child process on pipes, in a session of its own, on the running event loop.

Callbacks report its output as it comes and, once, its end. A command ends with its first process, the leader (F3). The
leader's output is read to the last byte, that of others for 50 ms more. Then the remaining processes of the call are
ended as by an abort (C7, see `session.py`). When `on_exit` is called, no process, descriptor or timer of the call is
left.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from keephold.platforms import machine
from keephold.platforms.unix import fcntl, termios
from keephold.tools.child import UNREAD_LIMIT, input_closed, input_not_read, not_started
from keephold.tools.session import Exit, ProcessSession

__all__ = ["UNREAD_LIMIT", "Exit", "Process"]

_CHUNK = 64 * 1024  # also the size of a pipe: a program that fills it gets a larger one
_LARGE_CHUNK, _LARGE_PIPE = 256 * 1024, 1024 * 1024


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
        move: Callable[[int, int], int] | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it, or raise `ToolError`. `env` must carry `mark`; `grace` is for processes that the leader leaves
        behind. `move` gets the descriptor of its output, instead of `on_output` the bytes, and a number: it takes at
        most that many bytes out of it, and returns how many. `on_sent` is called when input that was kept here has been
        handed over.
        """
        self._loop = asyncio.get_running_loop()
        self._chunk = _CHUNK
        self._readers: dict[int, Callable[[int, int], int]] = {}
        self._paused = False
        self._on_sent = on_sent
        self._stdin: int | None = None
        self._unsent = bytearray()
        self._sent = 0
        self._closing_stdin = False
        try:
            output = move or _reading(on_output)
            stderr = subprocess.STDOUT if merge_stderr else on_stderr and _reading(on_stderr)
            popen = self._start(argv, env, cwd, stdin, output, stderr)
            self._output = next(iter(self._readers))
            self._session = ProcessSession(
                popen.pid,
                popen.wait,
                mark=mark,
                grace=grace,
                on_leader_end=self._leader_ended,
                close_output=self._close_output,
                on_exit=on_exit,
            )
        except (OSError, ValueError, IndexError) as error:
            self._close_stdin_now()
            for fd in self._readers:
                os.close(fd)
            raise not_started(argv, cwd, error) from error
        for fd in self._readers:
            self._loop.add_reader(fd, self._read, fd)

    def _start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bool,
        output: Callable[[int, int], int],
        stderr: Callable[[int, int], int] | int | None,
    ) -> "subprocess.Popen[bytes]":
        theirs: list[int] = []
        try:
            return subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=self._input_pipe(theirs) if stdin else subprocess.DEVNULL,
                stdout=self._output_pipe(theirs, output),
                stderr=self._output_pipe(theirs, stderr) if callable(stderr) else stderr or subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            for fd in theirs:
                os.close(fd)

    @property
    def pid(self) -> int:
        """The leader's pid, which is also its process group and its session."""
        return self._session.pid

    @property
    def unsent(self) -> int:
        """Bytes of input that the pipe did not take yet."""
        return len(self._unsent)

    def paths(self) -> dict[str, int]:
        """Return descriptors for the open pipes of its `output` and its `input` that keep no end open, if the machine
        has such."""
        ends = {"output": self._output if self._output in self._readers else None, "input": self._stdin}
        paths = {name: machine.path_of(fd) for name, fd in ends.items() if fd is not None}
        return {name: path for name, path in paths.items() if path is not None}

    def _input_pipe(self, theirs: list[int]) -> int:
        read, self._stdin = os.pipe()
        theirs.append(read)
        os.set_blocking(self._stdin, False)
        return read

    def _output_pipe(self, theirs: list[int], take: Callable[[int, int], int]) -> int:
        read, write = os.pipe()
        theirs.append(write)
        self._readers[read] = take
        os.set_blocking(read, False)
        return write

    # Input

    def write(self, data: bytes, cause: bytes = b"") -> None:
        """Send input. If the program does not read it, raises `ToolError`, and nothing was written. Only a keeper needs
        the `cause`."""
        if self._stdin is None or self._closing_stdin:
            raise input_closed()
        unread = self._unread()
        if unread + len(data) > UNREAD_LIMIT:
            raise input_not_read(unread, len(data))
        self._sent += len(data)
        if not self._unsent:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                pass  # less than the limit is unread and yet the pipe is full: it counts in pages
            except BrokenPipeError:
                self._close_stdin_now()
                raise input_closed() from None
            if data:
                self._loop.add_writer(self._stdin, self._flush)
        self._unsent += data

    def close_stdin(self) -> None:
        """End the input, after earlier input. Twice is harmless."""
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
            self._on_sent()

    def _close_stdin_now(self) -> None:
        if self._stdin is not None:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._unsent.clear()

    def _unread(self) -> int:
        """Return the bytes sent that the program has not read: in our buffer or in the pipe."""
        assert self._stdin is not None
        in_pipe = fcntl.ioctl(self._stdin, termios.FIONREAD, b"\0" * 4)
        return len(self._unsent) + int.from_bytes(in_pipe, "little")

    def probe(self) -> bool | None:
        """Whether a process of the tree is blocked reading our input, with nothing unread; None: unknown.

        If so, its earlier output is delivered first, so that a listener who learns that it waits has seen that output.
        """
        if self._stdin is None or self._session.exit is not None or self._unread():
            return False
        reading = machine.reads_pipe(self.pid, self._stdin)
        if reading:
            sent = self._sent
            self._drain()
            return self._sent == sent  # its output may have been answered at once
        return reading

    # Output

    def _read(self, fd: int) -> bool:
        """Read once; return whether there may be more at once."""
        try:
            size = self._readers[fd](fd, self._chunk)
        except BlockingIOError:
            return False
        if size:
            if size == _CHUNK == self._chunk:
                self._expect_much(fd)
            return True
        self._close_reader(fd)
        if not self._readers:
            self._session.output_ended()
        return False

    def pause(self) -> None:
        """Stop reading: a program that prints more than its pipe holds waits. Not after the leader's end."""
        if not self._paused and self._session.exit is None:
            self._paused = True
            for fd in self._readers:
                self._loop.remove_reader(fd)

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            for fd in self._readers:
                self._loop.add_reader(fd, self._read, fd)

    def _drain(self) -> None:
        """Read what is in the pipes now; sixteen reads empty the largest one."""
        for fd in list(self._readers):
            for _ in range(16):
                if not self._read(fd):
                    break

    def _expect_much(self, fd: int) -> None:
        # Only now, and not for every command: a user's pipes have a common limit.
        self._chunk = _LARGE_CHUNK
        machine.enlarge_pipe(fd, _LARGE_PIPE)

    def _close_reader(self, fd: int) -> None:
        del self._readers[fd]
        self._loop.remove_reader(fd)
        os.close(fd)

    # The end

    def end(self, grace: float) -> None:
        """Begin to end it (C7): SIGTERM to the group, SIGKILL after `grace` seconds. Twice is harmless."""
        self._session.end(grace)

    def _leader_ended(self) -> None:
        self._close_stdin_now()
        self.resume()
        self._drain()
        if not self._readers:
            self._session.output_ended()

    def _close_output(self) -> None:
        for fd in list(self._readers):
            self._close_reader(fd)


def _reading(deliver: Callable[[bytes], None]) -> Callable[[int, int], int]:
    """Return a function that reads from a descriptor and hands the bytes over."""

    def read(fd: int, size: int) -> int:
        data = os.read(fd, size)
        if data:
            deliver(data)
        return len(data)

    return read
