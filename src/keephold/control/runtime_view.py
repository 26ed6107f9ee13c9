"""Read a runtime: its handles with what only their process knows, its tools, and its numbers. Nothing here writes.

Handles that this runtime runs are described from memory, which is ahead of the store.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from keephold.control.handle_json import (
    CallGlance,
    HandleGlance,
    HeldUp,
    Seconds,
    Shape,
    as_json,
    glance,
    live_fields,
    obstacle,
    waiting_behind,
)
from keephold.control.store_view import PAGE, StoreView
from keephold.durable.keys import masked
from keephold.errors import KeepholdError
from keephold.handles.facts import Fact
from keephold.handles.output import Output
from keephold.handles.state import PendingState, Stopped
from keephold.handles.timeline import of_terminal
from keephold.runtime import Runtime
from keephold.schema.canonical import canonical
from keephold.store.base import HandleQuery, Record, browsable, file_of
from keephold.tools.base import Tool
from keephold.tools.toolbox import ServedTools, is_builtin
from keephold.tools.waiting import WAITING

_LANES = 500
"""Calls of one turn in a timeline."""


class Waiter(Shape):
    """A call that waits for a handle; `kind` is its tool."""

    kind: str
    uid: str
    id: str
    conversation: str
    since: Seconds


class ServedTool(Shape):
    """A tool that MCP clients get."""

    name: str
    source: str
    builtin: bool
    description: str
    actions: list[str]
    run: str
    parameters: dict[str, Any]


class DiskStats(Shape):
    """Bytes that stored output and results take, those in output files, and `[limits] disk`."""

    used: int
    files: int
    limit: int | None


class StoreStats(Shape):
    """Numbers of the store; only a store in a file has a path and a size."""

    path: str | None
    bytes: int | None
    first_event: int
    last_event: int
    disk: DiskStats


class Stats(Shape):
    """Numbers of the store, and of this process since its start."""

    handles: dict[str, int]
    requests: int
    server: dict[str, Any]
    store: StoreStats


class RuntimeView:
    """Reads a runtime, and its store through `store_view`."""

    def __init__(
        self,
        runtime: Runtime,
        count_requests: Callable[[], Awaitable[int]],
        snapshot: Callable[[], dict[str, Any]] | None = None,
        served: Iterable[Tool] | None = None,
    ) -> None:
        """`snapshot` returns the counters of this process; `served` are the tools of MCP clients."""
        self._runtime = runtime
        usual = ServedTools(runtime.toolbox, lambda: bool(runtime.agent_functions.ids))
        self._served: Iterable[Tool] = usual if served is None else served
        self._store = browsable(runtime.registry.store)
        self._count_requests = count_requests
        self._snapshot = snapshot
        self._began = time.time()
        self.store_view = StoreView(self._store, self._glance, self._output)

    # Handles

    def _glance(self, record: Record, fact: Fact) -> HandleGlance:
        """Describe a handle for a list, with what only its process knows if that is this one, or has posted it."""
        handle = self._runtime.registry.loaded(record.uid)
        if handle is not None and handle.owner not in (self._store.owner, None):
            handle = None
        live = live_fields(handle, fact)
        if handle is not None and isinstance(handle.state, PendingState):
            request = self._runtime.approvals.about(handle.uid)
            queues = [obstacle(name, behind, len(behind)) for name, behind in handle.waits_for()]
            live["held_up"] = queues if request is None else [HeldUp("permission", request, [], 0)]
        tool, output = self._runtime.toolbox.of(record.conversation).get(record.tool), record.output
        if (tool is not None and tool.source == "terminal") or (output is not None and of_terminal(output.times)):
            live["terminal"] = True
        live["here"] = record.owner == self._store.owner and not isinstance(record.state, Stopped)
        if output is not None and live["output_bytes"] is None:
            live["output_bytes"] = output.total
        return replace(glance(self._store, record, fact), **live)

    def _output(self, record: Record) -> Output | None:
        handle = self._runtime.registry.loaded(record.uid)
        return None if handle is None else handle.output

    async def handle(self, uid: str, conversation: str | None = None) -> dict[str, Any]:
        """Describe a handle in full, without its keys and its output, with the end of its journal.

        With `conversation`, `uid` may be an id."""
        record = await self.store_view.record(uid, conversation)
        handle = self._runtime.registry.loaded(record.uid)
        behind = [] if handle is None or not handle.active else waiting_behind(handle)
        found = await self.store_view.described(record, holds_up=behind, ui=self._engine_page(record))
        output = found["output_bytes"]
        return {**found, "output": None if output is None else {"bytes": output}}

    def _engine_page(self, record: Record) -> str | None:
        front, tool = self._runtime.front_end, self._runtime.toolbox.of(record.conversation).get(record.tool)
        if front is None or tool is None or tool.engine is None:
            return None
        return front.engines[tool.engine].link(record.uid)

    async def workflow(self, uid: str) -> dict[str, Any]:
        """Return a workflow's steps and how far each is."""
        from keephold.control.workflows import workflow_json

        record = await self.store_view.record(uid)
        if record.kind != "workflow":
            raise KeepholdError(f"Handle `{record.id}` is not a workflow but a {record.kind}", code="invalid_arguments")
        arguments, journal = masked(record.arguments), await self.store_view.whole_journal(record.uid)
        state = record.state
        active, now = (False, state.stopped) if isinstance(state, Stopped) else (True, time.time())
        return dict(await asyncio.to_thread(workflow_json, arguments, journal, active=active, now=now))

    async def waiters(self, uid: str) -> list[dict[str, Any]]:
        """List the calls that wait for a handle now, in any process."""
        record = await self.store_view.record(uid)
        here = {handle.uid: handle for handle in self._runtime.registry.live(record.conversation)}
        found = [
            Waiter(handle.tool.name, handle.uid, handle.id, handle.conversation, handle.state.created)
            for handle in here.values()
            if handle.active
            and handle.run is not None
            and record.id in _waits_on(handle.tool.name, handle.run.arguments)
        ]
        rows = await self._store.handles(
            HandleQuery(conversation=record.conversation, live=True, stateful=False, limit=PAGE)
        )
        found += [
            Waiter(row.tool, row.uid, row.id, row.conversation, row.state.created)
            for row in rows
            if row.uid not in here and record.id in _waits_on(row.tool, row.arguments)
        ]
        return [as_json(waiter) for waiter in found]

    async def calls(self, conversation: str, turn: str | None = None) -> list[dict[str, Any]]:
        """List the newest calls of a conversation, or of one turn of it, in the order they came."""
        records = await self._store.handles(
            HandleQuery(conversation=conversation, turn=turn, stateful=None, newest=True, limit=_LANES)
        )
        records = sorted([*records, *self._unwritten(conversation, turn)], key=lambda each: each.uid, reverse=True)
        shown = await self.store_view.glances(records)
        return [as_json(self._call(*each)) for each in zip(reversed(records), reversed(shown), strict=True)]

    def _unwritten(self, conversation: str, turn: str | None) -> list[Record]:
        """Return the live calls that only this process knows, such as a client's `await`."""
        live = self._runtime.registry.live(conversation)
        found = [handle.unwritten for handle in live if turn is None or handle.turn == turn]
        return [record for record in found if record is not None]

    def conversation_of(self, uid: str) -> str | None:
        """Return the conversation of a call that this process has in memory, also if it is not in the store."""
        handle = self._runtime.registry.loaded(uid)
        return None if handle is None else handle.conversation

    def _call(self, record: Record, shown: HandleGlance) -> CallGlance:
        return CallGlance(
            **asdict(shown),
            batch=record.batch,
            position=record.position,
            call_id=record.call_id,
            waits_on=masked(_waits_on(record.tool, record.arguments)),
            serial=self._runtime.registry.tool(record.tool, record.conversation).scheduling == "serial",
        )

    # Tools and numbers

    async def tools(self) -> list[dict[str, Any]]:
        """List the tools that MCP clients get."""
        served = [
            ServedTool(
                name=tool.name,
                source=tool.source,
                builtin=is_builtin(tool),
                description=tool.description or tool.summary or "",
                actions=list(tool.actions),
                run=tool.run,
                parameters=canonical(tool),
            )
            for tool in self._served
        ]
        return [as_json(tool) for tool in served]

    async def stats(self) -> dict[str, Any]:
        """Return the numbers of the store, and of this process since its start."""
        first, last = await self._store.events_range()
        path, disk = file_of(self._store), self._runtime.registry.spool.disk
        stats = Stats(
            handles=await self._store.count(),
            requests=await self._count_requests(),
            server={"started": self._began, **(self._snapshot() if self._snapshot is not None else {})},
            store=StoreStats(
                path=None if path is None else str(path),
                bytes=await asyncio.to_thread(_bytes_of, path) if path is not None else None,
                first_event=first,
                last_event=last,
                disk=DiskStats(disk.used, disk.files, disk.limit),
            ),
        )
        return as_json(stats)


def _waits_on(tool: str, arguments: Any) -> list[str]:
    """Return the ids that a call of a waiting tool names."""
    if tool not in WAITING or not isinstance(arguments, dict):
        return []
    named: list[Any] = [arguments.get("handleId")]
    for key in ("any", "all", "handleIds"):
        given = arguments.get(key)
        named += given if isinstance(given, list) else []
    return list(dict.fromkeys(each for each in named if isinstance(each, str) and each))


def _bytes_of(path: Path) -> int:
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
