"""The processes of one call: a leader in a session of its own, and its descendants.

Ending a call (C7) signals its process group, kills it after a grace, and then kills the other processes with the call's
mark and in its control group. The same is done to processes that a leader leaves behind (F3). When `on_exit` is called,
no process, descriptor or timer of the call is left.

Where processes cannot be listed (`machine.lists`), the process groups are the call. A process that we may not signal (a
program that became another user) can be ended only where it has a control group, and is not counted as left elsewhere.

Calls that end together share one sweep over the processes of the machine. A thousand calls would otherwise read every
process a thousand times. Each process is signalled as soon as it is found: a moment later only its child may exist.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
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


# One call

LAST_OUTPUT = 0.05
"""Seconds for which the output of others is still read after the leader has ended (F3)."""

_YOUNG = 0.25  # seconds in which pids do not wrap: those after the leader's are younger than it
_ZOMBIE_SECS = 1.0  # how long a killed group may last: a zombie that nobody reaps looks the same


@dataclass(frozen=True, slots=True)
class Exit:
    """How the leader ended: with a code, or by a signal."""

    code: int | None
    signal: int | None


class ProcessSession:
    """A leader that was just started, and its descendants. Used on the loop's thread."""

    __slots__ = (
        "_asks", "_close_output", "_end", "_ending", "_force", "_forced", "_grace", "_group", "_groups", "_last_output",
        "_loop", "_mark", "_on_exit", "_on_leader_end", "_others", "_started", "_wait", "exit", "pid",
    )  # fmt: skip

    def __init__(
        self,
        pid: int,
        wait: Callable[[], int],
        *,
        mark: str,
        grace: float,
        on_leader_end: Callable[[], None],
        close_output: Callable[[], None],
        on_exit: Callable[[Exit], None],
        asks: Sequence[int] = (signal.SIGTERM,),
        others: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """Watch the leader. If it raises `OSError`, the leader is ended and reaped already.

        `wait` reaps the leader and returns its exit code, or its signal as a negative number. `asks` are the signals
        that request an end. `others` returns process groups that are signalled and killed like the leader's. `grace` is
        for processes that the leader leaves behind. `close_output` is called after `output_ended`, 50 ms after the
        leader's end at the latest, and `on_exit` once nothing of the call is left.
        """
        self.pid = pid
        self.exit: Exit | None = None
        """How the leader ended, once it has."""
        self._started = time.monotonic()
        self._wait = wait
        self._mark = mark
        self._grace = grace
        self._on_leader_end, self._close_output, self._on_exit = on_leader_end, close_output, on_exit
        self._last_output: asyncio.TimerHandle | None = None
        self._asks = asks
        self._others = others
        self._groups = {pid}  # the process groups to signal, as long as they may have members
        self._force: asyncio.TimerHandle | None = None  # set by the first `end`
        self._forced = False
        self._ending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._end = machine.end_of(pid)
        except OSError:
            os.killpg(pid, signal.SIGKILL)
            wait()
            raise
        self._group = machine.enter(mark, pid)
        leaders.add(pid)
        self._loop.add_reader(self._end, self._leader_ended)

    def _leader_ended(self) -> None:
        self._loop.remove_reader(self._end)
        self._end.close()
        code = self._wait()
        leaders.discard(self.pid)
        self.exit = Exit(code, None) if code >= 0 else Exit(None, -code)
        self._last_output = self._loop.call_later(LAST_OUTPUT, self.output_ended)
        self._on_leader_end()

    def end(self, grace: float) -> None:
        """Begin to end it (C7): signal the groups now and kill them after `grace` seconds. Twice is harmless."""
        if self._force is None and self._groups:
            self._groups.update(filter(self._is_ours, self._others()))
            self._signal_groups(*self._asks)
            self._force = self._loop.call_later(grace, self._force_end)

    def output_ended(self) -> None:
        """Read no more output; if the leader has ended, end the processes it left behind, and report its exit."""
        if self._last_output is None:
            return
        self._last_output.cancel()
        self._last_output = None
        self._close_output()
        if self._nothing_left():
            self._cleared()
        else:
            self._ending = self._loop.create_task(self._end_rest())
            self._ending.add_done_callback(self._cleared)

    def _cleared(self, _: object = None) -> None:
        assert self.exit is not None
        self._groups.clear()
        if self._force is not None:
            self._force.cancel()
        if self._group is not None:
            self._group.leave()
        self._on_exit(self.exit)

    def _force_end(self) -> None:
        self._forced = True
        # Another group may have ended meanwhile, and its number may belong to another process.
        self._groups = {group for group in self._groups if group == self.pid or self._is_ours(group)}
        self._signal_groups(signal.SIGKILL)
        if self._group is not None:
            self._group.kill()  # also a program that became another user

    def _is_ours(self, group: int) -> bool:
        """Whether a group is one of this session. Unknown once its first process is gone; then the mark decides."""
        try:
            return os.getsid(group) == self.pid
        except OSError:
            return False

    def _signal_groups(self, *numbers: int) -> bool:
        """Signal the groups that can only be ours; return whether there is one. Zombies count as members."""
        for group in tuple(self._groups):
            for number in numbers:
                try:
                    os.killpg(group, number)
                except ProcessLookupError:
                    self._groups.discard(group)
                except PermissionError:
                    pass
        return bool(self._groups)

    def _nothing_left(self) -> bool:
        """Whether it is certain, at almost no cost, that nothing of the call runs any more: the usual case."""
        if self._signal_groups(0):
            return False
        if not machine.lists:
            return True
        if time.monotonic() - self._started > _YOUNG:
            return False
        last = machine.last_pid()
        if last == self.pid:
            return True  # nobody has forked since it started
        if last is None or not self.pid < last <= self.pid + FEW:
            return False
        younger = marks.arrivals(lambda: range(self.pid + 1, (machine.last_pid() or 0) + 1))
        seek = Seek(lambda: 0, mark=self._mark)
        in_group = self._group is not None and self._group.populated
        return not in_group and all(seek.is_meant(pid) is False for pid in younger)

    async def _end_rest(self) -> None:
        """End processes that outlived the leader (C7): signal their groups, kill these, kill others with the mark and
        in the control group."""
        if self._signal_groups(0):
            self.end(self._grace)
            if machine.lists:
                await _until_gone(Seek(lambda: signal.SIGKILL if self._forced else 0, groups=self._groups))
            else:
                await self._groups_gone()
            self._groups.clear()
        await _until_gone(Seek(lambda: signal.SIGKILL, mark=self._mark))
        while self._group is not None and self._group.populated:
            self._group.kill()
            await asyncio.sleep(0.005)

    async def _groups_gone(self) -> None:
        left = _ZOMBIE_SECS
        while left > 0 and self._signal_groups(signal.SIGKILL if self._forced else 0):
            await asyncio.sleep(0.01)
            left -= 0.01 * self._forced


async def _until_gone(seek: Seek) -> None:
    while left := await find(seek):
        # No longer: a process may have left the group; it is killed by its mark instead of being waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                for pid in left:
                    await _gone(pid, seek.is_meant)


async def _gone(pid: int, meant: marks.Judge) -> None:
    """Wait for the end of a process that is not our child. A zombie has ended, even if nothing ever reaps it."""
    try:
        end = machine.end_of(pid)
    except ProcessLookupError:
        return
    except OSError:  # no descriptor is available
        await asyncio.sleep(0.01)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(end, ended.set)
    try:
        if meant(pid):  # otherwise another process got the pid before it was watched
            await ended.wait()
    finally:
        loop.remove_reader(end)
        end.close()
