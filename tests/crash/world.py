"""What a child of the crash tests tells its parent, and what its tools do to the world.

Reports go through a pipe, one JSON line each, and only of what the child was told itself: a response it got, a step
that returned, a resolution that was accepted. What is in the pipe survives the child. Effects are lines of a file, on
the disk before the tool goes on, so the parent can count how often anything was done.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Report = dict[str, Any]


class Effect(NamedTuple):
    """Something that was done, by which call in which run and process. `what` is a step, `try`, `hook`, …"""

    uid: str
    what: str
    run: int
    pid: int


class World:
    """One run of the child: its number, its clock, who listens."""

    def __init__(
        self,
        directory: Path,
        send: Callable[[bytes], Any],
        *,
        run: int = 0,
        clock: float = 0.0,
        told: Iterable[Report] = (),
    ) -> None:
        self.directory = directory
        self.run = run
        self.clock = ShiftedClock(clock)
        self.reports: list[Report] = list(told)
        """Everything the parent knows: of the runs before, and of this one."""
        self._send = send
        self._news = asyncio.Event()
        self._effects = os.open(effects_file(directory), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def say(self, kind: str, **facts: Any) -> None:
        """Tell the parent."""
        report = {"kind": kind, "run": self.run, "pid": os.getpid(), **facts}
        self._send(json.dumps(report).encode() + b"\n")
        self.reports.append(report)
        self._news.set()

    def find(self, kind: str, **facts: Any) -> Report | None:
        """The newest report of a kind that has these facts."""
        return next((report for report in reversed(self.reports) if matches(report, kind, facts)), None)

    async def heard(self, kind: str, **facts: Any) -> Report:
        """The same; waits until there is one."""
        while (found := self.find(kind, **facts)) is None:
            self._news.clear()
            await self._news.wait()
        return found

    def act(self, uid: str, what: str) -> None:
        """Do something that cannot be undone."""
        os.write(self._effects, f"{uid} {what} {self.run} {os.getpid()}\n".encode())
        os.fsync(self._effects)

    def close(self) -> None:
        os.close(self._effects)


class ShiftedClock:
    """The time of day, so many seconds from now."""

    def __init__(self, offset: float) -> None:
        self.offset = offset

    def now(self) -> float:
        return time.time() + self.offset


def matches(report: Report, kind: str, facts: Mapping[str, Any]) -> bool:
    return report["kind"] == kind and all(report.get(name) == value for name, value in facts.items())


def effects_file(directory: Path) -> Path:
    return directory / "effects"


def effects(directory: Path) -> list[Effect]:
    """What was done so far, in order."""
    file = effects_file(directory)
    lines = file.read_text().splitlines() if file.exists() else []
    return [Effect(uid, what, int(run), int(pid)) for uid, what, run, pid in map(str.split, lines)]


class _Nowhere:
    """Before a run begins there is no world."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the tools of the crash tests run in a world: call `enter` first")


_here: World | _Nowhere = _Nowhere()


def enter(world: World) -> None:
    """From now on the tools of this process act in this world."""
    global _here
    _here = world


def here() -> Any:
    return _here
