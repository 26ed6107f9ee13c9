"""The registry: every handle of a runtime, and the only place where handles change (S6).

`register` and `apply_event` decide, hand the operation to the store, and make the change visible when the store has it;
then watchers are called. `cache.py` is the other half: how handles are found, loaded and evicted.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from keephold.errors import AlreadyStopped, KeepholdError
from keephold.handles.cache import Cache
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.state import (
    Ended,
    EndedBy,
    Failure,
    Ok,
    Outcome,
    PendingState,
    Started,
    State,
    StateEvent,
    Stopped,
    Waiting,
    transition,
)
from keephold.store.base import (
    NOBODY,
    Changed,
    Exposed,
    KeptOutput,
    Notified,
    Op,
    Opened,
    Parked,
    Parking,
    QueuedNotification,
    Readied,
    Record,
    Registered,
    Released,
    Responded,
    Shown,
    TakenBack,
)
from keephold.store.rows import Notice
from keephold.store.rules import READY, clip, end_notice, hook_is_due, words

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


_log = logging.getLogger("keephold.handles")

_SOMEBODY_ELSE = ("already_stopped", "lease_lost", "store_unavailable")
"""Codes of refusals that say nothing against the refused operations."""
_LATE_SECS = 0.01
"""How long a call may run before it is written, if it is otherwise written at its end."""
_LAST_TASKS_SECS = 1.0
"""How long closing waits for background work."""


class Registry(Cache):
    """The handles of a runtime, and how they change."""

    _made = 0
    """The beginning of the newest uid: its time in milliseconds, and a count."""

    def new_uid(self) -> str:
        """Return a uid that was never used, is hard to guess, and is greater than the last one even if the clock was
        set back."""
        self._made = max(self._made + 1, int(self.clock.now() * 1000) << 16)
        return f"{self._made:016x}{secrets.token_hex(8)}"

    def repeated(self, record: Record, first: str) -> Record:
        """Return a new handle that repeats a stopped call; `first` is the uid of the first call of its kind."""
        return Record(
            uid=self.new_uid(),
            id=record.retry_id,
            tool=record.tool,
            conversation=record.conversation,
            turn=record.turn,
            batch=0,  # no batch waits for it
            position=0,
            call_id=record.call_id,
            stateful=True,
            state=PendingState(self.clock.now()),
            arguments=record.arguments,
            kind=record.kind,
            priority=record.priority,
            metadata=record.metadata,
            resources=record.resources,
            owner=self.store.owner,
            retry_of=first,
            allowed=record.allowed,
        )

    def register(
        self,
        new: Sequence[tuple[Handle, Record]],
        done: Callable[[], None],
        failed: Callable[[Exception], None],
        opened: Opened | None = None,
    ) -> None:
        """Write handles and the batch that makes them in one commit, then call `done`.

        Handles that have an `unwritten` record are known in this process only, until `write_down`.
        """
        ops: list[Op] = [] if opened is None else [opened]
        for handle, record in new:
            if handle.unwritten is None:
                launching = handle.tool.launching
                ops.append(Registered(record, launching is not None and bool(launching.once)))
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
        """Return the handle of a claimed call: this runtime runs it from now on."""
        handle = self._by_uid.get(record.uid) or self.revive(record)
        self._copy(handle, record)
        self.enlist(handle)
        return handle

    def enlist(self, handle: Handle) -> None:
        """List a handle. Unless it has stopped before it started, this runtime runs it or will run it."""
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
        elif handle.tool.names is None:  # a tool that looks for a call by its label may have the same label
            known.calls[handle.call_id] = handle

    def apply_event(
        self,
        handle: Handle,
        event: StateEvent,
        then: Callable[[], None] | None = None,
        also: Sequence[Op] = (),
        *,
        quiet: bool = False,
        yields: bool = False,
    ) -> None:
        """Decide `event` now, or raise. When the store has it, the change becomes visible and `then` is called.

        The notification of the change goes into the same commit (N3), unless `quiet`. `yields` is that of `Changed`.
        """
        before = handle.decided
        state = transition(before, event)
        handle.decide(state)
        if isinstance(before, Waiting) and handle.stateful:
            also = (*also, TakenBack(handle.conversation, ((handle.uid, "asked"),)))  # the question is closed
        output = self._kept(handle) if isinstance(state, Stopped) else None
        if type(state) is Stopped and type(state.outcome) is Ok and type(state.outcome.value) is str:
            self.spool.disk.note(len(state.outcome.value))  # other values are counted when the store is measured
        notification = notice(handle.tool, state) if handle.stateful and not quiet else None
        change = Changed(handle.uid, handle.fence, event, state, output, notification, yields)
        ops: Sequence[Op] = (change, *also) if also else (change,)
        refused = partial(self._refused, handle)
        if handle.unwritten is not None:
            if handle.tool.unrecorded:
                self._visible(handle, state, then, ())
                return
            ops = (Registered(handle.unwritten), *ops)
            refused = partial(self._not_written, handle, handle.unwritten)
            handle.unwritten = None
        visible = self._visible_or_completed if yields else self._visible
        self.commit(ops, partial(visible, handle, state, then), refused, keep=True)

    def write_down(self, handle: Handle) -> None:
        """Write the handle's record before anything else about it: commits keep their order."""
        record, handle.unwritten = handle.unwritten, None
        if record is not None and handle.active:
            refused = partial(self._not_written, handle, record)
            self.commit((Registered(record),), lambda _: None, refused, keep=True)

    def _not_written(self, handle: Handle, record: Record, error: Exception) -> None:
        """Keep the record, so that it is written together with the next change."""
        handle.unwritten = record
        self._refused(handle, error)

    def _kept(self, handle: Handle) -> KeptOutput | None:
        output = handle.output
        if output is None:
            return None
        kept = output.keep(self.store.inline_output)
        self.spool.disk.note(len(kept.data))
        if output.failure is not None:
            _log.warning("the output of handle `%s` (uid %s) is incomplete: %s", handle.id, handle.uid, output.failure)
        return kept

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

    def _visible_or_completed(
        self, handle: Handle, state: State, then: Callable[[], None] | None, results: Sequence[Any]
    ) -> None:
        """Show the end of a call: with its completion, if that was accepted before (R4)."""
        state = next((each for each in results if type(each) is Stopped), state)
        handle.decide(state)
        self._visible(handle, state, then, results)

    def _refused(self, handle: Handle, error: Exception) -> None:
        """Read the handle again: another process was first to stop it, or runs it now."""
        code = error.code if isinstance(error, KeepholdError) else "not_storable"
        if handle.unwritten is not None and code == "lease_lost":
            return  # no other process has it: its registration was refused, and the caller handles that
        if code not in _SOMEBODY_ELSE and handle.active:
            handle.decide(handle.state)  # its outcome cannot be stored; this failure can
            if handle.run is not None:
                handle.run.end(Failure(str(error), code), "self")
            else:
                self.end(handle, Failure(str(error), code))
            return
        if code == "lease_lost":
            _log.warning("handle `%s` (%s, uid %s) is lost: %s", handle.id, handle.tool.name, handle.uid, error)
            if handle.run is not None:
                handle.run.lost()
        self.conversation(handle.conversation).live.pop(handle.uid, None)
        handle.owner = None
        handle.decide(handle.state)
        self._rest(handle)
        self.run_soon(self.refresh((handle.uid,)))

    def start(self, handle: Handle, then: Callable[[], None]) -> None:
        """Start the handle, then call `then`."""
        self.apply_event(handle, Started(self.clock.now()), then)

    def end(
        self,
        handle: Handle,
        outcome: Outcome,
        ended_by: EndedBy = "self",
        exit_code: int | None = None,
        signal: int | None = None,
        *,
        yields: bool = False,
    ) -> bool:
        """Stop the handle with this outcome, or, if it `yields`, with a completion that was accepted before. Return
        False if it has stopped already: the first outcome wins (S2)."""
        try:
            ended = Ended(self.clock.now(), outcome, ended_by, exit_code, signal)
            self.apply_event(handle, ended, yields=yields)
        except AlreadyStopped:
            return False
        return True

    def become_ready(self, handle: Handle, line: str) -> None:
        """Record that the handle has printed the line that its tool's `ready` describes (A9), and notify of it."""
        self.write_down(handle)
        attempt, policy = handle.attempt, handle.tool.spawn.notifications
        ops: list[Op] = [Readied(handle.uid, handle.fence)]
        if handle.stateful and policy.on_ready:
            message = clip(f"`{handle.id}` ({handle.tool.name}) is ready: {line}")
            now = self.clock.now()
            ops.append(Notified(handle.conversation, READY, "info", message, now, handle.uid, policy.deliver))
        self.commit(ops, lambda _: self.ready(handle, attempt), partial(self._refused, handle), keep=True)

    def park(self, handle: Handle, parking: Parking, then: Callable[[], None]) -> None:
        """Park a handle whose tool has returned: it waits for its completion and has no owner (D6)."""
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

    async def release(self, handle: Handle) -> None:
        """Give up a handle that nothing here works on any more: another process, or this one, claims it."""
        try:
            await self.write((Released(handle.uid, handle.fence),))
        except KeepholdError:  # it was ended or claimed meanwhile
            await self.refresh((handle.uid,))
            return
        self.conversation(handle.conversation).live.pop(handle.uid, None)
        handle.owner = NOBODY
        handle.decide(handle.state)
        if handle.output is not None:
            handle.output.close()
        self._rest(handle)
        for watcher in tuple(handle.watchers or ()):
            watcher.released(handle)
        self.facts.sync(handle)

    async def promote_to_handle(self, handle: Handle, id: str) -> None:
        """Turn a one-shot call into a handle of that id (D10). Its end is notified, even if it has stopped already."""
        self.write_down(handle)
        was, over = handle.id, handle.decided
        handle.id, handle.stateful = id, True  # commits keep their order: the next change is that of a handle
        ops: list[Op] = [Exposed(handle.uid, id)]
        if isinstance(over, Stopped) and handle.parking is None:  # the end of a parked call is notified already (D9)
            end, message = end_notice(over, handle.tool.spawn.notifications.deliver), words(id, handle.tool.name, over)
            now = self.clock.now()
            ops.append(Notified(handle.conversation, end.kind, end.level, message, now, handle.uid, end.carriers))
        try:
            await self.write(ops)
        except KeepholdError:
            handle.id, handle.stateful = was, False
            raise
        self.conversation(handle.conversation).names[id] = handle

    def when_visible(self, then: Callable[[], None], failed: Callable[[Exception], None] | None = None) -> None:
        """Call `then` when everything decided so far is visible: commits finish in order. If the store cannot write at
        present, call `failed` with the reason instead; without it, call `then` at once."""
        self.commit((), lambda _: then(), lambda error: then() if failed is None else failed(error))

    async def responded(self, op: Responded) -> tuple[QueuedNotification, ...]:
        """Record the responses of a batch and move the cursors of the output they showed (C5).

        Return the notifications that ride on the responses (N4).
        """
        (delivered,) = await self.write((op,))
        for uid, offset in op.cursors:
            handle = self._by_uid.get(uid)
            if handle is not None:
                handle.cursor = max(handle.cursor, offset)
        self.reset_output_notifications(delivered, op.shown)
        return tuple(delivered)

    def reset_output_notifications(
        self, delivered: Sequence[QueuedNotification], shown: Sequence[tuple[str, Shown]] = ()
    ) -> None:
        """Let these handles notify new output again: their notifications were delivered, or their output was shown
        (N6)."""
        for each in delivered:
            handle = self._by_uid.get(each.uid or "") if each.kind == "tool.content" else None
            if handle is not None and handle.run is not None and handle.run.content is not None:
                handle.run.content.delivered()
        for uid, shown_as in shown:
            handle = self._by_uid.get(uid) if shown_as != "asked" else None
            if handle is not None and handle.run is not None and handle.run.content is not None:
                handle.run.content.shown()

    def annotated(self, handle: Handle, record: Record) -> None:
        """Copy annotations that are written. The new priority of a handle that queues here counts at once (W11)."""
        if handle.ticket is not None:
            self.gate.rank(handle.ticket, record.priority)
        self._annotate(handle, record)

    def output_of(self, handle: Handle) -> Output:
        """Return the handle's output; make it on first use."""
        if handle.output is None:
            handle.output = Output(self.spool, handle.tool.output.max_output, handle.uid)
            handle.output.terminal = handle.tool.source == "terminal"
        return handle.output

    def printed(self, uid: str) -> Output | None:
        """Return the output of a loaded handle so far."""
        handle = self._by_uid.get(uid)
        return handle.output if handle is not None else None

    async def recorded(self, handle: Handle, cause: bytes) -> bool:
        """Whether the handle's journal has the input that this call sent (E10)."""
        return any(entry.digest == cause for entry in await self.store.journal(handle.uid))

    def withhold(self, handle: Handle) -> None:
        """Discard the output of a handle whose result nobody may see (P1)."""
        if handle.output is not None:
            handle.output.discard()
            handle.output = None
            self.output_of(handle)  # an empty output replaces what may be stored already

    def released(self, handle: Handle) -> None:
        """Note that nothing of a lingering handle runs any more."""
        if handle.lingering:
            handle.lingering = False
            self.facts.tell(handle)
            self._settle_accounts(handle)

    def stop_waiting(self) -> None:
        """Fail every wait for a handle, because the runtime is closing."""
        for future in self.waiting:
            if not future.done():
                future.set_exception(KeepholdError("the runtime was closed while this waited", code="runtime_closed"))

    async def close(self) -> None:
        """Free the handles' files and close the store, once everything is written."""
        if self._tasks:  # the next runtime can do each of these again
            await asyncio.wait(tuple(self._tasks), timeout=_LAST_TASKS_SECS)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.facts.close()
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
