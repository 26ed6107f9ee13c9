"""The guard: all processes that a runtime's tools started end with the runtime, even if that is killed (R2).

A small process in a session of its own holds the read end of a pipe whose write end only the runtime holds. When the
pipe closes, the guard kills every process with the runtime's mark until none is left, and exits. When it starts, it
does the same for the processes of dead runtimes. Its program is `marks.py`.

(PDEATHSIG does not suffice: it follows the thread that spawned and does not reach grandchildren.)
"""

import os
import subprocess
import sys
from pathlib import Path

from keephold.errors import ToolError
from keephold.tools import marks
from keephold.tools.environment import conceal, inherited

_PROGRAM = str(Path(marks.__file__).resolve())


class Guard:
    """One runtime's mark and the process that watches the processes with this mark."""

    def __init__(self) -> None:
        self.mark = marks.new_runtime_mark()
        self._program: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def environ(self, call_uid: str) -> dict[str, str]:
        """Return the environment entry with which every process of this call must be started."""
        return marks.environ(marks.call_mark(self.mark, call_uid))

    def end(self, call_uid: str) -> None:
        """Kill the remaining processes of a call, in any session; blocks while it reads all processes."""
        mark = marks.call_mark(self.mark, call_uid)
        marks.kill_all(lambda pid: marks.bears(pid, mark), looks=1)

    def ensure(self) -> None:
        """Start the guard unless it runs. Does not wait until it is ready: the pipe stays closed once it is."""
        if self._program is not None and self._program.poll() is None:
            return
        self._let_go()
        conceal()  # before the first child can look
        try:
            read, self._pipe = os.pipe()
        except OSError as error:
            raise _not_started(error) from error
        try:
            self._program = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM, str(read), self.mark],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited(),
                cwd="/",  # otherwise our directory's file system would stay busy
                start_new_session=True,
                pass_fds=(read,),
            )
        except OSError as error:
            self._let_go()
            raise _not_started(error) from error
        finally:
            os.close(read)

    def close(self) -> None:
        """Kill the remaining processes of this runtime, then end the guard: it stays armed to the last."""
        if self._program is None:
            return
        marks.kill_all(lambda pid: marks.bears(pid, self.mark), looks=1)
        self._program.kill()
        self._program.wait()
        self._let_go()

    def _let_go(self) -> None:
        self._program = None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _not_started(error: OSError) -> ToolError:
    return ToolError(
        f"The guard process could not be started ({error.strerror or error}), and without it no command is: "
        f"make sure that {sys.executable} can be run and that the limits on processes and open files leave room.",
        code="command_not_started",
    )
