"""Processes that a function tool starts for its call, by `call.process` (C7, R2).

Each bears a mark below that of the call, and runs in a session of its own. When the function returns, raises or is
ended, they are ended as those of a command are, and only then does the handle stop.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

from keephold.errors import ToolError
from keephold.tools.child import not_started
from keephold.tools.environment import inherited
from keephold.tools.guard import Guard
from keephold.tools.marks import call_mark
from keephold.tools.session import Exit, ProcessSession


class ChildProcess:
    """A process of a call, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, argv: Sequence[str], mark: str, grace: float, **options: Any) -> None:
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._ended = asyncio.get_running_loop().create_future()
        self._popen = popen = subprocess.Popen(argv, bufsize=0, start_new_session=True, **options)
        self._open: list[asyncio.BaseTransport | IO[bytes]] = [
            pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None
        ]
        self.pid = popen.pid
        try:
            self._session = ProcessSession(
                self.pid,
                self._popen.wait,
                mark=mark,
                grace=grace,
                on_leader_end=lambda: self._session.output_ended(),
                close_output=lambda: None,
                on_exit=self._exited,
            )
        except OSError:
            self.close()
            raise

    async def connect(self) -> None:
        """Connect the pipes to streams."""
        loop, popen = asyncio.get_running_loop(), self._popen
        if popen.stdin is not None:
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
            transport, _ = await loop.connect_write_pipe(lambda: protocol, popen.stdin)
            self._open[self._open.index(popen.stdin)] = transport
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self.stdout, self.stderr = await self._reader(popen.stdout), await self._reader(popen.stderr)

    async def _reader(self, pipe: IO[bytes] | None) -> asyncio.StreamReader | None:
        if pipe is None:
            return None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._open[self._open.index(pipe)] = transport
        return reader

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal as a negative number; None while it runs."""
        return self._popen.returncode

    async def wait(self) -> int:
        """Wait until it has ended, and with it everything that it started; return the exit code."""
        await asyncio.shield(self._ended)
        return self._popen.returncode

    async def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]:
        """Send input and close it, read all output, wait for the end; return stdout and stderr, if they are pipes."""
        _, out, err, _ = await asyncio.gather(self._feed(input), _all(self.stdout), _all(self.stderr), self.wait())
        return out, err

    async def _feed(self, data: bytes | None) -> None:
        if self.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it need not read its input
                self.stdin.write(data or b"")
                await self.stdin.drain()
            self.stdin.close()

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        self._popen.send_signal(number)

    def terminate(self) -> None:
        """Send it SIGTERM, unless it has ended."""
        self._popen.terminate()

    def kill(self) -> None:
        """Send it SIGKILL, unless it has ended."""
        self._popen.kill()

    def end(self, grace: float) -> None:
        """Begin to end it and everything it started: ask first, force after `grace` seconds."""
        self._session.end(grace)

    def close(self) -> None:
        """Close its pipes."""
        for each in self._open:
            each.close()

    def _exited(self, how: Exit) -> None:
        self._ended.set_result(None)


class Children:
    """The processes of one call."""

    def __init__(self, guard: Guard, uid: str, grace: float) -> None:
        self._guard = guard
        self._uid = uid
        self._grace = grace
        self._ending = False
        self._started: list[ChildProcess] = []

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        pass_env: Collection[str],
        **streams: int | IO[Any] | None,
    ) -> ChildProcess:
        """Start a process, or raise `ToolError`."""
        if self._ending:
            raise ToolError("this call is being ended and starts no more processes", code="cancelled")
        self._guard.ensure()
        own = f"{self._uid}/{len(self._started)}"  # or the end of one would end the others, too
        whole = {**inherited(pass_env), **(env or {}), **self._guard.environ(own)}
        try:
            child = ChildProcess(argv, call_mark(self._guard.mark, own), self._grace, cwd=cwd, env=whole, **streams)
        except (OSError, ValueError, IndexError) as error:
            raise not_started(argv, cwd, error) from error
        self._started.append(child)
        await child.connect()
        return child

    def end(self, grace: float) -> None:
        """Begin to end them all. No more can be started."""
        self._ending = True
        for child in self._started:
            child.end(grace)

    async def ended(self) -> None:
        """End them all, and return when nothing is left of them, also if the task is cancelled meanwhile."""
        self.end(self._grace)
        for child in self._started:
            while not child._ended.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await child.wait()
            child.close()


async def _all(stream: asyncio.StreamReader | None) -> bytes | None:
    return None if stream is None else await stream.read()
