"""Letting go of what is old (S5): handles, then their tombstones, the turns that nobody will ask for, and events."""

from typing import Any

from keephold.store import base
from keephold.store.base import TOMBSTONE_SECS, TOMBSTONES
from keephold.store.sqlite.codec import encode
from keephold.store.sqlite.events import remove_events
from keephold.store.sqlite.listing import Query
from keephold.store.sqlite.notifications import expire
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import Transaction


def expired(op: base.Collected) -> Query:
    """The query for what the operation is about, by `number`, what stopped first first."""
    conditions = [SQL["expired"]]
    bound: list[Any] = [op.before]
    if op.conversation is not None:
        conditions.append("h.conversation = ?")
        bound.append(op.conversation)
    for column, values in (("h.kind", op.kinds or None), ("h.status", op.statuses or None), ("h.uid", op.only)):
        if values is not None:
            conditions.append(f"{column} IN (SELECT value FROM json_each(?))")
            bound.append(encode(values).decode())
    return f"{' AND '.join(conditions)} ORDER BY h.stopped_at LIMIT ?", (*bound, op.limit)


def collected(tx: Transaction, op: base.Collected) -> int:
    _remove_litter(tx)
    gone = tx.rows(*expired(op))
    tx.forgetful = True
    for number, uid, id, conversation, file in gone:
        tx.run(SQL["add_tombstone"], (uid, id, conversation, op.at))
        tx.run(SQL["remove_journal"], (number,))
        tx.run(SQL["remove_output"], (number,))
        tx.run(SQL["remove_process_events"], (uid,))
        expire(tx, uid)
        tx.run(SQL["remove_handle"], (number,))
        if file is not None:
            tx.run(SQL["add_litter"], (file,))
            tx.litter.append(file)
        tx.touched.add(uid)
    forgotten = tx.rows(SQL["remove_old_tombstones"], (op.at - TOMBSTONE_SECS, op.limit))
    for conversation in {row[3] for row in gone}:
        forgotten += tx.rows(SQL["remove_surplus_tombstones"], (conversation, TOMBSTONES))
    for (uid,) in forgotten:
        tx.run(SQL["remove_waits"], (uid,))
    if not op.partial:
        for conversation, turn in tx.rows(SQL["remove_old_turns"], (op.before, op.limit)):
            tx.run(SQL["remove_batches"], (conversation, turn))
        tx.run(SQL["remove_old_inquiries"], (op.before, op.limit))
        remove_events(tx, op)
    return len(gone)


def _remove_litter(tx: Transaction) -> None:
    """Files whose handles went in an earlier transaction, should a crash have come before their own removal."""
    for (file,) in tx.rows(SQL["litter"], ()):
        (tx.directory / file).unlink(missing_ok=True)
        tx.run(SQL["remove_litter"], (file,))
