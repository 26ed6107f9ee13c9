"""Further attempts of one call, after a transient error or in a plan that an earlier runtime made (R5)."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Failure
from keephold.store.base import Attempted, Journaled
from keephold.store.rules import clip
from keephold.text import to_json
from keephold.tools.base import Invocation, RetryPolicy

_log = logging.getLogger("keephold.tools")

_READ_AGAIN_SECS = 1.0


class Attempts:
    """Plans the attempts of a call after its first one here. Made when there is one to plan."""

    __slots__ = ("_begin", "_failures", "_handle", "_invocation", "_lost", "_next", "_registry", "_wanted", "between")

    def __init__(
        self,
        registry: Registry,
        handle: Handle,
        invocation: Invocation,
        *,
        wanted: Callable[[], bool],
        begin: Callable[[Invocation], None],
        lost: Callable[[], None],
    ) -> None:
        """`wanted` tells whether the call may still run. `begin` starts an attempt, and `lost` is called if another
        process has the call."""
        self._registry = registry
        self._handle = handle
        self._invocation = invocation
        self._wanted = wanted
        self._begin = begin
        self._lost = lost
        self._failures = sum(entry.kind == "attempt" for entry in invocation.entries)
        """How many attempts have failed. Those that ended with their process are not counted (R5)."""
        self._next: asyncio.TimerHandle | None = None
        self.between = False
        """The next attempt is planned; nothing of the call runs."""

    @property
    def exhausted(self) -> bool:
        """Whether the attempt that runs is the last one."""
        return self._failures + 1 >= self._handle.tool.retry.max_attempts

    def plan(self, error: Failure, settled: Callable[[], Awaitable[None]] | None) -> None:
        """Begin the next attempt after a delay. The plan is written first, so a crash cannot lose it.

        `settled` waits until the attempt before has recorded everything.
        """
        handle, registry = self._handle, self._registry
        self._failures += 1
        self.between = True
        delay = retry_delay(handle.tool.retry, self._failures)
        handle.attempt += 1
        handle.next_attempt_at = registry.clock.now() + delay
        op = Attempted(handle.uid, handle.fence, handle.attempt, handle.next_attempt_at)
        reason = to_json({"message": clip(error.message), "code": error.code})
        why = Journaled(handle.uid, handle.fence, "attempt", str(self._failures), b"", reason)
        registry.commit((op, why), lambda _: self.resume_in(delay, settled), lambda _: self._lost(), keep=True)

    def resume_in(self, delay: float, settled: Callable[[], Awaitable[None]] | None = None) -> None:
        """Wait for the time of a planned attempt."""
        self.between = True
        if self._wanted():
            self._next = asyncio.get_running_loop().call_later(delay, self._attempt, settled)

    def _attempt(self, settled: Callable[[], Awaitable[None]] | None) -> None:
        handle, registry = self._handle, self._registry
        op = Attempted(handle.uid, handle.fence, handle.attempt, None)
        handle.next_attempt_at = None
        registry.commit((op,), lambda _: registry.run_soon(self._load(settled)), lambda _: self._lost(), keep=True)

    async def _load(self, settled: Callable[[], Awaitable[None]] | None) -> None:
        """Begin an attempt with the journal of those before."""
        handle = self._handle
        if settled is not None:
            await settled()
        try:
            replays = handle.tool.on_crash == "replay"
            entries = await self._registry.store.journal(handle.uid) if replays else ()
        except KeepholdError as error:
            _log.warning("the journal of call %s cannot be read: %s", handle.uid, error)
            self.resume_in(_READ_AGAIN_SECS)
            return
        if self._wanted():
            self.between = False
            self._invocation = replace(self._invocation, attempt=handle.attempt, fence=handle.fence, entries=entries)
            self._begin(self._invocation)

    def cancel(self) -> None:
        """Do not begin the attempt that is planned."""
        if self._next is not None:
            self._next.cancel()
            self._next = None


def retry_delay(retry: RetryPolicy, attempt: int) -> float:
    """Return the seconds to wait after a failed attempt: exponential, less up to half of it at random (R5)."""
    longest = retry.base_delay_ms * 2.0 ** min(attempt - 1, 60)
    if retry.max_delay_ms:
        longest = min(longest, retry.max_delay_ms)
    return longest / 1000 * (1 - random.random() / 2)
