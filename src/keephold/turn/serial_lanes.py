"""The serial lane of a conversation in all processes of its store (B4).

A handle that is first in the lane of this process takes the lane in the store: a post that only one process can have.
The post ends with its process, so another one takes the lane of a dead process. If a live process has the lane, the
handle stays pending behind that process's handle until the lane is free; processes get it in no promised order.

The memory store has one process, and needs no such post.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from keephold.handles.facts import BehindElsewhere
from keephold.handles.gate import LANE_POST
from keephold.handles.handle import Handle, Watcher
from keephold.handles.registry import Registry
from keephold.store.base import Post, Posted, TakenDown


def lane_of(handle: Handle) -> str:
    """Return the name of a serial handle's lane. One-shot calls of a conversation have a lane of their own."""
    return f"{'serial' if handle.stateful else 'call'}:{handle.conversation}"


class _Holder(Watcher):
    """Watches the handle of another process that has the lane, for the handle that queues behind it."""

    __slots__ = ("_behind", "_registry")
    wants_reading = True

    def __init__(self, registry: Registry, behind: Handle) -> None:
        self._registry = registry
        self._behind = behind

    def handle_changed(self, handle: Handle) -> None:
        self._registry.notify_watchers(self._behind)


class _Queued(NamedTuple):
    """A handle that has the lane in this process, and waits for it in the store."""

    handle: Handle
    then: Callable[[], None]


class SerialLanes:
    """The lanes that this process has, takes or waits for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._holders: dict[str, Handle] = {}
        """By lane: the handle of this process that has it, or is to get it."""
        self._asking: set[str] = set()
        """Lanes that are being asked for."""
        self._rung: set[str] = set()
        """Those of them that have changed meanwhile."""
        self._queued: dict[str, _Queued] = {}
        self._watched: dict[str, tuple[Handle, _Holder]] = {}
        """By lane: the handle of another process that has it."""

    def asking(self, handle: Handle) -> bool:
        """Return whether it is not known yet if the handle gets its lane at once."""
        return any(self._holders.get(lane) is handle for lane in self._asking)

    def take(self, lane: str, handle: Handle, then: Callable[[], None]) -> None:
        """Call `then` when the handle, which is first in its lane here, has the lane in the store."""
        self._holders[lane] = handle
        if self._registry.store.durable:
            self._ask(lane, _Queued(handle, then))
        else:
            then()

    def keep(self, lane: str, handle: Handle) -> None:
        """Take the lane for a handle whose process runs already, unless another live process has it (R7)."""
        if self._registry.store.durable:
            self._holders.setdefault(lane, handle)
            self._ask(lane, _Queued(handle, lambda: None), kept=True)

    def _ask(self, lane: str, queued: _Queued, instead_of: str | None = None, *, kept: bool = False) -> None:
        registry, uid = self._registry, queued.handle.uid
        self._asking.add(lane)
        self._rung.discard(lane)
        op = Posted(LANE_POST + lane, "lane", registry.clock.now(), uid.encode(), instead_of)
        done = partial(self._asked, lane, queued, kept)
        registry.commit((op,), done, lambda _: self._asking.discard(lane), keep=True)

    def _asked(self, lane: str, queued: _Queued, kept: bool, results: Sequence[Any]) -> None:
        post: Post | None = results[0]
        if self._holders.get(lane) is not queued.handle:
            return  # it has left; what it wrote then comes after this
        self._asking.discard(lane)
        if post is None:
            self._stop_queueing(lane)
            queued.then()
        elif not self._registry.store.alive(post.owner):
            self._ask(lane, queued, post.owner, kept=kept)
        elif lane in self._rung:
            self._ask(lane, queued, kept=kept)
        elif not kept:
            self._queued[lane] = queued
            self._registry.run_soon(self._queue_behind(lane, queued, post.body.decode()))

    async def _queue_behind(self, lane: str, queued: _Queued, uid: str) -> None:
        """Let everyone see which handle holds it up (A6)."""
        record = await self._registry.store.handle(uid)
        if record is None or self._queued.get(lane) is not queued:
            return
        holder = self._registry.adopt(record)
        if lane not in self._watched or self._watched[lane][0] is not holder:
            self._unwatch(lane)
            watcher = _Holder(self._registry, queued.handle)
            self._watched[lane] = (holder, watcher)
            holder.watch(watcher)
            self._registry.facts.sync(holder)
            queued.handle.ticket = BehindElsewhere(queued.handle, holder)
            self._registry.facts.queued(queued.handle)
        self._registry.notify_watchers(queued.handle)

    def _unwatch(self, lane: str) -> None:
        if lane in self._watched:
            holder, watcher = self._watched.pop(lane)
            holder.unwatch(watcher)
            self._registry.facts.sync(holder)

    def _stop_queueing(self, lane: str) -> None:
        queued = self._queued.pop(lane, None)
        self._unwatch(lane)
        if queued is not None:
            queued.handle.ticket = None

    def leave(self, lane: str, handle: Handle) -> None:
        """Free the lane, unless the next handle of this process has taken it already."""
        if self._holders.get(lane) is handle:
            del self._holders[lane]
            self._asking.discard(lane)
            self._stop_queueing(lane)
            if self._registry.store.durable:
                self._registry.commit((TakenDown((LANE_POST + lane,)),), lambda _: None, lambda _: None, keep=True)

    def heard(self, ids: frozenset[str] | None) -> None:
        """Ask again for lanes that another process may have freed."""
        for lane in tuple(self._holders):
            if ids is not None and LANE_POST + lane not in ids:
                continue
            if lane in self._asking:
                self._rung.add(lane)
            elif lane in self._queued:
                self._ask(lane, self._queued[lane])
