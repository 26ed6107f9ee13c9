"""The events of a transaction: written last in it, so that their numbers are in the order of the commits."""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from keephold.store.base import EVENTS_LIMIT, NOTIFICATION_TYPES, Collected, StoredEvent
from keephold.store.events import Draft
from keephold.store.sql.codec import Row, encode
from keephold.store.sql.listing import Query, Sql

if TYPE_CHECKING:
    from keephold.store.sql.transaction import Transaction

_NOTIFICATIONS = f"type IN ({', '.join(repr(each) for each in NOTIFICATION_TYPES)})"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


EventRow = tuple[float, str, str | None, str | None, bytes]


def event_rows(drafts: Iterable[Draft]) -> list[EventRow]:
    """Return the rows of drafted events, without their numbers."""
    at = time.time()
    return [(at, type, place, uid, encode(data)) for type, place, uid, data in drafts]


def note_events(tx: "Transaction") -> list[EventRow]:
    """Return the rows of the events of a transaction. Events wake other processes; for steps alone that is not
    urgent."""
    drafts = tx.events
    if drafts and not tx.touched:
        _, conversation, uid, _ = drafts[0]
        tx.touched.add(uid or conversation or "")
        tx.urgent = not all(type == "handle.stepped" for type, *_ in drafts)
    return event_rows(drafts)


def remove_events(tx: "Transaction", op: Collected) -> bool:
    """Delete events of that age, and those beyond the limit, oldest first and some at a time (S5). Returns whether
    there may be more."""
    row = tx.row(tx.sql["kept_events"], ())
    assert row is not None
    first, last = row
    if first is None:
        return False
    surplus = max(last - EVENTS_LIMIT - first + 1, 0)
    some = 10 * op.limit
    tx.run(tx.sql["remove_old_events"], (first + some, op.before))
    gone = tx.changes()
    if surplus:
        tx.run(tx.sql["remove_events"], (first + min(some, surplus),))
        gone += tx.changes()
    return gone >= some


def between(
    sql: Sql,
    after: int,
    limit: int,
    uid: str | None,
    conversation: str | None,
    notifications: bool,
    newest: bool,
    before: int | None,
) -> Query:
    """Return the query for these events."""
    conditions, bound = ["seq > ?"], [after]
    of_handle = "uid = ? AND type <> 'handle.stepped'"
    place = "conversation = ?" if notifications else "place = ?"
    wanted: Sequence[tuple[str, Any]] = (("seq < ?", before), (of_handle, uid), (place, conversation))
    for condition, value in wanted:
        if value is not None:
            conditions.append(condition)
            bound.append(value)
    if notifications:
        conditions.append(_NOTIFICATIONS)
    order = "DESC" if newest else "ASC"
    return f"{sql['events']} WHERE {' AND '.join(conditions)} ORDER BY seq {order} LIMIT ?", (*bound, limit)


def event_row(row: Row) -> StoredEvent:
    """A row of the query `events`."""
    seq, at, type, conversation, uid, data = row
    return StoredEvent(seq, at, type, conversation, uid, _decode(data))
