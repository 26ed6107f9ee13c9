"""The registry: every handle of a runtime, and the only place where one changes (S6).

`register` and `apply_event` decide, hand the operation to the store, and make it visible when the store has it; then
watchers are told. `cache.py` is the other half: how handles are found, loaded and let go of.

What of a spawned handle is news (N1, N2).
"""

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from keephold.errors import AlreadyStopped, KeepholdError, ToolError
from keephold.handles.cache import Cache
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.state import (
    Ended,
    EndedBy,
    Event,
    Failure,
    Outcome,
    Started,
    State,
    Stopped,
    Waiting,
    transition,
)
from keephold.store.base import (
    Changed,
    Exposed,
    KeptOutput,
    Kind,
    Notified,
    Op,
    Opened,
    Parked,
    Parking,
    QueuedNotification,
    Record,
    Registered,
    Responded,
    Shown,
    TakenBack,
)
from keephold.store.endings import end_notice, hook_is_due, words
from keephold.store.rows import Notice
from keephold.text import to_utf8

if TYPE_CHECKING:
    from keephold.tools.base import Tool


def notice(tool: "Tool", state: State) -> Notice | None:
    """Return the notification of a handle's new state, if the tool's settings want one (N1, N2)."""
    policy = tool.spawn.notifications
    if type(state) is Stopped:
        stopped = end_notice(state, policy.deliver)
        return stopped if (policy.on_failure if stopped.level == "error" else policy.on_success) else None
    if isinstance(state, Waiting) and policy.on_waiting:
        return Notice("tool.waiting", "warning", None, policy.deliver)
    return None


_SOMEBODY_ELSE = ("already_stopped", "lease_lost", "store_unavailable")
"""Refusals that say nothing against what was to be written."""
_LATE_SECS = 0.01
"""How long a call may run before the store knows of it, if it is written at its end otherwise."""
_LAST_TASKS_SECS = 1.0
"""How long closing waits for what is done beside everything else."""
_BAD_IN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


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


def call_id(label: str) -> str:
    """The id of a one-shot call that gets one (D10): of its label, as far as that may be in an id (S6)."""
    return f"call:{_BAD_IN_ID.sub('-', to_utf8(label).decode())[:100]}"


def _only_once(handle: Handle) -> bool:
    launching = handle.tool.launching
    return launching is not None and bool(launching.once)


