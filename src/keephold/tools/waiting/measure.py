"""Metrics of handles and waits (W8), reported to `Runtime(metrics=…)`.

Metrics that are a `Meter` (`handles/observing.py`) get all other numbers, too.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from keephold.handles.handle import Handle
from keephold.handles.observing import Meter
from keephold.handles.registry import Registry
from keephold.handles.state import Stopped
from keephold.store.rows import Kind, What, status_of

CREATED = "keephold_handles_created_total"
SETTLED = "keephold_handles_settled_total"
SECONDS = "keephold_handle_seconds"
WAITS = "keephold_waits_total"
WAIT_SECONDS = "keephold_wait_seconds"


class Metrics(Protocol):
    """Receives numbers. Both methods are called on the event loop's thread, and must not block it."""

    def count(self, name: str, **labels: str) -> None:
        """Add one to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Record a value."""


class Measure:
    """Reports to the metrics of a runtime, if it has any."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self._meter: Meter | None = metrics if isinstance(metrics, Meter) else None
        self._registry: Registry | None = None

    def begin(self, registry: Registry) -> None:
        """Report handles from now on."""
        if self._metrics is not None:
            self._registry = registry
            registry.on_created.add(self._created)
            registry.on_settled.add(self._settled)
        if self._meter is not None:
            self._meter.attach(registry)

    def waited(self, tool: str, status: str, secs: float) -> None:
        """A wait has ended."""
        if self._meter is not None:
            self._meter.waited(tool, status, secs)
        elif self._metrics is not None:
            self._metrics.count(WAITS, tool=tool, status=status)
            self._metrics.observe(WAIT_SECONDS, secs, tool=tool, status=status)

    def _created(self, handles: Sequence[Handle]) -> None:
        assert self._metrics is not None
        for handle in handles:
            if handle.stateful:
                self._metrics.count(CREATED, type=handle.kind)

    def _settled(self, uid: str, state: Stopped, what: What | None) -> None:
        """Called once, in the process that has written it."""
        assert self._registry is not None
        handle = self._registry.loaded(uid)
        if what is not None:
            self._tell(*what, state)
        elif handle is None:
            self._registry.run_soon(self._read(uid, state))
        else:
            self._tell(handle.tool.name, handle.kind, handle.stateful, state)

    async def _read(self, uid: str, state: Stopped) -> None:
        assert self._registry is not None
        record = await self._registry.store.handle(uid)
        if record is not None:
            self._tell(record.tool, record.kind, record.stateful, state)

    def _tell(self, tool: str, kind: Kind, stateful: bool, state: Stopped) -> None:
        assert self._metrics is not None
        if self._meter is not None:
            self._meter.ended(tool, kind, state)
        if stateful:
            labels: dict[str, Any] = {"type": kind, "status": status_of(state)}
            self._metrics.count(SETTLED, **labels)
            self._metrics.observe(SECONDS, state.stopped - state.created, **labels)
