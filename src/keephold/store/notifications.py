"""What all stores agree on about news (N): what a reply takes back, what goes when too much waits, and the order."""

from collections.abc import Iterable

from keephold.store.rows import Level, QueuedNotification, Shown

CONTENT = "tool.content"
"""One is queued for a handle (N6)."""
DROPS: tuple[Level, ...] = ("info", "warning", "error")
"""What goes first when too much waits (N6); `critical` never does."""
TAKES: dict[Shown, tuple[str, ...] | None] = {
    "running": (CONTENT,),
    "waiting": ("tool.waiting", CONTENT),
    "asked": ("tool.waiting",),
    "stopped": None,
}
"""Which kinds of news of a handle are none any more when it was shown like that (N3). None: all."""


def dropped(conversation: str, count: int, at: float) -> QueuedNotification:
    """The line that stands in the place of what went (N6)."""
    went = "1 earlier notification was dropped." if count == 1 else f"{count} earlier notifications were dropped."
    return QueuedNotification(0, conversation, "keephold.dropped", "info", went, at)


def in_order(news: Iterable[QueuedNotification]) -> tuple[QueuedNotification, ...]:
    """As it is delivered: `critical` first, else by number (N4)."""
    return tuple(sorted(news, key=lambda each: (each.level != "critical", each.number)))
