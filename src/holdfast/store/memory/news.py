"""How news comes to a conversation of the memory store, and how it goes (N)."""

from msgspec.structs import replace

from holdfast.store import base
from holdfast.store.base import NEWS_LIMIT, Carrier, News, Notice, Shown
from holdfast.store.memory.queue import Queue
from holdfast.store.memory.reads import Reads
from holdfast.store.memory.tables import Conversation
from holdfast.store.news import CONTENT, TAKES, in_order


class Telling(Reads):
    """The operations on news. The commit of a stop tells, too: it must cost next to nothing."""

    def _tell(self, conversation: str, told: Notice | base.Notified, at: float, uid: str | None) -> None:
        known = self._conversations.get(conversation) or self._conversation(conversation)
        queue = known.news
        if queue is None:
            queue = known.news = Queue()
        if told.kind == CONTENT and uid is not None and (before := queue.content(uid)) is not None:
            queue.add(replace(before, message=told.message, at=at))
            if self._undo is not None:
                self._undo.append((queue.add, before))
            return
        self._numbers += 1
        news = News(self._numbers, conversation, told.kind, told.level, told.message, at, uid, told.carriers)
        queue.add(news)
        if self._undo is not None:
            self._undo.append((queue.remove, news))
        if queue.waiting > NEWS_LIMIT and (oldest := queue.first_to_go()) is not None:
            self._remove_news(queue, [oldest])
            self._count_dropped(queue, queue.dropped + 1, at)

    def _remove_news(self, queue: Queue, removed: list[News]) -> None:
        for news in removed:
            queue.remove(news)
        if self._undo is not None:
            self._undo.append((queue.put_back, removed))

    def _count_dropped(self, queue: Queue, count: int, at: float) -> None:
        if self._undo is not None:
            self._undo.append((setattr, queue, "dropped", queue.dropped))
            self._undo.append((setattr, queue, "dropped_at", queue.dropped_at))
        queue.dropped, queue.dropped_at = count, at

    def _take_back(self, known: Conversation, shown: tuple[tuple[str, Shown], ...]) -> None:
        queue = known.news
        if queue:
            for uid, state in shown:
                self._remove_news(queue, queue.of(uid, TAKES[state]))

    def _deliver(self, conversation: str, carriers: tuple[Carrier, ...]) -> tuple[News, ...]:
        known = self._conversations.get(conversation)
        queue = None if known is None else known.news
        if not queue or not carriers:
            return ()
        ridden = set(carriers)
        found = [news for news in queue.all(conversation) if not ridden.isdisjoint(news.carriers)]
        self._remove_news(queue, [news for news in found if news.number])
        if queue.dropped:
            self._count_dropped(queue, 0, 0.0)
        return in_order(found)

    def _notified(self, op: base.Notified) -> None:
        self._tell(op.conversation, op, op.at, op.uid)

    def _taken_back(self, op: base.TakenBack) -> None:
        known = self._conversations.get(op.conversation)
        if known is not None:
            self._take_back(known, op.shown)

    def _delivered(self, op: base.Delivered) -> tuple[News, ...]:
        return self._deliver(op.conversation, (op.carrier,))
