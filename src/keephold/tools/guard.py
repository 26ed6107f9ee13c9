"""The guard: all processes that a runtime's tools started end with the runtime, even if that is killed (R2).

A small process in a session of its own holds the read end of a pipe whose write end only the runtime holds. When the
pipe closes, the guard kills every process with the runtime's mark until none is left, and exits. When it starts, it
does the same for the processes of dead runtimes. Its program is `marks.py`.

Our own commands have one guard for the whole process, which also ends what Python functions started (`adopt`). A
runtime inside another program has one of its own, and leaves the children of that program alone.

(PDEATHSIG does not suffice: it follows the thread that spawned and does not reach grandchildren.)
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from keephold.errors import ToolError
from keephold.platforms import VARIABLE, machine
from keephold.tools import marks
from keephold.tools.environment import conceal, inherited

if TYPE_CHECKING:
    from keephold.tools.keeper.client import Keeper

_PROGRAM = str(Path(marks.__file__).resolve())


class Guard:
    """One runtime's mark and the process that watches the processes with this mark."""

    def __init__(self) -> None:
        self.mark = marks.new_runtime_mark()
        self.spool: Path | None = None
        """The directory of the store for output; None if the store is in memory."""
        self._keeper: Keeper | None = None
        self._watch = _command or _Watch(self.mark)

    @property
    def keeper(self) -> "Keeper":
        """The keepers of the store, for processes that outlive the runtime (R7)."""
        if self._keeper is None:
            from keephold.tools.keeper.client import Keeper  # most runtimes keep nothing

            assert self.spool is not None, "a spawn of a kept tool is refused on a store in memory"
            self._keeper = Keeper(self.spool)
        return self._keeper

    async def leave_kept(self) -> None:
        """Leave the kept processes to their keepers."""
        if self._keeper is not None:
            await self._keeper.leave()

    def environ(self, call_uid: str) -> dict[str, str]:
        """Return the environment entry with which every process of this call must be started."""
        return marks.environ(marks.call_mark(self.mark, call_uid))

    def end(self, call_uid: str) -> None:
        """Kill the remaining processes of a call, in any session; blocks while it reads all processes."""
        mark = marks.call_mark(self.mark, call_uid)
        marks.kill_all(lambda pid: marks.bears(pid, mark), looks=1)

    def ensure(self) -> None:
        """Start the guard unless it runs. Does not wait until it is ready: the pipe stays closed once it is."""
        self._watch.ensure()

    def close(self) -> None:
        """Kill the remaining processes of this runtime, then end the guard: it stays armed to the last.

        The guard of a command stays until the command ends, because its process may start others until then.
        """
        if self._watch is not _command:
            self._watch.close()
        elif self._watch.running:
            marks.kill_all(lambda pid: marks.bears(pid, self.mark), looks=1)


class _Watch:
    """The process of a guard, which kills all processes with one mark when ours has ended."""

    def __init__(self, mark: str, *, forks: bool = False) -> None:
        self.mark = mark
        self._forks = forks
        self._owner = os.getpid()
        self._program: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    @property
    def running(self) -> bool:
        """Whether it was started, and has not ended since."""
        return self._program is not None and self._program.poll() is None

    def ensure(self) -> None:
        if machine.no_programs:
            raise ToolError(f"{machine.no_programs}.", code="command_not_started")
        if self.running:
            return
        self._release()
        conceal()  # before the first child can look
        try:
            read, self._pipe = os.pipe()
        except OSError as error:
            raise _not_started(error) from error
        try:
            self._program = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM, str(read), self.mark, str(int(self._forks)), machine.modules()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited() | {VARIABLE: machine.name},
                cwd="/",  # otherwise our directory's file system would stay busy
                start_new_session=True,
                pass_fds=(read,),
            )
        except OSError as error:
            self._release()
            raise _not_started(error) from error
        finally:
            os.close(read)
        machine.guarded(self.mark, self._pipe)

    def close(self) -> None:
        """Kill the remaining processes with the mark, then end the guard."""
        if self._program is None or os.getpid() != self._owner:
            return
        held = machine.pipe_name(self._pipe) if self._forks and self._pipe is not None else None
        meant = marks.bears_or_holds(self.mark, held)
        marks.kill_all(lambda pid: pid != self._owner and meant(pid), looks=1)
        machine.end_groups(self.mark)
        self._program.kill()
        self._program.wait()
        self._release()

    def _release(self) -> None:
        self._program = None
        if self._pipe is not None:
            machine.guarded(self.mark, None)
            os.close(self._pipe)
            self._pipe = None


_command: _Watch | None = None


def adopt() -> None:
    """Let everything that this process starts from now on end with it: for our own commands.

    Children inherit a mark by the environment; forks without exec are known by the guard's pipe. Processes that must
    outlive the command are started with `environment.inherited`, which does not have this mark.
    """
    global _command
    if _command is None:
        _command = _Watch(marks.adopt(), forks=True)


def release() -> None:
    """End what this process has started since `adopt`, and take the mark from its environment."""
    global _command
    if _command is not None:
        _command.close()
        _command = None
        marks.release()


def watch_children() -> None:
    """Start the guard of the command that this process is, if it is one, before a function can start a process."""
    if _command is not None:
        with contextlib.suppress(ToolError):  # a function may need no process; if it does, the next start ends it
            _command.ensure()


def _not_started(error: OSError) -> ToolError:
    return ToolError(
        f"The guard process could not be started ({error.strerror or error}), and without it no command is: "
        f"make sure that {sys.executable} can be run and that the limits on processes and open files leave room.",
        code="command_not_started",
    )
