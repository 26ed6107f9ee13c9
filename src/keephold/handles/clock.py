"""The time of day, behind a protocol of one method.

Times that are stored or shown (created, started, stopped, a deadline) come from a `Clock`. Countdowns do not: every
timer in keephold is `loop.call_later`, so that virtual time is a matter of the loop (`keephold.testing.VirtualClock`).
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Returns the time of day."""

    def now(self) -> float:
        """Return seconds since the epoch."""


class SystemClock:
    """The machine's own clock."""

    now = staticmethod(time.time)
