"""The news that waits in one conversation (N6): found by handle, and by level, oldest first."""

from collections.abc import Iterable

from holdfast.store.base import Level, News
from holdfast.store.news import CONTENT, DROPS, dropped


class Queue:
    """In each level by number. Adding and taking cost the same however much waits."""

    __slots__ = ("_levels", "_of", "dropped", "dropped_at")

    def __init__(self) -> None:
        self._levels: dict[Level, dict[int, News]] = {}
        self._of: dict[str, dict[int, News]] = {}
        self.dropped = 0
        """How many went because too much waited."""
        self.dropped_at = 0.0

    def __bool__(self) -> bool:
        return self.dropped > 0 or self.waiting > 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._levels.values()))

    def add(self, news: News) -> None:
        """Of the highest number so far, or in the place of the one that had its number."""
        level = self._levels.get(news.level)
        if level is None:
            level = self._levels[news.level] = {}
        level[news.number] = news
        if news.uid is not None:
            of = self._of.get(news.uid)
            if of is None:
                self._of[news.uid] = {news.number: news}
            else:
                of[news.number] = news

    def remove(self, news: News) -> None:
        del self._levels[news.level][news.number]
        if news.uid is not None:
            of = self._of[news.uid]
            del of[news.number]
            if not of:
                del self._of[news.uid]

    def put_back(self, removed: Iterable[News]) -> None:
        """Where it was before it was removed."""
        for news in removed:
            self.add(news)
        self._levels = {name: dict(sorted(level.items())) for name, level in self._levels.items()}

    def content(self, uid: str) -> News | None:
        """The one news of what a handle printed."""
        return next((news for news in self._of.get(uid, {}).values() if news.kind == CONTENT), None)

    def of(self, uid: str, kinds: Iterable[str] | None = None) -> list[News]:
        """The news of a handle, of those kinds or all."""
        return [news for news in self._of.get(uid, {}).values() if kinds is None or news.kind in kinds]

    def first_to_go(self) -> News | None:
        return next((next(iter(level.values())) for name in DROPS if (level := self._levels.get(name))), None)

    def all(self, conversation: str) -> list[News]:
        """By number, what went first."""
        found = [(number, news) for level in self._levels.values() for number, news in level.items()]
        line = [dropped(conversation, self.dropped, self.dropped_at)] if self.dropped else []
        return [*line, *(news for _, news in sorted(found))]
