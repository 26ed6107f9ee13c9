"""How news comes to a conversation of the memory store, and how it goes (N)."""

from keephold.handles.state import State
from keephold.store import base
from keephold.store.base import Carrier, Notice, QueuedNotification, Record, Shown
from keephold.store.events import queued, removed
from keephold.store.memory.notification_queue import Queue, Told, Wordless
from keephold.store.memory.reads import Reads
from keephold.store.memory.tables import ConversationTables
from keephold.store.notifications import TAKES, in_order


class Telling(Reads):
    """The operations on news."""

    def _tell(self, conversation: str, told: Told, at: float, uid: str | None, kind: str) -> None:
        known = self._conversations.get(conversation) or self._conversation(conversation)
        queue = known.queue
        if queue is None:
            queue = known.queue = Queue(conversation)
        self._numbers += 1
        news = queue.tell(self._numbers, told, at, uid, kind, self._undo)
        if news is None:
            self._history.noted += ((self._numbers, conversation, told, uid),)
            return
        self._history.noted += (queued(news.number, conversation, uid, kind, news.level, news.message),)
        if queue.gone:
            self._history.noted += tuple(removed(each, "dropped") for each in queue.gone)
            queue.gone = []

    def _tell_of(self, record: Record, state: State, told: Notice, at: float) -> None:
        """The news of a change. It is put into words when somebody wants to read it."""
        if told.message is None:
            self._tell(record.conversation, Wordless(told, record.id, record.tool, state), at, record.uid, told.kind)
        else:
            self._tell(record.conversation, told, at, record.uid, told.kind)

    def _take_back(self, known: ConversationTables, shown: tuple[tuple[str, Shown], ...]) -> None:
        queue = known.queue
        if queue:
            for uid, state in shown:
                found = queue.of(uid, TAKES[state])
                if found:
                    queue.take(found, self._undo)
                    self._history.noted += tuple(removed(news, "shown") for news in found)

    def _deliver(self, known: ConversationTables, carriers: tuple[Carrier, ...]) -> tuple[QueuedNotification, ...]:
        queue = known.queue
        if not queue or not carriers:
            return ()
        ridden = set(carriers)
        found = [news for news in queue.all() if not ridden.isdisjoint(news.carriers)]
        queue.take(found, self._undo)
        return in_order(found)

    def _notified(self, op: base.Notified) -> None:
        self._tell(op.conversation, op, op.at, op.uid, op.kind)

    def _taken_back(self, op: base.TakenBack) -> None:
        known = self._conversations.get(op.conversation)
        if known is not None:
            self._take_back(known, op.shown)

    def _handed_out(self, op: base.HandedOut) -> None:
        known = self._conversations.get(op.conversation)
        if known is not None:
            self._set_carried(known, "message", op.notifications)

    def _delivered(self, op: base.Delivered) -> tuple[QueuedNotification, ...]:
        known = self._conversations.get(op.conversation)
        if known is None:
            return ()
        news = self._deliver(known, (op.carrier,))
        self._set_carried(known, op.carrier, news)
        return news
