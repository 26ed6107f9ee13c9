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

from keephold.turn.slot import Slot


class Lanes:
    """Starts the slots of a batch, each once, when its turn has come."""

    def __init__(self, slots: Sequence[Slot], start: Callable[[Slot], None]) -> None:
        self._start = start
        self._serial = deque(slot for slot in slots if slot.lane == "serial")
        self._after: dict[int, Slot] = {}
        """By position: the slot that must wait until this one has returned."""
        late = self._chain(slots)
        chained = {slot.position for slot in self._after.values()}
        self._ready = [(0, s.position, s) for s in slots if s.lane != "serial" and s.position not in chained]
        """A heap: first those that wait for nobody, which start together; then followers. The first emitted leads."""
        self._parallel = {s.position for s in slots if s.lane == "parallel" and s.position not in late}
        self._serial_busy = False
        self._starting = False

    def _chain(self, slots: Sequence[Slot]) -> set[int]:
        """Link the slots that name one handle. Returns the positions that come after a serial spawn."""
        chains: dict[str, list[Slot]] = {}
        for slot in slots:
            if slot.handle_id is not None and slot.lane != "synchronising":
                chains.setdefault(slot.handle_id, []).append(slot)
        late: set[int] = set()
        for chain in chains.values():
            chain.sort(key=lambda slot: slot.action != "spawn")  # stable: emitted order otherwise
            for before, slot in pairwise(chain):
                self._after[before.position] = slot
            if chain[0].lane == "serial":
                late.update(slot.position for slot in chain[1:])
        return late

    @property
    def first(self) -> set[int]:
        """The positions of those that start at once when the batch begins."""
        return {position for _, position, _ in self._ready}

    def begin(self) -> None:
        """Start everything that waits for nobody, in emitted order."""
        self._pump()

    def returned(self, slot: Slot) -> None:
        """A call has returned: start what waited for it."""
        follower = self._after.pop(slot.position, None)
        if follower is not None:
            heappush(self._ready, (1, follower.position, follower))
        self._parallel.discard(slot.position)
        if slot.lane == "serial":
            self._serial_busy = False
        if not self._starting and (self._ready or self._serial):
            # Not at once: a handle that has stopped answers first and frees its lane and resources after that.
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        # A call that starts may return at once and make the next one ready: a loop, so that a thousand of them in
        # a row need no stack.
        if self._starting:
            return
        self._starting = True
        try:
            while True:
                if self._ready:
                    self._start(heappop(self._ready)[2])
                elif self._serial and not self._parallel and not self._serial_busy:
                    self._serial_busy = True
                    self._start(self._serial.popleft())
                else:
                    return
        finally:
            self._starting = False
