"""The environment, input and errors of a child process, for commands and terminals alike (F1, C6, F3).

A process that a function tool starts for its call, by `call.process` (C7, R2), bears a mark below that of the call, and
runs in a session of its own. When the function returns, raises or is ended, its processes are ended as those of a
command are, and only then does the handle stop.
"""

import asyncio
import contextlib
import errno
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from keephold.errors import ToolError
from keephold.tools.environment import inherited
from keephold.tools.guard import Guard
from keephold.tools.marks import call_mark
from keephold.tools.session import Exit, ProcessSession

CALL_LIMIT = 64 * 1024
"""Bytes of a call that still go into `KEEPHOLD_CALL` (F1)."""


def environment(
    own: Mapping[str, str],
    pass_env: Collection[str],
    guard: Guard,
    uid: str,
    values: Mapping[str, Any],
    place: Path | None = None,
) -> tuple[Path | None, dict[str, str]]:
    """Return the environment of a process, and the file that holds the call if it is too large for a variable (F1):
    `place`, or a temporary one."""
    env = {**inherited(pass_env), **own, **guard.environ(uid)}
    env.pop("KEEPHOLD_CALL", None)  # of a runtime around us
    env.pop("KEEPHOLD_CALL_FILE", None)
    call = json.dumps(values, separators=(",", ":"))  # ASCII: no locale of the program can garble it
    if len(call) <= CALL_LIMIT:
        return None, env | {"KEEPHOLD_CALL": call}
    try:
        if place is None:
            number, name = tempfile.mkstemp(prefix="keephold-call-", suffix=".json")
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            number, name = os.open(place, flags, 0o600), str(place)
        file = Path(name)
        try:
            with os.fdopen(number, "w") as opened:
                opened.write(call)
        except OSError:
            file.unlink()
            raise
    except OSError as error:
        raise ToolError(
            f"The command was not started: its call could not be written to a file ({error}). Make room in "
            + (
                f"{tempfile.gettempdir()}, or set TMPDIR to another directory." if place is None else f"{place.parent}."
            ),
            code="command_not_started",
        ) from error
    return file, env | {"KEEPHOLD_CALL_FILE": name}


def remove(file: Path | None) -> None:
    """Remove the file that held a call, if there is one and the program has not removed it."""
    if file is not None:
        with contextlib.suppress(OSError):
            file.unlink()


def as_text(text: str) -> bytes:
    """Encode text for a program (C6)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = "the input has half of a surrogate pair, which is not text; send whole characters"
        raise ToolError(message, code="invalid_arguments") from error


def as_json(data: Any) -> bytes:
    """Encode a value that is not text as JSON, without the line end (C6)."""
    return json.dumps(data, separators=(",", ":")).encode()


def ending(how: Exit) -> str:
    """Return how a process ended, as the rest of a sentence."""
    if how.signal is None:
        return f"ended with exit code {how.code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(how.signal).name}"
    return f"was killed by signal {how.signal}"


UNREAD_LIMIT = 64 * 1024
"""Input that the program may leave unread before more is refused (C6)."""


def input_not_read(unread: int, more: int) -> ToolError:
    """More input would exceed the limit of unread input (C6)."""
    return ToolError(
        f"Nothing was written: the program has not read {unread} bytes of earlier input, and {more} more "
        f"would exceed {UNREAD_LIMIT}. Wait until it has read them, or send less at once.",
        code="input_not_read",
    )


def input_closed() -> ToolError:
    """The program's standard input is closed."""
    return ToolError(
        "Nothing was written: the program's standard input is closed. A program takes input only while it runs, "
        "until `null` is sent or it closes its input itself.",
        code="not_running",
    )


def not_started(argv: Sequence[str], cwd: str | None, error: Exception) -> ToolError:
    """Say why a leader could not be started, and how to fix it."""
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
            return f"`{program}` is not a program. Begin it with a line such as `#!/bin/sh`, or name its interpreter."
        case errno.E2BIG:
            return "its arguments and environment are too long. Keep each below 128 KiB, or send them as input or file."
    return f"{error.strerror or error} (`{program}`). Make room for more processes and open files, then try again."


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


# Processes of function tools


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
