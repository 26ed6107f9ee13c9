"""The news that waits in one conversation of the memory store (N6).

A stop tells its news in the commit that somebody waits for. So that is only noted there, and sorted in when somebody
asks what is queued: nobody can see the difference.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from keephold.handles.state import State
from keephold.store.base import NOTIFICATION_LIMIT, Level, Notice, Notified, QueuedNotification
from keephold.store.endings import words
from keephold.store.notifications import CONTENT, DROPS, dropped

_AT_ONCE = 100
"""How many are sorted in at once, at most: that takes 0.1 ms."""
Undo = list[tuple[Any, ...]]
"""How to take back what a commit has done so far."""


class Wordless(NamedTuple):
    """News of a change that was not put into words yet."""

    notice: Notice
    id: str
    tool: str
    state: State


Told = Notice | Notified | QueuedNotification | Wordless


class Queue:
    """By number, and by the handle it is of. Adding and taking cost the same however much waits."""

    __slots__ = ("_dropped", "_dropped_at", "_lines", "_of", "_rows", "_told", "conversation", "gone")

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self._told: list[tuple[int, Told, float, str | None]] = []
        """Not sorted in yet."""
        self._rows: dict[int, QueuedNotification] = {}
        """In the order of the numbers."""
        self._of: dict[str, dict[int, None]] = {}
        """By uid the numbers."""
        self._lines: dict[Level, deque[int]] = {level: deque() for level in DROPS}
        """In what order they would go. May name some that have gone."""
        self._dropped = 0
        """How many went because too much waited."""
        self._dropped_at = 0.0
        self.gone: list[QueuedNotification] = []
        """What went because too much waited, until somebody has taken note of it."""

    def __bool__(self) -> bool:
        return bool(self._told or self._rows or self._dropped)

    def tell(
        self, number: int, told: Told, at: float, uid: str | None, kind: str, undo: Undo | None
    ) -> QueuedNotification | None:
        """Queue news; `number` is the highest so far. None: it will be there under that number, and nothing goes."""
        if undo is None and kind != CONTENT and len(self._told) + len(self._rows) < NOTIFICATION_LIMIT:
            self._told.append((number, told, at, uid))
            if len(self._told) >= _AT_ONCE:
                self._sort_in()
            return None
        self._sort_in()
        return self._add(number, told, at, uid, undo)

    def of(self, uid: str, kinds: Iterable[str] | None = None) -> list[QueuedNotification]:
        """The news of a handle, of those kinds or all."""
        self._sort_in()
        found = [self._rows[number] for number in self._of.get(uid, ())]
        return found if kinds is None else [news for news in found if news.kind in kinds]

    def all(self) -> list[QueuedNotification]:
        """By number, after the line that says how many went."""
        self._sort_in()
        line = [dropped(self.conversation, self._dropped, self._dropped_at)] if self._dropped else []
        return [*line, *self._rows.values()]

    def take(self, taken: list[QueuedNotification], undo: Undo | None) -> None:
        """Remove some of `of` or `all`."""
        if undo is not None:
            undo.append((self._put_back, taken, self._dropped, self._dropped_at))
        for news in taken:
            if news.number:
                self._remove(news)
            else:
                self._dropped = 0

    def _sort_in(self) -> None:
        if self._told:
            for each in self._told:
                self._add(*each, None)
            self._told.clear()

    def _add(self, number: int, told: Told, at: float, uid: str | None, undo: Undo | None) -> QueuedNotification:
        if isinstance(told, Wordless):
            told = replace(told.notice, message=words(told.id, told.tool, told.state))
        if told.kind == CONTENT and uid is not None:
            for each in self._of.get(uid, ()):
                if (before := self._rows[each]).kind == CONTENT:
                    renewed = replace(before, message=told.message or "", at=at)
                    self._renew(renewed)
                    if undo is not None:
                        undo.append((self._renew, before))
                    return renewed
        news = QueuedNotification(
            number, self.conversation, told.kind, told.level, told.message or "", at, uid, told.carriers
        )
        self._enter(news)
        if undo is not None:
            undo.append((self._remove, news))
        if len(self._rows) > NOTIFICATION_LIMIT and (oldest := self._first_to_go()) is not None:
            if undo is not None:
                undo.append((self._put_back, [oldest], self._dropped, self._dropped_at))
            self._remove(oldest)
            self._dropped, self._dropped_at = self._dropped + 1, at
            self.gone.append(oldest)
        return news

    def _enter(self, news: QueuedNotification) -> None:
        number, uid = news.number, news.uid
        self._rows[number] = news
        if uid is not None:
            self._of.setdefault(uid, {})[number] = None
        line = self._lines.get(news.level)
        if line is not None:
            line.append(number)
            if len(line) > 2 * NOTIFICATION_LIMIT:
                self._lines[news.level] = deque(each for each in line if each in self._rows)

    def _renew(self, news: QueuedNotification) -> None:
        """In the place of the one that had its number."""
        self._rows[news.number] = news

    def _remove(self, news: QueuedNotification) -> None:
        del self._rows[news.number]
        if news.uid is not None:
            numbers = self._of[news.uid]
            del numbers[news.number]
            if not numbers:
                del self._of[news.uid]

    def _first_to_go(self) -> QueuedNotification | None:
        for line in self._lines.values():
            while line:
                if (news := self._rows.get(line[0])) is not None:
                    return news
                line.popleft()
        return None

    def _put_back(self, removed: Iterable[QueuedNotification], count: int, at: float) -> None:
        """As if they had not been removed, and the count were what it was."""
        self._dropped, self._dropped_at = count, at
        rows = sorted((*self._rows.values(), *(news for news in removed if news.number)), key=lambda news: news.number)
        self._rows, self._of, self._lines = {}, {}, {level: deque() for level in DROPS}
        for news in rows:
            self._enter(news)
