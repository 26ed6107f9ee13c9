"""The memory store itself: commits, and what each operation does.

A commit is applied and called back before `commit` returns. It is on the path of every call: one operation is checked,
then applied, at about a microsecond; several keep a list of what to undo, should a later one be refused. Records are
kept as given and changed in place.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import time
from typing import Any

from keephold.errors import KeepholdError
from keephold.handles.state import Pending, Running, State, Stopped, Waiting
from keephold.listeners import Listeners
from keephold.store import base, events
from keephold.store.base import Collected, Entry, Record
from keephold.store.endings import hook_is_due
from keephold.store.memory.history import Told
from keephold.store.memory.tables import ConversationTables, parked
from keephold.store.memory.transcripts import Transcripts
from keephold.store.memory.turns import Turns
from keephold.store.memory.waits import lost
from keephold.store.metadata import merged

_BESIDES, _TELLS, _COMES, _CHANGES = None, "tells", "comes", "changes"
"""What an operation has to tell: nothing but what it brings about besides; something; or something that has a time of
its own, as the two have that are in every call: to ask the clock would take a tenth of a microsecond."""


class MemoryStore(Turns, Transcripts):
    """Commits at once. All that it was told ends with the process."""

    durable = False
    inline_output = 1 << 20
    directory: Path | None = None
    trouble: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self._apply: dict[type, tuple[Callable[[Any], Any], str | None]] = {
            base.TurnBegan: (self._turn_began, _TELLS),
            base.TurnEnded: (self._turn_ended, _TELLS),
            base.Opened: (self._opened, _BESIDES),
            base.Registered: (self._registered, _COMES),
            base.Changed: (self._changed, _CHANGES),
            base.Rewritten: (self._rewritten, _TELLS),
            base.Annotated: (self._annotated, _TELLS),
            base.Claimed: (self._claimed, _TELLS),
            base.Released: (self._released, _TELLS),
            base.Attempted: (self._attempted, _TELLS),
            base.Journaled: (self._journaled, _TELLS),
            base.Wrote: (self._wrote, _BESIDES),
            base.WaitOpened: (self._wait_opened, _TELLS),
            base.Parked: (self._parked, _TELLS),
            base.Resolved: (self._resolved, _BESIDES),
            base.Revoked: (self._revoked, _BESIDES),
            base.Emitted: (self._emitted, _TELLS),
            base.Exposed: (self._exposed, _TELLS),
            base.Responded: (self._responded, _BESIDES),
            base.HookCalled: (self._hook_called, _BESIDES),
            base.Notified: (self._notified, _BESIDES),
            base.TakenBack: (self._taken_back, _BESIDES),
            base.Delivered: (self._delivered, _TELLS),
            base.HandedOut: (self._handed_out, _TELLS),
            base.Inquired: (self._inquired, _BESIDES),
            base.TranscriptAppended: (self._said, _TELLS),
            base.Described: (self._described, _BESIDES),
            base.Forgotten: (self._forgotten, _TELLS),
            base.Requested: (self._requested, _BESIDES),
            base.Replied: (self._replied, _BESIDES),
            base.RequestClosed: (self._request_closed, _BESIDES),
            base.SecretAdded: (self._secret_added, _BESIDES),
            base.Collected: (self._collected, _BESIDES),
        }

    @property
    def on_commit(self) -> Listeners[[]]:
        return self._history.on_commit

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
        apply, tells = self._apply[type(op)]
        try:
            result = apply(op)
        except KeepholdError as refused:
            self._history.noted = ()
            failed(refused)
            return
        history = self._history
        if tells is _COMES:
            history.write((None, op, op.record.state, history.noted))  # type: ignore[union-attr]
        elif tells is _CHANGES:
            history.write((None, op, result, history.noted))
        elif tells:
            history.write((time(), op, result, history.noted))
        elif history.noted:
            history.write((time(), None, None, history.noted))
        else:
            done((result,))
            return
        if history.noted:
            history.noted = ()
        done((result,))
        if history.on_commit:
            history.on_commit()

    def _commit_several(self, ops: Sequence[base.Op], done: base.Done, failed: base.Failed) -> None:
        if not ops:
            done(())
            return
        undo = self._undo = []
        refused: KeepholdError | None = None
        told: list[Told] = []
        try:
            # Letting go is never refused and cannot be undone: it comes last.
            results = [None if type(op) is Collected else self._one_of_several(op, told) for op in ops]
        except Exception as error:
            self._history.noted = ()
            for action, *arguments in reversed(undo):
                action(*arguments)
            if not isinstance(error, KeepholdError):
                raise
            refused = error
        finally:
            self._undo = None
        if refused is not None:
            failed(refused)
            return
        self._history.write_all(told)
        for place, op in enumerate(ops):
            if type(op) is Collected:
                last: list[Told] = []
                results[place] = self._one_of_several(op, last)
                self._history.write_all(last)
                told += last
        done(results)
        if told:
            self.on_commit()

    def _one_of_several(self, op: base.Op, told: list[Told]) -> Any:
        """Apply it, and add what it tells."""
        apply, tells = self._apply[type(op)]
        result = apply(op)
        noted, self._history.noted = self._history.noted, ()
        if tells or noted:
            known = result if tells is not _COMES else op.record.state  # type: ignore[union-attr]
            told.append((time(), op if tells else None, known, noted))
        return result

    # Handles

    def _registered(self, op: base.Registered) -> None:
        record = op.record
        uid = record.uid
        known = self._conversations.get(record.conversation) or self._conversation(record.conversation)
        names, name = (known.names, record.id) if record.stateful else (known.labels, record.call_id)
        if record.stateful and name in names:
            self._check_free(known, name)
            if op.once:
                raise KeepholdError(f"handle id `{name}` was used before", code="batch_rejected")
        if uid in self._records:
            raise KeepholdError(f"handle `{uid}` exists already", code="batch_rejected")
        if self._undo is None:
            self._records[uid] = names[name] = record
        else:
            self._put(self._records, uid, record)
            self._put(names, name, record)
        if record.parking is not None and parked(record):
            self._history.noted += (events.parked(uid, record.conversation, record.parking),)
            self._now_parked(record, None, None)
            return
        record.owner = self.owner
        if type(record.state) is Stopped:
            self._end(record, record.state)

    def _check_free(self, known: ConversationTables, id: str) -> None:
        holder = known.names.get(id)
        if holder is not None and type(holder.state) is not Stopped:
            raise KeepholdError(
                f"handle id `{id}` is active in conversation `{holder.conversation}`; abort it or choose another id",
                code="batch_rejected",
            )

    def _exposed(self, op: base.Exposed) -> bool:
        self._history.translate()  # that it was made tells the id it had
        record = self._records.get(op.uid)
        if record is None:
            return False
        known = self._conversation(record.conversation)
        if known.names.get(op.id) is not record:
            self._check_free(known, op.id)
        self._save(record)
        record.stateful, record.id = True, op.id
        self._put(known.names, op.id, record)
        return True

    def _changed(self, op: base.Changed) -> None:
        record = self._own(op.uid, op.fence)
        state = op.state
        if self._undo is not None:
            self._save(record)
        if type(state) is not Stopped:
            record.state = state
            if op.notice is not None:
                self._tell_of(record, state, op.notice, op.event.at)
            return
        parking = record.parking if record.owner is None else None
        if parking is not None and state.ended_by == "timeout" and self._is_resolved(op.uid):
            raise lost(op.uid)  # held: what was accepted is not undone by a late clock
        self._end(record, state, op.notice)
        if parking is not None and hook_is_due(parking, state.ended_by):
            record.owner = self.owner
            self._put(self._hooks, record.uid, record)
        if op.output is not None:
            record.output = op.output

    def _rewritten(self, op: base.Rewritten) -> None:
        record = self._own(op.uid, op.fence)
        self._save(record)
        record.arguments, record.resources = op.arguments, op.resources

    def _annotated(self, op: base.Annotated) -> Record:
        record = self._own(op.uid, None)
        self._save(record)
        if op.progress is not None:
            record.progress = op.progress
        if op.priority is not None:
            record.priority = op.priority
        if op.metadata is not None:
            record.metadata = merged(record.metadata, op.metadata)
        return record

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
            raise KeepholdError(
                f"{op.kind} `{op.name}` of this call is recorded already; use each name once in a call",
                code="durable_effect_duplicate_step_id",
            )
        self._put(journal, (op.kind, op.name), Entry(op.kind, op.name, op.digest, op.value, op.ok, op.input))

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

    # Events, requests, secrets, retention

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
        self._history.translate()  # while there are the handles it speaks of
        if not op.partial:
            self._history.forget(op)
        return self._let_go(op)
