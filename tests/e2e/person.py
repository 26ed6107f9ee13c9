"""A person at a terminal: starts `prompted.py` there, reads what it shows, presses keys, hears what became of them.

The program gets the terminal as its controlling one and as standard error. Standard input and output are pipes.
"""

import fcntl
import json
import os
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from tests.e2e.driver import until
from tests.leaks import all_pids
from tests.patience import PATIENCE

from keephold.handles.question import Question
from keephold.tools.terminal.emulator import open_emulator
from keephold.turn.prompts import AskQuestion, DeliverResult, Prompt, RunTool

_PROGRAM = Path(__file__).with_name("prompted.py")
_ROWS, _COLUMNS = 40, 80
_TAKEN, _PUT_BACK = b"\x1b[?2004h", b"\x1b[?2004l"  # what the prompter sends when it takes and puts back a terminal

LEFT, RIGHT, UP, DOWN, HOME, END, DELETE = (f"\x1b[{end}" for end in ("D", "C", "A", "B", "H", "F", "3~"))
CTRL_C, CTRL_D, ESCAPE, ENTER, BACKSPACE, CTRL_U, CTRL_W = "\x03", "\x04", "\x1b", "\r", "\x7f", "\x15", "\x17"
CANCELLED = {"type": "cancelled", "reason": None}


class Person:
    """The terminal's other end, and both pipes."""

    def __init__(self, environment: Mapping[str, str], shell: str) -> None:
        self.master, slave = os.openpty()
        name = os.ttyname(slave)
        os.close(slave)
        self.resize(_ROWS, _COLUMNS)
        inner_in, self._orders = os.pipe()
        self._answers, inner_out = os.pipe()
        keep = {key: value for key, value in os.environ.items() if key not in ("VISUAL", "EDITOR", "PAGER", "NO_COLOR")}
        self._leader = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", shell, "sh", sys.executable, "-W", "error", str(_PROGRAM)],
            {**keep, "TERM": "xterm", "NO_COLOR": "1", **environment},
            setsid=True,
            setsigdef=[signal.SIGHUP],  # which `nohup` ignores for all tests: not so at a terminal
            file_actions=[
                (os.POSIX_SPAWN_DUP2, inner_in, 0),
                (os.POSIX_SPAWN_DUP2, inner_out, 1),
                # Opened by the leader of a new session, so that it becomes its controlling terminal.
                (os.POSIX_SPAWN_OPEN, 2, name, os.O_RDWR, 0),
            ],
        )
        os.close(inner_in)
        os.close(inner_out)
        self.output = b""
        """Everything the terminal got."""
        self._read = 0
        self._said = b""
        told = self.hears()
        assert told["here"], self.text
        self.pid = told["pid"]

    # The program

    def asked(self, prompt: Prompt) -> None:
        """Let the program show a prompt. What comes from now on is what it shows."""
        if self.output.count(_TAKEN):
            until(lambda: self._pump() or self.output.count(_TAKEN) == self.output.count(_PUT_BACK))
        self._read = len(self.output)
        self.order(prompt=prompt)

    def order(self, **order: Any) -> None:
        os.write(self._orders, msgspec.json.encode(order) + b"\n")

    def hears(self) -> Any:
        """The next line of the program. The terminal is read meanwhile."""
        limit = time.monotonic() + PATIENCE
        while b"\n" not in self._said:
            assert time.monotonic() < limit, f"no word from the program; the terminal: {self.text}"
            if self._pump(self._answers):
                data = os.read(self._answers, 65536)
                assert data, f"the program ended; the terminal: {self.text}"
                self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return json.loads(line)

    def decides(self) -> dict[str, Any]:
        """What the prompter returned."""
        said = self.hears()
        assert set(said) == {"decision"}, said
        decision = said["decision"]
        assert isinstance(decision, dict)
        assert decision.pop("by", None) is None, "the prompter's `who` says it"
        return decision

    def ticks(self) -> int:
        """How often the program's counting task has run."""
        self.order(ticks=True)
        count = self.hears()["ticks"]
        assert isinstance(count, int)
        return count

    # The terminal

    def types(self, keys: str | bytes) -> None:
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def sees(self, text: str) -> str:
        """Wait for a text that is shown after the last one that was seen; everything up to its end."""
        wanted = text.encode()
        limit = time.monotonic() + PATIENCE
        while (found := self.output.find(wanted, self._read)) < 0:
            assert time.monotonic() < limit, f"{text!r} is not shown; the terminal: {self.text[-2000:]}"
            self._pump()
        before, self._read = self._read, found + len(wanted)
        return self.output[before : self._read].decode(errors="replace")

    def sees_row(self, text: str, cursor: int) -> None:
        """Wait until the row of the cursor has just this text, with the cursor in that column, counted from 1."""
        until(lambda: self._pump() or self._row() == (text, cursor), what=lambda: repr(self._row()))

    def _row(self) -> tuple[str, int]:
        emulator = open_emulator(_ROWS, _COLUMNS, lambda _: None, kind="ghostty")
        try:
            emulator.feed(self.output)
            screen = emulator.screen()
            row, column = screen.cursor
            return screen.lines[row - 1].rstrip(), column
        finally:
            emulator.close()

    @property
    def text(self) -> str:
        """Everything the terminal got, as text."""
        return self.output.decode(errors="replace")

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes: those of its other end."""
        return termios.tcgetattr(self.master)

    @property
    def foreground(self) -> int:
        """The process group that the keys of job control reach."""
        return os.tcgetpgrp(self.master)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hangs_up(self) -> None:
        os.close(self.master)
        self.master = -1

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """The terminal is not read in this block."""
        master, self.master = self.master, -1
        try:
            yield
        finally:
            self.master = master

    def _pump(self, other: int | None = None) -> bool:
        """Read what the terminal has got, waiting a moment; whether the other descriptor can be read."""
        watched = [fd for fd in (self.master, -1 if other is None else other) if fd >= 0]
        ready = select.select(watched, [], [], 0.01)[0]
        if self.master in ready:
            try:
                self.output += os.read(self.master, 65536)
            except OSError:  # nobody has the other end open
                time.sleep(0.01)
        return other in ready

    # The end

    def leaves(self) -> int:
        """End the orders; the program's exit code."""
        os.close(self._orders)
        self._orders = -1
        limit = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(self._leader, os.WNOHANG)
            if pid:
                self._leader = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < limit, "the program does not end"
            self._pump()

    def _session(self) -> set[int]:
        """The processes of this terminal, an editor that does not end by itself included."""
        found = {self._leader}
        for pid in all_pids():
            with suppress(ProcessLookupError):
                if os.getsid(pid) == self._leader:
                    found.add(pid)
        return found

    def close(self) -> None:
        if self._leader:
            for pid in self._session():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(self._leader, 0)
        for fd in (self.master, self._orders, self._answers):
            if fd >= 0:
                os.close(fd)


