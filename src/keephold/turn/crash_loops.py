"""Crash loops end (R8): a call that ends every process which resumes it is found and stopped, and no other call is.

Every claim counts a death for a call that was running when its process died. A recorded step, parking, or
`STEADY_SECS` of running set the count back, and a process that closes in order counts none. After the second death a
call is a suspect. As long as there are suspects, resumed calls take turns: the one with the most deaths first, and a
call before the one that made it. A turn ends when the call stops, parks, records a step, asks, or waits in its durable
effects. If it does none of these, it ends after `STEADY_SECS`, or sooner if there are many alike, so that a round takes
ten minutes. Calls that are not suspected start together when the turns are over.

While a suspect is the only call that runs, its row says `alone`. If the process dies then, no other call can have ended
it, and the next process stops the suspect. The mark is removed from the store before another call starts, gets an
answer or wakes, so it is never there by mistake. New calls run at all times, and a death beside them proves nothing:
the suspect's count grows. The turns of the few calls with a higher count are quiet: no other call starts before the
turn is over. So a loop ends on a busy server, too.

Calls that a suspect makes itself, such as the steps of a workflow, count as part of it.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from keephold.handles.handle import Handle, Watcher
from keephold.handles.registry import Registry
from keephold.handles.state import Failure, QuestionAnswered, Stopped, Waiting
from keephold.ids import caller_of
from keephold.store.base import Changed, Counted, Done, Failed, Journaled, Op, Record

_log = logging.getLogger("keephold.recovery")

SUSPECT_DEATHS = 2
"""From this many deaths on, calls are resumed one at a time."""
STEADY_SECS = 60.0
"""A call that has run for this long is not in a crash loop."""
_ROUND_SECS, _SHORTEST_SECS = 600.0, 1.0
"""How long the turns of calls with equally many deaths take together, and the shortest turn."""
_FIRST_LOOK_SECS, _SLOW_LOOK_SECS = 0.001, 1.0
"""When a turn is looked at for the first time; later looks come after twice the time, up to the second one."""

_numbers = itertools.count()


def in_order(records: Sequence[Record]) -> list[Record]:
    """Return claimed calls in the order of their turns."""
    known = {record.uid: record for record in records}

    def depth(record: Record) -> int:
        caller = known.get(caller_of(record.conversation, record.call_id) or "")
        return 0 if caller is None else 1 + depth(caller)

    return sorted(records, key=lambda each: (-each.deaths, -depth(each), each.uid))


def crash_loop(deaths: int) -> Failure:
    """Return the outcome of a call that has ended its process again and again."""
    return Failure(
        f"{deaths} processes in a row died while they ran this call. When the last one died, it ran no other call, so "
        "the call is not resumed. Find the cause in the log of the process, then retry the call: keephold retry ID",
        "crash_loop",
    )


class _Resumed(Watcher):
    """A resumed call that has made no progress yet."""

    __slots__ = ("_loops", "began", "deaths", "handle", "number", "start", "takes_turn")

    def __init__(self, loops: "CrashLoops", handle: Handle, deaths: int, *, takes_turn: bool) -> None:
        self._loops = loops
        self.number = next(_numbers)
        self.handle = handle
        self.deaths = deaths
        self.takes_turn = takes_turn
        self.start: Callable[[], None] | None = None
        """Starts it. Set while it waits for its turn."""
        self.began: float | None = None
        """The loop's time when it was started."""

    @property
    def suspected(self) -> bool:
        return self.deaths >= SUSPECT_DEATHS

    def counted(self, deaths: int, *, alone: bool = False) -> Counted:
        """Return the operation that writes its count."""
        return Counted(self.handle.uid, self.handle.fence, deaths, "alone" if alone else None)

    def stopped(self, handle: Handle) -> None:
        self._loops.clear(self)

    def parked(self, handle: Handle) -> None:
        handle.unwatch(self)
        self._loops.clear(self)


