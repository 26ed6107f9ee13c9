"""Facts that only the process of a handle knows, told to other processes by posts in the store (A6, M3).

A fact says who drives a terminal, that a stopped handle lingers, how far a call is, what a pending one queues for. It
is posted when it changes.

Whether a handle is blocked on the caller is only found out while somebody waits for it. A process that waits for a
handle of another one posts that it does, with a token of its own. The owner then asks the program as for a wait of its
own, and its fact repeats the token. So a fact that was posted before the wait began is not taken for an answer, and no
wake-up is lost between the look and the wait: posts are rows, bells are hints, and a sweep reads the posts again.

Posts end with the process that made them. A handle that nobody waits for elsewhere costs nothing.
"""

import asyncio
import os
from collections.abc import Collection, Container, Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from keephold.handles.gate import Gate, Ticket
from keephold.handles.handle import Handle, Watcher
from keephold.handles.state import PendingState, Progress, Running, Stopped, Waiting
from keephold.store.base import Posted, Record, Store, TakenDown
from keephold.text import to_json

if TYPE_CHECKING:
    from keephold.handles.cache import Cache

_PROGRESS_SECS = 0.5
"""Seconds between two posts of progress: a call that ends sooner posts none."""
_QUEUED = 200
"""Posts and waiting posts beyond which no queueing handle posts for what it queues."""
_FACT, _WATCH = "fact:", "watch:"


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts that a process tells about a handle that it runs, or has run."""

    driver: Literal["person"] | None = None
    lingering: bool = False
    progress: Progress | None = None
    queue: tuple[str, ...] = ()
    """The names that a pending handle queues for: of its lane, or of resources and slots."""
    tokens: tuple[str, ...] = ()
    """The tokens of the processes that wait; without any, the fields below are unknown."""
    reading: bool = False
    asks: int | None = None
    """The number of the open question that only the caller can answer."""
    behind: str | None = None
    """The uid of the handle that is blocked on the caller and holds this one up."""
    printed: int = 0
    """The size of the output of a handle that is blocked on the caller."""


NOTHING = Fact()


async def facts_of(store: Store, handles: Collection[Record | Handle]) -> dict[str, Fact]:
    """Return what other live processes have posted about these handles, by uid."""
    wanted, found = {handle.uid: handle for handle in handles}, dict[str, Fact]()
    if not store.durable or not wanted:
        return found
    for post in await store.posts("fact", f"{_FACT}{next(iter(wanted))}:" if len(wanted) == 1 else _FACT):
        handle = wanted.get(_uid(post.id))
        if handle is None or post.owner == store.owner or not store.alive(post.owner):
            continue
        if handle.owner == post.owner or isinstance(handle.state, Stopped):
            found[handle.uid] = msgspec.json.decode(post.body, type=Fact)
    return found


_NO_GATE = Gate()


class BehindElsewhere(Ticket):
    """The position of a handle that queues in another process, or behind a handle of one."""

    __slots__ = ("holder", "stuck")

    def __init__(self, handle: Handle, holder: Handle, *, stuck: bool = False) -> None:
        """`stuck`: its process has found that the holder is blocked on the caller."""
        super().__init__(_NO_GATE, handle, {}, lambda: None)
        self.holder = holder
        self.stuck = stuck

    def in_front(self) -> list[list[Handle]]:
        return [[self.holder]]

    def waits_for(self) -> list[tuple[str, list[Handle]]]:
        return [] if self.handle.lane is None else [(name, [self.holder]) for name in self.handle.lane.names]

    def stuck_elsewhere(self, already_handled: Container[str]) -> Handle | None:
        stuck = self.holder.uid not in already_handled and self.stuck
        return self.holder if stuck or self.holder.blocked_on_caller(already_handled) else None


class _Told(Watcher):
    """Watches a handle of this process that other processes wait for."""

    __slots__ = ("_facts", "tokens")
    wants_reading = True
    awaits = True

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        self.tokens: tuple[str, ...] = ()

    def _changed(self, handle: Handle) -> None:
        self._facts.tell(handle)

    def _left(self, handle: Handle) -> None:
        self._facts.left(handle)

    started = handle_changed = printed = _changed
    parked = released = _left


class _Watch:
    """A handle of another process that is waited for here."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.owner = handle.owner
        self.token = os.urandom(4).hex()
        self.fact = NOTHING
        self.answered = asyncio.Event()

    @property
    def asks_caller(self) -> bool:
        state = self.handle.state
        return isinstance(state, Waiting) and state.number == self.fact.asks


