"""Long loops that let the event loop run in between: a thousand calls that start, ten thousand handles that end.

A loop that does this counts by time, because steps differ: starting a process takes a thousand times as long as
cancelling a task. The first few steps are never interrupted, so that a small batch starts as one.
"""

import asyncio
from time import perf_counter

PORTION_SECS = 0.02
"""How long a loop may keep the event loop waiting."""
AT_LEAST = 8
"""Number of steps between two interruptions, however long they take."""


class Pace:
    """Says when a loop has kept the event loop waiting long enough."""

    __slots__ = ("_began", "_steps")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._began = perf_counter()
        self._steps = 0

    def is_over(self) -> bool:
        """Return whether this portion is over; called once a step."""
        self._steps += 1
        return self._steps >= AT_LEAST and perf_counter() - self._began >= PORTION_SECS

    async def step(self) -> None:
        """Let the event loop run if this portion is over, and begin the next one."""
        if self.is_over():
            await asyncio.sleep(0)
            self._begin()
