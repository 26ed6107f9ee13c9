"""Encode values as columns and decode columns: JSON by msgspec, MessagePack where there are bytes inside."""

import json
from typing import Any

import msgspec

from keephold.handles.state import Progress, State
from keephold.store.base import (
    CARRIERS,
    Allowed,
    Answers,
    Carrier,
    ConversationRow,
    ConversationSummary,
    Entry,
    Given,
    InquiryRow,
    KeptOutput,
    Parking,
    QueuedNotification,
    Record,
    Resolution,
    WaitRow,
    made_at,
)
from keephold.store.rules import dropped

Calls = tuple[tuple[str, str, dict[str, Any] | str, str | None], ...]
Row = tuple[Any, ...]

_encoder = msgspec.json.Encoder()
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_allowed = msgspec.json.Decoder(Allowed).decode
_decode_kept = msgspec.msgpack.Decoder(KeptOutput).decode
_state = msgspec.json.Decoder(State)
decode_parking = msgspec.json.Decoder(Parking).decode
decode_resolution = msgspec.json.Decoder(Resolution).decode
decode_calls = msgspec.json.Decoder(Calls).decode
decode_answers = msgspec.json.Decoder(tuple[Given, ...]).decode
decode_notification = msgspec.json.Decoder(tuple[QueuedNotification, ...]).decode
decode = msgspec.json.Decoder().decode
encode_kept = msgspec.msgpack.Encoder().encode


def encode(value: object) -> bytes:
    """Return the value as JSON. Half of a surrogate pair, which has no UTF-8, becomes a question mark."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "replace")


def text(value: str) -> str:
    """Return the text as databases take it: half of a surrogate pair becomes a question mark here, too. The character
    NUL, which PostgreSQL refuses, becomes U+FFFD."""
    value = value.replace("\0", "\ufffd")
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def carrier_bits(carriers: tuple[Carrier, ...]) -> int:
    """Return the column `carriers`: a bit for each."""
    return _BITS_OF_ALL if carriers is CARRIERS else sum({1 << CARRIERS.index(carrier) for carrier in carriers})


_BITS_OF_ALL = (1 << len(CARRIERS)) - 1
_CARRIERS = [tuple(c for bit, c in enumerate(CARRIERS) if bits & 1 << bit) for bits in range(_BITS_OF_ALL + 1)]


def decode_state(state: bytes) -> State:
    decoded: State = _state.decode(state)
    return decoded


def record(row: Row) -> Record:
    """A row of the query `records`."""
    (uid, id, tool, conversation, turn, batch, position, call_id, stateful, state, arguments, kind, priority, metadata,
     progress, resources, owner, fence, attempt, next_attempt_at, deaths, standing, retry_of, parking, cursor, kept,
     allowed, ready) = row  # fmt: skip
    return Record(
        uid=uid,
        id=id,
        tool=tool,
        conversation=conversation,
        turn=turn,
        batch=batch,
        position=position,
        call_id=call_id,
        stateful=bool(stateful),
        state=decode_state(state),
        arguments=_decode_object(arguments),
        kind=kind,
        priority=priority,
        metadata=None if metadata is None else _decode_object(metadata),
        progress=None if progress is None else _decode_progress(progress),
        resources=() if resources is None else _decode_names(resources),
        owner=owner,
        fence=fence,
        attempt=attempt,
        next_attempt_at=next_attempt_at,
        ready=ready,
        deaths=deaths,
        standing=standing,
        retry_of=retry_of,
        parking=None if parking is None else decode_parking(parking),
        cursor=cursor,
        output=None if kept is None else _decode_kept(kept),
        allowed=None if allowed is None else _decode_allowed(allowed),
    )


def answers(responses: bytes, notifications: bytes | None) -> Answers:
    """Return a batch's responses and the notifications delivered with them."""
    return Answers(decode_answers(responses), () if notifications is None else decode_notification(notifications))


def summary_row(row: Row) -> ConversationSummary:
    """A row of the query `summaries`."""
    id, handles, live, newest, turned, updated, metadata = row
    latest = max(made_at(newest or ""), turned or 0.0, updated or 0.0)
    return ConversationSummary(id, handles, live, latest, None if metadata is None else _decode_object(metadata))


def wait_row(row: Row) -> WaitRow:
    """A row of the queries `waits` and `wait`."""
    key_id, uid, conversation, kind, name, secret_id, resolution, revoked = row
    resolved = None if resolution is None else decode_resolution(resolution)
    return WaitRow(key_id, uid, conversation, kind, name, secret_id, resolved, bool(revoked))


def entry_row(row: Row) -> Entry:
    """A row of the queries `journal` and `journal_end`."""
    kind, name, digest, value, ok, input = row
    return Entry(kind, name, digest, value, bool(ok), input or b"")


def notification_row(row: Row) -> QueuedNotification:
    """A row of the queries `notifications` and `deliver`."""
    number, conversation, kind, level, message, at, uid, bits = row
    return QueuedNotification(number, conversation, kind, level, message, at, uid, _CARRIERS[bits])


def dropped_row(row: Row) -> QueuedNotification:
    """The row of the query `notifications` that counts dropped ones."""
    _, conversation, _, _, count, at, *_ = row
    return dropped(conversation, int(count), at)


def inquiry_row(row: Row) -> InquiryRow:
    """A row of the query `inquiries`."""
    id, conversation, turn, uid, at, request, answer, error = row
    return InquiryRow(id, conversation, turn, uid, at, decode(request), decode(answer), error)


def conversation_row(row: Row) -> ConversationRow:
    """A row of the queries `described` and `conversations`."""
    id, created, updated, metadata, lines = row
    return ConversationRow(id, created, updated, _decode_object(metadata), lines)
