"""The three lanes of a batch (B3): in which order its calls start.

Parallel calls start together. Serial calls run one at a time, in the order emitted, when every parallel call has
returned. Synchronising calls start at once and nobody waits for them. Calls that name one handle run in emitted order,
its spawn first; what follows a serial spawn follows it, and does not hold the serial lane up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from keephold.handles.pace import Pace
from keephold.turn.tool_call import ActiveCall, ParsedCall


def _nothing(call: ActiveCall) -> None: ...


class Lanes:
    """Starts the calls of a batch, each once, when its turn has come."""

    def __init__(self, calls: Sequence[ActiveCall], start: Callable[[ActiveCall], None]) -> None:
        self._start = start
        lanes = [(call, call.parsed.position, call.parsed.lane) for call in calls]
        self._serial = deque(call for call, _, lane in lanes if lane == "serial")
        self._after: dict[int, ActiveCall] = {}
        """By position: the call that must wait until this one has returned."""
        late = self._chain(calls)
        chained = {call.parsed.position for call in self._after.values()}
        self._ready = [(0, at, call) for call, at, lane in lanes if lane != "serial" and at not in chained]
        """A heap: first those that wait for no other, which start together; then followers, in the order emitted."""
        self._parallel = {at for _, at, lane in lanes if lane == "parallel" and at not in late}
        self._running: ActiveCall | None = None
        """The serial call that has started and not returned."""
        self._starting = False

    def _chain(self, calls: Sequence[ActiveCall]) -> set[int]:
        """Link the calls that name one handle. Return the positions that come after a serial spawn."""
        chains: dict[str, list[ParsedCall]] = {}
        for parsed in (call.parsed for call in calls):
            if parsed.handle_id is not None and parsed.lane != "synchronising":
                chains.setdefault(parsed.handle_id, []).append(parsed)
        late: set[int] = set()
        for chain in chains.values():
            chain.sort(key=lambda parsed: parsed.action != "spawn")  # stable: emitted order otherwise
            for before, parsed in pairwise(chain):
                self._after[before.position] = calls[parsed.position]
            if chain[0].lane == "serial":
                late.update(parsed.position for parsed in chain[1:])
        return late

    @property
    def first(self) -> set[int]:
        """The positions of those that start at once when the batch begins."""
        return {position for _, position, _ in self._ready}

    def returned(self, call: ActiveCall) -> None:
        """Start the calls that waited for this one."""
        position = call.parsed.position
        follower = self._after.pop(position, None)
        if follower is not None:
            heappush(self._ready, (1, follower.parsed.position, follower))
        self._parallel.discard(position)
        if self._running is call:
            self._running = None
        if not self._starting and (self._ready or self._serial):
            # Not at once: a handle that has stopped answers first and frees its lane and resources after that.
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Start every call whose turn has come, in emitted order."""
        # A call that starts may return at once and make the next one ready: a loop, so that a thousand of them in
        # a row need no stack. It pauses now and then: a thousand processes take a second to start.
        if self._starting:
            return
        self._starting = True
        pace = Pace()
        try:
            while True:
                if (self._ready or self._serial) and pace.is_over():
                    asyncio.get_running_loop().call_soon(self.pump)
                    return
                if self._ready:
                    self._start(heappop(self._ready)[2])
                elif self._serial and not self._parallel and self._running is None:
                    self._running = self._serial.popleft()
                    self._start(self._running)
                else:
                    break
            if not self._after and not self._parallel and self._running is None:
                self._start = _nothing  # all have started; the batch refers to this, and its results may be large
        finally:
            self._starting = False
