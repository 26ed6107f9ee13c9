"""The tables of the memory store, and how a change of them is undone."""

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from keephold.handles.state import Stopped
from keephold.store.base import (
    Carrier,
    Collected,
    ConversationRow,
    Entry,
    Expired,
    InquiryRow,
    OpenTurn,
    Post,
    ProcessEvent,
    QueuedNotification,
    Record,
    Requested,
    TranscriptLine,
    WaitRow,
    status_of,
)
from keephold.store.memory.history import History
from keephold.store.memory.notification_queue import Queue

_CHANGING = (
    "state", "owner", "fence", "attempt", "next_attempt_at", "parking", "cursor", "output", "id", "stateful",
    "arguments", "resources", "progress", "priority", "metadata", "allowed", "deaths", "standing", "ready",
)  # fmt: skip
_ABSENT: Any = object()


class ConversationTables:
    """The tables of one conversation. Tables that most never need stay None."""

    __slots__ = ("carried", "kept", "labels", "names", "newest_tombs", "queue", "tombs", "turn")

    def __init__(self) -> None:
        self.turn: OpenTurn | None = None
        self.names: dict[str, Record] = {}
        self.labels: dict[str, Record] = {}
        self.queue: Queue | None = None
        self.carried: tuple[Carrier, tuple[QueuedNotification, ...]] | None = None
        """Notifications handed to the open turn last, and their carrier, until something shows they arrived (N3)."""
        self.kept: list[Record] | None = None
        """Past their retention, kept because a turn is open."""
        self.tombs: dict[str, tuple[str | None, float]] | None = None
        """By uid the id that a handle had, None for a one-shot call, and when it was deleted. Oldest first."""
        self.newest_tombs: dict[str, Expired] | None = None
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
        self.records: dict[str, Record] = {}
        """Oldest first."""
        self.conversations: dict[str, ConversationTables] = {}
        self.journals: dict[str, dict[tuple[str, str], Entry]] = {}
        self.waits: dict[str, WaitRow] = {}
        self.keys: dict[str, tuple[str, ...]] = {}
        """By uid the ids of the keys its call took."""
        self.settled: dict[str, float] = {}
        """By key id when a key was resolved or revoked while its call had an owner."""
        self.events: dict[str, dict[int, ProcessEvent]] = {}
        self.requests: dict[str, Requested] = {}
        self.replies: dict[str, bytes] = {}
        self.posts: dict[str, Post] = {}
        self.secrets: dict[str, bytes] = {}
        self.hooks: dict[str, Record] = {}
        """Cancelled calls whose hook is due."""
        # The next three may name calls that have changed since: readers check the record.
        self.held: dict[str, Record] = {}
        self.holding: dict[str, Record] = {}
        self.deadlines: list[tuple[float, str]] = []
        self.crowded = 1000
        """At this length `deadlines` is rid of entries that no longer count."""
        self.stopped: deque[Record] = deque()
        """Stopped records that were not deleted, in order of their times if `in_order`."""
        self.last_stop = 0.0
        self.in_order = True
        self.keeping: set[str] = set()
        """Conversations that have records in `kept`."""
        self.inquiries: dict[str, list[InquiryRow]] = {}
        """By conversation, oldest first."""
        self.over: dict[tuple[str, str], float] = {}
        """When a turn ended, by conversation and turn, of conversations with inquiries."""
        self.numbers = 0
        self.descriptions: dict[str, ConversationRow] = {}
        self.lines: dict[str, list[TranscriptLine]] = {}
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

    def save(self, record: Record) -> None:
        """Call this before a record is changed."""
        if self.undo is not None:
            self.undo.append((_restore, record, [getattr(record, each) for each in _CHANGING]))

    def set_turn(self, known: ConversationTables, turn: OpenTurn | None) -> None:
        if self.undo is not None:
            self.undo.append((setattr, known, "turn", known.turn))
        known.turn = turn

    def set_carried(
        self, known: ConversationTables, by: Carrier, notifications: tuple[QueuedNotification, ...]
    ) -> None:
        if self.undo is not None:
            self.undo.append((setattr, known, "carried", known.carried))
        known.carried = (by, notifications) if notifications and known.turn is not None else None

    def conversation(self, conversation: str) -> ConversationTables:
        known = self.conversations.get(conversation)
        if known is None:
            known = self.conversations[conversation] = ConversationTables()
        return known


def is_parked(record: Record) -> bool:
    """Whether the call has no owner and waits for its completion."""
    return record.owner is None and record.parking is not None and type(record.state) is not Stopped


def completion(t: Tables, uid: str) -> WaitRow | None:
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


def wanted(t: Tables, op: Collected) -> Callable[[Record], bool]:
    """Return a test for the records that the operation would delete, apart from their age."""
    only = None if op.only is None else frozenset(op.only)

    def is_told(record: Record) -> bool:
        queue = t.conversation(record.conversation).queue
        return not queue or not queue.of(record.uid)

    def is_wanted(record: Record) -> bool:
        return (
            op.conversation in (None, record.conversation)
            and (not op.kinds or record.kind in op.kinds)
            and (not op.statuses or status_of(record.state) in op.statuses)
            and (only is None or record.uid in only)
            and (not op.files or (record.output is not None and record.output.file is not None))
            and (op.early != "seen" or is_told(record))
        )

    return is_wanted


def stopped_at(record: Record) -> float:
    """Return when a stopped handle stopped."""
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
