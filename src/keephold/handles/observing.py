"""Where metrics and traces hook into a registry: `registry.meter` and `registry.traces`.

Both are None unless a program wants them, and then nothing else is checked. Neither may block the loop. They get no
unbounded ids, no keys and no content.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from keephold.handles.state import Stopped
from keephold.store.base import Done, Failed, Op
from keephold.store.rows import Kind, Record

if TYPE_CHECKING:
    from keephold.handles.handle import Handle
    from keephold.handles.registry import Registry

Asking = Literal["question", "permission", "result"]
"""The kind of a request to a user: an answer, permission to run, or permission to see a result."""
CommitObserver = Callable[[Sequence[Op], Done, Failed], tuple[Sequence[Op], Done, Failed]]
"""Sees every commit before the store does and may add operations at the end or wrap the two callbacks."""
T = TypeVar("T")

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
    meter, traces = registry.meter, registry.traces
    if meter is None and traces is None:
        return then
    began, over = time.monotonic(), traces.asking(uid, what) if traces is not None and uid is not None else None

    def report(said: T) -> None:
        if meter is not None:
            meter.asked(what, time.monotonic() - began)
        if over is not None:
            over()
        then(said)

    return report
