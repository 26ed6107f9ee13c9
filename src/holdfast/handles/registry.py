"""The registry: every handle of a runtime, by uid and by the name its conversation gave it (S5, S6).

It is the only place where a handle changes. `register` and `apply_event` decide, hand the operation to the store, and
make it visible when the store has it; then watchers are told. Stopped handles stay until their retention is over and
the turn that knew them has ended; after that a tombstone remembers that they existed.
"""

import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from holdfast.errors import AlreadyStopped, ToolError
from holdfast.handles.clock import Clock
from holdfast.handles.gate import Gate, Line
from holdfast.handles.handle import Handle
from holdfast.handles.output import Output
from holdfast.handles.spool import Spool
from holdfast.handles.state import Ended, EndedBy, Event, Outcome, Started, State, Stopped, transition
from holdfast.store.base import Changed, Op, Opened, Registered, Responded, Store

if TYPE_CHECKING:
    from holdfast.tools.base import Tool

_BAD_IN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_TOMBSTONES = 10_000
_TOMBSTONE_SECS = 90 * 86_400.0


def check_id(id: object) -> str:
    """The id, if it is one a caller may choose (S6)."""
    if not isinstance(id, str) or not 1 <= len(id) <= 128 or _BAD_IN_ID.search(id):
        shown = repr(id) if len(repr(id)) <= 60 else repr(id)[:60] + "…"
        raise ToolError(
            f"{shown} is not a handle id; use 1 to 128 characters without whitespace or control characters",
            code="invalid_handle_id",
        )
    if id.startswith("call:"):
        raise ToolError(
            f"handle id `{id}`: ids starting `call:` are reserved; choose another", code="invalid_handle_id"
        )
    return id


