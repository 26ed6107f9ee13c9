"""The operations on transcripts and descriptions of conversations."""

import math
from collections.abc import Mapping
from typing import Any

from keephold.store import base
from keephold.store.metadata import merged
from keephold.store.sqlite.codec import conversation_row, encode
from keephold.store.sqlite.listing import Query
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import Transaction

_NOTHING = encode({})


def said(tx: Transaction, op: base.Said) -> int:
    row = tx.row(SQL["say"], (op.conversation, op.at, len(op.lines), _NOTHING))
    assert row is not None
    conversation, last = row
    first = last - len(op.lines) + 1
    lines = ((conversation, number, op.turn, kind, op.at, body) for number, (kind, body) in enumerate(op.lines, first))
    tx.many(SQL["add_line"], lines)
    return int(last)


def described(tx: Transaction, op: base.Described) -> None:
    row = tx.row(SQL["described"], (op.conversation,))
    metadata = merged(None if row is None else conversation_row(row).metadata, op.metadata)
    tx.run(SQL["describe"], (op.conversation, op.at, encode(metadata)))


def forgotten(tx: Transaction, op: base.Forgotten) -> bool:
    tx.run(SQL["forget"], (op.conversation,))
    return bool(tx.changes())


def newest(metadata: Mapping[str, Any] | None, before: tuple[float, str] | None, limit: int) -> Query:
    """The query for a page of conversations."""
    start = (math.inf, "") if before is None else before
    wanted: Query = ("", ()) if metadata is None else (" AND holds(metadata, ?)", (encode(metadata),))
    return f"{SQL['conversations']}{wanted[0]} ORDER BY updated DESC, id DESC LIMIT ?", (*start, *wanted[1], limit)