class Registry(Cache):
    """The handles of a runtime, and how they change."""

    def new_handle(
        self,
        *,
        id: str,
        tool: "Tool",
        conversation: str,
        turn: str,
        call_id: str,
        stateful: bool,
        priority: int = 0,
        kind: Kind = "tool",
    ) -> Handle:
        """A handle that nobody can see yet; `register` makes it so."""
        now = self.clock.now()
        return Handle(
            id=id,
            uid=self._new_uid(now),
            tool=tool,
            conversation=conversation,
            turn=turn,
            call_id=call_id,
            stateful=stateful,
            created=now,
            owner=self.store.owner,
            priority=priority,
            kind=kind,
        )

    def _new_uid(self, now: float) -> str:
        """Never used before, hard to guess, and greater than the one before, also if the clock is set back."""
        self._made = max(self._made + 1, int(now * 1000) << 16)
        return f"{self._made:016x}{secrets.token_hex(8)}"

    def register(
        self,
        new: Sequence[tuple[Handle, Record]],
        done: Callable[[], None],
        failed: Callable[[Exception], None],
        opened: Opened | None = None,
    ) -> None:
        """Make handles known, and the batch that makes them, all in one commit, then call `done`.

        Those that have their record as `unwritten` are known here only, until `write_down`.
        """
        ops: list[Op] = [] if opened is None else [opened]
        ops += [Registered(record, _only_once(handle)) for handle, record in new if handle.unwritten is None]
        handles = [handle for handle, _ in new]
        if self.traces is not None:
            failed = self.traces.registering(handles, failed)
        self.commit(ops, partial(self._registered, handles, done), failed)

    def _registered(self, new: list[Handle], done: Callable[[], None], results: Sequence[Any]) -> None:
        for handle in new:
            self.enlist(handle)
            if handle.unwritten is not None and not handle.tool.unrecorded:
                asyncio.get_running_loop().call_later(_LATE_SECS, self.write_down, handle)
        if self.on_created:
            self.on_created(new)
        done()

    def take_over(self, record: Record) -> Handle:
        """The handle of a call that was claimed: this runtime runs it from now on."""
        handle = self._by_uid.get(record.uid) or self.revive(record)
        self._copy(handle, record)
        self.enlist(handle)
        return handle

    def enlist(self, handle: Handle) -> None:
        """It is known now; unless it has stopped before it started, this runtime runs it, or will."""
        known = self.conversation(handle.conversation)
        self._by_uid[handle.uid] = handle
        if self.followers and handle.stateful:
            self._follow(handle)
        if handle.active:
            self._idle.pop(handle.uid, None)
            known.live[handle.uid] = handle
        else:
            self._rest(handle)
        if handle.stateful:
            known.names[handle.id] = handle
            known.expired.discard(handle.id)
        elif handle.tool.names is None:  # what looks for a call by its label may bear the same one
            known.calls[handle.call_id] = handle

    def apply_event(
        self,
        handle: Handle,
        event: Event,
        then: Callable[[], None] | None = None,
        also: Sequence[Op] = (),
        *,
        quiet: bool = False,
    ) -> None:
        """Decide `event` now, or raise; it is visible, and `then` is called, when the store has it.

        What of it is news goes into the same commit (N3), unless it is to pass in silence.
        """
        before = handle.decided
        state = transition(before, event)
        handle.decide(state)
        if isinstance(before, Waiting) and handle.stateful:
            also = (*also, TakenBack(handle.conversation, ((handle.uid, "asked"),)))  # that it asks is old news
        output = self._kept(handle) if handle.output is not None and isinstance(state, Stopped) else None
        notification = notice(handle.tool, state) if handle.stateful and not quiet else None
        change = Changed(handle.uid, handle.fence, event, state, output, notification)
        ops: Sequence[Op] = (change, *also) if also else (change,)
        refused = partial(self._refused, handle)
        if handle.unwritten is not None:
            if handle.tool.unrecorded:
                self._visible(handle, state, then, ())
                return
            ops = (Registered(handle.unwritten), *ops)
            refused = partial(self._not_written, handle, handle.unwritten)
            handle.unwritten = None
        self.commit(ops, partial(self._visible, handle, state, then), refused, keep=True)

    def write_down(self, handle: Handle) -> None:
        """See to it that the store knows the handle before it hears anything else of it: commits keep their order."""
        record, handle.unwritten = handle.unwritten, None
        if record is not None and handle.active:
            refused = partial(self._not_written, handle, record)
            self.commit((Registered(record),), lambda _: None, refused, keep=True)

    def _not_written(self, handle: Handle, record: Record, error: Exception) -> None:
        """The store knows nothing of it yet: what comes next is to be written with it."""
        handle.unwritten = record
        self._refused(handle, error)

    def _kept(self, handle: Handle) -> KeptOutput | None:
        return handle.output.keep(self.store.inline_output) if handle.output is not None else None

    def _visible(self, handle: Handle, state: State, then: Callable[[], None] | None, results: Sequence[Any]) -> None:
        handle.state = state
        if type(state) is Stopped:
            if self.on_settled:
                self.on_settled(handle.uid, state, None)
            self._stopped(handle)
            parking = handle.parking
            if parking is not None and hook_is_due(parking, state.ended_by):
                self.on_cancelled(handle.uid)
        elif self.followers:
            self._follow(handle)
        if then is not None:
            then()

    def _refused(self, handle: Handle, error: Exception) -> None:
        """Somebody else was first: it has stopped, or is run by another process now. The store knows how it is."""
        code = error.code if isinstance(error, KeepholdError) else "not_storable"
        if handle.unwritten is not None and code == "lease_lost":
            return  # it is nobody else's: what was to make it known was refused before, and that is being dealt with
        if code not in _SOMEBODY_ELSE and handle.active:
            handle.decide(handle.state)  # its outcome cannot be stored; this failure can
            if handle.run is not None:
                handle.run.end(Failure(str(error), code), "self")
            else:
                self.end(handle, Failure(str(error), code))
            return
        if code == "lease_lost" and handle.run is not None:
            handle.run.lost()
        self.conversation(handle.conversation).live.pop(handle.uid, None)
        handle.owner = None
        handle.decide(handle.state)
        self._rest(handle)
        self.run_soon(self.refresh((handle.uid,)))

    def start(self, handle: Handle, then: Callable[[], None]) -> None:
        """It runs, and `then` may begin."""
        self.apply_event(handle, Started(self.clock.now()), then)

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

    def park(self, handle: Handle, parking: Parking, then: Callable[[], None]) -> None:
        """Its tool has returned; from now on it waits for its completion and nobody runs it (D6)."""
        self.write_down(handle)
        op = Parked(handle.uid, handle.fence, parking, self.clock.now(), self._kept(handle))
        self.commit((op,), partial(self._parked, handle, parking, then), partial(self._refused, handle), keep=True)

    def _parked(self, handle: Handle, parking: Parking, then: Callable[[], None], results: Sequence[Any]) -> None:
        handle.parking, handle.owner = parking, None
        self.conversation(handle.conversation).live.pop(handle.uid, None)
        then()
        state = results[0]
        if isinstance(state, Stopped):
            handle.settle(state)
            if self.on_settled:
                self.on_settled(handle.uid, state, None)
            self._stopped(handle)
        else:
            self._rest(handle)
            self._tell_parked(handle)
            if parking.hold:
                self.on_held(handle.uid)
            if parking.deadline is not None:
                self.on_deadline(parking.deadline)

    async def promote_to_handle(self, handle: Handle, id: str) -> None:
        """A one-shot call becomes a handle of that id (D10). Its end is news, also if it has come already."""
        self.write_down(handle)
        was, over = handle.id, handle.decided
        handle.id, handle.stateful = id, True  # commits keep their order: what is decided next is of a handle
        ops: list[Op] = [Exposed(handle.uid, id)]
        if isinstance(over, Stopped) and handle.parking is None:  # the end of a parked call is news already (D9)
            told = end_notice(over, handle.tool.spawn.notifications.deliver)
            message = words(id, handle.tool.name, over)
            ops.append(
                Notified(
                    handle.conversation, told.kind, told.level, message, self.clock.now(), handle.uid, told.carriers
                )
            )
        try:
            await self.write(ops)
        except KeepholdError:
            handle.id, handle.stateful = was, False
            raise
        self.conversation(handle.conversation).names[id] = handle

    def when_visible(self, then: Callable[[], None]) -> None:
        """Call `then` when everything decided so far is visible: commits finish in order."""
        self.commit((), lambda _: then(), lambda _: then())

    async def responded(self, op: Responded) -> tuple[QueuedNotification, ...]:
        """A batch is answered: record the responses and move the cursors of what they showed (C5).

        Returns the news that rides on them (N4).
        """
        (news,) = await self.write((op,))
        for uid, offset in op.cursors:
            handle = self._by_uid.get(uid)
            if handle is not None:
                handle.cursor = max(handle.cursor, offset)
        self.told(news, op.shown)
        return tuple(news)

    def told(self, news: Sequence[QueuedNotification], shown: Sequence[tuple[str, Shown]] = ()) -> None:
        """News was delivered, or what it was about shown: what these handles print next is news again (N6)."""
        for each in news:
            handle = self._by_uid.get(each.uid or "") if each.kind == "tool.content" else None
            if handle is not None and handle.run is not None and handle.run.content is not None:
                handle.run.content.delivered()
        for uid, shown_as in shown:
            handle = self._by_uid.get(uid) if shown_as != "asked" else None
            if handle is not None and handle.run is not None and handle.run.content is not None:
                handle.run.content.shown()

    def annotated(self, handle: Handle, record: Record) -> None:
        """What was said about a handle is written; of one that queues here the priority counts at once (W11)."""
        handle.metadata, handle.priority = record.metadata, record.priority
        if handle.ticket is not None:
            self.gate.rank(handle.ticket, record.priority)
        if record.progress is not None and record.progress != handle.progress:
            self.progressed(handle, record.progress)

    def output_of(self, handle: Handle) -> Output:
        """The handle's output, made when it first has some."""
        if handle.output is None:
            handle.output = Output(self.spool, handle.tool.output.max_output, handle.uid)
            handle.output.terminal = handle.tool.source == "terminal"
        return handle.output

    def printed(self, uid: str) -> Output | None:
        """What a call of ours has printed so far."""
        handle = self._by_uid.get(uid)
        return handle.output if handle is not None else None

    async def recorded(self, handle: Handle, cause: bytes) -> bool:
        """Whether what that call sent is in the handle's journal (E10)."""
        return any(entry.digest == cause for entry in await self.store.journal(handle.uid))

    def withhold(self, handle: Handle) -> None:
        """What it printed is not for anyone to see (P1)."""
        if handle.output is not None:
            handle.output.discard()
            handle.output = None
            self.output_of(handle)  # an empty one, which takes the place of what may be stored already

    def released(self, handle: Handle) -> None:
        """Nothing of a lingering handle runs any more."""
        if handle.lingering:
            handle.lingering = False
            self._settle_accounts(handle)

    @property
    def collecting_is_due(self) -> bool:
        return self.clock.now() >= self._collect_at

    async def collect_sometimes(self) -> None:
        """Collect, if that was not done in the last minute."""
        now = self.clock.now()
        if now >= self._collect_at:
            self._collect_at = now + 60
            with contextlib.suppress(KeepholdError):  # the store cannot write just now; the next minute will do
                await self.collect()

    def stop_waiting(self) -> None:
        """The runtime is closing: whoever still waits for a handle is told."""
        for future in self.waiting:
            if not future.done():
                future.set_exception(KeepholdError("the runtime was closed while this waited", code="runtime_closed"))

    async def close(self) -> None:
        """Free what the handles keep outside memory, once everything is written."""
        if self._tasks:  # each can be done again by the next runtime
            await asyncio.wait(tuple(self._tasks), timeout=_LAST_TASKS_SECS)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()
        if self.traces is not None:
            self.traces.close()
        for handle in self._by_uid.values():
            if handle.output is not None:
                if self.store.durable:
                    handle.output.close()
                else:
                    handle.output.discard()
        self.spool.close()
