"""The seam: what keephold needs of an engine that runs calls on workers.

Nothing here knows which engine it is. A call is known to its engine by the uid of its handle, so that a front end which
died is replaced by any other that has the store.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from keephold.engines.wire import EngineCall, Line, Report
from keephold.errors import KeepholdError

_log = logging.getLogger("keephold.engines")

_AGAIN_SECS, _AGAIN_AT_MOST_SECS = 0.1, 5.0
_waiting = Counter[str]()
"""How many requests wait for somebody who does not answer, as the log has said."""
T = TypeVar("T")


class EngineUnavailable(Exception):
    """The engine, or a front end, does not answer now. The same request may be made again: it counts once."""


async def patiently(work: Callable[[], Awaitable[T]], engine: str, check: Callable[[], None] = lambda: None) -> T:
    """Repeat until there is an answer, from the engine and from the store, or until `check` raises. If it takes long,
    the log says who does not answer, and later that it answers again: once, however many requests wait for it."""
    delay, silent = _AGAIN_SECS, ""
    try:
        while True:
            check()
            try:
                found = await work()
            except (EngineUnavailable, KeepholdError) as error:
                if isinstance(error, KeepholdError) and error.code != "store_unavailable":
                    raise
                if not silent and delay >= 1:
                    silent = engine if isinstance(error, EngineUnavailable) else "the store"
                    _waiting[silent] += 1
                    if _waiting[silent] == 1:
                        _log.warning("%s does not answer: %s", silent, error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _AGAIN_AT_MOST_SECS)
            else:
                if _waiting[silent] == 1:
                    _log.warning("%s answers again", silent)
                return found
    finally:
        _waiting[silent] -= bool(silent)


class Engine(Protocol):
    """An engine, as a front end uses it. Each method raises `EngineUnavailable`."""

    async def start(self, call: EngineCall) -> None:
        """Start a call. If it was started before, nothing happens."""

    async def result(self, uid: str, *, wait: bool = True) -> Report | None:
        """Wait until a call has ended or is parked, and return how. Without `wait`, return None if it runs."""

    async def resolve(self, uid: str, event: str, resolution: dict[str, Any]) -> None:
        """Deliver an event. The first resolution of an event counts; a call that has ended ignores it."""

    async def cancel(self, uid: str) -> None:
        """Let a call end: its tool gets its cancellation."""

    def link(self, uid: str) -> str | None:
        """Return the address of the engine's own page about a call, if it has one."""

    async def close(self) -> None:
        """Close the connection."""


class Recorder(Protocol):
    """The engine, as one attempt on a worker uses it."""

    async def record(self, line: Line) -> bool:
        """Record a line, safely. Return whether the attempt should be suspended soon, because the record is full.
        Raises `Lost` if the attempt is not the current one."""

    async def events(self, known: int) -> dict[str, Any]:
        """Wait until there are more than `known` events, and return some of these by name, the oldest first. Raises
        `Lost`."""

    async def journal(self) -> Sequence[Line]:
        """Return the journal that the attempt begins with, and the events."""