class Facts:
    """Posts the facts of the handles that this process runs, and reads those of others."""

    def __init__(self, cache: "Cache") -> None:
        self._cache = cache
        self._told: dict[str, _Told] = {}
        self._posted: dict[str, Fact] = {}
        self._late: dict[str, Handle] = {}
        """Handles with progress that is not posted yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._watches: dict[str, _Watch] = {}

    def _id(self, kind: str, uid: str) -> str:
        return f"{kind}{uid}:{self._cache.store.owner}"

    # Handles of this process

    def tell(self, handle: Handle) -> None:
        """Post what is known about a handle that this process runs, if that has changed."""
        uid, store = handle.uid, self._cache.store
        fact = self._fact(handle)
        if not store.durable or fact == self._posted.get(uid, NOTHING):
            return
        if fact == NOTHING:
            del self._posted[uid]
            self._cache.write_soon(TakenDown((self._id(_FACT, uid),)))
        else:
            self._posted[uid] = fact
            self._cache.write_soon(Posted(self._id(_FACT, uid), "fact", self._cache.clock.now(), to_json(fact)))

    def _fact(self, handle: Handle) -> Fact:
        state, told = handle.state, self._told.get(handle.uid)
        if isinstance(state, Stopped) or not self._cache.runs(handle):
            return Fact(lingering=handle.lingering)
        queue = tuple(name for name, _ in handle.waits_for()) if isinstance(state, PendingState) else ()
        fact = Fact(driver=handle.driver, progress=handle.progress, queue=queue)
        if told is None:
            return fact
        behind, waits = handle.behind(), handle.waits_for_caller()
        return msgspec.structs.replace(
            fact,
            tokens=told.tokens,
            reading=waits and isinstance(state, Running),
            asks=state.number if waits and isinstance(state, Waiting) else None,
            behind=None if behind is None else behind.uid,
            printed=handle.output.total if waits and handle.output is not None else 0,
        )

    def queued(self, handle: Handle) -> None:
        """A pending handle queues: post for what, unless it starts soon. Of very many, nobody reads each one's."""
        if len(self._posted) + len(self._late) < _QUEUED:
            self.tell_soon(handle)

    def started(self, handle: Handle) -> None:
        """A handle starts: it does not queue any more."""
        if handle.uid in self._posted:
            self.tell(handle)

    def tell_soon(self, handle: Handle) -> None:
        """Post what is known about a handle in a moment, as there may be more by then."""
        if self._cache.store.durable:
            self._late[handle.uid] = handle
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_PROGRESS_SECS, self._tell_late)

    def _tell_late(self) -> None:
        late, self._late, self._timer = self._late, {}, None
        for handle in late.values():
            self.tell(handle)

    def close(self) -> None:
        """Post nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def stopped(self, handle: Handle) -> None:
        """A handle has stopped: ask and tell no more about it, except that it lingers."""
        if handle.uid in self._watches:
            self.sync(handle)
        if handle.lingering:
            self.tell(handle)
        elif handle.uid in self._posted:
            self.left(handle)

    def left(self, handle: Handle) -> None:
        """Tell nothing more about a handle: it has stopped, has parked, or another process runs it."""
        told = self._told.pop(handle.uid, None)
        if told is not None:
            handle.unwatch(told)
        self._late.pop(handle.uid, None)
        if handle.uid in self._posted:
            self.tell(handle)

    async def _look_for_watches(self, uids: Iterable[str] | None) -> None:
        """Learn which handles of this process others wait for: of these, or of all."""
        store, tokens = self._cache.store, dict[str, list[str]]()
        uids = None if uids is None else tuple(uids)
        prefix = f"{_WATCH}{uids[0]}:" if uids is not None and len(uids) == 1 else _WATCH
        for post in await store.posts("watch", prefix):
            if post.owner != store.owner and store.alive(post.owner):
                tokens.setdefault(_uid(post.id), []).append(post.body.decode())
        for uid in {*self._told, *tokens} if uids is None else uids:
            handle = self._cache.loaded(uid)
            if handle is not None and handle.active and self._cache.runs(handle):
                self._be_watched(handle, tuple(tokens.get(uid, ())))

    def _be_watched(self, handle: Handle, tokens: tuple[str, ...]) -> None:
        told = self._told.get(handle.uid)
        if told is not None and not tokens:
            del self._told[handle.uid]
            handle.unwatch(told)
            self.tell(handle)
        elif tokens and (told is None or told.tokens != tokens):
            if told is None:
                told = self._told[handle.uid] = _Told(self)
                handle.watch(told)
            told.tokens = tokens
            if handle.run is not None:
                handle.run.awaited()
            self.tell(handle)

    # Handles of other processes

    def sync(self, handle: Handle) -> None:
        """Ask the process that runs a handle for its facts while a wait of this process needs them, and no longer."""
        watch = self._watches.get(handle.uid)
        wanted = handle.watchers and self._cache.runs_elsewhere(handle)
        wanted = wanted and any(getattr(each, "wants_reading", False) for each in handle.watchers or ())
        if wanted and (watch is None or watch.owner != handle.owner):
            self._forget(handle)
            watch = self._watches[handle.uid] = _Watch(handle)
            post = Posted(self._id(_WATCH, handle.uid), "watch", self._cache.clock.now(), watch.token.encode())
            self._cache.write_soon(post)
        elif watch is not None and not wanted:
            del self._watches[handle.uid]
            self._cache.write_soon(TakenDown((self._id(_WATCH, handle.uid),)))

    def begin(self, handles: Iterable[Handle]) -> None:
        """A wait for these handles begins: facts of an earlier wait are outdated."""
        for handle in handles:
            if handle.uid not in self._watches and self._cache.runs_elsewhere(handle):
                self._forget(handle)

    def moved(self, handle: Handle) -> None:
        """Another process runs the handle now, or this one does."""
        self._forget(handle)
        self.sync(handle)

    def done(self, handles: Iterable[Handle]) -> None:
        """A wait for these handles is over."""
        if self._watches:
            for handle in handles:
                self.sync(handle)

    def _forget(self, handle: Handle) -> None:
        """Take nothing for granted that an owner has told."""
        handle.reading = handle.asks_caller = False
        handle.driver = handle.lane = None

    def asks_caller(self, handle: Handle) -> bool:
        """Whether the owner of a handle says that only the caller can answer its open question."""
        watch = self._watches.get(handle.uid)
        return watch is not None and watch.owner == handle.owner and watch.asks_caller

    async def answered(self, handles: Iterable[Handle], secs: float) -> None:
        """Wait for the first facts of these handles, at most so long."""
        first = [watch.answered.wait() for handle in handles if (watch := self._watches.get(handle.uid)) is not None]
        tasks = [asyncio.ensure_future(each) for each in first]
        if tasks:
            await asyncio.wait(tasks, timeout=secs)
        for task in tasks:
            task.cancel()

    async def look(self, uid: str) -> None:
        """Read what the owner of a handle that is waited for here has posted."""
        watch = self._watches.get(uid)
        if watch is None:
            return
        await self._cache.refresh((uid,))
        fact = (await facts_of(self._cache.store, (watch.handle,))).get(uid, NOTHING)
        holder = None
        if fact.behind is not None and watch.token in fact.tokens:
            behind = await self._cache.store.handle(fact.behind)
            holder = None if behind is None else self._cache.adopt(behind)
        if self._watches.get(uid) is watch and self._cache.runs_elsewhere(watch.handle):
            self._apply(watch, fact, holder)

    def _apply(self, watch: _Watch, fact: Fact, holder: Handle | None) -> None:
        handle = watch.handle
        self._show(handle, fact)
        if watch.token not in fact.tokens:
            fact = msgspec.structs.replace(fact, reading=False, asks=None)
        else:
            watch.answered.set()
        watch.fact = fact
        handle.reading, handle.asks_caller = fact.reading, watch.asks_caller
        handle.lane = None if holder is None else BehindElsewhere(handle, holder, stuck=True)
        for watcher in tuple(handle.watchers or ()):
            watcher.has_printed(handle, fact.printed)
        self._cache.notify_watchers(handle)

    def _show(self, handle: Handle, fact: Fact) -> None:
        handle.driver, handle.lingering = fact.driver, fact.lingering
        if fact.progress is not None and fact.progress != handle.progress:
            self._cache.progressed(handle, fact.progress)

    async def show(self, handles: Iterable[Handle]) -> None:
        """Copy what other processes have posted to those of these handles that this one does not run."""
        others = [handle for handle in handles if not self._cache.runs(handle)]
        facts = await facts_of(self._cache.store, others)
        for handle in others:
            if not self._cache.runs(handle):
                self._show(handle, facts.get(handle.uid, NOTHING))

    # Both

    async def refresh(self, ids: Iterable[str] | None) -> None:
        """Read the posts again that other processes have changed, or all of them."""
        if ids is None:
            await self._look_for_watches(None)
            for uid in tuple(self._watches):
                await self.look(uid)
            return
        watched = {_uid(id) for id in ids if id.startswith(_WATCH)}
        if any(self._cache.loaded(uid) is not None for uid in watched):
            await self._look_for_watches(watched)
        for uid in {_uid(id) for id in ids if id.startswith(_FACT)}:
            await self.look(uid)


def _uid(id: str) -> str:
    return id.split(":")[1]
