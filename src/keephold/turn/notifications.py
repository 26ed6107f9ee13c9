"""News for the assistant of what it did not ask about (N): who hears it, when, and in which form.

Queued news lies in the store, written with the change it tells of. It is delivered once, in the commit of what carries
it: the first response of a batch, a user's message, the start of a turn. What a response shows is no news any more.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, get_args

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Reply
from keephold.store.base import Carrier, Delivered, Notified, QueuedNotification, Shown
from keephold.store.endings import clip
from keephold.store.rows import Level

AUTOMATIC = ("[Automatic notifications.", "[Automatic message.")
"""How messages begin that nobody wrote: news, and results at the end of a turn (T2)."""
_KIND = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+")


class Notification(msgspec.Struct, frozen=True):
    """One piece of news (N1): `kind` is `source.name`, `level` one of info, warning, error, critical."""

    kind: str
    level: Level
    message: str


def notifications(news: Iterable[QueuedNotification]) -> tuple[Notification, ...]:
    """News as it is delivered."""
    return tuple(Notification(each.kind, each.level, each.message) for each in news)


def notification_block(delivered: Sequence[Notification]) -> str:
    """Notifications as one compact text for a model, which says that nobody wrote it. Empty without any."""
    if not delivered:
        return ""
    lines = (f"- {each.level}: {each.message.strip()}".replace("\n", "\n  ") for each in delivered)
    return "\n".join(("[Automatic notifications. They are not from the user and come once.]", *lines))


def still_shown(registry: Registry, replies: Iterable[Reply]) -> tuple[tuple[str, Shown], ...]:
    """What replies have shown of handles, as far as that is how they are: a question that came since is news (N3)."""
    return tuple(
        (uid, shown_as)
        for reply in replies
        for uid, shown_as, question in reply.showed
        if shown_as not in ("waiting", "asked") or _asks(registry.loaded(uid), question)
    )


def _asks(handle: Handle | None, question: int) -> bool:
    return handle is None or handle.run is None or handle.run.questions == question


class Notifications:
    """The news of a runtime's conversations."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._urgent: dict[str, asyncio.Event] = {}

    async def notify(self, kind: str, level: Level, message: str, conversation: str) -> None:
        """Queue news from outside."""
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
            self._call(conversation)

    async def take(self, conversation: str, carrier: Carrier) -> tuple[Notification, ...]:
        """What may ride on this carrier, recorded as delivered."""
        news = await self.carried(self._deliver(conversation, carrier))
        self.delivered(conversation)
        return notifications(news)

    async def _deliver(self, conversation: str, carrier: Carrier) -> tuple[QueuedNotification, ...]:
        (news,) = await self._registry.write((Delivered(conversation, carrier),))
        self._registry.told(news)
        return tuple(news)

    async def carried(
        self, delivering: Coroutine[Any, Any, tuple[QueuedNotification, ...]]
    ) -> tuple[QueuedNotification, ...]:
        """The news that a commit delivers. If whoever wants it is cancelled meanwhile, it is queued again (N3)."""
        writing = asyncio.ensure_future(delivering)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(self._queue_again)
            raise

    def _queue_again(self, writing: "asyncio.Future[tuple[QueuedNotification, ...]]") -> None:
        if not writing.cancelled() and writing.exception() is None:
            self.queue_again(writing.result())

    def queue_again(self, news: Iterable[QueuedNotification]) -> None:
        """Nobody has taken it."""
        again = [
            Notified(each.conversation, each.kind, each.level, each.message, each.at, each.uid, each.carriers)
            for each in news
        ]
        self._registry.commit(again, lambda _: None, lambda _: None, keep=True)

    # Critical news does not wait for a carrier: whoever streams is told (N4)

    async def urgent(self, conversation: str) -> None:
        """Until there is critical news for the conversation, or its turn is over."""
        event = self._urgent.setdefault(conversation, asyncio.Event())
        await self._look(conversation)
        await event.wait()

    def heard(self, ids: Iterable[str] | None) -> None:
        """Another process may have brought news to these conversations."""
        for conversation in tuple(self._urgent) if ids is None else ids:
            if conversation in self._urgent:
                self._registry.run_soon(self._look(conversation))

    async def _look(self, conversation: str) -> None:
        if any(news.level == "critical" for news in await self._registry.store.notifications(conversation)):
            self._call(conversation)

    def _call(self, conversation: str) -> None:
        if conversation in self._urgent:
            self._urgent[conversation].set()

    def delivered(self, conversation: str) -> None:
        """All that waited was delivered."""
        event = self._urgent.get(conversation)
        if event is not None:
            event.clear()

    def forget(self, conversation: str) -> None:
        """The turn is over: whoever waits is let go."""
        event = self._urgent.pop(conversation, None)
        if event is not None:
            event.set()
