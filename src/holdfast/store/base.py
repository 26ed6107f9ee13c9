"""The store seam: what happened to handles and batches, written as one before it becomes visible.

Everything that changes a handle is an operation. The registry hands operations to `commit` and makes them visible only
when the store calls back: durable before visible. A store that is memory only calls back at once, so the same path
serves both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.handles.state import Event


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A batch is about to run: all that is needed to answer it later, should this process not live to (B9)."""

    conversation: str
    turn: str
    batch: int
    calls: tuple[tuple[str, str, dict[str, Any] | str, str | None], ...]
    """Of each call its id, its tool's name, its arguments as given, and the uid of the handle it makes, if any."""


class Registered(msgspec.Struct, frozen=True, tag="registered"):
    """A handle exists, in state `pending`."""

    uid: str
    id: str
    tool: str
    conversation: str
    turn: str
    at: float


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """An event of the state machine happened to a handle."""

    uid: str
    event: Event


class Responded(msgspec.Struct, frozen=True, tag="responded"):
    """A batch was answered; `cursors` says up to where each handle's output was shown (C5)."""

    conversation: str
    turn: str
    batch: int
    responses: tuple[tuple[str, str, bool], ...]
    """Of each call its id, its result and whether that is an error."""
    cursors: tuple[tuple[str, int], ...]


Op = Opened | Registered | Changed | Responded


class Store(Protocol):
    """Writes lists of operations, each list as one."""

    def commit(self, ops: Sequence[Op], done: Callable[[], None]) -> None:
        """Write all of `ops` or none, then call `done` on the event loop's thread. Commits finish in order."""
