"""The parent of the processes that are killed: starts them, hears what they were told, keeps what their store holds.

A `Life` is one store with everything that happened to it: run after run, each ended by a kill or by itself. After each
run it is compared with what the runs before had said and written (`check.py`).
"""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from tests.crash import check
from tests.crash.snapshot import Snapshot
from tests.crash.stage import store_file
from tests.crash.tools import CONFIG, config_file
from tests.crash.world import Report

PATIENCE = 60.0
"""Seconds without a word after which a child is given up."""
LATER = 120.0
"""Seconds by which the clock moves on when only time can bring a scene to its end."""
_ROOT = Path(__file__).parents[2]


class Run:
    """One run on a store: what it said, and how it ended."""

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid
        self.reports: list[Report] = []
        self.code: int | None = None

    @property
    def verdict(self) -> str | None:
        """`done` or `later` if it ended by itself, None if it was killed."""
        end = self._end
        return end["verdict"] if end is not None and self.code == 0 else None

    @property
    def commits(self) -> int:
        """How many transactions it made, if it ended by itself."""
        assert self._end is not None
        return int(self._end["commits"])

    @property
    def _end(self) -> Report | None:
        return next((report for report in self.reports if report["kind"] == "end"), None)


class Story(Protocol):
    """What a child belongs to, and says what happened if it fails."""

    @property
    def directory(self) -> Path: ...


class Child(Run):
    """A process of ours, or what is left of it."""

    def __init__(self, nursery: "Nursery", pid: int, pipe: int, life: Story, number: int) -> None:
        super().__init__(number, pid)
        self._nursery = nursery
        self._pipe = pipe
        self._rest = b""
        self._life = life

    def hear(self, kind: str | None = None, **facts: Any) -> Report | None:
        """Listen until it says that, or is dead: then None."""
        while True:
            found = next((each for each in self.reports if kind and check.matches(each, kind, facts)), None)
            if found is not None or not self._listen():
                return found

    def hear_for(self, seconds: float) -> None:
        """Listen for so long, or until it is dead."""
        until = time.monotonic() + seconds
        while self.code is None and select.select([self._pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            self._listen()

    def _listen(self) -> bool:
        if self.code is not None:
            return False
        if not select.select([self._pipe], [], [], PATIENCE)[0]:
            self.kill()
            raise AssertionError(f"child {self.pid} said nothing for {PATIENCE:g} s\n{self._life}")
        data = os.read(self._pipe, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.reports += map(json.loads, lines)
        if not data:
            os.close(self._pipe)
            self.code = self._nursery.wait(self.pid)
        return bool(data)

    def kill(self) -> None:
        """SIGKILL; nothing happens if it is dead already."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.hear()

    def ended(self) -> "Child":
        """Listen to its end, whichever it is."""
        self.hear()
        return self


class Nursery:
    """The process that forks children: a module with a nursery like that of `child.py`. Threads may share it."""

    def __init__(self, module: str = "tests.crash.child") -> None:
        self._empty: bytes | None = None
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())], cwd=_ROOT, pass_fds=[theirs.fileno()]
            )

    def start(self, life: Story, number: int, request: dict[str, Any]) -> Child:
        file = life.directory / f"request-{number}"
        file.write_text(json.dumps(request))
        reader, writer = os.pipe()
        with self._asking:
            socket.send_fds(self._control, [json.dumps(str(file)).encode()], [writer])
            os.close(writer)
            return Child(self, self._answer(), reader, life, number)

    def wait(self, pid: int) -> int:
        """How a child ended."""
        with self._asking:
            self._control.sendall(json.dumps(pid).encode())
            return self._answer()

    def empty_store(self) -> bytes:
        if self._empty is None:
            with tempfile.TemporaryDirectory() as directory:
                life = Life(self, Path(directory), (), new=True)
                assert life.start().ended().code == 0, str(life)
                self._empty = store_file(life.directory).read_bytes()
        return self._empty

    def _answer(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            part = self._control.recv(64)
            assert part, "the nursery is gone"
            line += part
        return int(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait()


class NewLife(Protocol):
    """Makes a life on a store of some kind."""

    def __call__(self, directory: Path, scenes: tuple[str, ...], *, new: bool = False) -> "Life": ...


@dataclass
class Life:
    """One store and what became of it."""

    nursery: Nursery
    directory: Path
    scenes: tuple[str, ...]
    runs: list[Run] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    """What the store held after each of them that has ended."""
    ended: list[Run] = field(default_factory=list)
    late: bool = False
    new: bool = False
    """The first run makes the store. Otherwise an empty one is there, which saves a fifth of the time."""
    url: str | None = None
    """The PostgreSQL store; None: a file."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config_file(self.directory).write_text(CONFIG)
        if self.url is not None:
            (self.directory / "store-url").write_text(self.url)
        elif not self.new:
            store_file(self.directory).write_bytes(self.nursery.empty_store())

    def start(self, *, role: str = "play", kill: str | None = None, clock: float | None = None, **more: Any) -> Child:
        """Start a child that knows what all before it were told."""
        number = len(self.runs)
        request = {
            "directory": str(self.directory),
            "scenes": self.scenes,
            "role": role,
            "run": number,
            "clock": (LATER if self.late else 0.0) if clock is None else clock,
            "kill": kill,
            "told": self.told,
            **more,
        }
        child = self.nursery.start(self, number, request)
        self.runs.append(child)
        return child

    def over(self, child: Child) -> Child:
        """Listen to its end; then compare what it said and left with what was before."""
        child.ended()
        assert child.code in (0, -signal.SIGKILL), f"the child failed\n{self}"
        self.compare(child)
        return child

    def compare(self, run: Run) -> None:
        self.late = self.late or run.verdict == "later"
        self.ended.append(run)
        self.snapshots.append(Snapshot.of(self.directory))
        check.after_run(self)

    def run(self, *, kill: str | None = None) -> Child:
        return self.over(self.start(kill=kill))

    def finish(self) -> None:
        """Run it undisturbed until it is done; then all must be well."""
        while self.run().verdict != "done":
            assert len(self.runs) < 20, f"it never comes to its end\n{self}"
        self.end()

    def end(self) -> None:
        """It is done: all must be well."""
        assert self.runs[-1].verdict == "done", f"it is not done\n{self}"
        check.at_the_end(self)

    def kill_randomly(self, chance: random.Random, longest: float) -> Child:
        """Start a child and kill it some time later."""
        child = self.start()
        child.hear_for(chance.uniform(0, longest))
        child.kill()
        return self.over(child)

    @property
    def told(self) -> list[Report]:
        return [report for run in self.runs for report in run.reports]

    @property
    def deaths(self) -> int:
        return sum(run.code == -signal.SIGKILL for run in self.runs)

    def __str__(self) -> str:
        lines = [f"life in {self.directory}, scenes {', '.join(self.scenes)}:"]
        for run in self.runs:
            lines.append(f"run {run.number}, pid {run.pid}, ended with {run.code}:")
            lines += [f"  {json.dumps(report)[:2000]}" for report in run.reports[-100:]]
        errors = self.directory / "stderr"
        if errors.exists():
            lines.append(errors.read_text()[-6000:])
        return "\n".join(lines)
