"""The model's turns and clock (B, C1–C7, T): it does the steps of a script one by one.

Some steps it does not allow: where two things would happen in the same pass of the loop and the SPEC leaves open which
comes first, a script that asks for both would prove nothing.
"""

from collections.abc import Sequence
from functools import partial

from tests.simulation import ops
from tests.simulation.batches import Conversation, Slot
from tests.simulation.calls import SOON, Calls
from tests.simulation.expect import Reply
from tests.simulation.model import CANCELLED, Handle, Undecided
from tests.simulation.ops import Abort, Await, Call, Once, Spawn, kind_of


class Turns(Calls):
    """The whole model."""

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
                free = self._rested(conversation) and self.conversations[conversation].batch is None
                return free and bool(calls) and not (self._late and _makes_room(calls))
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
        if handle.ending:
            return handle.listens
        return handle.idle and not (handle.deaf and order in ("ask", "read"))

    # Steps

    def order(self, handle: Handle, order: ops.Order, text: str) -> None:
        """A tool is told what to do."""
        for slot in self.open_slots():
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
            once = [slot.made for slot in batch.open if isinstance(slot.call, Once)]
            self.end_all([handle for handle in once if handle is not None], "cancel")
            for slot in batch.slots:
                if isinstance(slot.call, Await):
                    self._cancel_await(slot)
        self.settle()
        return conversation.ended

    def go_round(self) -> bool:
        """The loop goes round: waits that are due time out, what was to happen in the next pass does. True if any."""
        self.pass_number += 1
        self.time_out()
        self.settle()
        waiting, self.waiting = self.waiting, set()
        if len(waiting) > 1:
            raise Undecided
        later, self.later = self.later, []
        for happen in later:
            happen()
            self.settle()
        return bool(later)

    def settle(self) -> None:
        super().settle()
        while any(self._close_turn(conversation) for conversation in self.conversations):
            super().settle()

    # Time

    def rest_until(self, to: float) -> None:
        """Everything under way comes to rest, and time passes up to the last timer before `to`."""
        self._rest()
        while (due := self._next_timer()) < to - SOON:
            self.fire(due)
            self._rest()

    def _rest(self) -> None:
        while self.go_round():
            pass
        self.move_cursors()
        self.waits = [wait for wait in self.waits if wait.reply is None]
        self.just_shown = []

    def fire(self, at: float) -> bool:
        """It is that late now. True if timers fired of which more than answers is under way."""
        self.now = at
        live = [h for h in self.handles if not h.stopped]
        forced = [h for h in live if h.force_at is not None and h.force_at <= at + SOON]
        timed_out = [h for h in live if h.times_out_at is not None and h.times_out_at <= at + SOON]
        if len(timed_out) > 1:
            raise Undecided
        for handle in forced:
            self.linger(handle)
        for handle in timed_out:
            self.end(handle, "timeout")
        over = [c.batch for c in self.conversations if c.batch and c.batch.grace_ends <= at + SOON]
        for batch in over:
            for slot in batch.open:
                self.withdraw(slot)
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
            or any(deadline <= self.now + SOON for deadline in due)
            or any(wait.reply is not None for wait in self.waits)
        )

    def _next_timer(self) -> float:
        times = [slot.settled_at for slot in self.open_slots() if slot.settles_from is not None]
        times += [wait.deadline for wait in self.waits if wait.deadline is not None]
        times += [c.batch.grace_ends for c in self.conversations if c.batch]
        for handle in self.handles:
            if not handle.stopped:
                times += [at for at in (handle.force_at, handle.times_out_at) if at is not None]
        return min(times, default=float("inf"))

    # Calls

    def _cancel_await(self, slot: Slot) -> None:
        """A8. One that has its answer in this very instant may hear of the cancellation before it gives it."""
        if slot.reply is None:
            self.answer(slot, (False, CANCELLED))
        elif slot.reply.at == self.now:
            slot.reply.accept.append((False, CANCELLED))
        self.waits = [wait for wait in self.waits if wait is not slot.wait]

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
        self.end_all(self._live(conversation), conversation.closing)

    def _live(self, conversation: Conversation) -> list[Handle]:
        number = self.conversations.index(conversation)
        return [h for h in self.handles if h.conversation == number and not h.stopped]


def _makes_room(calls: Sequence[Call]) -> bool:
    """It aborts a handle and starts what may queue behind it: if commits take a while, it is open how far each gets."""
    starting = [kind_of(call.id) for call in calls if isinstance(call, Spawn | Once)]
    return any(isinstance(call, Abort) for call in calls) and any(kind.serial or kind.locks for kind in starting)
