"""The notifications queued in one conversation of the memory store (N6).

A stop queues its notification in the commit that a waiting coroutine depends on. So the commit only appends an entry;
the queue sorts entries in, and puts them into words, when somebody reads it. Nobody can see the difference.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from keephold.handles.state import State
from keephold.store.base import NOTIFICATION_LIMIT, Level, Notice, Notified, QueuedNotification
from keephold.store.rules import CONTENT, DROPS, dropped, words

SORTED_AT_ONCE = 100
"""How many entries may wait to be sorted in; sorting these takes 0.1 ms."""
Undo = list[tuple[Any, ...]]
"""How to undo what a commit has done so far."""
QueueEntry = tuple[int, str, Notice | Notified | QueuedNotification, float, str | None, str, str, State | None]
"""Number, conversation, notification, time, uid of the handle; and the handle's id, tool and state, if the notification
has no message yet."""


def message_of(entry: QueueEntry) -> str:
    """Return the entry's message, put into words if it has none."""
    _, _, notice, _, _, id, tool, state = entry
    return words(id, tool, state) if notice.message is None and state is not None else notice.message or ""


class Queue:
    """Queued notifications by number and by handle. Adding and taking cost the same however long the queue is."""

    __slots__ = ("_by_uid", "_drop_order", "_dropped", "_dropped_at", "conversation", "evicted", "rows", "unsorted")

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self.unsorted: list[QueueEntry] = []
        """Entries that are not in `rows` yet. Append only while there is room (`NOTIFICATION_LIMIT`) and no undo."""
        self.rows: dict[int, QueuedNotification] = {}
        """In the order of the numbers."""
        self._by_uid: dict[str, dict[int, None]] = {}
        self._drop_order: dict[Level, deque[int]] | None = None
        """The order in which numbers would be dropped, once there are rows. May name numbers that are gone."""
        self._dropped = 0
        self._dropped_at = 0.0
        self.evicted: list[QueuedNotification] = []
        """Dropped because the queue was full, until their events are noted."""

    def __bool__(self) -> bool:
        return bool(self.unsorted or self.rows or self._dropped)

    def of(self, uid: str, kinds: Iterable[str] | None = None) -> list[QueuedNotification]:
        """Return the notifications of a handle, of those kinds or all."""
        self.sort_in()
        found = [self.rows[number] for number in self._by_uid.get(uid, ())]
        return found if kinds is None else [each for each in found if each.kind in kinds]

    def all(self) -> list[QueuedNotification]:
        """Return the queue by number, after the line that says how many were dropped."""
        self.sort_in()
        line = [dropped(self.conversation, self._dropped, self._dropped_at)] if self._dropped else []
        return [*line, *self.rows.values()]

    def take(self, taken: list[QueuedNotification], undo: Undo | None) -> None:
        """Remove some of `of` or `all`."""
        if undo is not None:
            undo.append((self._put_back, taken, self._dropped, self._dropped_at))
        for each in taken:
            if each.number:
                self._remove(each)
            else:
                self._dropped = 0

    def sort_in(self) -> None:
        """Move the unsorted entries into `rows`."""
        if self.unsorted:
            for entry in self.unsorted:
                self.add(entry, None)
            self.unsorted.clear()

    def add(self, entry: QueueEntry, undo: Undo | None) -> QueuedNotification:
        """Queue one notification; its number is the highest so far. Output of a handle replaces its earlier line."""
        number, _, notice, at, uid, *_ = entry
        message = message_of(entry)
        if notice.kind == CONTENT and uid is not None:
            for each in self._by_uid.get(uid, ()):
                if (before := self.rows[each]).kind == CONTENT:
                    renewed = replace(before, message=message, at=at)
                    self._renew(renewed)
                    if undo is not None:
                        undo.append((self._renew, before))
                    return renewed
        added = QueuedNotification(
            number, self.conversation, notice.kind, notice.level, message, at, uid, notice.carriers
        )
        self._enter(added)
        if undo is not None:
            undo.append((self._remove, added))
        if len(self.rows) > NOTIFICATION_LIMIT and (oldest := self._first_to_drop()) is not None:
            if undo is not None:
                undo.append((self._put_back, [oldest], self._dropped, self._dropped_at))
            self._remove(oldest)
            self._dropped, self._dropped_at = self._dropped + 1, at
            self.evicted.append(oldest)
        return added

    def _enter(self, added: QueuedNotification) -> None:
        number, uid = added.number, added.uid
        self.rows[number] = added
        if uid is not None:
            self._by_uid.setdefault(uid, {})[number] = None
        if self._drop_order is None:
            self._drop_order = {level: deque() for level in DROPS}
        line = self._drop_order.get(added.level)
        if line is not None:
            line.append(number)
            if len(line) > 2 * NOTIFICATION_LIMIT:
                self._drop_order[added.level] = deque(each for each in line if each in self.rows)

    def _renew(self, changed: QueuedNotification) -> None:
        self.rows[changed.number] = changed

    def _remove(self, removed: QueuedNotification) -> None:
        del self.rows[removed.number]
        if removed.uid is not None:
            numbers = self._by_uid[removed.uid]
            del numbers[removed.number]
            if not numbers:
                del self._by_uid[removed.uid]

    def _first_to_drop(self) -> QueuedNotification | None:
        for line in (self._drop_order or {}).values():
            while line:
                if (found := self.rows.get(line[0])) is not None:
                    return found
                line.popleft()
        return None

    def _put_back(self, removed: Iterable[QueuedNotification], count: int, at: float) -> None:
        """Undo a removal, and set the count to what it was."""
        self._dropped, self._dropped_at = count, at
        rows = sorted((*self.rows.values(), *(each for each in removed if each.number)), key=lambda each: each.number)
        self.rows, self._by_uid, self._drop_order = {}, {}, None
        for each in rows:
            self._enter(each)
