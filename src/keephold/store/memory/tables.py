"""The tables of the memory store, how a change of them is undone, and the history of events.

A commit only notes what was done; notes become events when somebody reads them. The newest `KEPT` are kept. Use a
SQLite store to keep more.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any

from keephold.handles.state import Stopped
from keephold.store import base
from keephold.store.events import Draft, events_of, queued
from keephold.store.memory.notification_queue import Queue, QueueEntry, message_of

KEPT = 10_000
"""How many operations are noted, and how many events are kept."""

Note = Draft | QueueEntry
"""An event that an operation brought about besides its own, or a queued notification that becomes one."""
Noted = tuple[float | None, base.Op | None, Any, tuple[Note, ...]]
"""The time of an operation, if it has none of its own; the operation, if it writes an event; its result, or the state
of a new handle; and its notes."""


class History:
    """The notes, the events made of them, and the turns there were."""

    __slots__ = ("_last", "_log", "_records", "_stored", "noted", "turns", "write", "write_all")

    def __init__(self, records: Mapping[str, base.Record]) -> None:
        self.noted: tuple[Note, ...] = ()
        """Notes of the operation that is being applied."""
        self._log: deque[Noted] = deque(maxlen=KEPT)
        """Not made into events yet."""
        self.write, self.write_all = self._log.append, self._log.extend
        self.turns: dict[str, dict[str, base.TurnRow]] = {}
        """By conversation and turn, oldest first; only the beginning of an open turn counts."""
        self._records = records
        self._stored: deque[base.StoredEvent] = deque(maxlen=KEPT)
        self._last = 0

    def translate(self) -> None:
        """Make events of the notes. Call it before deleting anything that a note may name."""
        log = self._log
        if len(log) == KEPT:  # some may be lost unread: the gap must show
            self._stored.clear()
            self._last += 1
        while log:
            noted_at, op, result, noted = log.popleft()
            at = _own_time(op, result) if noted_at is None else noted_at
            if op is not None:
                for draft in events_of(op, result):
                    self._keep(at, draft)
            for note in noted:
                self._keep(at, _draft(note))

    def _keep(self, at: float, draft: Draft) -> None:
        type, conversation, uid, data = draft
        if conversation is None:
            record = None if uid is None else self._records.get(uid)
            conversation = "" if record is None else record.conversation
        self._last += 1
        self._stored.append(base.StoredEvent(self._last, at, type, conversation, uid, data))

    def forget(self, op: base.Collected) -> bool:
        """Delete events as old as that, but not the newest (S5). Returns whether there may be more."""
        for _ in repeat(None, 10 * op.limit):
            if len(self._stored) < 2 or self._stored[0].at >= op.before:
                return False
            self._stored.popleft()
        return True

    def events(self) -> Iterator[base.StoredEvent]:
        """Return the events that are kept, newest first."""
        self.translate()
        return reversed(self._stored)

    def range(self) -> tuple[int, int]:
        """As `Store.events_range`."""
        self.translate()
        return (self._stored[0].seq if self._stored else self._last + 1), self._last


def _own_time(op: base.Op | None, state: Any) -> float:
    if isinstance(op, base.Changed):
        return op.event.at
    created: float = state.created
    return created


def _draft(note: Note) -> Draft:
    if not isinstance(note[0], int):
        return note
    number, conversation, notice, _, uid, *_ = note
    return queued(number, conversation, uid, notice.kind, notice.level, message_of(note))


_CHANGING = (
    "state", "owner", "fence", "attempt", "next_attempt_at", "parking", "cursor", "output", "id", "stateful",
    "arguments", "resources", "progress", "priority", "metadata", "allowed", "deaths", "standing", "ready",
)  # fmt: skip
_ABSENT: Any = object()


class ConversationTables:
    """The tables of one conversation. Tables that most never need stay None."""

    __slots__ = ("carried", "kept", "labels", "names", "newest_tombs", "queue", "tombs", "turn")

    def __init__(self) -> None:
        self.turn: base.OpenTurn | None = None
        self.names: dict[str, base.Record] = {}
        self.labels: dict[str, base.Record] = {}
        self.queue: Queue | None = None
        self.carried: tuple[base.Carrier, tuple[base.QueuedNotification, ...]] | None = None
        """Notifications handed to the open turn last, and their carrier, until something shows they arrived (N3)."""
        self.kept: list[base.Record] | None = None
        """Past their retention, kept because a turn is open."""
        self.tombs: dict[str, tuple[str | None, float]] | None = None
        """By uid the id that a handle had, None for a one-shot call, and when it was deleted. Oldest first."""
        self.newest_tombs: dict[str, base.Expired] | None = None
        """By id the newest tombstone."""

    @property
    def empty(self) -> bool:
        return not (self.names or self.labels or self.turn or self.queue or self.kept or self.tombs)


class Tables:
    """All that was committed. Operations change it through `put`, `drop` and `save`, so that it can be undone."""

    __slots__ = (
        "conversations", "crowded", "deadlines", "descriptions", "events", "held", "history", "holding", "hooks",
        "in_order", "inquiries", "journals", "keeping", "keys", "last_stop", "lines", "numbers", "over", "owner",
        "posts", "records", "replies", "requests", "secrets", "settled", "stopped", "undo", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.owner = f"memory-{secrets.token_hex(8)}"
        self.records: dict[str, base.Record] = {}
        """Oldest first."""
        self.conversations: dict[str, ConversationTables] = {}
        self.journals: dict[str, dict[tuple[str, str], base.Entry]] = {}
        self.waits: dict[str, base.WaitRow] = {}
        self.keys: dict[str, tuple[str, ...]] = {}
        """By uid the ids of the keys its call took."""
        self.settled: dict[str, float] = {}
        """By key id when a key was resolved or revoked while its call had an owner."""
        self.events: dict[str, dict[int, base.ProcessEvent]] = {}
        self.requests: dict[str, base.Requested] = {}
        self.replies: dict[str, bytes] = {}
        self.posts: dict[str, base.Post] = {}
        self.secrets: dict[str, bytes] = {}
        self.hooks: dict[str, base.Record] = {}
        """Cancelled calls whose hook is due."""
        # The next three may name calls that have changed since: readers check the record.
        self.held: dict[str, base.Record] = {}
        self.holding: dict[str, base.Record] = {}
        self.deadlines: list[tuple[float, str]] = []
        self.crowded = 1000
        """At this length `deadlines` is rid of entries that no longer count."""
        self.stopped: deque[base.Record] = deque()
        """Stopped records that were not deleted, in order of their times if `in_order`."""
        self.last_stop = 0.0
        self.in_order = True
        self.keeping: set[str] = set()
        """Conversations that have records in `kept`."""
        self.inquiries: dict[str, list[base.InquiryRow]] = {}
        """By conversation, oldest first."""
        self.over: dict[tuple[str, str], float] = {}
        """When a turn ended, by conversation and turn, of conversations with inquiries."""
        self.numbers = 0
        self.descriptions: dict[str, base.ConversationRow] = {}
        self.lines: dict[str, list[base.TranscriptLine]] = {}
        """By conversation, oldest first: line 1 is at index 0."""
        self.history = History(self.records)
        self.undo: list[tuple[Any, ...]] | None = None
        """How to undo what a commit of several operations has done so far."""

    def put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if self.undo is not None:
            self.undo.append((_put_back, table, key, table.get(key, _ABSENT)))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            if self.undo is not None:
                self.undo.append((_put_back, table, key, table[key]))
            del table[key]

    def save(self, record: base.Record) -> None:
        """Call this before a record is changed."""
        if self.undo is not None:
            self.undo.append((_restore, record, [getattr(record, each) for each in _CHANGING]))

    def set_turn(self, known: ConversationTables, turn: base.OpenTurn | None) -> None:
        if self.undo is not None:
            self.undo.append((setattr, known, "turn", known.turn))
        known.turn = turn

    def set_carried(
        self, known: ConversationTables, by: base.Carrier, notifications: tuple[base.QueuedNotification, ...]
    ) -> None:
        if self.undo is not None:
            self.undo.append((setattr, known, "carried", known.carried))
        known.carried = (by, notifications) if notifications and known.turn is not None else None

    def conversation(self, conversation: str) -> ConversationTables:
        known = self.conversations.get(conversation)
        if known is None:
            known = self.conversations[conversation] = ConversationTables()
        return known


def is_parked(record: base.Record) -> bool:
    """Whether the call has no owner and waits for its completion."""
    return record.owner is None and record.parking is not None and type(record.state) is not Stopped


def completion(t: Tables, uid: str) -> base.WaitRow | None:
    """Return the wait for a call's completion."""
    rows = (t.waits[key_id] for key_id in t.keys.get(uid, ()))
    return next((row for row in rows if row.kind == "completion"), None)


