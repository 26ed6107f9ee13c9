"""Timers of a run: the timeout (P4), checks whether the tool reads its input (C4, A6), notifications of output (N2).

A program may begin to read long after its last output. While a wait watches, it is checked again after growing pauses;
without a wait it is never checked.
"""

import asyncio
from collections.abc import Callable

from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Running
from keephold.store.base import Notified


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


_SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 5.0
"""Seconds between two checks of a program that neither prints nor reads. The first check may follow at once."""


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
            self._pause = min(max(2 * self._pause, _SHORTEST_PAUSE), LONGEST_PAUSE)
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


_AGAIN_SECS = 1.0


class OutputNotifications:
    """Notifies of one handle's output.

    The store keeps one notification for each handle. After a second, more output is notified again, because another
    process may have shown or delivered the one before.
    """

    __slots__ = ("_from", "_handle", "_later", "_registry")

    def __init__(self, registry: Registry, handle: Handle) -> None:
        self._registry = registry
        self._handle = handle
        self._from = 0.0
        """The time of day from which output is notified at once."""
        self._later: asyncio.TimerHandle | None = None
        """Until output that came earlier is notified."""

    def printed(self) -> None:
        """There is new output."""
        handle, now = self._handle, self._registry.clock.now()
        if now < self._from:
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(self._from - now, self.printed)
            return
        self.stop()
        self._from = now + _AGAIN_SECS
        message = f"`{handle.id}` ({handle.tool.name}) has new output."
        carriers = handle.tool.spawn.notifications.deliver
        op = Notified(handle.conversation, "tool.content", "info", message, now, handle.uid, carriers)
        self._registry.write_soon(op)

    def delivered(self) -> None:
        """The notification was delivered: notify of further output again."""
        self._from = 0.0
        self.stop()

    def shown(self) -> None:
        """The output was shown up to the cursor: notify of output behind it again."""
        self.delivered()
        output = self._handle.output
        if output is not None and output.total > self._handle.cursor:
            self.printed()

    def stop(self) -> None:
        """Cancel the notification that is due later."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
