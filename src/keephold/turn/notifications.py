"""Notifications for the model about changes it did not ask about (N): when they are delivered, and in which form.

A queued notification is stored in the same commit as the change that caused it. It is delivered once, in the commit of
its carrier: the first response of a batch, a user's message or the start of a turn. A change that a response shows is
not notified.
"""

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, get_args

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Reply, Stopped
from keephold.store.base import Carrier, Delivered, Notified, QueuedNotification, Shown
from keephold.store.rows import Level
from keephold.store.rules import FAILED, STOPPED, clip, words
from keephold.text import strip_controls
from keephold.turn.replies import Replies

AUTOMATIC = ("[Automatic notifications.", "[Automatic message.")
"""How automatic messages begin: notifications, and results at the end of a turn (T2)."""
_KIND = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")


class Notification(msgspec.Struct, frozen=True):
    """One notification: `kind` is `source.name`, `level` one of info, warning, error, critical."""

    kind: str
    level: Level
    message: str


def result_words(handle: Handle, failed: bool, result: str) -> str:
    """Return the message of the notification that a handle has stopped with that result."""
    how = f"`{handle.id}` ({handle.tool.name}) {'failed' if failed else 'stopped'}"
    return f"{how}: {strip_controls(result)}" if result.strip() else f"{how}."


def notification_block(delivered: Sequence[Notification]) -> str:
    """Return notifications as one compact text for a model, which says that it is automatic. Empty without any."""
    if not delivered:
        return ""
    lines = (f"- {each.level}: {each.message.strip()}".replace("\n", "\n  ") for each in delivered)
    return "\n".join(("[Automatic notifications. They are not from the user and come once.]", *lines))


def still_shown(registry: Registry, replies: Iterable[Reply]) -> tuple[tuple[str, Shown], ...]:
    """Return the states that replies have shown and that still hold: a later question is notified (N3)."""
    return tuple(
        (uid, shown_as)
        for reply in replies
        for uid, shown_as, question in reply.showed
        if shown_as not in ("waiting", "asked") or _asks(registry.loaded(uid), question)
    )


def _asks(handle: Handle | None, question: int) -> bool:
    return handle is None or handle.run is None or handle.run.questions == question


class Notifications:
    """The notifications of a runtime's conversations."""

    def __init__(self, registry: Registry, replies: Replies) -> None:
        self._registry = registry
        self._replies = replies
        self._urgent: dict[str, asyncio.Event] = {}

    async def notify(self, kind: str, level: Level, message: str, conversation: str) -> None:
        """Queue a notification from outside."""
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise KeepholdError(
                f"{kind!r:.60} is not a kind of notification; write `source.name`, such as `deploy.finished`",
                code="invalid_arguments",
            )
        if level not in get_args(Level):
            raise KeepholdError(
                f"{level!r:.60} is not a level; there are {', '.join(get_args(Level))}", code="invalid_arguments"
            )
        for what, given in (("message", message), ("conversation", conversation)):
            if not isinstance(given, str) or not given:
                raise KeepholdError(f"the {what} must be a text, not {given!r:.60}", code="invalid_arguments")
        now = self._registry.clock.now()
        await self._registry.write((Notified(conversation, kind, level, clip(message), now),))
        if level == "critical":
            self._wake(conversation)

    async def take(self, conversation: str, carrier: Carrier) -> tuple[Notification, ...]:
        """Return the notifications that this carrier may take, recorded as delivered."""
        taken = await self.carried(self._deliver(conversation, carrier))
        self.delivered(conversation)
        return await self.present(taken)

    async def _deliver(self, conversation: str, carrier: Carrier) -> tuple[QueuedNotification, ...]:
        (delivered,) = await self._registry.write((Delivered(conversation, carrier),))
        self._registry.reset_output_notifications(delivered)
        return tuple(delivered)

    async def carried(
        self, delivering: Coroutine[Any, Any, tuple[QueuedNotification, ...]]
    ) -> tuple[QueuedNotification, ...]:
        """Return the notifications that a commit delivers; if this is cancelled meanwhile, queue them again (N3)."""
        writing = asyncio.ensure_future(delivering)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(self._queue_again)
            raise

    def _queue_again(self, writing: "asyncio.Future[tuple[QueuedNotification, ...]]") -> None:
        if not writing.cancelled() and writing.exception() is None:
            self.queue_again(writing.result())

    def queue_again(self, undelivered: Iterable[QueuedNotification]) -> None:
        """Queue notifications whose carrier did not arrive."""
        again = [
            Notified(each.conversation, each.kind, each.level, each.message, each.at, each.uid, each.carriers)
            for each in undelivered
        ]
        self._registry.write_soon(*again)

    async def present(self, delivered: Sequence[QueuedNotification]) -> tuple[Notification, ...]:
        """Return delivered notifications as the model gets them; if this is cancelled, queue them again (N3)."""
        try:
            return await self.with_results(delivered)
        except asyncio.CancelledError:
            self.queue_again(delivered)
            raise

    async def with_results(self, delivered: Sequence[QueuedNotification]) -> tuple[Notification, ...]:
        """Return notifications as the model gets them: the end of a handle with the handle's result, within the budget.

        The queue does not have the results: most ends are shown by a reply first, and a result may be large.
        """
        ends = {at: handle for at, each in enumerate(delivered) if (handle := await self._ended(each)) is not None}
        messages = [each.message for each in delivered]
        for (at, handle), result in zip(ends.items(), self._replies.notified(list(ends.values())), strict=True):
            if result is not None:
                messages[at] = result_words(handle, delivered[at].kind == FAILED, result)
        return tuple(Notification(each.kind, each.level, text) for each, text in zip(delivered, messages, strict=True))

    async def _ended(self, queued: QueuedNotification) -> Handle | None:
        """Return the stopped handle whose end this notifies in the words of the store, without its result."""
        if queued.uid is None or queued.kind not in (STOPPED, FAILED):
            return None
        handle = self._registry.loaded(queued.uid)
        if handle is None or handle.active:
            with contextlib.suppress(KeepholdError):  # the result is left out
                record = await self._registry.store.handle(queued.uid)
                handle = None if record is None else self._registry.adopt(record)
        if handle is None or not isinstance(handle.state, Stopped):
            return None
        return handle if queued.message == words(handle.id, handle.tool.name, handle.state) else None

    # A critical notification does not wait for a carrier: it interrupts a stream (N4)

    async def urgent(self, conversation: str) -> None:
        """Wait until the conversation has a critical notification, or its turn has ended."""
        event = self._urgent.setdefault(conversation, asyncio.Event())
        await self._check(conversation)
        await event.wait()

    def heard(self, ids: Iterable[str] | None) -> None:
        """Check these conversations: another process may have notified them."""
        for conversation in tuple(self._urgent) if ids is None else ids:
            if conversation in self._urgent:
                self._registry.run_soon(self._check(conversation))

    async def _check(self, conversation: str) -> None:
        queued = await self._registry.store.notifications(conversation)
        if any(each.level == "critical" for each in queued):
            self._wake(conversation)

    def _wake(self, conversation: str) -> None:
        if conversation in self._urgent:
            self._urgent[conversation].set()

    def delivered(self, conversation: str) -> None:
        """Every queued notification was delivered."""
        event = self._urgent.get(conversation)
        if event is not None:
            event.clear()

    def forget(self, conversation: str) -> None:
        """The turn has ended: wake those that wait in `urgent`."""
        event = self._urgent.pop(conversation, None)
        if event is not None:
            event.set()
