"""When to check whether a tool reads its input (C4, A6): once its output is quiet, while a wait watches its handle.

A program may begin to read long after its last output. While a wait watches, it is checked again after growing pauses;
without a wait it is never checked.
"""

import asyncio
from collections.abc import Callable

from keephold.handles.handle import Handle
from keephold.handles.state import Running

LONGEST_PAUSE = 5.0
"""Seconds between two checks of a program that neither prints nor reads."""


class Probing:
    """Checks one tool."""

    __slots__ = ("_handle", "_last_output", "_pause", "_probe", "_reading", "_timer")

    def __init__(self, handle: Handle, probe: Callable[[], bool | None], reading: Callable[[bool], None]) -> None:
        """`probe` checks the tool, `reading` gets the result."""
        self._handle = handle
        self._probe = probe
        self._reading = reading
        self._timer: asyncio.TimerHandle | None = None
        self._pause = self._settle
        self._last_output = 0.0

    @property
    def _settle(self) -> float:
        return self._handle.tool.spawn.settle_ms / 1000

    @property
    def _is_awaited(self) -> bool:
        """Whether a watcher of the handle wants to know."""
        return any(getattr(each, "wants_reading", False) for each in self._handle.watchers or ())

    def printed(self) -> None:
        """It has printed something, so as far as is known it does not read."""
        self._handle.reading = False
        self._last_output = asyncio.get_running_loop().time()
        if self._is_awaited:
            if self._pause > self._settle:
                self.stop()
            self.when_quiet()

    def when_quiet(self) -> None:
        """Check once its output has been quiet for a settle time."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._if_quiet)

    def _if_quiet(self) -> None:
        self._timer = None
        if asyncio.get_running_loop().time() - self._last_output < self._settle:
            self.when_quiet()
        elif not self.now() and self._is_awaited and isinstance(self._handle.decided, Running):
            self._pause = min(max(2 * self._pause, self._settle), LONGEST_PAUSE)
            self.when_quiet()

    def now(self) -> bool:
        """Check now; return whether it is known to wait for input."""
        if isinstance(self._handle.decided, Running):
            reading = bool(self._probe())
            if isinstance(self._handle.decided, Running):  # the probe may have delivered a question, or the end
                self._reading(reading)
        return self._handle.reading

    def stop(self) -> None:
        """Stop checking until somebody wants to know again."""
        self._pause = self._settle
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
