"""Where metrics and traces hook into a registry (`registry.meters`, `registry.traces`), and `Runtime(metrics=…)` (W8).

There are none unless a program wants them, and then nothing else is checked. None of them may block the loop.
They get no unbounded ids, no keys and no content.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from keephold.handles.state import Stopped
from keephold.store.base import Done, Failed, Op
from keephold.store.rows import Kind, Record, What, status_of

if TYPE_CHECKING:
    from keephold.handles.handle import Handle
    from keephold.handles.registry import Registry

Asking = Literal["question", "permission", "result"]
"""The kind of a request to a user: an answer, permission to run, or permission to see a result."""
CommitObserver = Callable[[Sequence[Op], Done, Failed], tuple[Sequence[Op], Done, Failed]]
"""Sees every commit before the store does and may add operations at the end or wrap the two callbacks."""
T = TypeVar("T")

CREATED = "keephold_handles_created_total"
SETTLED = "keephold_handles_settled_total"
SECONDS = "keephold_handle_seconds"
WAITS = "keephold_waits_total"
WAIT_SECONDS = "keephold_wait_seconds"

NOTHING: AbstractContextManager[object] = nullcontext()
"""The context of code that is not traced."""


@runtime_checkable
class Meter(Protocol):
    """Counts what happens in a runtime."""

    def attach(self, registry: "Registry") -> None:
        """Count what happens in the registry from now on."""

    def ended(self, tool: str, kind: Kind, state: Stopped) -> None:
        """Count a call that has stopped, spawned or not."""

    def printed(self, tool: str, size: int) -> None:
        """Count bytes that a tool has printed."""

    def shown(self, size: int) -> None:
        """Count bytes that a caller was shown, as a model gets them."""

    def waited(self, tool: str, status: str, secs: float) -> None:
        """Count a wait for handles."""

    def woken(self, secs: float) -> None:
        """Count how long after its wake-up a waiting coroutine ran."""

    def asked(self, what: Asking, secs: float) -> None:
        """Count a request that a user has answered."""

    def spent(self, model: str, *, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        """Count an answered request to a model."""


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

    def begin(self, registry: "Registry") -> None:
        """Report handles from now on."""
        self._registry = registry
        if self._metrics is not None:
            registry.on_created.add(self._created)
            registry.on_settled.add(self._settled)
        if self._meter is not None:
            self._meter.attach(registry)

    def waited(self, tool: str, status: str, secs: float) -> None:
        """A wait has ended."""
        for meter in self._registry.meters if self._registry is not None else ():
            meter.waited(tool, status, secs)
        if self._metrics is not None and self._meter is None:
            self._metrics.count(WAITS, tool=tool, status=status)
            self._metrics.observe(WAIT_SECONDS, secs, tool=tool, status=status)

    def _created(self, handles: "Sequence[Handle]") -> None:
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


class Traces(Protocol):
    """Follows calls through a runtime and across restarts."""

    def registering(self, handles: "Sequence[Handle]", failed: Callable[[Exception], None]) -> Callable[..., None]:
        """Note that these calls begin here. Returns the function to call if the store refuses them."""

    async def taken(self, record: Record) -> None:
        """Note that this process has taken over a call of a dead one."""

    def attempt(self, handle: "Handle") -> AbstractContextManager[object]:
        """Return the context in which an attempt at the call runs."""

    def step(self, step_id: str) -> AbstractContextManager[object]:
        """Return the context in which a journaled step runs."""

    def wait(self, what: str, handles: Sequence[str] = ()) -> AbstractContextManager[object]:
        """Return the context in which something is waited for."""

    def asking(self, uid: str, what: Asking) -> Callable[[], None]:
        """Note that a user is asked about the call. Returns the function to call when they have answered."""

    async def resuming(self, conversation: str, turn: str) -> None:
        """Note that a turn of a dead process is about to be resumed."""

    def entered(self, conversation: str, turn: str) -> Callable[[], None]:
        """Attribute what its caller does from now on to the turn. Returns the function to call when the caller leaves
        it."""

    def close(self) -> None:
        """End open spans: the runtime is closed."""


def answered(registry: "Registry", uid: str | None, what: Asking, then: Callable[[T], None]) -> Callable[[T], None]:
    """Return a callback that reports how long the answer took to metrics and traces, then calls `then`."""
    traces = registry.traces
    if not registry.meters and traces is None:
        return then
    began, over = time.monotonic(), traces.asking(uid, what) if traces is not None and uid is not None else None

    def report(said: T) -> None:
        for meter in registry.meters:
            meter.asked(what, time.monotonic() - began)
        if over is not None:
            over()
        then(said)

    return report
