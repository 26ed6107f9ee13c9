"""What the memory store keeps, how a change is taken back, and how it lets go of what is old (S5)."""

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from keephold.handles.state import Stopped
from keephold.store.base import (
    TOMBSTONE_SECS,
    TOMBSTONES,
    Carrier,
    Collected,
    Entry,
    Expired,
    InquiryRow,
    OpenTurn,
    ProcessEvent,
    QueuedNotification,
    Record,
    Requested,
    WaitRow,
    status_of,
)
from keephold.store.events import removed
from keephold.store.memory.history import History
from keephold.store.memory.notification_queue import Queue

_CHANGING = (
    "state", "owner", "fence", "attempt", "next_attempt_at", "parking", "cursor", "output", "id", "stateful",
    "arguments", "resources", "progress", "priority", "metadata",
)  # fmt: skip
_ABSENT: Any = object()


def parked(record: Record) -> bool:
    """Nobody runs it: it waits for its completion from outside."""
    return record.owner is None and record.parking is not None and type(record.state) is not Stopped


class ConversationTables:
    """What one conversation has. Tables that most never need stay None."""

    __slots__ = ("carried", "graves", "kept", "labels", "names", "queue", "tombs", "turn")

    def __init__(self) -> None:
        self.turn: OpenTurn | None = None
        self.names: dict[str, Record] = {}
        self.labels: dict[str, Record] = {}
        self.queue: Queue | None = None
        self.carried: tuple[Carrier, tuple[QueuedNotification, ...]] | None = None
        """News that the open turn was handed last, and by what, with nothing since to show that it arrived (N3)."""
        self.kept: list[Record] | None = None
        """Past their retention, kept because a turn is open."""
        self.tombs: dict[str, tuple[str | None, float]] | None = None
        """By uid the id that a handle had, None for a one-shot call, and when it was let go. Oldest first."""
        self.graves: dict[str, Expired] | None = None
        """By id the newest tombstone."""

    @property
    def empty(self) -> bool:
        return not (self.names or self.labels or self.turn or self.queue or self.kept or self.tombs)


