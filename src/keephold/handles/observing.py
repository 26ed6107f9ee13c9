"""What a registry tells whoever looks on: numbers to `registry.meter`, spans to `registry.traces`.

Both are None unless somebody wants them, and then nothing but that is looked at. Neither may block the loop, and what
they are told holds no id that grows without bound, no key and no content.
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
"""What somebody is asked for: an answer, whether a call may run, whether its result may be seen."""
CommitObserver = Callable[[Sequence[Op], Done, Failed], tuple[Sequence[Op], Done, Failed]]
"""Sees every commit before the store does and may add operations at the end or wrap the two callbacks."""
T = TypeVar("T")

NOTHING: AbstractContextManager[object] = nullcontext()
"""Around what nobody looks at."""


@runtime_checkable
class Meter(Protocol):
    """Counts what happens in a runtime."""

    def attach(self, registry: "Registry") -> None:
        """Look on from now on."""

    def ended(self, tool: str, kind: Kind, state: Stopped) -> None:
        """A call has stopped, spawned or not."""

    def printed(self, tool: str, size: int) -> None:
        """A tool has printed so many bytes."""

    def shown(self, size: int) -> None:
        """So many bytes were given to whoever called, as a model gets them."""

    def waited(self, tool: str, status: str, secs: float) -> None:
        """Somebody has waited for handles."""

    def woken(self, secs: float) -> None:
        """Who waited went on so long after it could."""

    def asked(self, what: Asking, secs: float) -> None:
        """Somebody was asked and has answered."""

    def spent(self, model: str, *, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        """A request to a model was answered."""


class Traces(Protocol):
    """Follows calls through a runtime, and over its restarts."""

    def registering(self, handles: "Sequence[Handle]", failed: Callable[[Exception], None]) -> Callable[..., None]:
        """These calls begin, here and now. Returns what to call if the store does not take them."""

    async def taken(self, record: Record) -> None:
        """A call of a dead process is ours."""

    def attempt(self, handle: "Handle") -> AbstractContextManager[object]:
        """An attempt at the call begins within."""

    def step(self, step_id: str) -> AbstractContextManager[object]:
        """A journaled step is done within."""

    def wait(self, what: str, handles: Sequence[str] = ()) -> AbstractContextManager[object]:
        """Something is waited for within."""

    def asking(self, uid: str, what: Asking) -> Callable[[], None]:
        """Somebody is asked about the call; call the result when they have answered."""

    async def resuming(self, conversation: str, turn: str) -> None:
        """A turn of a dead process is about to be taken up again."""

    def entered(self, conversation: str, turn: str) -> Callable[[], None]:
        """What its caller does from now on belongs to the turn; call the result when it leaves it."""

    def close(self) -> None:
        """The runtime is closed: nothing more comes of what is open."""


def answered(registry: "Registry", uid: str | None, what: Asking, then: Callable[[T], None]) -> Callable[[T], None]:
    """`then`, which is called when somebody has answered, with the time they took told to whoever looks on."""
    meter, traces = registry.meter, registry.traces
    if meter is None and traces is None:
        return then
    began, over = time.monotonic(), traces.asking(uid, what) if traces is not None and uid is not None else None

    def told(said: T) -> None:
        if meter is not None:
            meter.asked(what, time.monotonic() - began)
        if over is not None:
            over()
        then(said)

    return told
