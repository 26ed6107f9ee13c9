"""How news comes to a conversation, and how it goes (N). The database itself counts what waits: see the schema."""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec.structs import replace

from keephold.handles.state import State
from keephold.store import base
from keephold.store.base import NOTIFICATION_LIMIT, Carrier, Notice, QueuedNotification, Shown
from keephold.store.endings import words
from keephold.store.events import queued, removed
from keephold.store.notifications import CONTENT, DROPS, TAKES, dropped, in_order
from keephold.store.sqlite.codec import carrier_bits, decode_notification, encode, notification_row, text
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import Transaction

_NOTIFY, _WAITING = SQL["notify"], SQL["waiting"]


def tell(
    tx: Transaction, conversation: str, told: Notice | base.Notified | QueuedNotification, at: float, uid: str | None
) -> None:
    """Queue it. This is in the commit of every stop that is news: it must cost little, however much waits."""
    tx.touched.add(conversation if uid is None else uid)
    message = text(told.message or "")
    if told.kind == CONTENT and uid is not None:
        renewed = tx.row(SQL["renew"], (message, at, uid, CONTENT, conversation))
        if renewed is not None:
            tx.events.append(queued(renewed[0], conversation, uid, told.kind, renewed[1], message))
            return
    tx.run(_NOTIFY, (conversation, told.kind, told.level, message, at, uid, carrier_bits(told.carriers)))
    tx.events.append(queued(tx.last_row(), conversation, uid, told.kind, told.level, message))
    row = tx.row(_WAITING, (conversation,))
    assert row is not None
    if row[0] > NOTIFICATION_LIMIT:
        _drop(tx, conversation, row[0] - NOTIFICATION_LIMIT, at)


Named = tuple[str, str, str]
"""A handle's conversation, its id, and its tool."""


def tell_of(tx: Transaction, named: Named, uid: str, state: State, told: Notice, at: float) -> None:
    """Queue the news of a change of a handle, in its own words or in ours."""
    conversation, id, tool = named
    if told.message is None:
        told = replace(told, message=words(id, tool, state))
    tell(tx, conversation, told, at, uid)


def _drop(tx: Transaction, conversation: str, surplus: int, at: float) -> None:
    """Let go of that many, or of all that may go. A store of version 0.1, which had no limit, may hold many more."""
    gone = 0
    for level in DROPS:
        if gone < surplus:
            gone += len(_remove(tx, "dropped", "drop_oldest", conversation, level, surplus - gone))
    if gone:
        tx.run(SQL["count_dropped"], (gone, at, conversation))


def take_back(tx: Transaction, conversation: str, shown: Iterable[tuple[str, Shown]]) -> None:
    """News of what was shown is no news (N3)."""
    for uid, state in shown:
        kinds = TAKES[state]
        if kinds is None:
            _remove(tx, "shown", "take_back", uid, conversation)
        else:
            for kind in kinds:
                _remove(tx, "shown", "take_back_kind", uid, kind, conversation)


def expire(tx: Transaction, uid: str) -> None:
    """The handle of the news is gone (S5)."""
    _remove(tx, "expired", "remove_notifications", uid)


def _remove(
    tx: Transaction, by: Literal["shown", "dropped", "expired"], query: str, *bindings: Any
) -> list[QueuedNotification]:
    gone = sorted((notification_row(row) for row in tx.rows(SQL[query], bindings)), key=lambda news: news.number)
    tx.events += [removed(news, by) for news in gone]
    return gone


def deliver(tx: Transaction, conversation: str, carriers: tuple[Carrier, ...]) -> tuple[QueuedNotification, ...]:
    """What may ride on one of them, in order. It is queued no more."""
    queue = tx.row(SQL["queue"], (conversation,)) if carriers else None
    if queue is None:
        return ()
    count, at = queue
    found = []
    if count:
        found.append(dropped(conversation, count, at))
        tx.run(SQL["tell_dropped"], (conversation,))
    found += [notification_row(row) for row in tx.rows(SQL["deliver"], (conversation, carrier_bits(carriers)))]
    return in_order(found)


def queue_again(tx: Transaction, conversation: str, *, resumed: bool) -> None:
    """What the open turn was handed last may not have arrived: its process is dead (N3)."""
    row = tx.row(SQL["carried"], (conversation,))
    if row is None or (resumed and row[1] == "response"):
        return
    for each in decode_notification(row[0]):
        tell(tx, conversation, each, each.at, each.uid)


def notified(tx: Transaction, op: base.Notified) -> None:
    tell(tx, op.conversation, op, op.at, op.uid)


def taken_back(tx: Transaction, op: base.TakenBack) -> None:
    take_back(tx, op.conversation, op.shown)


def handed_out(tx: Transaction, op: base.HandedOut) -> None:
    tx.run(SQL["carry"], (encode(op.notifications) if op.notifications else None, "message", op.conversation))


def delivered(tx: Transaction, op: base.Delivered) -> tuple[QueuedNotification, ...]:
    news = deliver(tx, op.conversation, (op.carrier,))
    tx.run(SQL["carry"], (encode(news) if news else None, op.carrier, op.conversation))
    return news