class Conversation:
    """The handles of one conversation."""

    __slots__ = ("calls", "kept", "live", "name", "names", "open_questions", "tombstones", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn: str | None = None
        self.names: dict[str, Handle] = {}
        self.calls: dict[str, Handle] = {}
        self.live: dict[str, Handle] = {}
        self.kept: list[Handle] = []
        """Past their retention, kept because a turn is open."""
        self.open_questions = 0
        self.tombstones: OrderedDict[str, float] = OrderedDict()


class Registry:
    """All handles of a runtime. Single-threaded: everything here runs on the event loop."""

    def __init__(self, store: Store, clock: Clock, spool: Spool, *, retention: float = 3600.0) -> None:
        self._store = store
        self.clock = clock
        self.spool = spool
        self.retention = retention
        self.serial = Gate()
        self.gate = Gate()
        self._by_uid: dict[str, Handle] = {}
        self._conversations: dict[str, Conversation] = {}
        self._expiring: deque[Handle] = deque()

    # Finding

    def conversation(self, name: str) -> Conversation:
        found = self._conversations.get(name)
        if found is None:
            found = self._conversations[name] = Conversation(name)
        return found

    def find(self, id: str, conversation: str) -> Handle:
        """The newest handle that bears the id; an error that tells "expired" from "never heard of" (S5)."""
        self._expire()
        known = self._conversations.get(conversation)
        handle = known.names.get(id) if known is not None else None
        if handle is not None:
            return handle
        if known is not None and self.clock.now() < known.tombstones.get(id, -inf) + _TOMBSTONE_SECS:
            raise ToolError(
                f"Handle `{id}` expired: it stopped more than {self.retention:g} s ago and its result is gone",
                code="handle_expired",
            )
        raise ToolError(f"Handle `{id}` not found", code="handle_not_found")

    def find_call(self, call_id: str, conversation: str) -> Handle:
        """The newest one-shot call with that label."""
        known = self._conversations.get(conversation)
        handle = known.calls.get(call_id) if known is not None else None
        if handle is None:
            raise ToolError(f"Call `{call_id}` not found in this conversation", code="handle_not_found")
        return handle

    def handles(self, conversation: str | None = None, after: str | None = None) -> Iterator[Handle]:
        """All handles, oldest first; after the one of that uid, which may be forgotten by now."""
        passed, gone = after is None, after is not None and after not in self._by_uid
        for handle in self._by_uid.values():
            if passed or (gone and handle.uid > (after or "")):  # a uid begins with the time it was made
                passed = True
                if conversation is None or handle.conversation == conversation:
                    yield handle
            else:
                passed = handle.uid == after

    def live(self, conversation: str | None = None) -> list[Handle]:
        """Handles that have not stopped, and stopped ones of which something lingers."""
        chosen = self._conversations.values() if conversation is None else [self.conversation(conversation)]
        return [handle for each in chosen for handle in each.live.values()]

    # Changing

    def new_handle(
        self, *, id: str, tool: "Tool", conversation: str, turn: str, call_id: str, stateful: bool, priority: int = 0
    ) -> Handle:
        """A handle that nobody can see yet; `register` makes it so."""
        now = self.clock.now()
        uid = f"{int(now * 1000):012x}{secrets.token_hex(10)}"
        return Handle(
            id=id,
            uid=uid,
            tool=tool,
            conversation=conversation,
            turn=turn,
            call_id=call_id,
            stateful=stateful,
            created=now,
            priority=priority,
        )

    def register(self, handles: Iterable[Handle], done: Callable[[], None], opened: Opened | None = None) -> None:
        """Make handles known, and the batch that makes them, all in one commit, then call `done`."""
        new = list(handles)
        ops: list[Op] = [] if opened is None else [opened]
        ops += (Registered(h.uid, h.id, h.tool.name, h.conversation, h.turn, h.state.created) for h in new)
        self._store.commit(ops, partial(self._registered, new, done))

    def _registered(self, new: list[Handle], done: Callable[[], None]) -> None:
        self._expire()
        for handle in new:
            known = self.conversation(handle.conversation)
            self._by_uid[handle.uid] = handle
            known.live[handle.uid] = handle
            if handle.stateful:
                known.names[handle.id] = handle
                known.tombstones.pop(handle.id, None)
            elif handle.tool.name != "read_output":  # it looks for a call by its label, and may bear the same one
                known.calls[handle.call_id] = handle
        done()

    def apply_event(self, handle: Handle, event: Event, then: Callable[[], None] | None = None) -> None:
        """Decide `event` now, or raise; it is visible, and `then` is called, when the store has it."""
        state = handle.decided = transition(handle.decided, event)
        self._store.commit((Changed(handle.uid, event),), partial(self._visible, handle, state, then))

    def _visible(self, handle: Handle, state: State, then: Callable[[], None] | None) -> None:
        handle.state = state
        if isinstance(state, Stopped):
            self._stopped(handle)
        if then is not None:
            then()

    def _stopped(self, handle: Handle) -> None:
        handle.reading = False
        if not handle.lingering:
            self._settle_accounts(handle)
        watchers, handle.watchers = handle.watchers, None
        if watchers is not None:
            for watcher in watchers:
                watcher.stopped(handle)

    def start(self, handle: Handle) -> None:
        """It runs."""
        self.apply_event(handle, Started(self.clock.now()))

    def end(
        self,
        handle: Handle,
        outcome: Outcome,
        ended_by: EndedBy = "self",
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> bool:
        """Stop it with this outcome, unless it has stopped: the first outcome stands (S2). Says whether this was it."""
        try:
            self.apply_event(handle, Ended(self.clock.now(), outcome, ended_by, exit_code, signal))
        except AlreadyStopped:
            return False
        return True

    def when_visible(self, then: Callable[[], None]) -> None:
        """Call `then` when everything decided so far is visible: commits finish in order."""
        self._store.commit((), then)

    def responded(self, op: Responded, then: Callable[[], None]) -> None:
        """A batch is answered: record the responses and move the cursors of what they showed (C5)."""
        self._store.commit((op,), partial(self._move_cursors, op.cursors, then))

    def _move_cursors(self, cursors: Iterable[tuple[str, int]], then: Callable[[], None]) -> None:
        for uid, offset in cursors:
            handle = self._by_uid.get(uid)
            if handle is not None:
                handle.cursor = max(handle.cursor, offset)
        then()

    def touch(self, handle: Handle) -> None:
        """It may have become blocked on the caller: tell its waits, and those of whoever queues behind it."""
        concerned = {handle.uid: handle}
        told: dict[Line, int] = {}  # each part of a line once: lines may be long
        todo = [handle]
        for each in todo:
            for ticket in (each.lane, each.ticket):
                for line, place in ticket.holds_up() if ticket is not None else ():
                    behind = [other.handle for other in line.queue[place : told.get(line)]]
                    told[line] = min(place, told.get(line, place))
                    todo.extend(other for other in behind if other.uid not in concerned)
                    concerned.update((other.uid, other) for other in behind)
        for each in concerned.values():
            for watcher in tuple(each.watchers or ()):
                watcher.touched(each)

    def output_of(self, handle: Handle) -> Output:
        """The handle's output, made when it first has some."""
        if handle.output is None:
            handle.output = Output(self.spool, handle.tool.output.max_output)
        return handle.output

    def withhold(self, handle: Handle) -> None:
        """What it printed is not for anyone to see (P1)."""
        if handle.output is not None:
            handle.output.discard()
            handle.output = None

    def released(self, handle: Handle) -> None:
        """Nothing of a lingering handle runs any more."""
        if handle.lingering:
            handle.lingering = False
            self._settle_accounts(handle)

    # Forgetting

    def _settle_accounts(self, handle: Handle) -> None:
        self.conversation(handle.conversation).live.pop(handle.uid, None)
        if handle.output is not None:
            handle.output.close()
        self._expiring.append(handle)

    def _expire(self) -> None:
        """Let go of what stopped a retention ago and whose turn is over; leave tombstones."""
        now = self.clock.now()
        while self._expiring:
            handle = self._expiring[0]
            state, known = handle.state, self.conversation(handle.conversation)
            assert isinstance(state, Stopped)
            if state.stopped + self.retention > now:
                return
            self._expiring.popleft()
            if known.turn is not None:
                known.kept.append(handle)
            else:
                self._forget(handle, known, now)

    def turn_began(self, conversation: str, turn: str) -> None:
        """The conversation has a turn, which keeps what has not expired by now."""
        self._expire()
        self.conversation(conversation).turn = turn

    def turn_ended(self, conversation: str) -> None:
        """The conversation's turn is over: what was kept only for it may go."""
        known = self.conversation(conversation)
        known.turn = None
        self._expiring.extendleft(reversed(known.kept))
        known.kept.clear()
        self._forget_conversation(known)

    def _forget(self, handle: Handle, known: Conversation, now: float) -> None:
        self._by_uid.pop(handle.uid, None)
        if handle.output is not None:
            handle.output.discard()
        if known.calls.get(handle.call_id) is handle:
            del known.calls[handle.call_id]
        if known.names.get(handle.id) is handle:
            del known.names[handle.id]
            known.tombstones[handle.id] = now
        while known.tombstones:
            oldest = next(iter(known.tombstones))
            if len(known.tombstones) <= _TOMBSTONES and known.tombstones[oldest] + _TOMBSTONE_SECS > now:
                break
            del known.tombstones[oldest]
        self._forget_conversation(known)

    def _forget_conversation(self, known: Conversation) -> None:
        """Let go of one that has nothing left to remember."""
        if known.turn is None and not (known.names or known.calls or known.live or known.kept or known.tombstones):
            self._conversations.pop(known.name, None)

    def close(self) -> None:
        """Free what the handles keep outside memory."""
        for handle in self._by_uid.values():
            if handle.output is not None:
                handle.output.discard()
        self.spool.close()
