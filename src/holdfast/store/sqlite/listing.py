"""Which handles are asked for, as SQL: what a list is narrowed by decides where it is looked up."""

from collections.abc import Mapping
from itertools import product
from typing import Any, get_args

from holdfast.store.base import Kind, Status
from holdfast.store.metadata import holds
from holdfast.store.sqlite.codec import decode, encode
from holdfast.store.sqlite.sql import SQL

Query = tuple[str, tuple[Any, ...]]
"""SQL, or a part of it, and what to bind."""

_PARKED = "h.owner IS NULL AND h.parking IS NOT NULL AND h.stopped_at IS NULL"
_TIMER = "h.kind = 'timer' AND NOT h.stateful AND h.stopped_at IS NULL"


def compare(*both: Any) -> bool:
    """What SQL calls `holds`, of the metadata that is there and what is wanted."""
    metadata, wanted = map(decode, both)
    return holds(metadata, wanted)


def listing(
    *,
    conversation: str | None,
    state: str | None,
    turn: str | None,
    parked: bool | None,
    stateful: bool | None,
    kind: Kind | None,
    status: Status | None,
    metadata: Mapping[str, Any] | None,
    timers: bool,
    after: str | None,
    limit: int,
    newest: bool = False,
) -> Query:
    """The query for these handles."""
    order = "DESC" if newest else "ASC"
    # Of a conversation's handles there are fewer than of a state's: `+` keeps SQLite from taking the other index.
    of_state = "h.state_name" if conversation is None else "+h.state_name"
    conditions = _equal({"h.conversation": conversation, of_state: state, "h.turn": turn})
    if parked is not None:
        conditions.append((_PARKED if parked else f"NOT ({_PARKED})", ()))
    if metadata is not None:
        conditions.append(("h.metadata IS NOT NULL AND holds(h.metadata, ?)", (encode(metadata),)))
    conditions.append(("h.uid > ?", (after or "",)))
    if conversation is not None and stateful and (kind is not None or status is not None):
        return _merged(conditions, kind, status, timers, limit, order)
    conditions += _equal({"h.kind": kind, "h.status": status})
    if stateful is not None:
        spawned = "h.stateful" if stateful else "NOT h.stateful"
        conditions.append((f"({spawned} OR {_TIMER})" if timers else spawned, ()))
    where, bound = _all(conditions)
    return f"{SQL['records']} WHERE {where} ORDER BY h.uid {order} LIMIT ?", (*bound, limit)


def _merged(
    common: list[Query], kind: Kind | None, status: Status | None, timers: bool, limit: int, order: str
) -> Query:
    """The spawned handles of each kind and status that is wanted are in order in an index: these are merged."""
    statuses = get_args(Status) if status is None else (status,)
    kinds = get_args(Kind) if kind is None else (kind,)
    wanted: list[Query] = [("h.stateful AND h.status = ? AND h.kind = ?", each) for each in product(statuses, kinds)]
    if timers and "pending" in statuses and "timer" in kinds:
        wanted.append((_TIMER, ()))
    parts = [_all([each, *common]) for each in wanted]
    union = " UNION ALL ".join(f"SELECT h.number, h.uid FROM handles h WHERE {where}" for where, _ in parts)
    bound = [value for _, values in parts for value in values]
    chosen = f"SELECT number FROM ({union} ORDER BY 2 {order} LIMIT ?)"
    return f"{SQL['records']} WHERE h.number IN ({chosen}) ORDER BY h.uid {order}", (*bound, limit)


def _equal(wanted: dict[str, Any]) -> list[Query]:
    return [(f"{column} = ?", (value,)) for column, value in wanted.items() if value is not None]


def _all(conditions: list[Query]) -> Query:
    return " AND ".join(where for where, _ in conditions), tuple(value for _, values in conditions for value in values)
