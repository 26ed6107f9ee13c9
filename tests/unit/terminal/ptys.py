"""Programs in terminals, for tests: what they said, what they are, what is left of them."""

import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from tests.patience import until

from keephold.platforms import State, machine
from keephold.tools import marks
from keephold.tools.session import Exit
from keephold.tools.terminal.pty import Pty

RUNTIME = marks.new_runtime_mark()
UIDS = map("p{}".format, count())


class Run:
    """A program in a terminal under test, and what it said."""

    def __init__(
        self,
        *argv: str,
        cwd: str | None = None,
        rows: int = 24,
        cols: int = 80,
        grace: float = 2.0,
        on_output: Callable[[bytes], None] | None = None,
    ) -> None:
        self.mark = marks.call_mark(RUNTIME, next(UIDS))
        self.output = bytearray()
        self.exits: list[Exit] = []
        self.pty = Pty(
            argv,
            env={"PATH": os.environ["PATH"], "TERM": "xterm", **marks.environ(self.mark)},
            cwd=cwd,
            rows=rows,
            cols=cols,
            mark=self.mark,
            on_output=on_output or self.output.extend,
            on_exit=self.exits.append,
            grace=grace,
        )

    async def ended(self) -> Exit:
        await until(lambda: bool(self.exits))
        return self.exits[0]

    async def said(self, text: bytes) -> None:
        await until(lambda: text in self.output)

    async def found(self, state: State) -> None:
        """Wait for this state; where the machine cannot see a reader, until it does not know."""
        states = {state} if machine.probes else {state, "raw", "unknown"}
        await until(lambda: self.pty.probe().state in states)

    async def stop(self) -> None:
        self.pty.end(0)
        await self.ended()

    def foreground(self) -> str:
        """The program that has the terminal."""
        stat = Path(f"/proc/{self.pty.pid}/stat").read_text().rpartition(")")[2].split()
        return name_of(int(stat[5]))

    def left(self) -> list[int]:
        """What runs of the call."""
        return marks.find(self.mark)


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", "import os, signal, sys, termios, time, tty\n" + script]


def name_of(pid: int) -> str:
    """The name of its program; of a process that is gone, none."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())
