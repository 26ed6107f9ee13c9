"""A tool's timeout, which is paused while a user is asked (P4)."""

import asyncio
from collections.abc import Callable


class PausableTimeout:
    """Calls `over` after `secs` seconds, not counting those in which it was paused. One for each attempt."""

    __slots__ = ("_left", "_over", "_paused_at", "_pauses", "_timer", "waited")

    def __init__(self, secs: float, over: Callable[[], None]) -> None:
        self._over = over
        self._left = secs
        self._pauses = 0
        self._paused_at = 0.0
        self.waited = 0.0
        """Seconds for which it was paused."""
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(secs, over)

    @property
    def paused(self) -> bool:
        return self._pauses > 0

    def pause(self) -> None:
        """Stop the clock while a user is asked. Pauses nest."""
        self._pauses += 1
        if self._timer is not None:
            now = asyncio.get_running_loop().time()
            self._left, self._paused_at = self._timer.when() - now, now
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """One user has answered."""
        self._pauses -= 1
        if self._pauses == 0:
            loop = asyncio.get_running_loop()
            self.waited += loop.time() - self._paused_at
            self._timer = loop.call_later(self._left, self._over)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
