"""What is to be seen of a system that runs: what its store has (`reading.py`), what waits for a person (`asked.py`),
tools, numbers. Nothing here changes anything.

What this runtime runs is described as it is in memory, which is ahead of the store.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keephold.control.handle_json import live_facts
from keephold.control.open_requests import OpenPrompts, OpenRequests
from keephold.control.store_view import PAGE
from keephold.durable.keys import masked
from keephold.runtime import Runtime
from keephold.schema.canonical import canonical
from keephold.store.base import Record
from keephold.tools.waiting.execute import NAME as EXECUTE_AGENT

_WAITING_TOOLS = ("await", "wait_for", "wait_for_multiple")
_LANES = 500
"""Calls of one turn that a timeline has."""


class RuntimeView(OpenPrompts):
    """A runtime, and the person's side of it, to be looked at."""

    def __init__(
        self,
        runtime: Runtime,
        needs: OpenRequests | None = None,
        *,
        snapshot: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """`needs` is what waits for a person; `snapshot` tells the numbers of this process."""
        super().__init__(runtime, needs)
        self._snapshot = snapshot
        self._began = time.time()

    # Handles

    def fact(self, record: Record) -> dict[str, Any]:
        """A handle at a glance, with what only the process that runs it knows, if that is this one."""
        handle = self.runtime.registry.loaded(record.uid)
        if handle is not None and handle.owner not in (self._store.owner, None):
            handle = None
        fact = live_facts(handle, super().fact(record))
        tool, output = self.runtime.toolbox.get(record.tool), record.output
        if (tool is not None and tool.source == "terminal") or (output is not None and output.times):
            fact["terminal"] = True
        if output is not None and fact["output_bytes"] is None:
            fact["output_bytes"] = output.total
        return fact

    async def handle(self, uid: str, conversation: str | None = None) -> dict[str, Any]:
        """Everything of a handle but its keys and what it printed; of its journal the end. With `conversation`, `uid`
        may be an id."""
        found = await self.described(await self.record(uid, conversation))
        output = found["output_bytes"]
        return {**found, "output": None if output is None else {"bytes": output}}

    async def waiters(self, uid: str) -> list[dict[str, Any]]:
        """The calls that wait for a handle just now, wherever they run."""
        record = await self.record(uid)
        here = {handle.uid: handle for handle in self.runtime.registry.live(record.conversation)}
        found = [
            _waiter(handle.uid, handle.tool.name, handle.id, handle.conversation, handle.state.created)
            for handle in here.values()
            if handle.active
            and handle.run is not None
            and record.id in _waits_on(handle.tool.name, handle.run.arguments)
        ]
        rows = await self._store.handles(conversation=record.conversation, live=True, stateful=False, limit=PAGE)
        return found + [
            _waiter(row.uid, row.tool, row.id, row.conversation, row.state.created)
            for row in rows
            if row.uid not in here and record.id in _waits_on(row.tool, row.arguments)
        ]

    async def calls(self, conversation: str, turn: str | None = None) -> list[dict[str, Any]]:
        """The calls of a conversation, or of one turn of it, the newest of them, in the order they came."""
        records = await self._store.handles(
            conversation=conversation, turn=turn, stateful=None, newest=True, limit=_LANES
        )
        return [
            {
                **self.fact(record),
                "batch": record.batch,
                "position": record.position,
                "call_id": record.call_id,
                "waits_on": masked(_waits_on(record.tool, record.arguments)),
                "serial": self.runtime.registry.tool(record.tool).scheduling == "serial",
            }
            for record in reversed(records)
        ]

    # Tools and numbers

    async def tools(self) -> list[dict[str, Any]]:
        """What can be called: what MCP clients are given."""
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
            for tool in self.runtime.toolbox.served()
            if tool.name != EXECUTE_AGENT or self.runtime.has_agents
        ]

    async def stats(self) -> dict[str, Any]:
        """Numbers: of the store, and of this process since its start."""
        first, last = await self._store.events_range()
        path = getattr(self._store, "path", None)
        return {
            "handles": await self._store.count(),
            "needs": await self.count_needs(),
            "server": {"started": self._began, **(self._snapshot() if self._snapshot is not None else {})},
            "store": {
                "path": None if path is None else str(path),
                "bytes": await asyncio.to_thread(_bytes_of, path) if path is not None else None,
                "first_event": first,
                "last_event": last,
            },
        }


def _waits_on(tool: str, arguments: Any) -> list[str]:
    """The ids that a call names, if it is one of `await` or of a wait tool."""
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
