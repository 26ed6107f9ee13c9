"""The SQL for lists: the conditions of a list decide which index it is read from.

A page of a long list must cost what a page costs. So a list is put together from parts, each of which is in order in an
index of its own; the database merges them and stops when the page is full.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any, get_args

import msgspec

from keephold.store.base import (
    FROM_OUTSIDE,
    LIVE,
    NOTIFICATION_TYPES,
    Collected,
    EventQuery,
    HandleQuery,
    Kind,
    Sort,
    Status,
    StoredEvent,
    first_uid,
)
from keephold.store.rules import folded, holds
from keephold.store.sql.codec import Row, decode, encode

Sql = Mapping[str, str]
"""Named queries of a database."""

Query = tuple[str, tuple[Any, ...]]
"""SQL, or a part of it, and its bindings."""

_PARKED = "h.owner IS NULL AND h.parking IS NOT NULL AND h.stopped_at IS NULL"
_TIMER = "h.kind = 'timer' AND NOT h.stateful AND h.stopped_at IS NULL"
_HAS = "(instr(lower(h.id), ?) > 0 OR instr(lower(h.tool), ?) > 0 OR instr(lower(h.uid), ?) > 0)"
_KEYS: dict[Sort, str] = {"stopped": "coalesce({}.stopped_at, 0)", "tool": "{}.tool", "id": "{}.id"}
"""Sort keys other than the order of the uids."""


def compare(*both: Any) -> bool:
    """Implement SQL's `holds`: whether stored metadata has the wanted keys and values."""
    metadata, wanted = map(decode, both)
    return holds(metadata, wanted)


def listing(sql: Sql, query: HandleQuery) -> Query:
    """Return the SQL for these handles."""
    conversation, stateful, kind, status = query.conversation, query.stateful, query.kind, query.status
    common, states = _common(sql, query), _states(query)
    if conversation is not None and query.parked:
        parts = _parked_in(sql, conversation, states, stateful, kind, status, query.timers)
    elif conversation is not None and stateful:
        parts = _in_conversation(sql, conversation, states, kind, status, query.timers)
    else:
        parts = _anywhere(sql, conversation, states, stateful, query.timers, narrowed=bool(query.parked))
        common += _equal({"h.kind": kind, "h.status": status})
    after, limit = query.after, query.limit
    order, beyond = ("DESC", "<") if query.newest else ("ASC", ">")
    if query.sort == "stopped" and stateful and states == ("stopped",):
        narrowing = _equal({"h.conversation": conversation, "h.kind": kind, "h.status": status})
        return _ended(sql, narrowing, common, after, limit, order, beyond)
    if query.sort != "created":
        return _sorted(sql, parts, common, _KEYS[query.sort], after, limit, order, beyond)
    if after:
        common.append((f"h.uid {beyond} ?", (after,)))
    if len(parts) == 1:
        where, bound = _all([*parts, *common])
        return f"{sql['records']} WHERE {where} ORDER BY h.uid {order} LIMIT ?", (*bound, limit)
    union, bound = _union(parts, common)
    chosen = f"SELECT number FROM ({union} ORDER BY 2 {order} LIMIT ?) AS found"
    return f"{sql['records']} WHERE h.number IN ({chosen}) ORDER BY h.uid {order}", (*bound, limit)


def totals(sql: Sql, query: HandleQuery) -> Query:
    """Return the SQL that counts these handles, by state and end."""
    wanted = _equal({"h.conversation": query.conversation, "h.kind": query.kind, "h.status": query.status})
    if query.stateful is not None:
        spawned = "h.stateful" if query.stateful else "NOT h.stateful"
        wanted.append((f"({spawned} OR {_TIMER})" if query.timers else spawned, ()))
    if len(states := _states(query)) <= len(LIVE):
        wanted.append((f"h.state_name IN ({_marks(states)})" if states else "FALSE", states))
    where, bound = _all([*wanted, *_common(sql, query)] or [("TRUE", ())])
    end = f"CASE WHEN h.status = 'completed' THEN 'done' WHEN {_outside(sql)} THEN 'aborted' ELSE 'failed' END"
    what = f"CASE WHEN h.stopped_at IS NULL THEN h.state_name ELSE {end} END"
    order = "DESC" if query.newest else "ASC"
    counted = f"SELECT {what} AS what FROM handles h WHERE {where} ORDER BY h.uid {order} LIMIT ?"
    return f"SELECT what, count(*) FROM ({counted}) AS found GROUP BY what", (*bound, query.limit)


def _common(sql: Sql, query: HandleQuery) -> list[Query]:
    """Return the conditions that no part of a list has yet."""
    common = _equal({"h.turn": query.turn, "h.tool": query.tool})
    if query.parked is not None:
        common.append((_PARKED if query.parked else f"NOT ({_PARKED})", ()))
    if query.end in ("failed", "aborted"):  # the columns before the last decide first: large values are not parsed
        outside = _outside(sql) if query.end == "aborted" else f"NOT {_outside(sql)}"
        common.append((f"h.stopped_at IS NOT NULL AND h.status <> 'completed' AND {outside}", ()))
    elif query.end == "done":
        common.append(("h.status = 'completed'", ()))
    if query.since is not None:
        common.append(("h.uid >= ?", (first_uid(query.since),)))
    if query.until is not None:
        common.append(("h.uid < ?", (first_uid(query.until),)))
    if query.metadata is not None:
        common.append(("h.metadata IS NOT NULL AND holds(h.metadata, ?)", (encode(query.metadata),)))
    if query.search is not None:
        common.append((_HAS, (folded(query.search),) * 3))
    return common


