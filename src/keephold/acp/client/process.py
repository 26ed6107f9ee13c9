"""The program of an agent: started on pipes in a session of its own, watched, and ended with its process group."""

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from keephold.errors import KeepholdError
from keephold.platforms import ProcessEndWatch, machine
from keephold.tools.environment import inherited

KEPT = 64 * 1024
"""Bytes of standard error that are kept: the last ones."""
_SHOWN = 2000
"""Characters of standard error that an error shows."""
_EOF_SECS = 1.0
"""The time to exit after its input has ended."""
_TERM_SECS = 2.0
"""The time to exit after SIGTERM."""


def argv(command: str | Sequence[str]) -> list[str]:
    """Return the program and its arguments; a string is split as a shell would."""
    words = shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]
    if not words:
        raise KeepholdError("no command was given; it is a program and its arguments", code="command_not_started")
    return words


class AgentProcess:
    """A running agent. `reading` and `writing` are our ends of its pipes; `exited` is called once when it exits."""

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
        pass_env: Collection[str] = (),
        exited: Callable[[], None],
    ) -> None:
        self.command = argv(command)
        self._exited = exited
        self._loop = asyncio.get_running_loop()
        self._errors = b""
        self._gone = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        try:
            self._program = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=cwd,
                env=inherited(pass_env) | dict(env or {}),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            message = f"the agent `{shlex.join(self.command)}` could not be started: {why}"
            raise KeepholdError(message, code="command_not_started") from error
        assert self._program.stdin and self._program.stdout and self._program.stderr
        self.writing, self.reading = self._program.stdin.fileno(), self._program.stdout.fileno()
        self._stderr: int | None = self._program.stderr.fileno()
        for pipe in (self._program.stdin, self._program.stdout, self._program.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(self._program.stderr, self._read_errors)
        self._end_of_it: ProcessEndWatch | None = machine.end_of(self._program.pid)
        self._loop.add_reader(self._end_of_it, self._reap)

    @property
    def pid(self) -> int:
        """The process id, which is also its group's."""
        return self._program.pid

    @property
    def returncode(self) -> int | None:
        """The exit code as `subprocess` has it; None while it runs."""
        return self._program.returncode

    @property
    def stderr(self) -> str:
        self._read_errors()
        return self._errors.decode(errors="replace")

    def epitaph(self) -> str:
        """How it ended and its last output, for the text of an error."""
        code = self._program.returncode
        if code is None:
            how = "has closed its output"
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the agent `{shlex.join(self.command)}` {how}{self.printed()}"

    def printed(self) -> str:
        """The end of its standard error, to be appended to the text of an error; empty if there is none."""
        words = self.stderr.strip()
        if len(words) > _SHOWN:  # whole lines, if there are any
            words = words[-_SHOWN:]
            words = words.partition("\n")[2] or words
        return f"; it printed:\n{words}" if words else ""

    def hurry(self) -> None:
        """Begin to end it, because its pipes have closed. `exited` is called as always."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())

    async def end(self) -> None:
        """End it with its whole process group, and close the pipes."""
        self.hurry()
        assert self._ending is not None
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        assert self._program.stdin and self._program.stdout and self._program.stderr
        self._program.stdin.close()
        for patience, number in ((_EOF_SECS, signal.SIGTERM), (_TERM_SECS, signal.SIGKILL)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), patience)
            if self._gone.is_set():
                break
            self._signal(number)
        await self._gone.wait()
        self._read_errors()
        if self._stderr is not None:  # a process that it started holds it open
            self._loop.remove_reader(self._stderr)
            self._stderr = None
        self._program.stdout.close()
        self._program.stderr.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _reap(self) -> None:
        if self._end_of_it is None:
            return
        self._signal(signal.SIGKILL)  # the rest of its group; before the wait, because the number may be reused
        self._program.wait()
        self._loop.remove_reader(self._end_of_it)
        self._end_of_it.close()
        self._end_of_it = None
        self._exited()  # first: its last output is still to be read
        self._gone.set()

    def _read_errors(self) -> None:
        if self._stderr is None:
            return
        try:
            while part := os.read(self._stderr, KEPT):
                self._errors = (self._errors + part)[-KEPT:]
        except BlockingIOError:
            return
        self._loop.remove_reader(self._stderr)  # the agent has closed it
        self._stderr = None
