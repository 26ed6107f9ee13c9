"""`list_wait_handles`: the handles of the conversation, filtered, a page at a time (W1).

One-shot calls are not listed, a running `sleep` excepted. A page ends before it would be cut like any long reply;
`nextCursor` says where the next one begins.
"""

from collections.abc import Mapping
from typing import Any

from keephold.handles.registry import Registry
from keephold.handles.state import Failure, Ok, Reply, Stopped
from keephold.store.base import HandleQuery, Kind, Record, Status, status_of, user_metadata
from keephold.text import instant, to_json
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.tool import READS, Arguments, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import (
    COUNT,
    STATUSES,
    TEXT,
    TYPES,
    elapsed,
    one_of,
    operation_ms,
    progress_of,
    reply,
    text,
)

_PAGE_BYTES = 12_000
"""Bytes of all handles of a page, so that the reply is not cut."""
PAGE_LIMIT = 2 * _PAGE_BYTES
"""Bytes of a reply with a page."""
_PAGE = 100
_COUNTED = 1000

ALL_TYPES: tuple[Kind, ...] = (*TYPES, "tool")
PARAMETERS = object_schema(
    status=one_of([*STATUSES, "all"], "Default: all."),
    type=one_of([*ALL_TYPES, "all"], "Default: all."),
    metadata={"type": "object", "description": "Only handles whose metadata has these keys and values."},
    limit={"type": "integer", "minimum": 1, "maximum": 1000, "description": f"Handles a page. Default: {_PAGE}."},
    cursor=text("`nextCursor` of the page before. Default: the first page."),
)
_ENTRY = reply(
    "id type status elapsedMs elapsedTime startTime endTime? tool? hasResult hasError progress? priority? metadata?",
    tool=text("The tool it is a call of, where it is one."),
)
RETURNS = reply(
    "stats filters handles nextCursor?",
    stats=reply("total filtered byStatus byType", total=COUNT, filtered=COUNT),
    filters=reply("status type metadata?", status=TEXT, type=TEXT),
    handles={"type": "array", "items": _ENTRY},
)


def list_tool(host: WaitToolHost) -> Tool:
    @wait_tool(host, PARAMETERS, RETURNS, hints=READS | {"title": "List wait handles", "idempotentHint": True})
    async def list_wait_handles(call: Call, arguments: Arguments) -> Reply:
        """List all wait handles with optional filtering. Use it to find an id or what is pending; `wait_for` gets
        results. Returns counts and a page of handles, oldest first.
        """
        registry = host.registry
        wanted = Filter(arguments)
        limit = arguments.get("limit") or _PAGE
        tally = await registry.store.tally(call.conversation)
        records = await wanted.page(registry, call.conversation, arguments.get("cursor"), limit + 1)
        handles = page([_entry(registry, record) for record in records[:limit]])
        answer: dict[str, Any] = {
            "stats": {
                "total": sum(tally.values()),
                "filtered": await wanted.count(registry, call.conversation, tally),
                "byStatus": {each: _sum(tally, status=each) for each in STATUSES},
                "byType": {each: _sum(tally, kind=each) for each in ALL_TYPES},
            },
            "filters": wanted.asked,
            "handles": handles,
        }
        if len(handles) < len(records):
            answer["nextCursor"] = records[len(handles) - 1].uid
        return host.replies.object(answer, limit=PAGE_LIMIT)

    return list_wait_handles


class Filter:
    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.asked: dict[str, Any] = {
            "status": arguments.get("status") or "all",
            "type": arguments.get("type") or "all",
        }
        self.status: Status | None = None if self.asked["status"] == "all" else self.asked["status"]
        self.kind: Kind | None = None if self.asked["type"] == "all" else self.asked["type"]
        self.metadata: dict[str, Any] | None = arguments.get("metadata") or None
        if self.metadata is not None:
            self.asked["metadata"] = self.metadata

    async def page(self, registry: Registry, conversation: str, after: str | None, limit: int) -> list[Record]:
        return await registry.store.handles(
            HandleQuery(
                conversation=conversation,
                kind=self.kind,
                status=self.status,
                metadata=self.metadata,
                timers=True,
                after=after,
                limit=limit,
            )
        )

    async def count(self, registry: Registry, conversation: str, tally: "Tally") -> int:
        """Return the number of handles in all pages."""
        if self.metadata is None:
            return _sum(tally, status=self.status, kind=self.kind)
        count, after = 0, None
        while records := await self.page(registry, conversation, after, _COUNTED):
            count, after = count + len(records), records[-1].uid
        return count


Tally = Mapping[tuple[Kind, Status], int]


def _sum(tally: Tally, *, status: str | None = None, kind: str | None = None) -> int:
    return sum(count for (of, how), count in tally.items() if kind in (None, of) and status in (None, how))


def page(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many entries as fit into a reply, but at least one."""
    room, count = _PAGE_BYTES, 0
    for entry in entries:
        room -= len(to_json(entry))
        if room < 0 and count:
            break
        count += 1
    return entries[:count]


def _entry(registry: Registry, record: Record) -> dict[str, Any]:
    state, now = record.state, registry.clock.now()
    took = operation_ms(state, now)
    entry: dict[str, Any] = {
        "id": record.id,
        "type": record.kind,
        "status": status_of(state),
        "elapsedMs": took,
        "elapsedTime": elapsed(took),
        "startTime": instant(state.created),
    }
    if record.kind == "tool":
        entry["tool"] = record.tool
    outcome = None
    if isinstance(state, Stopped):
        entry["endTime"] = instant(state.stopped)
        outcome = state.outcome
    failed = isinstance(outcome, Failure)
    entry["hasResult"] = outcome is not None and not failed and outcome != Ok(None)
    entry["hasError"] = failed
    handle = registry.loaded(record.uid)
    entry |= progress_of(handle.progress if handle is not None and registry.runs(handle) else record.progress)
    if record.priority:
        entry["priority"] = record.priority
    if record.metadata and record.kind != "tool":  # that of tools is keephold's own
        entry["metadata"] = user_metadata(record.metadata)
    return entry
