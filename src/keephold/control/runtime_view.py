"""Read a runtime: its handles with what only their process knows, its tools, and its numbers. Nothing here writes.

Handles that this runtime runs are described from memory, which is ahead of the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from keephold.control.handle_json import facts, live_facts
from keephold.control.store_view import PAGE, StoreView
from keephold.durable.keys import masked
from keephold.runtime import Runtime
from keephold.schema.canonical import canonical
from keephold.store.base import HandleQuery, Record, browsable
from keephold.tools.waiting.execute import NAME as EXECUTE_AGENT

_WAITING_TOOLS = ("await", "wait_for", "wait_for_multiple")
_LANES = 500
"""Calls of one turn in a timeline."""


class RuntimeView:
    """Reads a runtime, and its store through `store_view`."""

    def __init__(
        self,
        runtime: Runtime,
        count_requests: Callable[[], Awaitable[int]],
        snapshot: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """`snapshot` returns the counters of this process."""
        self._runtime = runtime
        self._store = browsable(runtime.registry.store)
        self._count_requests = count_requests
        self._snapshot = snapshot
        self._began = time.time()
        self.store_view = StoreView(self._store, self.glance)

    # Handles

    def glance(self, record: Record) -> dict[str, Any]:
        """Describe a handle for a list, with what only its process knows if that is this one."""
        handle = self._runtime.registry.loaded(record.uid)
        if handle is not None and handle.owner not in (self._store.owner, None):
            handle = None
        fact = live_facts(handle, facts(self._store, record))
        tool, output = self._runtime.toolbox.get(record.tool), record.output
        if (tool is not None and tool.source == "terminal") or (output is not None and output.times):
            fact["terminal"] = True
        if output is not None and fact["output_bytes"] is None:
            fact["output_bytes"] = output.total
        return fact

    async def handle(self, uid: str, conversation: str | None = None) -> dict[str, Any]:
        """Describe a handle in full, without its keys and its output, with the end of its journal.

        With `conversation`, `uid` may be an id."""
        found = await self.store_view.described(await self.store_view.record(uid, conversation))
        output = found["output_bytes"]
        return {**found, "output": None if output is None else {"bytes": output}}

    async def waiters(self, uid: str) -> list[dict[str, Any]]:
        """List the calls that wait for a handle now, in any process."""
        record = await self.store_view.record(uid)
        here = {handle.uid: handle for handle in self._runtime.registry.live(record.conversation)}
        found = [
            _waiter(handle.uid, handle.tool.name, handle.id, handle.conversation, handle.state.created)
            for handle in here.values()
            if handle.active
            and handle.run is not None
            and record.id in _waits_on(handle.tool.name, handle.run.arguments)
        ]
        rows = await self._store.handles(
            HandleQuery(conversation=record.conversation, live=True, stateful=False, limit=PAGE)
        )
        return found + [
            _waiter(row.uid, row.tool, row.id, row.conversation, row.state.created)
            for row in rows
            if row.uid not in here and record.id in _waits_on(row.tool, row.arguments)
        ]

    async def calls(self, conversation: str, turn: str | None = None) -> list[dict[str, Any]]:
        """List the newest calls of a conversation, or of one turn of it, in the order they came."""
        records = await self._store.handles(
            HandleQuery(conversation=conversation, turn=turn, stateful=None, newest=True, limit=_LANES)
        )
        return [
            {
                **self.glance(record),
                "batch": record.batch,
                "position": record.position,
                "call_id": record.call_id,
                "waits_on": masked(_waits_on(record.tool, record.arguments)),
                "serial": self._runtime.registry.tool(record.tool).scheduling == "serial",
            }
            for record in reversed(records)
        ]

    # Tools and numbers

    async def tools(self) -> list[dict[str, Any]]:
        """List the tools that MCP clients get."""
        return [
            {
                "name": tool.name,
                "source": tool.source,
                "builtin": tool.source == "builtin" or tool.launching is not None,
                "description": tool.description or tool.summary or "",
                "actions": list(tool.actions),
                "run": tool.run,
                "parameters": canonical(tool),
            }
            for tool in self._runtime.toolbox.served()
            if tool.name != EXECUTE_AGENT or self._runtime.agent_functions.ids
        ]

    async def stats(self) -> dict[str, Any]:
        """Return the numbers of the store, and of this process since its start."""
        first, last = await self._store.events_range()
        path = getattr(self._store, "path", None)
        return {
            "handles": await self._store.count(),
            "needs": await self._count_requests(),
            "server": {"started": self._began, **(self._snapshot() if self._snapshot is not None else {})},
            "store": {
                "path": None if path is None else str(path),
                "bytes": await asyncio.to_thread(_bytes_of, path) if path is not None else None,
                "first_event": first,
                "last_event": last,
            },
        }


def _waits_on(tool: str, arguments: Any) -> list[str]:
    """The ids that a call of a waiting tool names."""
    if tool not in _WAITING_TOOLS or not isinstance(arguments, dict):
        return []
    named: list[Any] = [arguments.get("handleId")]
    for key in ("any", "all", "handleIds"):
        given = arguments.get(key)
        named += given if isinstance(given, list) else []
    return list(dict.fromkeys(each for each in named if isinstance(each, str) and each))


def _waiter(uid: str, kind: str, id: str, conversation: str, since: float) -> dict[str, Any]:
    return {"kind": kind, "uid": uid, "id": id, "conversation": conversation, "since": since}


def _bytes_of(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
