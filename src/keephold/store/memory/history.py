"""The events of the memory store. A commit only notes what was done; notes become events when somebody reads them.

The newest `KEPT` are kept. Use a SQLite store to keep more.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice, repeat, takewhile
from typing import Any

from keephold.store.base import NOTIFICATION_TYPES, Changed, Collected, Op, Record, StoredEvent, TurnRow
from keephold.store.events import Draft, events_of, queued
from keephold.store.memory.notification_queue import QueueEntry, message_of

KEPT = 10_000
"""How many operations are noted, and how many events are kept."""

Note = Draft | QueueEntry
"""An event that an operation brought about besides its own, or a queued notification that becomes one."""
Noted = tuple[float | None, Op | None, Any, tuple[Note, ...]]
"""The time of an operation, if it has none of its own; the operation, if it writes an event; its result, or the state
of a new handle; and its notes."""


class History:
    """The notes, the events made of them, and the turns there were."""

    __slots__ = ("_last", "_log", "_records", "_stored", "noted", "turns", "write", "write_all")

    def __init__(self, records: Mapping[str, Record]) -> None:
        self.noted: tuple[Note, ...] = ()
        """Notes of the operation that is being applied."""
        self._log: deque[Noted] = deque(maxlen=KEPT)
        """Not made into events yet."""
        self.write, self.write_all = self._log.append, self._log.extend
        self.turns: dict[str, dict[str, TurnRow]] = {}
        """By conversation and turn, oldest first; only the beginning of an open turn counts."""
        self._records = records
        self._stored: deque[StoredEvent] = deque(maxlen=KEPT)
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
        self._stored.append(StoredEvent(self._last, at, type, conversation, uid, data))

    def forget(self, op: Collected) -> bool:
        """Delete events as old as that, but not the newest (S5). Returns whether there may be more."""
        for _ in repeat(None, 10 * op.limit):
            if len(self._stored) < 2 or self._stored[0].at >= op.before:
                return False
            self._stored.popleft()
        return True

    def events(
        self,
        after: int,
        limit: int,
        uid: str | None,
        conversation: str | None,
        notifications: bool,
        newest: bool,
        before: int | None,
    ) -> list[StoredEvent]:
        """As `Store.events`."""
        self.translate()
        since = takewhile(lambda event: event.seq > after, reversed(self._stored))
        chosen = (
            event
            for event in (since if newest else reversed(list(since)))
            if (before is None or event.seq < before)
            and (uid is None or (event.uid == uid and event.type != "handle.stepped"))
            and (conversation is None or event.conversation == conversation)
            and (not notifications or event.type in NOTIFICATION_TYPES)
        )
        return list(islice(chosen, limit))

    def steps(self, uid: str) -> Iterator[StoredEvent]:
        """Return the recorded steps of a call, newest first."""
        self.translate()
        return (event for event in reversed(self._stored) if event.uid == uid and event.type == "handle.stepped")

    def range(self) -> tuple[int, int]:
        """As `Store.events_range`."""
        self.translate()
        return (self._stored[0].seq if self._stored else self._last + 1), self._last


def _own_time(op: Op | None, state: Any) -> float:
    if isinstance(op, Changed):
        return op.event.at
    created: float = state.created
    return created


def _draft(note: Note) -> Draft:
    if not isinstance(note[0], int):
        return note
    number, conversation, notice, _, uid, *_ = note
    return queued(number, conversation, uid, notice.kind, notice.level, message_of(note))
