"""How every store treats notifications (N): what a reply takes back, what a full queue drops, and the order of
delivery."""

from collections.abc import Iterable

from keephold.store.rows import Level, QueuedNotification, Shown

CONTENT = "tool.content"
"""The kind of which at most one is queued for a handle (N6)."""
READY = "tool.ready"
DROPS: tuple[Level, ...] = ("info", "warning", "error")
"""Which level a full queue drops first (N6); `critical` is never dropped."""
TAKES: dict[Shown, tuple[str, ...] | None] = {
    "running": (CONTENT,),
    "waiting": ("tool.waiting", CONTENT),
    "asked": ("tool.waiting",),
    "ready": (READY,),
    "stopped": None,
}
"""Which kinds of a handle's notifications a reply takes back by showing the handle like that (N3). None: all."""


def dropped(conversation: str, count: int, at: float) -> QueuedNotification:
    """Return the line that stands for dropped notifications (N6)."""
    went = "1 earlier notification was dropped." if count == 1 else f"{count} earlier notifications were dropped."
    return QueuedNotification(0, conversation, "keephold.dropped", "info", went, at)


def in_order(notifications: Iterable[QueuedNotification]) -> tuple[QueuedNotification, ...]:
    """Return notifications in the order of delivery: `critical` first, else by number (N4)."""
    return tuple(sorted(notifications, key=lambda each: (each.level != "critical", each.number)))