def is_resolved(t: Tables, uid: str) -> bool:
    """Whether a call's completion has arrived."""
    row = completion(t, uid)
    return row is not None and row.resolution is not None


def awaits(t: Tables, uid: str, deadline: float) -> bool:
    """Whether the call is parked with that deadline and its completion has not arrived."""
    record = t.records.get(uid)
    if record is None or record.parking is None or record.parking.deadline != deadline or not is_parked(record):
        return False
    return not is_resolved(t, uid)


def wanted(t: Tables, op: base.Collected) -> Callable[[base.Record], bool]:
    """Return a test for the records that the operation would delete, apart from their age."""
    only = None if op.only is None else frozenset(op.only)

    def is_told(record: base.Record) -> bool:
        queue = t.conversation(record.conversation).queue
        return not queue or not queue.of(record.uid)

    def is_wanted(record: base.Record) -> bool:
        return (
            op.conversation in (None, record.conversation)
            and (not op.kinds or record.kind in op.kinds)
            and (not op.statuses or base.status_of(record.state) in op.statuses)
            and (only is None or record.uid in only)
            and (not op.files or (record.output is not None and record.output.file is not None))
            and (op.early != "seen" or is_told(record))
        )

    return is_wanted


def stopped_at(record: base.Record) -> float:
    """Return when a stopped handle stopped."""
    assert isinstance(record.state, Stopped)
    return record.state.stopped


def _put_back(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _ABSENT:
        del table[key]
    else:
        table[key] = value


def _restore(record: base.Record, values: list[Any]) -> None:
    for each, value in zip(_CHANGING, values, strict=True):
        setattr(record, each, value)
