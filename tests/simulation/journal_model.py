"""What a store is, in dictionaries: the model that the journal machine compares a real store with.

It says what each operation comes to, in the words of `keephold.store.ops`, and nothing of how that is kept.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.simulation.notification_model import NotificationModel

from keephold.errors import KeepholdError
from keephold.handles.state import Ended, PendingState, Running, State, Stopped, Waiting, transition
from keephold.store import base
from keephold.store.base import (
    Answers,
    Carrier,
    Entry,
    Expired,
    InquiryRow,
    Notice,
    Opened,
    OpenTurn,
    ProcessEvent,
    QueuedNotification,
    Record,
    Resolution,
    Resolving,
    WaitRow,
)
from keephold.store.rules import REVOKED, end_notice, ended, resolution_of, words

CANCELS = ("abort", "cancel", "turn_end", "shutdown")


class Call(msgspec.Struct):
    """A handle, and what else decides about it."""

    record: Record
    keyed: bool = False
    resolved: bool = False
    """Its completion came from outside."""
    hook_due: bool = False

    @property
    def stopped(self) -> bool:
        return isinstance(self.record.state, Stopped)

    @property
    def parked(self) -> bool:
        return self.record.owner is None and self.record.parking is not None and not self.stopped

    @property
    def is_due(self) -> float | None:
        """When its deadline ends it, if one does."""
        return self.record.parking.deadline if self.parked and self.record.parking and not self.resolved else None


class Model:
    """The committed state. `commit` is one commit of a process: all of it or, with a refusal, nothing."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.journal: dict[str, dict[tuple[str, str], Entry]] = {}
        self.waits: dict[str, WaitRow] = {}
        self.resolved_at: dict[str, float] = {}
        self.events: dict[str, list[ProcessEvent]] = {}
        self.turns: dict[str, OpenTurn] = {}
        self.batches: dict[tuple[str, str, int], Opened] = {}
        self.carried: dict[str, tuple[Carrier, tuple[QueuedNotification, ...]]] = {}
        """News that an open turn was handed last, and by what (N3)."""
        self.answers: dict[tuple[str, str, int], Answers] = {}
        self.inquiries: list[InquiryRow] = []
        self.notifications = NotificationModel()

    def commit(self, owner: str, ops: Sequence[base.Op]) -> list[Any] | str:
        """The results, or the code it is refused with."""
        before = copy.deepcopy(self.__dict__)
        self._owner = owner
        try:
            return [WRITE[type(op)](self, op) for op in ops]
        except KeepholdError as refusal:
            self.__dict__.clear()
            self.__dict__.update(before)
            assert refusal.code is not None
            return refusal.code

    def named(self, conversation: str, id: str) -> Record | Expired | None:
        """The newest handle of that name."""
        found = [call.record for call in self.calls.values()]
        return next((each for each in reversed(found) if (each.conversation, each.id) == (conversation, id)), None)

    def waits_of(self, uid: str) -> list[WaitRow]:
        return [wait for wait in self.waits.values() if wait.uid == uid]

    def own(self, uid: str, fence: int) -> Call:
        call = self.calls.get(uid)
        if call is None or call.record.fence != fence:
            raise KeepholdError("", code="lease_lost")
        if call.stopped:
            raise KeepholdError("", code="already_stopped")
        return call

    # Calls

    def registered(self, op: base.Registered) -> None:
        new = op.record
        for call in self.calls.values():
            same = (call.record.conversation, call.record.id) == (new.conversation, new.id)
            if call.record.uid == new.uid or (same and not call.stopped):
                raise KeepholdError("", code="batch_rejected")
        self.calls[new.uid] = Call(msgspec.structs.replace(new, owner=self._owner))
        self.journal[new.uid] = {}

    def changed(self, op: base.Changed) -> None:
        call = self.own(op.uid, op.fence)
        told = op.notice
        if not isinstance(op.state, Stopped):
            call.record.state = op.state
        elif call.parked:
            if op.state.ended_by == "timeout" and call.resolved:
                raise KeepholdError("", code="lease_lost")
            self._end_parked(call, op.state, hook=True, told=told)
            return
        else:
            self._end(call, op.state)
        if told is not None:
            self.notifications.tell(call.record.conversation, told, op.event.at, op.uid)

    def rewritten(self, op: base.Rewritten) -> None:
        assert op.arguments is not None
        self.own(op.uid, op.fence).record.arguments = op.arguments

    def claimed(self, op: base.Claimed) -> Record | None:
        call = self.calls.get(op.uid)
        if call is None or call.record.owner != op.was or (call.stopped and not call.hook_due):
            return None
        record = call.record
        if not isinstance(record.state, PendingState) and record.next_attempt_at is None:
            record.attempt += 1
            record.deaths += 1
        if isinstance(record.state, Waiting):
            record.state = Running(record.state.created, record.state.started)
        record.owner, record.fence = self._owner, record.fence + 1
        return copy.copy(record)

    def released(self, op: base.Released) -> State:
        call = self.calls.get(op.uid)
        if call is None or call.record.fence != op.fence or not call.hook_due:
            call = self.own(op.uid, op.fence)
        call.record.owner, call.record.deaths = None, 0
        return self._settle(call, None)

    def attempted(self, op: base.Attempted) -> None:
        record = self.own(op.uid, op.fence).record
        record.attempt, record.next_attempt_at = op.attempt, op.next_at
        if op.next_at is not None:
            self.journal[op.uid] = {name: entry for name, entry in self.journal[op.uid].items() if entry.ok}

    def journaled(self, op: base.Journaled) -> None:
        self.own(op.uid, op.fence)
        if (op.kind, op.name) in self.journal[op.uid]:
            raise KeepholdError("", code="durable_effect_duplicate_step_id")
        self.journal[op.uid][op.kind, op.name] = Entry(op.kind, op.name, op.digest, op.value, op.ok)

    def hook_called(self, op: base.HookCalled) -> None:
        call = self.calls[op.uid]
        if call.hook_due:
            call.hook_due, call.record.owner = False, None

    # Waits

    def wait_opened(self, op: base.WaitOpened) -> bool:
        call = self.own(op.uid, op.fence)
        new = op.key_id not in self.waits
        row = WaitRow(op.key_id, op.uid, call.record.conversation, op.kind, op.name, op.secret_id)
        self.waits.setdefault(op.key_id, row)
        if op.kind == "completion":
            call.keyed = True
            call.record.parking = op.parking or call.record.parking
        return new

    def parked(self, op: base.Parked) -> State:
        call = self.own(op.uid, op.fence)
        if not call.keyed:
            raise KeepholdError("", code="pending_tool_missing_completion_key")
        call.record.owner, call.record.parking, call.record.next_attempt_at = None, op.parking, None
        call.record.deaths = 0
        return self._settle(call, op.at)

    def resolved(self, op: base.Resolved) -> Resolving:
        wait = self.waits.get(op.key_id)
        if wait is None or wait.revoked:
            return Resolving("unknown_or_revoked")
        if wait.resolution is not None:
            return Resolving("already_resolved", wait.resolution)
        self._resolve(wait, op.resolution, op.at)
        if wait.kind == "event":
            return Resolving("accepted")
        call = self.calls[wait.uid]
        call.resolved = True
        parking = call.record.parking
        if not call.parked or parking is None or parking.hold:
            return Resolving("accepted")
        what = (call.record.tool, call.record.kind, call.record.stateful)
        return Resolving("accepted", uid=wait.uid, state=self._stop(call, ended(op.resolution, op.at)), what=what)

    def revoked(self, op: base.Revoked) -> Any:
        stopped, others = [], []
        for wait in list(self.waits.values()):
            if wait.conversation == op.conversation and wait.resolution is None and not wait.revoked:
                self.waits[wait.key_id] = msgspec.structs.replace(wait, revoked=True)
                self.resolved_at[wait.key_id] = op.at
                call = self.calls[wait.uid]
                if wait.kind == "completion" and call.parked:
                    stopped.append((wait.uid, self._stop(call, Ended(op.at, REVOKED))))
                else:
                    others.append(wait.key_id)
        return tuple(stopped), tuple(others)

    # How calls end

    def _settle(self, call: Call, at: float | None) -> State:
        """A call that is parked now may have its completion already."""
        parking = call.record.parking
        for wait in self.waits_of(call.record.uid):
            if wait.kind == "event" or parking is None or call.stopped:
                continue
            when = self.resolved_at.get(wait.key_id, 0.0) if at is None else at
            if wait.revoked:
                self._stop(call, Ended(when, REVOKED))
            elif wait.resolution is not None and not parking.hold:
                self._stop(call, ended(wait.resolution, when))
        return call.record.state

    def _stop(self, call: Call, end: Ended) -> Stopped:
        """The end from outside, which calls no hook."""
        state = transition(call.record.state, end)
        assert isinstance(state, Stopped)
        self._end_parked(call, state, hook=False)
        return state

    def _end_parked(self, call: Call, state: Stopped, *, hook: bool, told: Notice | None = None) -> None:
        record = call.record
        assert record.parking is not None
        notice = told or msgspec.structs.replace(end_notice(state), message=words(record.id, record.tool, state))
        self.notifications.tell(record.conversation, notice, state.stopped, record.uid)
        self._end(call, state)
        if hook and record.parking.hook and record.parking.on_cancel != "ignore" and state.ended_by in CANCELS:
            call.hook_due, record.owner = True, self._owner

    def _end(self, call: Call, state: Stopped) -> None:
        call.record.state, call.record.owner, call.record.next_attempt_at = state, None, None
        for wait in self.waits_of(call.record.uid):
            if wait.kind == "completion" and wait.resolution is None and not wait.revoked:
                self._resolve(wait, resolution_of(state.outcome), state.stopped)

    def _resolve(self, wait: WaitRow, resolution: Resolution, at: float) -> None:
        self.waits[wait.key_id] = msgspec.structs.replace(wait, resolution=resolution)
        self.resolved_at[wait.key_id] = at

    # Turns, events, news

    def turn_began(self, op: base.TurnBegan) -> None:
        is_open = self.turns.get(op.conversation)
        was, owner = (None, None) if is_open is None else (is_open.turn, is_open.owner)
        if was != op.was or op.was_owner not in (None, owner):
            raise KeepholdError("", code="turn_open")
        by, news = self.carried.pop(op.conversation, ("turn", ()))
        for each in () if op.was == op.turn and by == "response" else news:
            self.notifications.tell(op.conversation, each, each.at, each.uid)
        same = is_open if is_open is not None and op.was == op.turn else OpenTurn(op.turn, None, 0)
        self.turns[op.conversation] = msgspec.structs.replace(same, owner=self._owner)

    def turn_ended(self, op: base.TurnEnded) -> bool:
        is_open = self.turns.get(op.conversation)
        if is_open is None or is_open.turn != op.turn:
            return False
        del self.turns[op.conversation]
        self.carried.pop(op.conversation, None)
        return True

    def opened(self, op: Opened) -> None:
        is_open = self.turns.get(op.conversation)
        if is_open is not None and is_open.turn == op.turn:
            count = max(is_open.batches, op.batch)
            self.turns[op.conversation] = msgspec.structs.replace(is_open, batches=count, batch=op)
            self.batches[op.conversation, op.turn, op.batch] = op
            self.answers.pop((op.conversation, op.turn, op.batch), None)
            self.carried.pop(op.conversation, None)

    def responded(self, op: base.Responded) -> tuple[QueuedNotification, ...]:
        batch, is_open = (op.conversation, op.turn, op.batch), self.turns.get(op.conversation)
        self.notifications.take_back(op.conversation, op.shown)
        carried = self.notifications.deliver(op.conversation, op.carry)
        if batch in self.batches:
            self.answers[batch] = Answers(op.responses, carried)
        if is_open is not None and is_open.batch is not None and is_open.batch == self.batches.get(batch):
            self.turns[op.conversation] = msgspec.structs.replace(is_open, batch=None)
            if carried:
                self.carried[op.conversation] = ("response", carried)
        for uid, cursor in op.cursors:
            self.calls[uid].record.cursor = max(self.calls[uid].record.cursor, cursor)
        return carried

    def emitted(self, op: base.Emitted) -> int:
        events = self.events.setdefault(op.process, [])
        events.append(ProcessEvent(op.process, len(events) + 1, op.type, op.payload, op.at))
        return len(events)

    def inquired(self, op: base.Inquired) -> None:
        row = InquiryRow(op.id, op.conversation, op.turn, op.uid, op.at, op.request, op.answer, op.error)
        self.inquiries.append(row)

    def notified(self, op: base.Notified) -> None:
        self.notifications.tell(op.conversation, op, op.at, op.uid)

    def taken_back(self, op: base.TakenBack) -> None:
        self.notifications.take_back(op.conversation, op.shown)

    def delivered(self, op: base.Delivered) -> tuple[QueuedNotification, ...]:
        news = self.notifications.deliver(op.conversation, (op.carrier,))
        self.carried.pop(op.conversation, None)
        if news and op.conversation in self.turns:
            self.carried[op.conversation] = (op.carrier, news)
        return news


WRITE: dict[type, Callable[[Model, Any], Any]] = {
    base.Registered: Model.registered,
    base.Changed: Model.changed,
    base.Rewritten: Model.rewritten,
    base.Claimed: Model.claimed,
    base.Released: Model.released,
    base.Attempted: Model.attempted,
    base.Journaled: Model.journaled,
    base.HookCalled: Model.hook_called,
    base.WaitOpened: Model.wait_opened,
    base.Parked: Model.parked,
    base.Resolved: Model.resolved,
    base.Revoked: Model.revoked,
    base.TurnBegan: Model.turn_began,
    base.TurnEnded: Model.turn_ended,
    Opened: Model.opened,
    base.Responded: Model.responded,
    base.Emitted: Model.emitted,
    base.Inquired: Model.inquired,
    base.Notified: Model.notified,
    base.TakenBack: Model.taken_back,
    base.Delivered: Model.delivered,
}
