"""When a tool is asked whether it reads its input (C4, A6): once its output is quiet, while somebody waits for it.

A program may begin to read long after it has spoken. So as long as somebody waits it is asked again, after pauses that
grow; with nobody waiting it is never asked.
"""

import asyncio
from collections.abc import Callable

from keephold.handles.handle import Handle
from keephold.handles.state import Running

LONGEST_PAUSE = 5.0
"""Seconds between two questions to a program that neither prints nor reads, while somebody waits for it."""


class Probing:
    """Asks one tool."""

    __slots__ = ("_handle", "_last_output", "_pause", "_probe", "_reading", "_timer")

    def __init__(self, handle: Handle, probe: Callable[[], bool | None], reading: Callable[[bool], None]) -> None:
        """`probe` asks the tool, `reading` gets the answer."""
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
        """Whether somebody who watches the handle wants to know."""
        return any(getattr(each, "wants_reading", False) for each in self._handle.watchers or ())

    def printed(self) -> None:
        """It has printed something: as far as is known it does not read."""
        self._handle.reading = False
        self._last_output = asyncio.get_running_loop().time()
        if self._is_awaited:
            if self._pause > self._settle:
                self.stop()
            self.when_quiet()

    def when_quiet(self) -> None:
        """Ask it once its output has been quiet for a settle time."""
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
        """Ask. True when it is known to wait for input."""
        if isinstance(self._handle.decided, Running):
            reading = bool(self._probe())
            if isinstance(self._handle.decided, Running):  # it may have delivered a question, or the end
                self._reading(reading)
        return self._handle.reading

    def stop(self) -> None:
        """Ask no more, until somebody wants to know again."""
        self._pause = self._settle
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
