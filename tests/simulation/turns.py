"""The model's turns and clock (B, C1–C7, T): it does the steps of a script one by one.

Some steps it does not allow: where two things would happen in the same pass of the loop and the SPEC leaves open which
comes first, a script that asks for both would prove nothing.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.simulation import ops
from tests.simulation.batches import Batch, Conversation, Slot, chain
from tests.simulation.expect import Reply, Says
from tests.simulation.model import CANCELLED, Handle, Model, Wait
from tests.simulation.ops import Abort, Apply, Await, Call, Fetch, Once, Spawn, kind_of

FAILED = {"result": Says(), "is_error": True}
_SOON = 1e-9
"""Timers that are due within this are due now: the loop has it so too."""


class Undecided(Exception):
    """Two tools time out in the same instant, or calls of two conversations begin in the same pass.

    Which comes first is nobody's promise, and what follows depends on it.
    """


class Turns(Model):
    """The whole model."""

    def __init__(self, *, late: bool = False) -> None:
        """`late`: the store commits later, so that what follows at once is not known at once."""
        super().__init__()
        self._late = late
        self.conversations = [Conversation(), Conversation()]
        self._waiting: set[Batch] = set()
        """Those of which calls begin in the next pass."""

    def find(self, conversation: int, id: str) -> Handle | None:
        known = self.conversations[conversation]
        return known.names.get(id) or known.calls.get(id)

    def states(self) -> list[tuple[int, str, str, str | None]]:
        """All that can be seen: each spawned handle, oldest first in its conversation."""
        seen = [(h.conversation, h.id, h.state, h.ended_by) for h in self.handles if h.stateful]
        return sorted(seen, key=lambda handle: handle[0])

    # Which steps a script may take

    def allows(self, op: ops.Op) -> bool:
        match op:
            case ops.Run(conversation, calls):
                return self._rested(conversation) and bool(calls) and self.conversations[conversation].batch is None
            case ops.End(conversation):
                return self._rested(conversation)
            case ops.Wait(conversation, any, all):
                return bool(any or all) and {*any, *all} <= self.conversations[conversation].names.keys()
            case ops.Tell(conversation, id, order):
                handle = self.find(conversation, id)
                return handle is not None and self.takes(handle, order)
        return True

    def _rested(self, number: int) -> bool:
        """The last batch and turn were over before this instant, and no wait is just being told to ask for input."""
        conversation = self.conversations[number]
        asked = any(w.reply is not None and w.reason == "needs_input" for w in self.waits)
        return conversation.closing is None and conversation.since < self.now and not asked

    def takes(self, handle: Handle, order: ops.Order) -> bool:
        """Whether it would do this next. What started in this instant may not listen yet, nor may one be told twice."""
        if handle.started is None or handle.started == self.now or handle.released:
            return False
        if handle.told == self.pass_number:
            return False
        if handle.stopped or (handle.ending and handle.deaf):
            return order in ("ok", "fail")
        return handle.idle and not (handle.deaf and order in ("ask", "read"))

    # Steps

    def run(self, number: int, calls: Sequence[Call]) -> Batch:
        """A batch begins."""
        conversation = self.conversations[number]
        batch = Batch([Slot(call) for call in calls])
        spawned = [call.id for call in calls if isinstance(call, Spawn)]
        active = {id for id, handle in conversation.names.items() if not handle.stopped}
        clash = [id for at, id in enumerate(spawned) if id in active or id in spawned[:at]]
        if clash:  # B2: nothing runs
            for slot in batch.slots:
                self._answer(slot, (True, Says(f"`{clash[0]}`")))
            batch.closed_at = conversation.since = self.now
            return batch
        for slot in batch.slots:
            self._register(number, slot)
        for slot in batch.slots:
            if not isinstance(slot.call, Await | Once):
                slot.named = conversation.names.get(slot.call.id)
        chain(batch.slots)
        for slot in batch.slots:
            if isinstance(slot.call, Spawn) and slot.call.bad and slot.named is not None:  # B6
                slot.started = True
                self.stop(slot.named, FAILED, "self")
                self._show(slot)
        conversation.batch = batch
        self.settle()
        batch.beginning = False
        return batch

    def wait(self, number: int, any: Sequence[str], all: Sequence[str], timeout: float | None) -> Wait:
        """A Python caller waits."""
        wait = self._begin_wait(self.conversations[number], any, all, timeout)
        wait.values = True
        self.settle()
        if timeout == 0:
            self.time_out()
        return wait

    def order(self, handle: Handle, order: ops.Order, text: str) -> None:
        """A tool is told what to do."""
        for slot in self._open_slots():
            if order == "emit" and slot.settles_from is not None and slot.named is handle:
                slot.heard = self.now
        self.tell(handle, order, text)
        self.settle()

    def end_turn(self, number: int, cancel: bool) -> Reply:
        """The turn ends, or is cancelled (B7): one-shot calls and awaits are told at once."""
        conversation = self.conversations[number]
        conversation.ended = Reply(-1.0, [None])
        conversation.closing = "cancel" if cancel else "turn_end"
        batch = conversation.batch
        if batch is not None:
            batch.cancelled_at = self.now
            for slot in batch.slots:
                if isinstance(slot.call, Once) and slot.reply is None and slot.made is not None:
                    self.end(slot.made, "cancel")
                elif isinstance(slot.call, Await):
                    self._cancel_await(slot)
        self.settle()
        return conversation.ended

    def go_round(self) -> bool:
        """The loop goes round: waits that are due time out, what was to happen in the next pass does. True if any."""
        self.pass_number += 1
        self.time_out()
        self.settle()
        waiting, self._waiting = self._waiting, set()
        if len(waiting) > 1:
            raise Undecided
        later, self.later = self.later, []
        for happen in later:
            happen()
            self.settle()
        return bool(later)

    def settle(self) -> None:
        """Let everything happen that follows at once from what is so."""
        one, two = self.conversations
        while self.serve() or self._give_up() or self._pump(one) or self._pump(two) or self.wake():
            pass
        self.note_moment()

    # Time

    def rest_until(self, to: float) -> None:
        """Everything under way comes to rest, and time passes up to the last timer before `to`."""
        self._rest()
        while (due := self._next_timer()) < to - _SOON:
            self.fire(due)
            self._rest()

    def _rest(self) -> None:
        while self.go_round():
            pass
        self.waits = [wait for wait in self.waits if wait.reply is None]

    def fire(self, at: float) -> bool:
        """It is that late now. True if timers fired of which more than answers is under way."""
        self.now = at
        live = [h for h in self.handles if not h.stopped]
        forced = [h for h in live if h.force_at is not None and h.force_at <= at + _SOON]
        timed_out = [h for h in live if h.times_out_at is not None and h.times_out_at <= at + _SOON]
        if len(timed_out) > 1:
            raise Undecided
        for handle in forced:
            self.linger(handle)
        for handle in timed_out:
            self.end(handle, "timeout")
        over = [c.batch for c in self.conversations if c.batch and c.batch.grace_ends <= at + _SOON]
        for batch in over:
            for slot in batch.open:
                self._withdraw(slot)
        self.settle()
        return bool(forced or timed_out or over or self.later)

    @property
    def stirring(self) -> bool:
        """Something happens in this very instant."""
        answered = [slot.reply for c in self.conversations if c.batch is not None for slot in c.batch.slots]
        due = [wait.deadline for wait in self.waits if wait.deadline is not None]
        return (
            any(reply is not None and reply.at == self.now for reply in answered)
            or any(conversation.since == self.now for conversation in self.conversations)
            or any(deadline <= self.now + _SOON for deadline in due)
            or any(wait.reply is not None for wait in self.waits)
        )

    def _next_timer(self) -> float:
        times = [slot.settled_at for slot in self._open_slots() if slot.settles_from is not None]
        times += [wait.deadline for wait in self.waits if wait.deadline is not None]
        times += [c.batch.grace_ends for c in self.conversations if c.batch]
        for handle in self.handles:
            if not handle.stopped:
                times += [at for at in (handle.force_at, handle.times_out_at) if at is not None]
        return min(times, default=float("inf"))

    # Calls

    def _open_slots(self) -> list[Slot]:
        return [slot for c in self.conversations if c.batch is not None for slot in c.batch.open]

    def _register(self, number: int, slot: Slot) -> None:
        call, conversation = slot.call, self.conversations[number]
        if isinstance(call, Spawn | Once):
            stateful = isinstance(call, Spawn)
            names = frozenset(call.names if kind_of(call.id).locks else ())
            slot.made = Handle(len(self.handles), call.id, number, kind_of(call.id), stateful, names)
            self.handles.append(slot.made)
            (conversation.names if stateful else conversation.calls)[call.id] = slot.made

    def _pump(self, conversation: Conversation) -> bool:
        """Start the calls whose turn has come, answer those that are done. True if there were any."""
        batch = conversation.batch
        if batch is None:
            return self._close_turn(conversation)
        ready = [slot for slot in batch.slots if batch.ready(slot)]
        awaits = [slot for slot in ready if slot.lane == "synchronising"]
        rest = [slot for slot in ready if slot not in awaits]
        # An await begins when what was emitted with it has; if that takes longer, it may begin before.
        for slot in (awaits or rest) if self._late else (rest or awaits):
            if self._late:
                self.wake()
                self.note_moment()
            slot.started = True
            if batch.beginning:
                self._begin(conversation, batch, slot)
            else:
                self._waiting.add(batch)
                self.later.append(partial(self._begin_late, conversation, batch, slot))
        answered = [slot for slot in batch.open if self._answered(slot)]
        if not batch.open:
            conversation.batch, batch.closed_at, conversation.since = None, self.now, self.now
            for slot in batch.slots:
                if slot.named is not None:  # C5: the cursor moves when the batch is answered
                    slot.named.cursor = max(slot.named.cursor, slot.shown)
        return bool(ready or answered)

    def _begin_late(self, conversation: Conversation, batch: Batch, slot: Slot) -> None:
        """It begins, and with it those that wait for it if it returns at once."""
        batch.beginning = True
        self._begin(conversation, batch, slot)
        self.settle()
        batch.beginning = False

    def _begin(self, conversation: Conversation, batch: Batch, slot: Slot) -> None:
        if slot.reply is None and batch.cancelled_at is None:
            self._start(conversation, batch, slot)
        elif slot.reply is None:
            self._withdraw(slot)

    def _start(self, conversation: Conversation, batch: Batch, slot: Slot) -> None:
        handle = slot.made or slot.named
        match slot.call:
            case Await():
                self._await(conversation, batch, slot, slot.call)
            case _ if handle is None:
                self._answer(slot, (True, Says("not found")))
            case Spawn() | Once():
                if handle.kind.denied:
                    self.stop(handle, FAILED, "self")
                else:
                    self.admit(handle)
                if not handle.stateful:
                    slot.until = handle
                    self._give_up()
                elif handle.state == "running" and handle.kind.apply:
                    slot.settles_from = self.now
                else:
                    self._show(slot)
            case Fetch():
                self._show(slot)
            case Apply():
                self._apply(slot, handle, slot.call.input)
            case Abort():
                slot.until = handle
                self.end(handle, "abort")

    def _apply(self, slot: Slot, handle: Handle, given: Any) -> None:
        """C6."""
        if handle.state in ("pending", "stopped"):
            self._answer(slot, (True, Says(handle.state)))
        elif handle.ending:
            self._answer(slot, (True, Says("being ended")))
        elif handle.state == "waiting" and not isinstance(given, bool):
            self._answer(slot, (True, Says("stays open")))
        else:
            if handle.state == "waiting":
                handle.state, handle.asking = "running", False
            elif handle.reading:
                handle.reading = False
            else:
                handle.inbox += 1
            slot.settles_from = self.now
            handle.told = self.pass_number  # by the caller: it is busy with that

    def _await(self, conversation: Conversation, batch: Batch, slot: Slot, call: Await) -> None:
        named = {*call.any, *call.all}
        if not named:
            self._answer(slot, (True, Says("At least one handle ID required")))
        elif not named <= conversation.names.keys():
            self._answer(slot, (True, Says("not found")))
        else:
            slot.wait = self._begin_wait(conversation, call.any, call.all, call.timeout)
            slot.wait.spare = batch.named
            self.wake()
            if call.timeout == 0:
                self.time_out()

    def _begin_wait(
        self, conversation: Conversation, any: Sequence[str], all: Sequence[str], timeout: float | None
    ) -> Wait:
        known = conversation.names
        deadline = None if timeout is None else self.now + timeout
        wait = Wait([known[id] for id in dict.fromkeys(any)], [known[id] for id in dict.fromkeys(all)], deadline)
        self.waits.append(wait)
        return wait

    def _answered(self, slot: Slot) -> bool:
        """Answer it if it can be by now."""
        if slot.wait is not None:
            slot.reply = slot.wait.reply
        elif slot.until is not None:
            if slot.until.stopped and isinstance(slot.call, Once):
                self._answer(slot, _result(slot.until))
            elif slot.until.stopped:
                self._show(slot)
        elif (
            slot.settles_from is not None
            and slot.named is not None
            and (not slot.named.idle or slot.settled_at <= self.now + _SOON)
        ):
            self._show(slot)
        return slot.reply is not None

    def _show(self, slot: Slot) -> None:
        assert slot.named is not None
        self._answer(slot, (False, slot.named.entry()))
        slot.shown = len(slot.named.output)

    def _answer(self, slot: Slot, reply: Any) -> None:
        slot.reply = Reply(self.now, [reply])

    def _withdraw(self, slot: Slot) -> None:
        """B7: there is no time left, or it has not begun and never will."""
        if slot.made is not None and slot.made.state == "pending":
            self.end(slot.made, "cancel")
        self._answer(slot, (False, CANCELLED))

    def _cancel_await(self, slot: Slot) -> None:
        """A8. One that has its answer in this very instant may hear of the cancellation before it gives it."""
        if slot.reply is None:
            self._answer(slot, (False, CANCELLED))
        elif slot.reply.at == self.now:
            slot.reply.accept.append((False, CANCELLED))
        self.waits = [wait for wait in self.waits if wait is not slot.wait]

    def _give_up(self) -> bool:
        """B5: a one-shot call does not wait for what only its own caller can free."""
        for handle in self.handles:
            if handle.stateful or handle.state != "pending" or not handle.admitted:
                continue
            batch = self.conversations[handle.conversation].batch
            spare = batch.named() if batch is not None else ()
            for other in self.ahead(handle):
                interactive = other.started is not None and other.stateful and other.kind.apply
                if interactive or self.blocked(other, spare):
                    self.stop(handle, FAILED, "self")
                    return True
        return False

    def _close_turn(self, conversation: Conversation) -> bool:
        """T: end every live handle; the turn is over when the last of them has stopped."""
        if conversation.ends_now:
            conversation.told = True
            self.later.append(partial(self._tell_the_end, conversation))
        if not conversation.all_told or self._live(conversation):
            return False
        conversation.closing, conversation.since = None, self.now
        conversation.told = conversation.all_told = False
        conversation.ended.at = self.now
        return True

    def _tell_the_end(self, conversation: Conversation) -> None:
        assert conversation.closing is not None
        conversation.all_told = True
        # Those that queue first: none of them may start because another one leaves.
        for handle in sorted(self._live(conversation), key=lambda handle: handle.state != "pending"):
            self.end(handle, conversation.closing)

    def _live(self, conversation: Conversation) -> list[Handle]:
        number = self.conversations.index(conversation)
        return [h for h in self.handles if h.conversation == number and not h.stopped]


def _result(handle: Handle) -> tuple[bool, Any]:
    """What a one-shot call answers."""
    if "ended_by" in handle.outcome:
        return False, CANCELLED
    return "is_error" in handle.outcome, handle.outcome["result"]