def _outside(sql: Sql) -> str:
    """Return the condition that a handle, which has failed, was ended from outside."""
    return f"{sql['ended_by']} IN ({', '.join(map(repr, FROM_OUTSIDE))})"


def scans(query: HandleQuery) -> bool:
    """Whether no index has these handles in order, so that the database may have to look at all handles."""
    if query.search is not None or query.tool is not None or query.end is not None:
        return True
    if query.sort != "created" and not (query.sort == "stopped" and query.stateful and _states(query) == ("stopped",)):
        return True
    narrowed = query.kind is not None or query.status is not None or query.metadata is not None
    return query.conversation is None and narrowed


def _states(query: HandleQuery) -> tuple[str, ...]:
    """Return the states that a handle of the list may be in."""
    live, status = query.live, query.status
    wanted = (*LIVE, "stopped") if query.state is None else (query.state,)
    return tuple(
        each
        for each in wanted
        if not (live and each not in LIVE) and (status is None or (each in LIVE) is (status == "pending"))
    )


def _in_conversation(
    sql: Sql, conversation: str, states: tuple[str, ...], kind: Kind | None, status: Status | None, timers: bool
) -> list[Query]:
    """Return parts for a conversation's spawned handles, which are in order for each status and kind."""
    statuses = get_args(Status) if status is None else (status,)
    statuses = tuple(each for each in statuses if any((state in LIVE) is (each == "pending") for state in states))
    kinds = get_args(Kind) if kind is None else (kind,)
    every = not set(LIVE) - set(states)
    within = "" if every or "stopped" in states else f" AND {sql['aside']}h.state_name IN ({_marks(states)})"
    bound = () if not within else states
    parts: list[Query] = [
        (f"h.conversation = ? AND h.stateful AND h.status = ? AND h.kind = ?{within}", (conversation, *each, *bound))
        for each in product(statuses, kinds)
    ]
    if timers and "pending" in statuses and "timer" in kinds:
        parts.append((f"h.conversation = ? AND {_TIMER}{within}", (conversation, *bound)))
    return parts or [("FALSE", ())]


def _parked_in(
    sql: Sql,
    conversation: str,
    states: tuple[str, ...],
    stateful: bool | None,
    kind: Kind | None,
    status: Status | None,
    timers: bool,
) -> list[Query]:
    """Return parts for what is parked in a conversation: some of its live spawned handles, and one-shot calls, by an
    index."""
    alive = tuple(each for each in states if each in LIVE)
    spawned = [] if stateful is False else _in_conversation(sql, conversation, alive, kind, status, timers=False)
    if stateful and not timers:
        return spawned
    which = _TIMER if stateful else "NOT h.stateful"
    within = f"h.conversation = ? AND {which} AND {sql['aside']}h.state_name IN ({_marks(alive)})"
    one_shot = _all([(within, (conversation, *alive)), *_equal({"h.kind": kind, "h.status": status})])
    return [*spawned, one_shot]


def _anywhere(
    sql: Sql, conversation: str | None, states: tuple[str, ...], stateful: bool | None, timers: bool, *, narrowed: bool
) -> list[Query]:
    """Return parts for any conversation: live handles are in order for each state, and so are stopped spawned ones."""
    spawned = {True: " AND h.stateful", False: " AND NOT h.stateful", None: ""}[stateful]
    alive = not set(states) - set(LIVE)
    if timers or narrowed or not (alive or (conversation is None and stateful)):
        if stateful is not None and timers:
            spawned = f" AND ({spawned.removeprefix(' AND ')} OR {_TIMER})"
        where, bound = _all(_equal({"h.conversation": conversation}) or [("TRUE", ())])
        if len(states) > len(LIVE):
            return [(f"{where}{spawned}", bound)]
        return [(f"{where}{spawned} AND h.state_name IN ({_marks(states)})", (*bound, *states))]
    # Not by the index of conversations: live handles are fewer than a conversation's handles.
    within = ("", ()) if conversation is None else (f" AND {sql['aside']}h.conversation = ?", (conversation,))
    parts: list[Query] = []
    for state in states:
        if state == "stopped":
            parts.append((f"h.stopped_at IS NOT NULL{spawned}", ()))
        else:
            parts.append((f"h.state_name = ? AND h.stopped_at IS NULL{spawned}{within[0]}", (state, *within[1])))
    return parts or [("FALSE", ())]