class CrashLoops:
    """The resumed calls of one runtime that have made no progress yet, and their turns."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._calls: dict[str, _Resumed] = {}
        self._waiting: list[_Resumed] = []
        """Those that may start when it is their turn; the next one is the last, if `_sorted`."""
        self._sorted = True
        self._expected: set[str] = set()
        """Uids of claimed calls that take turns and are not admitted yet."""
        self._alike: Counter[int] = Counter()
        """How many suspects there have been, by the number of deaths."""
        self._turn: _Resumed | None = None
        self._turn_secs = 0.0
        self._alone: _Resumed | None = None
        """The call whose row says that no other call runs."""
        self._held: list[Callable[[], None]] = []
        """Starts of other calls, which wait for the end of a quiet turn."""
        self._look_secs = _SLOW_LOOK_SECS
        self._timer: asyncio.TimerHandle | None = None
        self._found = False
        """A call was stopped: it may explain the deaths of the others, so that no turn is quiet."""
        self.active = False
        """Whether `Admission` must ask before it starts a call."""

    # Calls that are resumed

    async def resuming(self, records: Sequence[Record]) -> None:
        """Prepare for the start of claimed calls, whose standing is `queued`."""
        suspects = [record for record in records if record.deaths >= SUSPECT_DEATHS]
        if suspects:
            _log.warning(
                "%d calls were running when several processes died in a row; resumed calls start one at a time, until "
                "the call that ends the process is found or none does",
                len(suspects),
            )
        self._alike.update(record.deaths for record in suspects)
        if suspects or self._turn is not None:
            self._expected.update(record.uid for record in records)
        else:
            await self._registry.write([Counted(each.uid, each.fence, each.deaths) for each in records])

    def resumed(self, records: Sequence[Record]) -> None:
        """All calls of `resuming` are admitted, or were ended before."""
        self._expected.difference_update(record.uid for record in records)
        self._end_quiet()

    def watch(self, handle: Handle, deaths: int) -> None:
        """Watch a call of `resuming`, which is about to be admitted."""
        takes_turn = handle.uid in self._expected
        self._expected.discard(handle.uid)
        if deaths == 0 and not takes_turn:
            return
        if not self.active:
            self.active = True
            self._registry.observe_commits(self._observed)
            self._registry.on_woken = self._woken
        call = self._calls[handle.uid] = _Resumed(self, handle, deaths, takes_turn=takes_turn)
        handle.watch(call)

    def stopped(self, record: Record) -> Failure:
        """Return the outcome of a call that was alone when its process died."""
        self._found = True
        failure = crash_loop(record.deaths)
        _log.error(
            "handle `%s` (%s, uid %s) of conversation `%s` is stopped: %s",
            record.id, record.tool, record.uid, record.conversation, failure.message,
        )  # fmt: skip
        return failure

    # Calls that start

    def holds(self, handle: Handle, start: Callable[[], None]) -> bool:
        """Return whether `start` is called later: in the handle's turn, after a quiet turn, or after a mark is
        removed."""
        call = self._calls.get(handle.uid)
        if call is not None and call.takes_turn:
            call.start = start
            self._waiting.append(call)
            self._sorted = False
            asyncio.get_running_loop().call_soon(self._next_turn)
            return True
        if call is not None:
            self._started(call)
        if handle.tool.unrecorded:
            return False
        if self._turn is not None and self._is_quiet(self._turn) and not self._made_by(self._turn, handle):
            self._held.append(start)
            return True
        if self._alone is None or self._made_by(self._alone, handle):
            return False
        self._registry.commit(self._accompanied(), lambda _: start(), lambda _: start(), keep=True)
        return True

    def clear(self, call: _Resumed) -> None:
        """Forget a call: it has stopped or parked, or has made progress."""
        if self._calls.pop(call.handle.uid, None) is not call:
            return
        if call is self._alone:
            self._alone = None
        if call is self._turn:
            self._end_turn()
        if not self._calls and not self._held and not self._expected:
            self.close()

    def _made_by(self, suspect: _Resumed, handle: Handle) -> bool:
        """Return whether the call is the suspect itself, or the suspect has made it."""
        found: Handle | None = handle
        while found is not None and found.uid != suspect.handle.uid:
            caller = caller_of(found.conversation, found.call_id)
            found = None if caller is None else self._registry.loaded(caller)
        return found is not None

    # Turns

    def _is_quiet(self, call: _Resumed) -> bool:
        return call.deaths > SUSPECT_DEATHS and self._secs(call) == STEADY_SECS and not self._found

    def _secs(self, call: _Resumed) -> float:
        return min(STEADY_SECS, max(_SHORTEST_SECS, _ROUND_SECS / self._alike[call.deaths]))

    def _next_turn(self) -> None:
        if self._turn is not None or self._registry.closing:
            return
        if not self._sorted:
            self._waiting.sort(key=lambda each: (each.deaths, -each.number))
            self._sorted = True
        while self._waiting and not self._waiting[-1].handle.active:
            self._waiting.pop()
        if self._waiting and not self._waiting[-1].suspected:
            self._start_all()
        elif self._waiting:
            call = self._turn = self._waiting.pop()
            ops = self._accompanied()
            if not self._company(call):
                self._alone = call
            op = call.counted(call.deaths, alone=self._alone is call)
            begin = partial(self._begin, call)
            self._registry.commit((*ops, op), begin, begin, keep=True)

    def _begin(self, call: _Resumed, _: object) -> None:
        if call is not self._turn or call.start is None:
            return  # it was ended while that was written
        self._turn_secs, self._look_secs = self._secs(call), _FIRST_LOOK_SECS
        self._started(call)
        call.start()

    def _started(self, call: _Resumed) -> None:
        call.began = asyncio.get_running_loop().time()
        self._look_later()

    def _start_all(self) -> None:
        """Start the calls that are not suspected."""
        calls, self._waiting = self._waiting, []
        ops = [*self._accompanied(), *(call.counted(call.deaths) for call in calls)]

        def begin(_: object) -> None:
            for call in calls:
                if call.start is not None:
                    self._started(call)
                    call.start()

        self._registry.commit(ops, begin, begin, keep=True)

    def _end_turn(self) -> None:
        """End the turn; the call may run on."""
        self._turn = None
        self._next_turn()
        self._end_quiet()

    def _end_quiet(self) -> None:
        """Start the calls that were held, unless another quiet turn follows."""
        if not self._held or self._expected or (self._turn is not None and self._is_quiet(self._turn)):
            return
        held, self._held = self._held, []

        def begin(_: object) -> None:
            for start in held:
                start()

        self._registry.commit(self._accompanied(), begin, begin, keep=True)

    def _company(self, call: _Resumed) -> bool:
        return any(_runs(handle) and not self._made_by(call, handle) for handle in self._registry.live())

    def _accompanied(self) -> tuple[Op, ...]:
        """Return the operation that removes the mark of the call that was alone."""
        call, self._alone = self._alone, None
        return () if call is None else (call.counted(call.deaths),)

    async def _woken(self, uid: str) -> None:
        """A call that waited in its effects continues."""
        handle = self._registry.loaded(uid)
        if self._alone is not None and handle is not None and not self._made_by(self._alone, handle):
            await self._registry.write(self._accompanied())

    def _observed(self, ops: Sequence[Op], done: Done, failed: Failed) -> tuple[Sequence[Op], Done, Failed]:
        """Look at every commit: a recorded step is progress, and a call that got an answer continues."""
        progress, mark, alone = dict[str, _Resumed](), tuple[Op, ...](), self._alone
        for op in ops:
            if type(op) is Journaled and op.kind not in ("trace", "attempt") and op.uid in self._calls:
                progress[op.uid] = self._calls[op.uid]
            elif type(op) is Changed and type(op.event) is QuestionAnswered and self._alone is not None:
                handle = self._registry.loaded(op.uid)
                if handle is None or not self._made_by(self._alone, handle):
                    mark = self._accompanied()
        more = [*mark, *(call.counted(0) for call in progress.values())]
        if not more:
            return ops, done, failed

        def written(results: Sequence[Any]) -> None:
            done(results[: len(ops)])
            for call in progress.values():
                call.handle.unwatch(call)
                self.clear(call)

        def refused(error: Exception) -> None:
            failed(error)
            if mark and self._alone is not alone:  # nothing else removes the mark
                self._registry.write_soon(*mark)

        return (*ops, *more), written, refused

    # Time

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._look_secs, self._look)

    def _look(self) -> None:
        self._timer, now = None, asyncio.get_running_loop().time()
        if self._registry.closing or not self.active:
            return
        turn = self._turn
        if turn is not None and turn.began is not None:
            if now >= turn.began + self._turn_secs or not _runs(turn.handle):
                self._end_turn()
            self._look_secs = min(_SLOW_LOOK_SECS, 2 * self._look_secs)
        if self._look_secs == _SLOW_LOOK_SECS:
            self._look_at_all(now)
        if self._timer is None and self.active:
            self._look_later()

    def _look_at_all(self, now: float) -> None:
        """Clear the calls that have run long enough, and mark a suspect that is alone again."""
        steady = [call for call in self._calls.values() if call.began is not None and call.began + STEADY_SECS <= now]
        if steady:
            self._registry.write_soon(*[call.counted(0) for call in steady])
            for call in steady:
                call.handle.unwatch(call)
                self.clear(call)
        if self._alone is not None or (self._turn is not None and self._turn.began is None):
            return
        running = (self._calls.get(handle.uid) for handle in self._registry.live() if _runs(handle))
        found = next((each for each in running if each is not None and each.suspected), None)
        if found is not None and not self._company(found):
            self._alone = found
            self._registry.write_soon(found.counted(found.deaths, alone=True))

    # The end

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.active:
            self.active = False
            self._registry.on_woken = None
            self._registry.stop_observing(self._observed)

    def release(self, handles: Sequence[Handle]) -> None:
        """Write that these calls are released: the end of a process that closes in order is not a death."""
        self.close()
        ops = list[Op]()
        for handle in handles:
            if handle.run is not None and not handle.run.is_parking:
                call = self._calls.get(handle.uid)
                ops.append(Counted(handle.uid, handle.fence, 0 if call is None else call.deaths, "released"))
        if ops:
            self._registry.write_soon(*ops)


def _runs(handle: Handle) -> bool:
    """Return whether a call can end this process now: it was started, and neither asks nor waits in its effects. A kept
    process runs in another one."""
    run = handle.run
    if run is None or handle.tool.unrecorded or (isinstance(handle.decided, Stopped) and not handle.lingering):
        return False
    return not isinstance(handle.decided, Waiting) and not run.waits_in_effects and not run.kept
