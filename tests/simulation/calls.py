"""The model's calls (B1–B6, C3–C7): how each call of a batch begins, and when and with what it is answered."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.simulation.batches import Batch, Conversation, Slot, chain
from tests.simulation.expect import Reply, Says
from tests.simulation.model import CANCELLED, Handle, Model, Undecided, Wait
from tests.simulation.ops import Abort, Apply, Await, Call, Fetch, Once, Spawn, kind_of

FAILED = {"result": Says(), "is_error": True}
SOON = 1e-9
"""Timers that are due within this are due now: the loop has it so too."""


class Calls(Model):
    """Handles, waits, and the batches of two conversations."""

    def __init__(self, *, late: bool = False) -> None:
        """`late`: the store commits later, so that what follows at once is not known at once."""
        super().__init__()
        self._late = late
        self.conversations = [Conversation(), Conversation()]
        self.waiting: set[Batch] = set()
        """Those of which calls begin in the next pass."""
        self.just_shown: list[Slot] = []
        """Calls that were answered with a handle in this instant."""
        self._recorded: list[Slot] = []
        """Calls of batches that were answered in this instant."""

    def run(self, number: int, calls: Sequence[Call]) -> Batch:
        """A batch begins."""
        conversation = self.conversations[number]
        batch = Batch([Slot(call) for call in calls])
        spawned = [call.id for call in calls if isinstance(call, Spawn)]
        active = {id for id, handle in conversation.names.items() if not handle.stopped}
        clash = [id for at, id in enumerate(spawned) if id in active or id in spawned[:at]]
        if clash:  # B2: nothing runs
            for slot in batch.slots:
                self.answer(slot, (True, Says(f"`{clash[0]}`")))
            batch.closed_at = conversation.since = self.now
            return batch
        batch.before = {handle: handle.state for handle in self.handles}
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

    def settle(self) -> None:
        """Let everything happen that follows at once from what is so."""
        one, two = self.conversations
        while self.serve() or self._give_up() or self._pump(one) or self._pump(two) or self.wake():
            pass
        self.note_moment()

    def note_moment(self) -> None:
        super().note_moment()
        for slot in self.just_shown if self._late else ():
            assert slot.named is not None and slot.reply is not None
            queued = slot.reply.accept[0] == (False, {"id": slot.named.id, "state": "pending"})
            if queued and slot.named.state != "pending" and isinstance(slot.call, Spawn) and slot.named.kind.apply:
                raise Undecided
            if (shown := (False, slot.named.entry())) not in slot.reply.accept:
                slot.reply.accept.append(shown)

    def move_cursors(self) -> None:
        """C5: the commit of a batch's responses moves the cursor. A Python caller's wait that is answered in the same
        instant may come before the commit or after it; it moves no cursor itself."""
        for slot in self._recorded:
            if slot.named is not None:
                slot.named.cursor = max(slot.named.cursor, slot.shown)
            for handle in _completed(slot):
                handle.cursor = len(handle.output)
        self._recorded = []
        super().note_moment()

    def open_slots(self) -> list[Slot]:
        """Calls that have not been answered."""
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
            return False
        ready = [slot for slot in batch.slots if batch.ready(slot)]
        if ready and not batch.beginning:
            ready = []
            if not batch.going_on:
                batch.going_on = True
                self.waiting.add(batch)
                self.later.append(partial(self._go_on, batch))
        for slot in self._first(ready):
            if self._late:
                self.wake()
                self.note_moment()
            slot.started = True
            self._begin(conversation, batch, slot)
        answered = [slot for slot in batch.open if self._answered(slot)]
        if not batch.open:
            conversation.batch, batch.closed_at, conversation.since = None, self.now, self.now
            self._recorded += batch.slots
        return bool(ready or answered)

    def _first(self, ready: list[Slot]) -> list[Slot]:
        """Of the calls that may begin, the one that does: the first emitted, serial ones and awaits last.

        An await needs a pass of the loop to begin, so it begins after the others. If commits take a while, it may
        begin before them, and those that neither queue nor are refused run from the commit that registers them.
        """
        frees = any(slot.after is not None and isinstance(slot.call, Abort) for slot in ready)
        if frees and any(slot.lane == "parallel" and slot.made is not None and slot.made.names for slot in ready):
            raise Undecided
        order = ("synchronising", "parallel", "serial") if self._late else ("parallel", "serial", "synchronising")
        return sorted(
            ready,
            key=lambda slot: (order.index(slot.lane), slot.after is not None, self._late and not _runs_at_once(slot)),
        )[:1]

    def _go_on(self, batch: Batch) -> None:
        """Calls that waited for others begin."""
        batch.going_on, batch.beginning = False, True
        self.settle()
        batch.beginning = False

    def _begin(self, conversation: Conversation, batch: Batch, slot: Slot) -> None:
        if slot.reply is None and batch.cancelled_at is None:
            self._start(conversation, batch, slot)
        elif slot.reply is None:
            self.withdraw(slot)

    def _start(self, conversation: Conversation, batch: Batch, slot: Slot) -> None:
        handle = slot.made or slot.named
        if self._late and handle in batch.before and batch.before[handle] != handle.state and batch.beginning:
            raise Undecided
        match slot.call:
            case Await():
                self._await(conversation, batch, slot, slot.call)
            case _ if handle is None:
                self.answer(slot, (True, Says("not found")))
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
            self.answer(slot, (True, Says(handle.state)))
        elif handle.ending:
            self.answer(slot, (True, Says("being ended")))
        elif handle.state == "waiting" and not isinstance(given, bool):
            self.answer(slot, (True, Says("stays open")))
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
        named = {*call.any, *call.all, *call.lines}
        if not named:
            self.answer(slot, (True, Says("At least one handle ID required")))
        elif not named <= conversation.names.keys():
            self.answer(slot, (True, Says("not found")))
        else:
            slot.wait = self._begin_wait(conversation, call.any, call.all, call.timeout, call.lines)
            slot.wait.already_handled = batch.named
            self.wake()
            if call.timeout == 0:
                self.time_out()

    def _begin_wait(
        self,
        conversation: Conversation,
        any: Sequence[str],
        all: Sequence[str],
        timeout: float | None,
        lines: Sequence[str] = (),
    ) -> Wait:
        known = conversation.names
        deadline = None if timeout is None else self.now + timeout
        first, every, printing = ([known[id] for id in dict.fromkeys(ids)] for ids in (any, all, lines))
        wait = Wait(first, every, deadline, printing)
        self.waits.append(wait)
        return wait

    def _answered(self, slot: Slot) -> bool:
        """Answer it if it can be by now."""
        if slot.wait is not None:
            slot.reply = slot.wait.reply
        elif slot.until is not None:
            if slot.until.stopped and isinstance(slot.call, Once):
                self.answer(slot, _result(slot.until))
            elif slot.until.stopped:
                self._show(slot)
        elif (
            slot.settles_from is not None
            and slot.named is not None
            and (not slot.named.idle or slot.settled_at <= self.now + SOON)
        ):
            self._show(slot)
        return slot.reply is not None

    def _show(self, slot: Slot) -> None:
        assert slot.named is not None
        self.answer(slot, (False, slot.named.entry()))
        slot.shown = len(slot.named.output)
        self.just_shown.append(slot)

    def answer(self, slot: Slot, reply: Any) -> None:
        slot.reply = Reply(self.now, [reply])

    def withdraw(self, slot: Slot) -> None:
        """B7: there is no time left, or it has not begun and never will."""
        if slot.made is not None and slot.made.state == "pending":
            self.end(slot.made, "cancel")
        self.answer(slot, (False, CANCELLED))

    def _give_up(self) -> bool:
        """B5: a one-shot call does not wait for what only its own caller can free."""
        for handle in self.handles:
            if handle.stateful or handle.state != "pending" or not handle.admitted:
                continue
            batch = self.conversations[handle.conversation].batch
            already_handled = batch.named() if batch is not None else ()
            for other in self.ahead(handle):
                interactive = other.started is not None and other.stateful and other.kind.apply and not other.ending
                if interactive or self.blocked(other, already_handled):
                    self.stop(handle, FAILED, "self")
                    return True
        return False


def _runs_at_once(slot: Slot) -> bool:
    kind = kind_of(slot.made.id) if slot.made is not None else None
    return kind is not None and not (kind.serial or kind.locks or kind.denied)


def _completed(slot: Slot) -> list[Handle]:
    """The stopped handles that an await's reply shows. Undecided if that depends on when it is given."""
    if slot.wait is None or slot.reply is None:
        return []
    replies = [answer["completed"] if isinstance(answer, dict) else [] for _, answer in slot.reply.accept]
    shown = [{entry["id"] for entry in completed} for completed in replies]
    named = {*slot.wait.any, *slot.wait.all, *slot.wait.lines}
    if any("content" in handle.entry() and len({handle.id in ids for ids in shown}) > 1 for handle in named):
        raise Undecided
    return [handle for handle in named if handle.id in shown[0]]


def _result(handle: Handle) -> tuple[bool, Any]:
    """What a one-shot call answers."""
    if "ended_by" in handle.outcome:
        return False, CANCELLED
    return "is_error" in handle.outcome, handle.outcome["result"]
