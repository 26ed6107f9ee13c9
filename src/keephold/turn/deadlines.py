"""Deadlines of parked calls: one timer in all, for whichever comes next (D7).

A deadline is a time of day in the store. It fires late rather than never: what passed while nobody ran is found at the
start, and every sweep looks again.
"""

import asyncio

from keephold.handles.registry import Registry
from keephold.store.endings import timed_out

_LONGEST = 3600.0
"""A timer is not trusted for longer: the time of day may be set."""


class Deadlines:
    """Ends parked calls whose time is up."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._next: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, deadline: float) -> None:
        """A call was parked that has this deadline."""
        if not self._registry.closing and (self._next is None or deadline < self._next):
            self._arm(deadline)

    def _arm(self, at: float) -> None:
        self.stop()
        self._next = at
        delay = min(max(0.0, at - self._registry.clock.now()), _LONGEST)
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._next = self._timer = None
        self._registry.run_soon(self.check())

    async def check(self) -> None:
        """End what is due, and set the timer for what is next."""
        registry = self._registry
        while True:
            records, following = await registry.store.due(registry.clock.now())
            handles = [registry.adopt(record) for record in records]
            ended = [each for each in handles if each.parked and registry.end(each, timed_out(each.parking), "timeout")]
            if not ended:
                break  # those that are still found are being ended, by another process perhaps
            await registry.write(())  # until that is written, or they would be found again
        if following is not None and not registry.closing:
            self.expect(following)

    def stop(self) -> None:
        """Set no timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._next = self._timer = None
