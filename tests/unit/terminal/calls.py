"""Calls of terminal tools, for tests: a sink that keeps what it is told, and a way to start one."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until

from keephold.durable.deferred import Pending
from keephold.handles.question import Question
from keephold.handles.state import Outcome
from keephold.tools.base import Invocation, SpawnPolicy, Tool
from keephold.tools.guard import Guard
from keephold.tools.template import CommandLine
from keephold.tools.terminal import emulator_worker
from keephold.tools.terminal.terminal import Terminal

UIDS = map("t{}".format, count())


class Recorder:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.sizes: list[tuple[int, int]] = []
        self.asked: list[tuple[Question, Callable[[Outcome], None]]] = []
        self.withdrawn = 0
        self.stops: list[tuple[Outcome, int | None, int | None]] = []
        self.releases = 0

    @property
    def printed(self) -> bytes:
        return b"".join(self.pieces)

    def output(self, data: bytes) -> None:
        assert self.sizes, "the size is told before any output"
        self.pieces.append(data)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    def resized(self, rows: int, cols: int) -> None:
        self.sizes.append((rows, cols))

    def reading(self, yes: bool) -> None: ...

    def abandon(self) -> None: ...

    def park(self, pending: Pending) -> None: ...

    def ask(self, question: Question, then: Callable[[Outcome], None], record: object = None) -> None:
        self.asked.append((question, then))

    def withdraw(self) -> None:
        self.withdrawn += 1

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        self.stops.append((outcome, exit_code, signal))

    def released(self) -> None:
        assert self.stops
        self.releases += 1

    async def said(self, text: bytes) -> None:
        await until(lambda: text in self.printed)

    async def end(self) -> tuple[Outcome, int | None, int | None]:
        """How it stopped; it did so once, and let go once."""
        await until(lambda: self.releases)
        assert (len(self.stops), self.releases) == (1, 1)
        return self.stops[0]


Start = Callable[..., tuple[Any, Recorder]]


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


@pytest.fixture
def start(guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a call of a terminal and returns its live end and its recorder.

    The emulator is in this process: one of its own takes an interpreter for each test.
    """
    monkeypatch.setattr(emulator_worker, "host", lambda: None)

    def begin(
        line: Any, arguments: dict[str, Any] | None = None, *, stateful: bool = True, **settings: Any
    ) -> tuple[Any, Recorder]:
        given: dict[str, Any] = {"env": {}, "cwd": str(tmp_path), "root": "/root", "options": {}, **settings}
        terminal = Terminal(line=CommandLine.parse(line, "command"), guard=None, **given).guarded(guard)
        tool = Tool(name="t", runtime=terminal, spawn=SpawnPolicy(abort_grace_ms=500))
        call: dict[str, Any] = {"uid": next(UIDS), "call_id": "call-1", "conversation": "main", "turn": "turn-1"}
        recorder = Recorder()
        invocation = Invocation(tool=tool, arguments=arguments or {}, stateful=stateful, **call)
        return terminal.start(invocation, recorder), recorder

    return begin


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", "import json, os, select, signal, sys, termios, time, tty\n" + script]
