"""The store's events, live, for any number of listeners: each gets every one that it asked for, once, in order.

One reader looks when something was committed, here or by another process, and keeps the newest events in a ring; a
listener that is further behind than the ring reaches is served from the store, which gives what is wanted and nothing
else. Events in the ring are encoded once, for all. While much happens they are passed on in groups, `PAUSE` apart: two
hundred listeners cost two hundred sends for a group, not for each event.
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
from keephold.store.base import StoredEvent, browsable

PAUSE = 0.02
"""Seconds between two groups."""
_RING = 5000
_PAGE = 250
"""Events that are read at once, which nothing else can happen beside."""


@dataclass(frozen=True, slots=True)
class FeedItem:
    """An event, and how it is written to a stream of server-sent events."""

    event: StoredEvent
    block: bytes


@dataclass(frozen=True, slots=True)
class Passing:
    """Something to be told once, that is not stored and has no number."""

    block: bytes


class Feed:
    """Reads the events of a runtime's store for everyone who listens."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = browsable(runtime.registry.store)
        self._ring: deque[FeedItem] = deque(maxlen=_RING)
        self._last = 0
        """The number of the newest event that was read."""
        self._listeners: set[_Listener] = set()
        self._looking: asyncio.Task[None] | None = None
        self._again = False
        self._unsubscribe: list[Callable[[], None]] = []
        self.closed = False

    async def open(self) -> None:
        """Begin with what comes next."""
        _, self._last = await self._store.events_range()
        self._unsubscribe = [each.add(self.look) for each in (self._store.on_commit, self._runtime.upkeep.on_heard)]

    def close(self) -> None:
        """No more will come; whoever listens is let go."""
        self.closed = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._looking is not None:
            self._looking.cancel()
        for listener in self._listeners:
            listener.wake.set()

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    @property
    def last(self) -> int:
        """The number of the newest event that listeners have been told of."""
        return self._last

    def look(self) -> None:
        """Something was committed. Nobody reads it until somebody listens."""
        self._again = True
        if self._listeners and self._looking is None and not self.closed:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def tell(self, type: str, data: dict[str, Any]) -> None:
        """Something that is not stored: whoever listens now hears of it, or of what is told of it later."""
        passing = Passing(b"event: %s\ndata: %s\n\n" % (type.encode(), msgspec.json.encode(data)))
        for listener in self._listeners:
            listener.passing[type] = passing
            listener.wake.set()

    async def _look(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._read()
                await asyncio.sleep(PAUSE)
        finally:
            self._looking = None

    async def _read(self) -> None:
        with contextlib.suppress(KeepholdError):  # the store cannot be read now; the sweep looks again
            _, newest = await self._store.events_range()
            if newest - self._last > _RING:  # nobody has listened for long: what the ring cannot hold is not read here
                self._last = newest - _RING
                self._ring.clear()
            while events := await self._store.events(self._last, _PAGE):
                if events[0].seq != self._last + 1:  # what was between went unread: the ring has no gap
                    self._ring.clear()
                self._ring.extend(map(_told, events))
                self._last = events[-1].seq
                for listener in self._listeners:
                    listener.wake.set()
                if len(events) < _PAGE:
                    return
                await asyncio.sleep(0)  # reading does not wait for anything

    async def listen(
        self, after: int | None = None, *, conversation: str | None = None, uid: str | None = None
    ) -> AsyncGenerator[list[FeedItem | Passing] | None, None]:
        """Groups of events after that number; without one, what comes from now on. None wherever some of what was asked
        for is not kept any more: look at everything anew. Steps of one handle are told as they happen; who comes back
        later finds them in its journal. Ends when the feed is closed."""
        listener = _Listener()
        self._listeners.add(listener)
        try:
            if self._again:
                self.look()
            first, newest = await self._store.events_range()
            place = max(newest, self._last) if after is None else after
            if place + 1 < first or place > newest:
                yield None
                place = max(first - 1, 0) if place + 1 < first else newest
            while not self.closed:
                listener.wake.clear()
                while place < self._last and not self.closed:
                    told, place, whole = await self._after(place, conversation, uid)
                    if not whole:
                        yield None
                    if told:
                        yield told
                if listener.passing:
                    passing, listener.passing = listener.passing, {}
                    yield list(passing.values())
                    continue
                await listener.wake.wait()
        finally:
            self._listeners.discard(listener)

    async def _after(
        self, place: int, conversation: str | None, uid: str | None
    ) -> tuple[list[FeedItem | Passing], int, bool]:
        """Some of what follows that place and is wanted, in order; up to where that is; and whether it is all there."""
        if self._ring and self._ring[0].event.seq <= place + 1:
            ring, skipped = self._ring, place + 1 - self._ring[0].event.seq  # numbers in it have no gap
            told = [ring[at] for at in range(skipped, len(ring))]  # near its end mostly, where indexing is quick
            return [each for each in told if _is_wanted(each.event, conversation, uid)], told[-1].event.seq, True
        # Of a handle they are in an index. Of a conversation they are looked for, some at a time.
        end = self._last if uid is not None else min(place + _PAGE, self._last)
        events = await self._store.events(place, _PAGE, uid=uid, conversation=conversation, before=end + 1)
        if len(events) == _PAGE:
            end = events[-1].seq
        first, _ = await self._store.events_range()
        await asyncio.sleep(0)  # reading does not wait for anything: others may have been waiting
        if first > place + 1:  # some may have gone before or after they were read: go on from what is kept
            kept = min(first, self._ring[0].event.seq) if self._ring else first
            return [], kept - 1, False
        return list(map(_told, events)), end, True


def _told(event: StoredEvent) -> FeedItem:
    data = msgspec.json.encode(event)
    if b"hf1." in data:  # news may say what a tool asks, which may be about a key (K5)
        data = masked(data.decode()).encode()
    return FeedItem(event, b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), data))


class _Listener:
    __slots__ = ("passing", "wake")

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.passing: dict[str, Passing] = {}
        """The newest of each type."""


def _is_wanted(event: StoredEvent, conversation: str | None, uid: str | None) -> bool:
    return conversation in (None, event.conversation) and uid in (None, event.uid)
