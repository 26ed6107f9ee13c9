"""Turns and their batches in the memory store, and the inquiries that were made in them."""

from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.store import base
from keephold.store.base import InquiryRow, OpenTurn, QueuedNotification, TurnRow
from keephold.store.events import events_of
from keephold.store.memory.tables import ConversationTables
from keephold.store.memory.waits import Waits


class Turns(Waits):
    """The operations on them."""

    def _turn_began(self, op: base.TurnBegan) -> None:
        known = self._conversation(op.conversation)
        open_turn = known.turn
        is_open, owner = (None, None) if open_turn is None else (open_turn.turn, open_turn.owner)
        if is_open != op.was or op.was_owner not in (None, owner):
            raise KeepholdError(
                f"conversation `{op.conversation}` has an open turn; end or resume that one first"
                if open_turn is not None
                else f"turn `{op.was}` of conversation `{op.conversation}` is not open any more; begin a new one",
                code="turn_open",
            )
        resumed = op.turn == op.was
        if known.carried is not None:
            by, news = known.carried
            self._set_carried(known, by, ())
            for each in () if resumed and by == "response" else news:
                self._tell(op.conversation, each, each.at, each.uid, each.kind)
        if open_turn is not None and resumed:
            self._set_turn(known, replace(open_turn, owner=self.owner))
            return
        if open_turn is not None:
            self._note_over(op.conversation, open_turn.turn, op.at)
            self._note_end(op.conversation, open_turn, op.at)
        turns = self._history.turns.setdefault(op.conversation, {})
        before = turns.get(op.turn)
        if before is None:
            self._numbers += 1
            before = TurnRow(self._numbers, op.turn, self.owner, op.at, None, 0)
        self._put(turns, op.turn, replace(before, owner=self.owner, ended_at=None))
        self._set_turn(known, OpenTurn(op.turn, self.owner, before.batches))
        self._drop(self._over, (op.conversation, op.turn))

    def _turn_ended(self, op: base.TurnEnded) -> bool:
        known = self._conversations.get(op.conversation)
        if known is None or known.turn is None or known.turn.turn != op.turn:
            return False
        self._set_carried(known, "turn", ())
        self._note_end(op.conversation, known.turn, op.at)
        self._set_turn(known, None)
        self._note_over(op.conversation, op.turn, op.at)
        if self._undo is None and known.empty:
            del self._conversations[op.conversation]
        return True

    def _opened(self, op: base.Opened) -> None:
        known = self._conversations.get(op.conversation)
        turn = None if known is None else known.turn
        if known is not None and turn is not None and turn.turn == op.turn:
            self._set_turn(known, OpenTurn(op.turn, turn.owner, max(turn.batches, op.batch), op))
            self._set_carried(known, "turn", ())

    def _responded(self, op: base.Responded) -> tuple[QueuedNotification, ...]:
        for uid, cursor in op.cursors:
            record = self._records.get(uid)
            if record is not None and record.cursor < cursor:
                self._save(record)
                record.cursor = cursor
        known = self._conversations.get(op.conversation)
        if known is None:
            return ()
        turn = known.turn
        self._take_back(known, op.shown)
        news = self._deliver(known, op.carry)
        self._history.noted += tuple(events_of(op, news))  # the operation is not noted: its answers may be long
        if turn is not None and turn.turn == op.turn and turn.batch is not None and turn.batch.batch == op.batch:
            self._set_turn(known, OpenTurn(turn.turn, turn.owner, turn.batches))
            if news:
                self._set_carried(known, "response", news)
        return news

    def _inquired(self, op: base.Inquired) -> None:
        row = InquiryRow(op.id, op.conversation, op.turn, op.uid, op.at, op.request, op.answer, op.error)
        rows = self._inquiries.setdefault(op.conversation, [])
        rows.append(row)
        if self._undo is not None:
            self._undo.append((rows.pop,))
        known = self._conversations.get(op.conversation)
        if not _is_open(known, op.turn):  # asked for a call that outlives its turn
            self._note_over(op.conversation, op.turn, op.at)

    def _note_end(self, conversation: str, turn: OpenTurn, at: float) -> None:
        turns = self._history.turns.get(conversation, {})
        if turn.turn in turns:
            self._put(turns, turn.turn, replace(turns[turn.turn], ended_at=at, batches=turn.batches))

    def _note_over(self, conversation: str, turn: str, at: float) -> None:
        """The turn is over at that time, should anything be kept of it."""
        if conversation in self._inquiries:
            self._put(self._over, (conversation, turn), max(at, self._over.get((conversation, turn), at)))


def _is_open(known: ConversationTables | None, turn: str) -> bool:
    return known is not None and known.turn is not None and known.turn.turn == turn
