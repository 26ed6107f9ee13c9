"""The operations on turns, their batches and inquiries, and on events, requests and secrets.

The operations on transcripts and descriptions of conversations.
"""

import math
from collections.abc import Mapping
from typing import Any

from keephold.errors import KeepholdError
from keephold.store import base
from keephold.store.base import QueuedNotification
from keephold.store.metadata import merged
from keephold.store.sqlite.codec import conversation_row, encode, text
from keephold.store.sqlite.listing import Query
from keephold.store.sqlite.notifications import deliver, queue_again, take_back
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.transaction import Transaction


def turn_began(tx: Transaction, op: base.TurnBegan) -> None:
    row = tx.row(SQL["open_turn"], (op.conversation,))
    is_open, owner = (None, None) if row is None else row[:2]
    if is_open != op.was or op.was_owner not in (None, owner):
        raise KeepholdError(
            f"turn `{op.was}` of conversation `{op.conversation}` is not open any more; begin a new one"
            if is_open is None
            else f"conversation `{op.conversation}` has an open turn, `{is_open}`; end or resume that one first",
            code="turn_open",
        )
    if op.was is not None:
        queue_again(tx, op.conversation, resumed=op.was == op.turn)
    if op.was is not None and op.was != op.turn:
        tx.run(SQL["end_turn"], (op.at, op.conversation, op.was))
    tx.run(SQL["begin_turn"], (op.conversation, op.turn, tx.owner, op.at))


def turn_ended(tx: Transaction, op: base.TurnEnded) -> bool:
    tx.run(SQL["end_turn"], (op.at, op.conversation, op.turn))
    return bool(tx.changes())


def opened(tx: Transaction, op: base.Opened) -> None:
    tx.run(SQL["count_batch"], (op.batch, op.conversation, op.turn))
    if tx.changes():
        tx.run(SQL["open_batch"], (op.conversation, op.turn, op.batch, encode(op.calls)))


def responded(tx: Transaction, op: base.Responded) -> tuple[QueuedNotification, ...]:
    take_back(tx, op.conversation, op.shown)
    news = deliver(tx, op.conversation, op.carry)
    carried = encode(news) if news else None
    tx.run(SQL["answer_batch"], (encode(op.responses), carried, op.conversation, op.turn, op.batch))
    tx.run(SQL["close_batch"], (op.conversation, op.turn, op.batch))
    if news and tx.changes():
        tx.run(SQL["carry"], (carried, "response", op.conversation))
    for uid, cursor in op.cursors:
        tx.run(SQL["show_output"], (uid, cursor))
    return news


def inquired(tx: Transaction, op: base.Inquired) -> None:
    request, answer, error = encode(op.request), encode(op.answer), None if op.error is None else text(op.error)
    tx.run(SQL["inquire"], (op.id, op.conversation, op.turn, op.uid, op.at, request, answer, error))


def emitted(tx: Transaction, op: base.Emitted) -> int:
    row = tx.row(SQL["emit"], (op.process, op.type, encode(op.payload), op.at))
    assert row is not None
    return int(row[0])


def hook_called(tx: Transaction, op: base.HookCalled) -> None:
    tx.run(SQL["call_hook"], (op.uid,))
    tx.touched.add(op.uid)


def requested(tx: Transaction, op: base.Requested) -> None:
    tx.run(SQL["request"], (op.id, op.uid, tx.owner, op.to, op.body))
    tx.touched.add(op.uid)


def replied(tx: Transaction, op: base.Replied) -> None:
    for (uid,) in tx.rows(SQL["reply"], (op.body, op.id)):
        tx.touched.update((op.id, uid))


def request_closed(tx: Transaction, op: base.RequestClosed) -> None:
    tx.run(SQL["close_request"], (op.id,))


def secret_added(tx: Transaction, op: base.SecretAdded) -> None:
    tx.run(SQL["add_secret"], (op.id, op.secret, op.at))


_NOTHING = encode({})


def said(tx: Transaction, op: base.TranscriptAppended) -> int:
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
