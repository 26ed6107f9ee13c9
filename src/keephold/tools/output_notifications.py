"""Notify of a handle's new output: one notification until it is shown or delivered, however much comes (N2, N6)."""

import asyncio

from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.store.base import Notified

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
        self._registry.commit((op,), lambda _: None, lambda _: None, keep=True)

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
