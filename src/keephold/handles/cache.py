"""The half of the registry that is a cache: it finds handles, loads them from the store, and evicts them (S5).

Handles that this runtime runs are always in memory, and memory is ahead of the store for them. Handles that are parked,
have stopped or belong to another process are loaded on demand, kept up to date while they have watchers, and evicted
when they have none.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError, ToolError
from keephold.handles.clock import Clock
from keephold.handles.facts import Facts
from keephold.handles.gate import Gate, GateQueue
from keephold.handles.handle import Handle, HandleInfo
from keephold.handles.matching import OutputElsewhere
from keephold.handles.observing import CommitObserver, Meter, Traces
from keephold.handles.output import Output
from keephold.handles.pace import Pace, Parts
from keephold.handles.spool import Room, Spool
from keephold.handles.state import Ok, Outcome, PrintedOutput, Progress, State, Stopped
from keephold.listeners import Listeners
from keephold.store.base import (
    TOMBSTONE_SECS,
    WAIT_KINDS,
    Collected,
    Committing,
    Done,
    Expired,
    Failed,
    HandleQuery,
    Op,
    Record,
    Status,
    Store,
)
from keephold.store.housekeeping import SupportsSole
from keephold.store.rows import What

if TYPE_CHECKING:
    from keephold.tools.base import Tool

_log = logging.getLogger("keephold.handles")

_IDLE = 1000
"""How many handles without an owner here stay in memory."""
_IDLE_BYTES = 64 << 20
"""Size of large results that are kept in memory, of handles that nobody waits for."""
_LIGHT = 1 << 20
"""Size up to which a result is not large."""
_NODES = 10_000
"""Number of parts up to which a result is measured."""
_EVICT_SECS = 0.05


class ConversationCache:
    """The part of one conversation that is in memory."""

    __slots__ = ("calls", "expired", "live", "name", "names", "open_questions", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn: str | None = None
        self.names: dict[str, Handle] = {}
        self.calls: dict[str, Handle] = {}
        self.live: dict[str, Handle] = {}
        """Handles that this runtime runs or will run."""
        self.expired: set[str] = set()
        """Ids for which `load` found only a tombstone."""
        self.open_questions = 0


class Cache:
    """The handles of a runtime that are in memory. Single-threaded: everything here runs on the event loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        spool: Spool,
        tool: "Callable[[str, str], Tool]",
        *,
        retention: float = 3600.0,
    ) -> None:
        self.store = store
        self.commit: Committing = store.commit
        """Write operations. Without commit observers this is the store's own method, because every call goes through
        it."""
        self._commit_observers: list[CommitObserver] = []
        self.clock = clock
        self.spool = spool
        self.retention = retention
        self.closing = False
        self.room = Room(self)
        self.serial = Gate()
        self.gate = Gate()
        self.on_cancelled: Listeners[[str]] = Listeners()
        """Called with the uid of a parked call that was cancelled and has a cancel hook (D2)."""
        self.on_held: Listeners[[str]] = Listeners()
        """Called with the uid of a call whose completion may have arrived and must pass its tool's runtime (P1)."""
        self.on_deadline: Listeners[[float]] = Listeners()
        """Called with the deadline of a call that was parked."""
        self.on_created: Listeners[[Sequence[Handle]]] = Listeners()
        """Called with the handles that this runtime has made."""
        self.on_settled: Listeners[[str, Stopped, What | None]] = Listeners()
        """Called once with the uid and the final state of a handle, in the process that wrote it."""
        self.meters: list[Meter] = []
        self.traces: Traces | None = None
        self.output_elsewhere: OutputElsewhere | None = None
        self.facts = Facts(self)
        self.archive: Callable[[Sequence[Record]], Awaitable[None]] | None = None
        """Gets the records that the store is about to delete; if it raises, none is deleted (W8)."""
        self.shorter: Mapping[Status, float] = {}
        """Retentions of wait handles by status, where they are shorter than the usual one (W8)."""
        self.may_expire: Callable[[], None] = lambda: None
        """Called when a handle has stopped or a turn has ended, so that there will be something to delete."""
        self.on_woken: Callable[[str], Awaitable[None]] | None = None
        """Awaited with the uid of a call that waited in its durable effects, before it continues (R8)."""
        self.followers: dict[str, list[Callable[[Handle], None]]] = {}
        """By conversation: callbacks for every handle that was made or has changed its state."""
        self.waiting: set[asyncio.Future[None]] = set()
        """Futures of coroutines that wait for handles; closing fails them."""
        self.tool = tool
        """Returns the tool of a name in a conversation, or a stand-in for a tool that this runtime does not have."""
        self._collect_at = 0.0
        self._parts = Parts()
        self._evicting = False
        self._by_uid: dict[str, Handle] = {}
        self._conversations: dict[str, ConversationCache] = {}
        self._idle: dict[str, Handle] = {}
        self._heavy: dict[str, int] = {}
        """By uid: the size of large results of idle handles."""
        self._tasks: set[asyncio.Task[None]] = set()

    # Finding

    def conversation(self, name: str) -> ConversationCache:
        found = self._conversations.get(name)
        if found is None:
            found = self._conversations[name] = ConversationCache(name)
        return found

    async def load(self, conversation: str, ids: Iterable[str]) -> None:
        """Load the newest handles of these ids as they are now, so that `find` finds them."""
        pace = Pace()
        for id in ids:
            await pace.step()
            handle = self.conversation(conversation).names.get(id)
            if handle is not None and self.runs(handle):
                if self.store.durable:  # another process may have shown some of its output (C5)
                    await self._look_at_cursor(handle)
                continue
            record = await self.store.named(conversation, id)
            if isinstance(record, Record) and self.expired(record.state, conversation):
                with contextlib.suppress(KeepholdError):  # the store cannot write now, but the handle can still be read
                    now = self.clock.now()  # all others that have expired may be very many
                    await self.delete(Collected(_until(now - self.retention), now, limit=1), [record])
                record = await self.store.named(conversation, id)
            if handle is not None and not isinstance(record, Record):
                self._forget(handle)
            known = self.conversation(conversation)
            known.expired.discard(id)
            if isinstance(record, Record):
                known.names[id] = self.adopt(record)
            elif isinstance(record, Expired) and self.clock.now() < record.at + TOMBSTONE_SECS:
                known.expired.add(id)

    async def _look_at_cursor(self, handle: Handle) -> None:
        record = await self.store.handle(handle.uid)
        if record is not None and handle.output is not None:
            handle.cursor = max(handle.cursor, min(record.cursor, handle.output.total))

    async def find_call(self, call_id: str, conversation: str) -> Handle:
        """Return the newest one-shot call of that label."""
        known = self.conversation(conversation)
        if call_id not in known.calls:
            record = await self.store.called(conversation, call_id)
            if call_id not in known.calls:  # a call may have got the label meanwhile
                if record is None:
                    raise ToolError(f"Call `{call_id}` not found in this conversation", code="handle_not_found")
                known.calls[call_id] = self.adopt(record)
        return known.calls[call_id]

    def find(self, id: str, conversation: str) -> Handle:
        """Return the newest loaded handle of the id; the error tells an expired handle from an unknown one (S5)."""
        known = self._conversations.get(conversation)
        handle = known.names.get(id) if known is not None else None
        if handle is not None:
            return handle
        if known is not None and id in known.expired:
            raise ToolError(
                f"Handle `{id}` expired: its result is deleted, {self.retention:g} s after it stopped, or earlier to "
                "make room ([limits] disk)",
                code="handle_expired",
            )
        raise ToolError(f"Handle `{id}` not found", code="handle_not_found")

    def loaded(self, uid: str) -> Handle | None:
        """Return the handle of that uid if it is in memory."""
        return self._by_uid.get(uid)

    def adopt(self, record: Record) -> Handle:
        """Return the handle of a record: the loaded one, brought up to date, or a new one."""
        handle = self._by_uid.get(record.uid)
        if handle is None:
            handle = self._by_uid[record.uid] = self.revive(record)
            if record.owner != self.store.owner:
                self._rest(handle)
        elif self._others_change(handle):
            self._update(handle, record)
        if handle.uid in self._idle:
            self._idle[handle.uid] = self._idle.pop(handle.uid)  # just used: evict it last
        return handle

    def _others_change(self, handle: Handle) -> bool:
        """Whether the store may know more of a handle than memory does: this runtime neither runs it nor is writing to
        it, and it has not stopped. Stopped is final, however old a record is."""
        return handle.active and handle.decided is handle.state and not self.runs(handle)

    def revive(self, record: Record) -> Handle:
        """Return a handle as the store has it, in no list of this cache."""
        handle = Handle(record, self.tool(record.tool, record.conversation))
        self._copy(handle, record)
        return handle

    def _copy(self, handle: Handle, record: Record) -> None:
        moved = handle.owner != record.owner
        handle.become(record)
        self._annotate(handle, record)
        handle.asks_caller = self.facts.asks_caller(handle)
        shown = handle.output.total if handle.output is not None else -1
        if record.output is not None and record.output.total > shown:
            handle.output = Output.restored(self.spool, record.output, record.uid)
        printed = handle.output.total if handle.output is not None else 0
        handle.cursor = max(handle.cursor, min(record.cursor, printed))
        if moved:
            self.facts.moved(handle)

    def _annotate(self, handle: Handle, record: Record) -> None:
        """Copy what any process may change, no matter which one runs the handle (W8)."""
        handle.metadata, handle.priority = record.metadata, record.priority
        if record.progress is not None and record.progress != handle.progress:
            self.progressed(handle, record.progress)

    def _update(self, handle: Handle, record: Record) -> None:
        """Copy what another process or a resolution has done to a handle that this runtime does not run."""
        before, was_parked, was_ready = handle.state, handle.parked, handle.ready
        self._copy(handle, record)
        if handle.ready and not was_ready:
            self.ready(handle, record.ready)
        if isinstance(handle.state, Stopped):
            if not isinstance(before, Stopped):
                self._stopped(handle)
        elif handle.parked and not was_parked:
            self._tell_parked(handle)
        elif handle.state != before:
            self.notify_watchers(handle)
            self._follow(handle)

    async def refresh(self, uids: Iterable[str] | None = None) -> None:
        """Read handles again that other processes may change: those of these uids, or all that are watched."""
        if uids is None:
            chosen = [handle for handle in self._idle.values() if handle.watchers]
        else:
            uids = tuple(uids)
            await self._look_for_new(uids)
            chosen = [handle for uid in uids if (handle := self._by_uid.get(uid)) is not None]
        for handle in chosen:
            if self._others_change(handle):
                record = await self.store.handle(handle.uid)
                if record is not None and self._others_change(handle):
                    self._update(handle, record)
            elif uids is not None and self.runs(handle):
                record = await self.store.handle(handle.uid)
                if record is not None:
                    self._annotate(handle, record)

    async def _look_for_new(self, uids: Iterable[str]) -> None:
        """Adopt handles that another process has made in a conversation that is followed here."""
        for uid in uids if self.followers else ():
            record = await self.store.handle(uid) if uid not in self._by_uid else None
            if record is not None and record.stateful and record.conversation in self.followers:
                self._follow(self.adopt(record))

    def changed_elsewhere(self, uid: str, state: State, what: What | None = None) -> None:
        """Note that a commit about something else has changed a handle's state."""
        if self.on_settled and isinstance(state, Stopped):
            self.on_settled(uid, state, what)
        handle = self._by_uid.get(uid)
        if handle is not None and handle.active:
            handle.settle(state)
            handle.owner = None
            if isinstance(state, Stopped):
                self._stopped(handle)

    async def page(
        self,
        *,
        conversation: str | None = None,
        state: str | None = None,
        limit: int = 1000,
        after: str | None = None,
        status: Status | None = None,
        newest: bool = False,
    ) -> list[HandleInfo]:
        """Return spawned handles, oldest first, after the one of that uid; those that this runtime runs as they are in
        memory."""
        records = await self.store.handles(
            HandleQuery(conversation=conversation, state=state, status=status, after=after, limit=limit, newest=newest)
        )
        handles = [self._as_known(record) for record in records]
        await self.facts.show(handles)
        return [handle.info() for handle in handles]

    def _as_known(self, record: Record) -> Handle:
        handle = self._by_uid.get(record.uid)
        return handle if handle is not None and self.runs(handle) else self.revive(record)

    def is_ours(self, record: Record) -> bool:
        """Whether a record belongs to this runtime."""
        return record.owner == self.store.owner

    def runs(self, handle: Handle) -> bool:
        """Whether this runtime runs the handle, or will: then memory is ahead of the store."""
        return handle.owner == self.store.owner and (handle.active or handle.lingering)

    def runs_elsewhere(self, handle: Handle) -> bool:
        """Whether another process runs the handle."""
        return handle.active and handle.owner is not None and handle.owner != self.store.owner

    def live(self, conversation: str | None = None) -> list[Handle]:
        """Return the handles that this runtime runs or will run, and stopped ones that linger."""
        chosen = self._conversations.values() if conversation is None else [self.conversation(conversation)]
        return [handle for each in chosen for handle in each.live.values()]

    # Writing

    def observe_commits(self, observer: CommitObserver) -> None:
        """Give every commit to `observer` before the store: it returns the operations and callbacks to use instead."""
        self._commit_observers.append(observer)
        self.commit = self._observed_commit

    def stop_observing(self, observer: CommitObserver) -> None:
        """Undo `observe_commits`."""
        self._commit_observers.remove(observer)
        if not self._commit_observers:
            self.commit = self.store.commit

    def _observed_commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        for observer in self._commit_observers:
            ops, done, failed = observer(ops, done, failed)
        self.store.commit(ops, done, failed, keep=keep)

    def write(self, ops: Sequence[Op], *, keep: bool = True) -> "asyncio.Future[Sequence[Any]]":
        """Write operations. The future gets their results, or the error that says why they were refused."""
        written: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self.commit(ops, partial(_set, written), partial(_fail, written), keep=keep)
        return written

    def write_soon(self, *ops: Op) -> None:
        """Write operations whose results nobody waits for. A store that cannot write keeps them until it can."""
        self.commit(ops, lambda _: None, lambda _: None, keep=True)

    # Notifying

    def follow(self, conversation: str, follower: Callable[[Handle], None]) -> None:
        """Call `follower` with every handle of the conversation that was made or has changed its state."""
        self.followers.setdefault(conversation, []).append(follower)

    def unfollow(self, conversation: str, follower: Callable[[Handle], None]) -> None:
        """Stop calling a follower. Do nothing if it does not follow the conversation."""
        followers = self.followers.get(conversation, [])
        if follower in followers:
            followers.remove(follower)
            if not followers:
                del self.followers[conversation]

    def _follow(self, handle: Handle) -> None:
        for follower in tuple(self.followers.get(handle.conversation, ())):
            follower(handle)

    def _stopped(self, handle: Handle) -> None:
        if self.followers:
            self._follow(handle)
        handle.reading = False
        handle.next_attempt_at = None
        if not handle.lingering:
            self._settle_accounts(handle)
        watchers, handle.watchers = handle.watchers, None
        if watchers is not None:
            for watcher in watchers:
                watcher.stopped(handle)
        self.facts.stopped(handle)

    def progressed(self, handle: Handle, progress: Progress) -> None:
        """Set how far the handle is, and tell its watchers."""
        handle.progress = progress
        for watcher in tuple(handle.watchers or ()):
            watcher.progressed(handle)

    def ready(self, handle: Handle, attempt: int) -> None:
        """Note that an attempt of the handle is ready, and tell its watchers (A9)."""
        handle.ready_attempt = attempt
        if self.followers:
            self._follow(handle)
        for watcher in tuple(handle.watchers or ()):
            watcher.became_ready(handle)

    def _tell_parked(self, handle: Handle) -> None:
        for watcher in tuple(handle.watchers or ()):
            watcher.parked(handle)

    def notify_watchers(self, handle: Handle) -> None:
        """Tell the waits on a handle that may be blocked on the caller now, and those on handles that queue behind
        it."""
        concerned = {handle.uid: handle}
        visited: dict[GateQueue, int] = {}  # visit each part of a queue once: queues may be long
        todo = [handle]
        for each in todo:
            for ticket in (each.lane, each.ticket):
                for line, place in ticket.holds_up() if ticket is not None else ():
                    behind = [other.handle for other in line.queue[place : visited.get(line)]]
                    visited[line] = min(place, visited.get(line, place))
                    todo.extend(other for other in behind if other.uid not in concerned)
                    concerned.update((other.uid, other) for other in behind)
        for each in concerned.values():
            for watcher in tuple(each.watchers or ()):
                watcher.handle_changed(each)

    def run_soon(self, work: Any) -> "asyncio.Task[None]":
        """Run a coroutine in the background; closing waits for it."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("work on the store was cut short: %s", error, exc_info=error)

    # Evicting and deleting

    def _settle_accounts(self, handle: Handle) -> None:
        known = self._conversations.get(handle.conversation)
        if known is not None:
            known.live.pop(handle.uid, None)
        if handle.output is not None:
            handle.output.close()
        if handle.unwritten is not None:  # nobody can ask for it
            self._forget(handle)
            return
        self._rest(handle)
        self.may_expire()

    def _rest(self, handle: Handle) -> None:
        """Keep a handle that this runtime does not run, as long as it is watched or there is room."""
        self._idle[handle.uid] = handle
        state, full = handle.state, len(self._idle) > _IDLE
        if type(state) is Stopped and not _is_short(state.outcome) and (weight := _weight(state)) > _LIGHT:
            self._heavy[handle.uid] = weight
            full = full or sum(self._heavy.values()) > _IDLE_BYTES
        if full and not self._evicting:
            self._evicting = True  # later: coroutines that wait for this handle come first
            asyncio.get_running_loop().call_later(_EVICT_SECS, self._evict)

    def _evict(self) -> None:
        self._evicting = False
        kept = heavy = 0
        for handle in reversed(self._idle.copy().values()):
            weight = self._heavy.get(handle.uid, 0)
            kept, heavy = kept + 1, heavy + weight
            surplus = kept > _IDLE or (weight and heavy > _IDLE_BYTES)
            if surplus and not handle.watchers and handle.ticket is None:
                self._forget(handle)

    def _forget(self, handle: Handle) -> None:
        """Evict a handle; the store has it."""
        self._by_uid.pop(handle.uid, None)
        self._idle.pop(handle.uid, None)
        self._heavy.pop(handle.uid, None)
        known = self._conversations.get(handle.conversation)
        if known is None:
            return
        if known.calls.get(handle.call_id) is handle:
            del known.calls[handle.call_id]
        if known.names.get(handle.id) is handle:
            del known.names[handle.id]
        self._forget_conversation(known)

    def _forget_conversation(self, known: ConversationCache) -> None:
        """Drop a conversation that has nothing in memory."""
        if known.turn is None and not (known.names or known.calls or known.live or known.expired):
            self._conversations.pop(known.name, None)

    def expired(self, state: State, conversation: str) -> bool:
        """Whether a handle's retention is over and no turn keeps it."""
        if not isinstance(state, Stopped) or state.stopped + self.retention > self.clock.now():
            return False
        known = self._conversations.get(conversation)
        return known is None or known.turn is None

    @property
    def collecting_is_due(self) -> bool:
        return self.clock.now() >= self._collect_at

    async def collect_sometimes(self) -> None:
        """Collect, unless that was done in the last minute."""
        now = self.clock.now()
        if now >= self._collect_at:
            self._collect_at = now + 60
            with contextlib.suppress(KeepholdError):  # the store cannot write now; try again in a minute
                await self.collect()
                await self.room.check()

    async def collect(self) -> None:
        """Delete handles from the store whose retention and turn are over (S5), unless another process does."""
        async with self.sole() as alone:
            if alone:
                await self._collect()
        for handle in [each for each in self._idle.values() if self.expired(each.state, each.conversation)]:
            self._forget(handle)

    def sole(self) -> contextlib.AbstractAsyncContextManager[bool]:
        """Let one process at a time archive and delete what is old (W8); False: another one does."""
        return self.store.sole() if isinstance(self.store, SupportsSole) else contextlib.nullcontext(True)

    async def _collect(self) -> None:
        now = self.clock.now()
        for status, secs in self.shorter.items():
            if secs < self.retention:
                await self.delete_expired(Collected(_until(now - secs), now, kinds=WAIT_KINDS, statuses=(status,)))
        await self.delete_expired(Collected(_until(now - self.retention), now))

    async def delete_expired(self, op: Collected, seen: Callable[[Sequence[Record]], None] | None = None) -> None:
        """Delete what the operation is about in parts, archiving each first. `seen` gets the records of each part."""
        shown = seen is not None or self.archive is not None or (not self.store.durable and self.spool.disk.files)
        more = True
        while more:
            began, part = time.perf_counter(), replace(op, limit=self._parts.size)
            if shown:
                records = await self.store.expiring(part)
                deleted = await self.delete(part, records)
                if seen is not None:
                    seen(records)
            else:
                (deleted,) = await self.write((part,), keep=False)
            more = deleted == part.limit
            if more:
                await self._parts.took(time.perf_counter() - began)

    async def delete(self, op: Collected, records: Sequence[Record]) -> int:
        """Delete these of the records that the operation is about, archiving them first. Returns the result of the
        operation."""
        if self.archive is not None and records:
            await self.archive(records)
        only = replace(op, only=tuple(record.uid for record in records))
        deleted: int = (await self.write((only,), keep=False))[0]
        for record in records:
            handle = self._by_uid.get(record.uid)
            if handle is not None:
                self._forget(handle)
            if not self.store.durable and record.output is not None and record.output.file is not None:
                self.spool.remove(record.output.file)  # a durable store removes it
        return deleted

    def turn_began(self, conversation: str, turn: str) -> None:
        """Note that the conversation has an open turn, which keeps handles that have not expired yet."""
        self.conversation(conversation).turn = turn

    def turn_ended(self, conversation: str) -> None:
        """Note that the conversation's turn has ended, so that handles kept for it may be deleted."""
        known = self.conversation(conversation)
        known.turn = None
        self._forget_conversation(known)
        self.room.turn_ended()
        self.may_expire()


def _until(at: float) -> float:
    """Include handles that stopped at exactly that time."""
    return math.nextafter(at, math.inf)


def _set(future: "asyncio.Future[Sequence[Any]]", results: Sequence[Any]) -> None:
    if not future.done():
        future.set_result(results)


def _fail(future: "asyncio.Future[Sequence[Any]]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _is_short(outcome: Outcome) -> bool:
    """Whether an outcome is certainly not large: most are short texts, and this is asked at every end."""
    if type(outcome) is not Ok:
        return type(outcome) is PrintedOutput
    return type(outcome.value) is str and len(outcome.value) < _LIGHT and outcome.content is msgspec.UNSET


def _weight(state: Stopped) -> int:
    """Return about how many characters the outcome has. A value of very many parts is taken for large."""
    weight, left = 0, list[object]([state.outcome])
    for _ in range(_NODES):
        if not left:
            return weight
        match left.pop():
            case str() | bytes() as text:
                weight += len(text)
            case dict() as table:
                left += table.values()
            case list() | tuple() as parts:
                left += parts
            case msgspec.Struct() as part:
                left += msgspec.structs.astuple(part)
    return max(weight, _LIGHT + 1)