def _ended(
    sql: Sql, narrowing: list[Query], common: list[Query], after: str | None, limit: int, order: str, beyond: str
) -> Query:
    """List spawned handles that have stopped by when they did, which an index has in order."""
    wanted = [("h.stateful AND h.stopped_at IS NOT NULL", ()), *narrowing, *common]
    if after:
        last = "(SELECT x.stopped_at FROM handles x WHERE x.uid = ?)"
        wanted.append((f"(h.stopped_at, h.uid) {beyond} ({last}, ?)", (after, after)))
    where, bound = _all(wanted)
    ordered = f"ORDER BY h.stopped_at {order}, h.uid {order} LIMIT ?"
    chosen = f"SELECT h.number FROM handles h WHERE {where} {ordered}"
    return f"{sql['records']} WHERE h.number IN ({chosen}) ORDER BY h.stopped_at {order}, h.uid {order}", (
        *bound,
        limit,
    )


def _sorted(
    sql: Sql, parts: list[Query], common: list[Query], key: str, after: str | None, limit: int, order: str, beyond: str
) -> Query:
    """List in an order that no index has: the database looks at all handles."""
    of_it = key.format("h")
    if after:
        last = f"(SELECT {key.format('x')} FROM handles x WHERE x.uid = ?)"
        common = [*common, (f"({of_it}, h.uid) {beyond} ({last}, ?)", (after, after))]
    union, bound = _union(parts, common, f", {of_it} AS key")  # sorted before the other columns are read
    chosen = f"SELECT number FROM ({union}) AS found ORDER BY key {order}, uid {order} LIMIT ?"
    return f"{sql['records']} WHERE h.number IN ({chosen}) ORDER BY {of_it} {order}, h.uid {order}", (*bound, limit)


def _union(parts: list[Query], common: list[Query], besides: str = "") -> Query:
    every = [_all([part, *common]) for part in parts]
    union = " UNION ALL ".join(f"SELECT h.number, h.uid{besides} FROM handles h WHERE {where}" for where, _ in every)
    return union, tuple(value for _, values in every for value in values)


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))


def _equal(wanted: dict[str, Any]) -> list[Query]:
    return [(f"{column} = ?", (value,)) for column, value in wanted.items() if value is not None]


def _all(conditions: list[Query]) -> Query:
    return " AND ".join(where for where, _ in conditions), tuple(value for _, values in conditions for value in values)


def conversations(sql: Sql, metadata: Mapping[str, Any] | None, before: tuple[float, str] | None, limit: int) -> Query:
    """Return the query for a page of conversations."""
    start = (math.inf, "") if before is None else before
    wanted: Query = ("", ()) if metadata is None else (" AND holds(metadata, ?)", (encode(metadata),))
    return f"{sql['conversations']}{wanted[0]} ORDER BY updated DESC, id DESC LIMIT ?", (*start, *wanted[1], limit)


def left_turns(rows: Iterable[Row], alive: Callable[[str], bool]) -> dict[str, str]:
    """Return the turns, by conversation, of dead processes that nobody has resumed: rows of the query `old_turns`."""
    return {conversation: turn for conversation, turn, owner in rows if not alive(owner)}


def expired(sql: Sql, op: Collected, left: Iterable[str]) -> Query:
    """Return the query for the handles that the operation deletes, by `number`, the first to have stopped first.

    Open turns keep the handles of their conversations, except of those that were `left`."""
    conditions = [sql["expired"]]
    bound: list[Any] = [op.before, encode(tuple(left)).decode()]
    if op.conversation is not None:
        conditions.append("h.conversation = ?")
        bound.append(op.conversation)
    for column, values in (("h.kind", op.kinds or None), ("h.status", op.statuses or None), ("h.uid", op.only)):
        if values is not None:
            conditions.append(f"{column} {sql['among']}")
            bound.append(encode(values).decode())
    if op.early == "seen":
        conditions.append("NOT EXISTS (SELECT 1 FROM notifications n WHERE n.uid = h.uid)")
    if op.files:
        conditions.append("o.file IS NOT NULL")
    return f"{' AND '.join(conditions)} ORDER BY h.stopped_at, h.number LIMIT ?", (*bound, op.limit)


_NOTIFICATIONS = f"type IN ({', '.join(repr(each) for each in NOTIFICATION_TYPES)})"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def events(sql: Sql, query: EventQuery) -> Query:
    """Return the SQL for these events."""
    of_handle = "uid = ? AND type <> 'handle.stepped'"
    place = "conversation = ?" if query.notifications else "place = ?"
    wanted = {"seq > ?": query.after, "seq < ?": query.before, of_handle: query.uid, place: query.conversation}
    where, bound = _all([(condition, (value,)) for condition, value in wanted.items() if value is not None])
    about = f" AND {_NOTIFICATIONS}" if query.notifications else ""
    order = "DESC" if query.newest else "ASC"
    return f"{sql['events']} WHERE {where}{about} ORDER BY seq {order} LIMIT ?", (*bound, query.limit)


def event_row(row: Row) -> StoredEvent:
    """A row of the query `events`."""
    seq, at, type, conversation, uid, data = row
    return StoredEvent(seq, at, type, conversation, uid, _decode(data))
