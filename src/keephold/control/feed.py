"""The store's events, live, for any number of listeners: each gets every event it asked for, once, in order.

One reader reads after each commit, of this process or another, and keeps the newest events in a ring. A listener that
is behind the ring's first event is served from the store, which returns only the events that the listener wants. Events
in the ring are encoded once for all listeners. Under load they are sent in groups, `PAUSE` apart: two hundred listeners
cost two hundred sends for a group, not for each event.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from keephold.durable.keys import masked
from keephold.errors import KeepholdError
from keephold.runtime import Runtime
from keephold.store.base import EventQuery, StoredEvent, browsable

PAUSE = 0.02
"""Seconds between two groups."""
_RING = 5000
_PAGE = 250
"""Events of one read, which blocks the loop."""


@dataclass(frozen=True, slots=True)
class FeedItem:
    """An event, and how it is written to a stream of server-sent events."""

    event: StoredEvent
    block: bytes


@dataclass(frozen=True, slots=True)
class Announcement:
    """A message for current listeners; it is not stored and has no number."""

    block: bytes


class Feed:
    """Reads the events of a runtime's store for all listeners."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = browsable(runtime.registry.store)
        self._ring: deque[FeedItem] = deque(maxlen=_RING)
        self.last = 0
        """The number of the newest event that was read, and that listeners got."""
        self._listeners: set[_Listener] = set()
        self._reading: asyncio.Task[None] | None = None
        self._again = False
        self._unsubscribe: list[Callable[[], None]] = []
        self.closed = False

    async def open(self) -> None:
        """Start after the newest event in the store."""
        _, self.last = await self._store.events_range()
        self._unsubscribe = [
            each.add(self.committed) for each in (self._store.on_commit, self._runtime.upkeep.on_heard)
        ]

    def close(self) -> None:
        """Send no more events, and end every listener's stream."""
        self.closed = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._reading is not None:
            self._reading.cancel()
        for listener in self._listeners:
            listener.wake.set()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def committed(self) -> None:
        """Read what was committed, if anybody listens."""
        self._again = True
        if self._listeners and self._reading is None and not self.closed:
            self._reading = asyncio.get_running_loop().create_task(self._read_all())

    def announce(self, type: str, data: dict[str, Any]) -> None:
        """Send current listeners something that is not stored; a later message of the same type may replace it."""
        announcement = Announcement(b"event: %s\ndata: %s\n\n" % (type.encode(), msgspec.json.encode(data)))
        for listener in self._listeners:
            listener.announcements[type] = announcement
            listener.wake.set()

    async def _read_all(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._read()
                await asyncio.sleep(PAUSE)
        finally:
            self._reading = None

    async def _read(self) -> None:
        with contextlib.suppress(KeepholdError):  # the store cannot be read now; the sweep looks again
            _, newest = await self._store.events_range()
            if newest - self.last > _RING:  # nobody has listened for long: skip what the ring cannot hold
                self.last = newest - _RING
                self._ring.clear()
            while events := await self._store.events(EventQuery(after=self.last, limit=_PAGE)):
                if events[0].seq != self.last + 1:  # events between were not read: the ring must not have a gap
                    self._ring.clear()
                self._ring.extend(map(_item, events))
                self.last = events[-1].seq
                for listener in self._listeners:
                    listener.wake.set()
                if len(events) < _PAGE:
                    return
                await asyncio.sleep(0)  # reading the store does not yield to the loop

    async def listen(
        self, after: int | None = None, *, conversation: str | None = None, uid: str | None = None
    ) -> AsyncGenerator[list[FeedItem | Announcement] | None, None]:
        """Yield groups of events after that number; without one, events from now on. Yield None where wanted events are
        no longer kept: the listener must reload everything. Steps of one handle are sent only as they happen; later its
        journal has them. Ends when the feed is closed."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            if self._again:
                self.committed()
            first, newest = await self._store.events_range()
            place = max(newest, self.last) if after is None else after
            if place + 1 < first or place > newest:
                yield None
                place = max(first - 1, 0) if place + 1 < first else newest
            while not self.closed:
                listener.wake.clear()
                while place < self.last and not self.closed:
                    found, place, whole = await self._after(place, conversation, uid)
                    if not whole:
                        yield None
                    if found:
                        yield found
                if listener.announcements:
                    announcements, listener.announcements = listener.announcements, {}
                    yield list(announcements.values())
                    continue
                await listener.wake.wait()
        finally:
            self._listeners.discard(listener)

    async def _after(
        self, place: int, conversation: str | None, uid: str | None
    ) -> tuple[list[FeedItem | Announcement], int, bool]:
        """Return some wanted events after that place, in order; the place they reach; and whether none is missing."""
        if self._ring and self._ring[0].event.seq <= place + 1:
            ring, skipped = self._ring, place + 1 - self._ring[0].event.seq  # numbers in it have no gap
            found = [ring[at] for at in range(skipped, len(ring))]  # mostly near the end, where indexing is quick
            return [each for each in found if _is_wanted(each.event, conversation, uid)], found[-1].event.seq, True
        # A handle's events have an index; a conversation's are searched for, some at a time.
        end = self.last if uid is not None else min(place + _PAGE, self.last)
        events = await self._store.events(
            EventQuery(after=place, before=end + 1, uid=uid, conversation=conversation, limit=_PAGE)
        )
        if len(events) == _PAGE:
            end = events[-1].seq
        first, _ = await self._store.events_range()
        await asyncio.sleep(0)  # reading the store does not yield to the loop
        if first > place + 1:  # some were deleted before or during the read: continue with the oldest that is kept
            kept = min(first, self._ring[0].event.seq) if self._ring else first
            return [], kept - 1, False
        return list(map(_item, events)), end, True


def _item(event: StoredEvent) -> FeedItem:
    data = msgspec.json.encode(event)
    if b"hf1." in data:  # a notification may contain a tool's question, which may name a key (K5)
        data = masked(data.decode()).encode()
    return FeedItem(event, b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), data))


class _Listener:
    __slots__ = ("announcements", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.announcements: dict[str, Announcement] = {}
        """The newest of each type."""


def _is_wanted(event: StoredEvent, conversation: str | None, uid: str | None) -> bool:
    return conversation in (None, event.conversation) and uid in (None, event.uid)
