"""Finds the processes of calls that end, all in one sweep over the processes of the machine.

A thousand calls that end at once would otherwise read every process a thousand times. Each process is signalled as soon
as it is found: a moment later only its child may exist.
"""

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from keephold.platforms import FEW, machine
from keephold.tools import marks

leaders: set[int] = set()
"""Leaders of calls. They have marks of their own, so a search for another mark skips them."""


@dataclass(eq=False, slots=True)
class Seek:
    """The search of one call: for processes that bear its mark, or those of its process groups."""

    number: Callable[[], int]
    """The signal that each one gets; 0: none."""
    mark: str | None = None
    groups: Collection[int] = ()
    found: list[int] = field(default_factory=list)
    """Processes that got the signal."""
    unsure: bool = False
    """A process could not be judged, because it was just changing its program."""

    def is_meant(self, pid: int) -> bool | None:
        """Whether this looks for the process; None if that is unknown."""
        if self.mark is None:
            return machine.group_of(pid) in self.groups
        return False if pid in leaders else marks.bears(pid, self.mark)

    def hit(self, pid: int) -> None:
        try:
            os.kill(pid, self.number())
        except OSError:
            return  # it is gone, or not ours to signal
        self.found.append(pid)


class _Sweeps:
    """The sweeps of one event loop. A search joins the next one that begins."""

    def __init__(self) -> None:
        self._next: list[tuple[Seek, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    def join(self, seek: Seek) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        swept: asyncio.Future[None] = loop.create_future()
        self._next.append((seek, swept))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return swept

    async def _run(self) -> None:
        while self._next:
            taken, self._next = self._next, []
            try:
                await _sweep([seek for seek, _ in taken])
            finally:
                for _, swept in taken:
                    if not swept.done():
                        swept.set_result(None)
        self._task = None


async def _sweep(seeks: list[Seek]) -> None:
    by_mark = {seek.mark: seek for seek in seeks if seek.mark is not None}
    by_group = {group: seek for seek in seeks for group in seek.groups}
    for count, pid in enumerate(marks.arrivals(machine.pids), 1):
        if by_group and (seek := by_group.get(machine.group_of(pid))) is not None:
            seek.hit(pid)
        if by_mark and pid not in leaders:
            borne = marks.marks_of(pid)
            if borne is None:
                for seek in by_mark.values():
                    seek.unsure = True
            for mark in borne or ():
                if (seek := by_mark.get(mark)) is not None:
                    seek.hit(pid)
        if count % FEW == 0:
            await asyncio.sleep(0)


_sweeps: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Sweeps]" = WeakKeyDictionary()


async def find(seek: Seek) -> list[int]:
    """Signal every process that is meant, and return those that got the signal. The event loop runs meanwhile."""
    loop = asyncio.get_running_loop()
    sweeps = _sweeps.get(loop) or _sweeps.setdefault(loop, _Sweeps())
    for _ in range(50):  # it waits for a process that cannot be judged, but with a limit
        seek.found, seek.unsure = [], False
        await sweeps.join(seek)
        if seek.found or not seek.unsure:
            return seek.found
        await asyncio.sleep(0.002)
    return []
