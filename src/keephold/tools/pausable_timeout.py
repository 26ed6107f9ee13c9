"""A tool's timeout, which stands still while a person is waited for (P4)."""

import asyncio
from collections.abc import Callable


class PausableTimeout:
    """Calls `over` when `secs` seconds have passed, those less in which it was paused. One for each attempt."""

    __slots__ = ("_left", "_over", "_paused_at", "_pauses", "_timer", "waited")

    def __init__(self, secs: float, over: Callable[[], None]) -> None:
        self._over = over
        self._left = secs
        self._pauses = 0
        self._paused_at = 0.0
        self.waited = 0.0
        """Seconds for which it has stood still."""
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(secs, over)

    @property
    def paused(self) -> bool:
        return self._pauses > 0

    def pause(self) -> None:
        """A person is waited for. Several may be at once."""
        self._pauses += 1
        if self._timer is not None:
            now = asyncio.get_running_loop().time()
            self._left, self._paused_at = self._timer.when() - now, now
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """One of them has been heard."""
        self._pauses -= 1
        if self._pauses == 0:
            loop = asyncio.get_running_loop()
            self.waited += loop.time() - self._paused_at
            self._timer = loop.call_later(self._left, self._over)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
