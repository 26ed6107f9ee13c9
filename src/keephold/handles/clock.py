"""The time of day, behind a seam of one method.

What is stored or shown (created, started, stopped, a deadline) comes from a `Clock`. Countdowns do not: every timer in
keephold is `loop.call_later`, so that virtual time is a matter of the loop (`keephold.testing.VirtualClock`).
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day."""

    def now(self) -> float:
        """Seconds since the epoch."""


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.time)