@contextmanager
def person(*, shell: str = 'exec "$@"', **environment: str) -> Iterator[Person]:
    """A person at a terminal, gone at the end of the block. The shell script starts the program, `"$@"`."""
    somebody = Person(environment, shell)
    try:
        yield somebody
    finally:
        somebody.close()


# Prompts, and what becomes of them


def run(arguments: dict[str, Any] | None = None, **fields: Any) -> RunTool:
    given = {"env": "prod"} if arguments is None else arguments
    return RunTool(**{"tool": "deploy", "action": None, "id": None, "conversation": "main", **fields}, arguments=given)


def deliver(result: str, **fields: Any) -> DeliverResult:
    fields = {"tool": "build", "id": "b", "is_error": False, **fields}
    return DeliverResult(**fields, result=result, conversation="main")


def ask(kind: Any, *, may_remember: bool = False, problem: str | None = None, **fields: Any) -> AskQuestion:
    question = Question(**{"id": "q", "text": "What now?", **fields}, answer_type=kind)
    return AskQuestion(
        tool="guide", id="g", question=question, conversation="main", may_remember=may_remember, problem=problem
    )


def choice(*options: str, **fields: Any) -> AskQuestion:
    return ask({"Select": {"options": list(options)}}, **fields)


def approved(*, remember: bool = False) -> dict[str, Any]:
    return {"type": "approved", "remember": remember}


def denied(*, reason: str | None = None, remember: bool = False) -> dict[str, Any]:
    return {"type": "denied", "reason": reason, "remember": remember}


def said(value: Any, *, remember: bool = False) -> dict[str, Any]:
    return {"type": "said", "value": value, "remember": remember}
