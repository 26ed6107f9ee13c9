"""Long work that lets others run in between: a thousand calls that start, ten thousand handles that end or are deleted.

A loop (`Pace`) counts by time, because steps differ: starting a process takes a thousand times as long as cancelling a
task. The first few steps are never interrupted, so that a small batch starts as one.

Handles are deleted from the store in parts (`Parts`), each as large as takes a moment, with a pause as long after each.
In a SQLite store, a commit that arrives during a part waits for it, and may be written together with the next one. So
others wait for two parts at most. In a PostgreSQL store, nothing waits for a part.
"""

import asyncio
from time import perf_counter

PORTION_SECS = 0.02
"""How long a loop may keep the event loop waiting."""
AT_LEAST = 8
"""Number of steps between two interruptions, however long they take."""
_PART_SECS = 0.01
"""How long a part should take."""
_LEAST, _MOST = 20, 500


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


class Parts:
    """How many handles a part deletes, from how long parts took."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 50

    async def took(self, seconds: float) -> None:
        """Choose the size of the next part, and pause."""
        wanted = self.size * _PART_SECS / max(seconds, 1e-6)
        self.size = int(min(max(wanted, _LEAST), 2 * self.size, _MOST))
        await asyncio.sleep(min(seconds, 1.0))
