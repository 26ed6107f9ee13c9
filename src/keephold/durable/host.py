"""The surroundings of the durable side of a call: of a runtime that keeps a store, or of a worker of an engine."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from keephold.durable.keys import Key
from keephold.handles.clock import Clock
from keephold.handles.observing import Traces
from keephold.handles.output import Output
from keephold.store.base import Op, Parking, Resolution

WaitKind = Literal["completion", "event"]


class Keeps(Protocol):
    """Where the records of a call are kept."""

    @property
    def durable(self) -> bool:
        """Whether they survive the process (E9)."""

    @property
    def inline_output(self) -> int:
        """Bytes of output that are kept beside a record, and not in a file."""


class Host(Protocol):
    """Writes the records of calls. A `Registry` is one."""

    @property
    def store(self) -> Keeps: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def traces(self) -> Traces | None: ...

    @property
    def on_woken(self) -> Callable[[str], Awaitable[None]] | None:
        """Called with the uid of a call that has waited in its effects, before its tool continues."""

    @property
    def closing(self) -> bool:
        """Whether effects are refused, because the call continues in another process (R6)."""

    def write(self, ops: Sequence[Op]) -> Awaitable[Sequence[Any]]:
        """Write operations together, and return their results when they are safe."""

    def commit(
        self, ops: Sequence[Op], done: Callable[[Sequence[Any]], None], failed: Callable[[Exception], None], *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        """Like `write`, with callbacks. `keep`: try again until it is written."""

    def printed(self, uid: str) -> Output | None:
        """Return the output of a call so far, if it is kept here."""


class Keys(Protocol):
    """The waits of calls for something outside. `Waits` is one."""

    async def take(
        self, uid: str, fence: int, conversation: str, kind: WaitKind, name: str = "", parking: Parking | None = None
    ) -> Key:
        """Return the key of a call's wait: the same key each time."""

    async def wait(self, key: str) -> Resolution:
        """Wait until the key is resolved."""
