"""The time of day, behind a protocol of one method.

Times that are stored or shown (created, started, stopped, a deadline) come from a `Clock`. Countdowns do not: every
timer in keephold is `loop.call_later`, so that virtual time is a matter of the loop (`keephold.testing.VirtualClock`).

The machine's time of day may be set while we run. A runtime does not follow that: a sleep or a deadline would take
longer or be over at once, and results would expire before their time. It continues to count from where it was, and says
so (`SystemClock.jump`). The next process reads the new time of day, because nothing else survives a process.
"""

import time
from collections.abc import Callable
from typing import Protocol

TOLERATED_SECS = 5.0
"""Corrections up to this are followed: no wait is hurt by them, and times that are shown stay right."""


class Clock(Protocol):
    """Returns the time of day."""

    def now(self) -> float:
        """Return seconds since the epoch."""


def _since_boot() -> float:
    """Return seconds that nobody can set, and that pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The machine's own clock, except that it does not jump."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self._steady = steady or (_since_boot if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic)
        self._offset = wall() - self._steady()

    def now(self) -> float:
        """Return the time of day as it would be if nobody had set it since this clock was made."""
        wall, steady = self._wall(), self._steady()
        if abs(wall - steady - self._offset) > TOLERATED_SECS:
            return steady + self._offset
        self._offset = wall - steady
        return wall

    @property
    def jump(self) -> float:
        """By how many seconds the machine's time of day is ahead of this clock; 0 unless it was set."""
        jump = self._wall() - self._steady() - self._offset
        return jump if abs(jump) > TOLERATED_SECS else 0.0
