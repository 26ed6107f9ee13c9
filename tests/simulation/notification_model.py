"""The news of a store, in a list: what the journal machine compares the queues of a real one with (N)."""

from msgspec.structs import replace

from keephold.store.base import CARRIERS, Carrier, Notice, Notified, QueuedNotification, Shown

LIMIT = 3
"""How much waits in a conversation of the machine: few enough to be too many now and then."""


class NotificationModel:
    """All that is queued, oldest first, and how much went in each conversation."""

    def __init__(self) -> None:
        self.queued: list[QueuedNotification] = []
        self.went: dict[str, tuple[int, float]] = {}
        self.told = 0
        """News so far; a number is not used again."""

    def of(self, conversation: str) -> list[QueuedNotification]:
        """As it is read."""
        count, at = self.went.get(conversation, (0, 0.0))
        said = "1 earlier notification was dropped." if count == 1 else f"{count} earlier notifications were dropped."
        line = [QueuedNotification(0, conversation, "keephold.dropped", "info", said, at)] if count else []
        return line + [news for news in self.queued if news.conversation == conversation]

    def tell(self, conversation: str, told: Notice | Notified | QueuedNotification, at: float, uid: str | None) -> None:
        for place, news in enumerate(self.queued):
            same = (news.conversation, news.uid, news.kind) == (conversation, uid, "tool.content")
            if same and told.kind == "tool.content" and uid is not None:
                self.queued[place] = replace(news, message=told.message, at=at)
                return
        self.told += 1
        assert told.message is not None
        news = QueuedNotification(self.told, conversation, told.kind, told.level, told.message, at, uid, told.carriers)
        self.queued.append(news)
        waiting = [news for news in self.queued if news.conversation == conversation]
        going = [news for level in ("info", "warning", "error") for news in waiting if news.level == level]
        if len(waiting) > LIMIT and going:
            self.queued.remove(going[0])
            self.went[conversation] = (self.went.get(conversation, (0, 0.0))[0] + 1, at)

    def take_back(self, conversation: str, shown: tuple[tuple[str, Shown], ...]) -> None:
        question, content = "tool.waiting", "tool.content"
        taken = {"running": (content,), "waiting": (content, question), "asked": (question,)}
        for uid, state in shown:
            self.queued = [
                news
                for news in self.queued
                if (news.uid, news.conversation) != (uid, conversation)
                or (state != "stopped" and news.kind not in taken[state])
            ]

    def deliver(self, conversation: str, carriers: tuple[Carrier, ...]) -> tuple[QueuedNotification, ...]:
        ridden = [news for news in self.of(conversation) if set(news.carriers) & set(carriers)]
        self.queued = [news for news in self.queued if news not in ridden]
        if set(carriers) & set(CARRIERS):
            self.went.pop(conversation, None)
        return tuple(sorted(ridden, key=lambda news: news.level != "critical"))
