"""The memory store itself: commits, and what each operation does.

A commit is applied and called back before `commit` returns. It is on the path of every call: one operation is checked,
then applied, at about a microsecond; several keep a list of what to undo, should a later one be refused. Records are
kept as given and changed in place.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.handles.state import Pending, Running, State, Stopped, Waiting
from holdfast.store import base
from holdfast.store.base import Collected, Entry, OpenTurn, Record
from holdfast.store.memory.tables import Conversation
from holdfast.store.memory.waits import Waits, lost
from holdfast.store.terminal import hook_is_due


class MemoryStore(Waits):
    """Commits at once. All that it was told ends with the process."""

    durable = False
    inline_output = 1 << 20
    directory: Path | None = None
    trouble: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self._apply: dict[type, Callable[[Any], Any]] = {
            base.TurnBegan: self._turn_began,
            base.TurnEnded: self._turn_ended,
            base.Opened: self._opened,
            base.Registered: self._registered,
            base.Changed: self._changed,
            base.Claimed: self._claimed,
            base.Released: self._released,
            base.Attempted: self._attempted,
            base.Journaled: self._journaled,
            base.Wrote: self._wrote,
            base.WaitOpened: self._wait_opened,
            base.Parked: self._parked,
            base.Resolved: self._resolved,
            base.Revoked: self._revoked,
            base.Emitted: self._emitted,
            base.Exposed: self._exposed,
            base.Responded: self._responded,
            base.HookCalled: self._hook_called,
            base.Notified: self._notified,
            base.Delivered: self._delivered,
            base.Requested: self._requested,
            base.Replied: self._replied,
            base.RequestClosed: self._request_closed,
            base.SecretAdded: self._secret_added,
            base.Collected: self._collected,
        }

    async def open(self, heard: base.Heard) -> None:
        pass  # there is nobody to hear of

    async def close(self) -> None:
        pass  # nothing is under way

    def alive(self, owner: str) -> bool:
        return owner == self.owner

    def commit(self, ops: Sequence[base.Op], done: base.Done, failed: base.Failed, *, keep: bool = False) -> None:
        if len(ops) != 1:
            self._commit_several(ops, done, failed)
            return
        op = ops[0]
        try:
            result = self._apply[type(op)](op)
        except HoldfastError as refused:
            failed(refused)
            return
        done((result,))

    def _commit_several(self, ops: Sequence[base.Op], done: base.Done, failed: base.Failed) -> None:
        if not ops:
            done(())
            return
        undo = self._undo = []
        refused: HoldfastError | None = None
        try:
            # Letting go is never refused and cannot be undone: it comes last.
            results = [None if type(op) is Collected else self._apply[type(op)](op) for op in ops]
        except Exception as error:
            for action, *arguments in reversed(undo):
                action(*arguments)
            if not isinstance(error, HoldfastError):
                raise
            refused = error
        finally:
            self._undo = None
        if refused is not None:
            failed(refused)
            return
        for place, op in enumerate(ops):
            if type(op) is Collected:
                results[place] = self._collected(op)
        done(results)

    # Turns and batches

    def _turn_began(self, op: base.TurnBegan) -> None:
        known = self._conversation(op.conversation)
        open_turn = known.turn
        is_open, owner = (None, None) if open_turn is None else (open_turn.turn, open_turn.owner)
        if is_open != op.was or op.was_owner not in (None, owner):
            raise HoldfastError(
                f"conversation `{op.conversation}` has an open turn; end or resume that one first"
                if open_turn is not None
                else f"turn `{op.was}` of conversation `{op.conversation}` is not open any more; begin a new one",
                code="turn_open",
            )
        if open_turn is not None and op.turn == op.was:
            self._set_turn(known, replace(open_turn, owner=self.owner))
        else:
            self._set_turn(known, OpenTurn(op.turn, self.owner, 0))

    def _turn_ended(self, op: base.TurnEnded) -> None:
        known = self._conversations.get(op.conversation)
        if known is None or known.turn is None or known.turn.turn != op.turn:
            return
        self._set_turn(known, None)
        if self._undo is None and known.empty:
            del self._conversations[op.conversation]

    def _opened(self, op: base.Opened) -> None:
        known = self._conversations.get(op.conversation)
        turn = None if known is None else known.turn
        if known is not None and turn is not None and turn.turn == op.turn:
            self._set_turn(known, OpenTurn(op.turn, turn.owner, max(turn.batches, op.batch), op))

    def _responded(self, op: base.Responded) -> None:
        for uid, cursor in op.cursors:
            record = self._records.get(uid)
            if record is not None and record.cursor < cursor:
                self._save(record)
                record.cursor = cursor
        known = self._conversations.get(op.conversation)
        if known is None:
            return
        turn = known.turn
        if turn is not None and turn.turn == op.turn and turn.batch is not None and turn.batch.batch == op.batch:
            self._set_turn(known, OpenTurn(turn.turn, turn.owner, turn.batches))
        if known.news and op.shown:
            for number in [number for number, news in known.news.items() if news.uid in op.shown]:
                self._drop(known.news, number)

    # Handles

    def _registered(self, op: base.Registered) -> None:
        record = op.record
        uid = record.uid
        known = self._conversations.get(record.conversation) or self._conversation(record.conversation)
        names, name = (known.names, record.id) if record.stateful else (known.labels, record.call_id)
        if record.stateful and name in names:
            self._check_free(known, name)
        if uid in self._records:
            raise HoldfastError(f"handle `{uid}` exists already", code="batch_rejected")
        if self._undo is None:
            self._records[uid] = names[name] = record
        else:
            self._put(self._records, uid, record)
            self._put(names, name, record)
        record.owner = self.owner
        if type(record.state) is Stopped:
            self._end(record, record.state)

    def _check_free(self, known: Conversation, id: str) -> None:
        holder = known.names.get(id)
        if holder is not None and type(holder.state) is not Stopped:
            raise HoldfastError(
                f"handle id `{id}` is active in conversation `{holder.conversation}`; abort it or choose another id",
                code="batch_rejected",
            )

    def _exposed(self, op: base.Exposed) -> None:
        record = self._records.get(op.uid)
        if record is None:
            return
        known = self._conversation(record.conversation)
        if known.names.get(op.id) is not record:
            self._check_free(known, op.id)
        self._save(record)
        record.stateful, record.id = True, op.id
        self._put(known.names, op.id, record)

    def _changed(self, op: base.Changed) -> None:
        record = self._own(op.uid, op.fence)
        state = op.state
        if self._undo is not None:
            self._save(record)
        if type(state) is not Stopped:
            record.state = state
            return
        parking = record.parking if record.owner is None else None
        if parking is not None and state.ended_by == "timeout" and self._is_resolved(op.uid):
            raise lost(op.uid)  # held: what was accepted is not undone by a late clock
        self._end(record, state)
        if parking is not None and hook_is_due(parking, state.ended_by):
            record.owner = self.owner
            self._put(self._hooks, record.uid, record)
        if op.output is not None:
            record.output = op.output

    def _claimed(self, op: base.Claimed) -> Record | None:
        record = self._records.get(op.uid)
        if record is None or record.owner != op.was:
            return None
        if type(record.state) is Stopped and op.uid not in self._hooks:
            return None
        self._save(record)
        record.owner = self.owner
        record.fence += 1
        if record.next_attempt_at is None and not isinstance(record.state, Pending):
            record.attempt += 1  # one was cut short
        if isinstance(record.state, Waiting):
            record.state = Running(record.state.created, record.state.started)
        return record

    def _released(self, op: base.Released) -> State:
        record = self._hooks.get(op.uid)
        if record is None or record.fence != op.fence:
            record = self._own(op.uid, op.fence)
        self._save(record)
        record.owner = None
        return self._now_parked(record, self._completion(op.uid), None)

    def _attempted(self, op: base.Attempted) -> None:
        record = self._own(op.uid, op.fence)
        self._save(record)
        record.attempt, record.next_attempt_at = op.attempt, op.next_at
        if op.next_at is not None and op.uid in self._journals:
            kept = {key: entry for key, entry in self._journals[op.uid].items() if entry.ok}
            self._put(self._journals, op.uid, kept)

    def _journaled(self, op: base.Journaled) -> None:
        self._own(op.uid, op.fence)
        journal = self._journals.get(op.uid)
        if journal is None:
            journal = self._journals[op.uid] = {}
        elif (op.kind, op.name) in journal:
            raise HoldfastError(
                f"{op.kind} `{op.name}` of this call is recorded already; use each name once in a call",
                code="durable_effect_duplicate_step_id",
            )
        self._put(journal, (op.kind, op.name), Entry(op.kind, op.name, op.digest, op.value, op.ok))

    def _wrote(self, op: base.Wrote) -> None:
        record = self._own(op.uid, op.fence)
        self._save(record)
        record.output = op.output

    def _hook_called(self, op: base.HookCalled) -> None:
        record = self._hooks.get(op.uid)
        if record is not None:
            self._save(record)
            record.owner = None
            self._drop(self._hooks, op.uid)
            if isinstance(record.state, Stopped):
                self._note_stop(record, record.state.stopped)

    # News, events, requests, secrets, retention

    def _notified(self, op: base.Notified) -> None:
        self._tell(op.conversation, op.kind, op.level, op.message, op.at, op.uid)

    def _delivered(self, op: base.Delivered) -> None:
        known = self._conversations.get(op.conversation)
        if known is not None and known.news:
            for number in [number for number in known.news if number <= op.upto]:
                self._drop(known.news, number)

    def _emitted(self, op: base.Emitted) -> int:
        events = self._events.setdefault(op.process, {})
        number = len(events) + 1
        self._put(events, number, base.ProcessEvent(op.process, number, op.type, op.payload, op.at))
        return number

    def _requested(self, op: base.Requested) -> None:
        self._put(self._requests, op.id, op)

    def _replied(self, op: base.Replied) -> None:
        if op.id in self._requests:
            self._put(self._replies, op.id, op.body)

    def _request_closed(self, op: base.RequestClosed) -> None:
        self._drop(self._requests, op.id)
        self._drop(self._replies, op.id)

    def _secret_added(self, op: base.SecretAdded) -> None:
        self._put(self._secrets, op.id, op.secret)

    def _collected(self, op: base.Collected) -> int:
        return self._let_go(op.before, op.at, op.limit)