class Tables:
    """All that was committed."""

    def __init__(self) -> None:
        self.owner = f"memory-{secrets.token_hex(8)}"
        self._records: dict[str, Record] = {}
        """Oldest first."""
        self._conversations: dict[str, ConversationTables] = {}
        self._journals: dict[str, dict[tuple[str, str], Entry]] = {}
        self._waits: dict[str, WaitRow] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        """By uid the ids of the keys its call took."""
        self._settled: dict[str, float] = {}
        """By key id when a key was resolved or revoked whose call somebody ran."""
        self._events: dict[str, dict[int, ProcessEvent]] = {}
        self._requests: dict[str, Requested] = {}
        self._replies: dict[str, bytes] = {}
        self._secrets: dict[str, bytes] = {}
        self._hooks: dict[str, Record] = {}
        """Cancelled calls whose hook is due."""
        # These three may name calls that have gone on since: whoever reads them looks at the record.
        self._held: dict[str, Record] = {}
        self._holding: dict[str, Record] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._stopped: deque[Record] = deque()
        """What stopped and has not been let go, in order of the times if `_in_order`."""
        self._last_stop = 0.0
        self._in_order = True
        self._keeping: set[str] = set()
        """Conversations that have something in `kept`."""
        self._inquiries: dict[str, list[InquiryRow]] = {}
        """By conversation, oldest first."""
        self._over: dict[tuple[str, str], float] = {}
        """When a turn was over, by conversation and turn, of conversations with inquiries."""
        self._numbers = 0
        self._history = History(self._records)
        self._undo: list[tuple[Any, ...]] | None = None
        """How to take back what a commit of several operations has done so far."""

    # Changing, so that it can be changed back

    def _put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if self._undo is not None:
            self._undo.append((_put_back, table, key, table.get(key, _ABSENT)))
        table[key] = value

    def _drop(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            if self._undo is not None:
                self._undo.append((_put_back, table, key, table[key]))
            del table[key]

    def _save(self, record: Record) -> None:
        """Call this before a record is changed."""
        if self._undo is not None:
            self._undo.append((_restore, record, [getattr(record, each) for each in _CHANGING]))

    def _set_turn(self, known: ConversationTables, turn: OpenTurn | None) -> None:
        if self._undo is not None:
            self._undo.append((setattr, known, "turn", known.turn))
        known.turn = turn

    def _set_carried(self, known: ConversationTables, by: Carrier, news: tuple[QueuedNotification, ...]) -> None:
        if self._undo is not None:
            self._undo.append((setattr, known, "carried", known.carried))
        known.carried = (by, news) if news and known.turn is not None else None

    def _conversation(self, conversation: str) -> ConversationTables:
        known = self._conversations.get(conversation)
        if known is None:
            known = self._conversations[conversation] = ConversationTables()
        return known

    def _note_stop(self, record: Record, at: float) -> None:
        self._stopped.append(record)
        if self._undo is not None:
            self._undo.append((self._stopped.pop,))
        if at < self._last_stop:
            self._in_order = False
        else:
            self._last_stop = at

    # Letting go. Never refused, so never taken back.

    def _line_up(self) -> None:
        """All that stopped and may go, in order of the times: what a turn kept that is over, too."""
        for conversation in [each for each in self._keeping if self._conversation(each).turn is None]:
            known = self._conversation(conversation)
            self._stopped.extendleft(reversed(known.kept or ()))
            known.kept = None
            self._keeping.discard(conversation)
            self._in_order = False
        if not self._in_order:
            self._stopped = deque(sorted(self._stopped, key=stopped_at))
            self._in_order = True

    def _is_over(self, record: Record) -> bool:
        """Whether it is there, with nothing to be done about it and no turn that keeps it."""
        there = self._records.get(record.uid) is record and record.uid not in self._hooks
        return there and self._conversation(record.conversation).turn is None

    def _let_go(self, op: Collected) -> int:
        """Let go of what the operation wants of what stopped before then; how many those were."""
        self._line_up()
        passed: list[Record] = []
        gone, is_wanted = 0, wanted(op)
        while self._stopped and gone < op.limit and stopped_at(self._stopped[0]) < op.before:
            record = self._stopped.popleft()
            known = self._conversation(record.conversation)
            if self._records.get(record.uid) is not record or record.uid in self._hooks:
                continue  # gone, or it comes back here when its hook has been called
            if known.turn is not None:
                known.kept = [] if known.kept is None else known.kept
                known.kept.append(record)
                self._keeping.add(record.conversation)
            elif is_wanted(record):
                self._bury(record, known, op.at)
                gone += 1
            else:
                passed.append(record)
        self._stopped.extendleft(reversed(passed))
        if gone < op.limit:
            self._forget_old(op.at)
        if not op.partial:
            self._forget_inquiries(op.before)
            self._forget_turns(op.before)
        return gone

    def _bury(self, record: Record, known: ConversationTables, at: float) -> None:
        uid = record.uid
        for table in (self._records, self._journals, self._events, self._held, self._holding):
            table.pop(uid, None)
        if known.queue:
            found = known.queue.of(uid)
            known.queue.take(found, None)
            self._history.noted += tuple(removed(news, "expired") for news in found)
        if known.labels.get(record.call_id) is record:
            del known.labels[record.call_id]
        newest = known.names.get(record.id) is record
        if newest:
            del known.names[record.id]
        if record.stateful or uid in self._keys:  # a key's resolution is kept as long as the tombstone (D5)
            tombs = known.tombs = {} if known.tombs is None else known.tombs
            tombs[uid] = (record.id if record.stateful else None, at)
            if newest:
                known.graves = {} if known.graves is None else known.graves
                known.graves[record.id] = Expired(uid, at)
            if len(tombs) > TOMBSTONES:
                self._forget_oldest(known)

    def _forget_old(self, at: float) -> None:
        for conversation, known in list(self._conversations.items()):
            while known.tombs and next(iter(known.tombs.values()))[1] + TOMBSTONE_SECS <= at:
                self._forget_oldest(known)
            if known.empty:
                del self._conversations[conversation]

    def _forget_inquiries(self, before: float) -> None:
        over = {key for key, at in self._over.items() if at < before}
        for conversation in {conversation for conversation, _ in over}:
            rows = [row for row in self._inquiries.pop(conversation, ()) if (conversation, row.turn) not in over]
            if rows:
                self._inquiries[conversation] = rows
        for key in over:
            del self._over[key]

    def _forget_turns(self, before: float) -> None:
        for conversation, turns in list(self._history.turns.items()):
            for row in [row for row in turns.values() if row.ended_at is not None and row.ended_at < before]:
                del turns[row.turn]
            if not turns:
                del self._history.turns[conversation]

    def _forget_oldest(self, known: ConversationTables) -> None:
        assert known.tombs is not None
        uid = next(iter(known.tombs))
        id, _ = known.tombs.pop(uid)
        for key_id in self._keys.pop(uid, ()):
            self._waits.pop(key_id, None)
            self._settled.pop(key_id, None)
        if id is not None and known.graves is not None and (grave := known.graves.get(id)) and grave.uid == uid:
            del known.graves[id]


def wanted(op: Collected) -> Callable[[Record], bool]:
    """Whether the operation is about a handle, its age aside."""
    only = None if op.only is None else frozenset(op.only)

    def is_wanted(record: Record) -> bool:
        return (
            op.conversation in (None, record.conversation)
            and (not op.kinds or record.kind in op.kinds)
            and (not op.statuses or status_of(record.state) in op.statuses)
            and (only is None or record.uid in only)
        )

    return is_wanted


def stopped_at(record: Record) -> float:
    """When a handle that has stopped did."""
    assert isinstance(record.state, Stopped)
    return record.state.stopped


def _put_back(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _ABSENT:
        del table[key]
    else:
        table[key] = value


def _restore(record: Record, values: list[Any]) -> None:
    for each, value in zip(_CHANGING, values, strict=True):
        setattr(record, each, value)
