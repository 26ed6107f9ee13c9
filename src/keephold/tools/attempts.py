"""Another attempt at a call that failed with a transient error (R5): planned, written, then begun.

That there will be one is in the store before the pause begins, so a crash in between cannot lose it.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from keephold.errors import KeepholdError
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import EndedBy, Failure, Stopped
from keephold.store.base import Attempted
from keephold.tools.base import Invocation, Live, RetryPolicy
from keephold.tools.probing import Probing

_log = logging.getLogger("keephold.tools")

_READ_AGAIN_SECS = 1.0


class Attempts:
    """The half of a `Run` that begins it again."""

    __slots__ = (
        "_between", "_ending", "_force", "_invocation", "_next", "_probing", "_settled", "handle", "letting_go", "live",
        "registry",
    )  # fmt: skip

    def __init__(self, registry: Registry, handle: Handle) -> None:
        self.registry = registry
        self.handle = handle
        self.live: Live | None = None
        self.letting_go = False
        self._invocation: Invocation | None = None
        self._between = False
        """Its next attempt is planned; nothing of it runs."""
        self._next: asyncio.TimerHandle | None = None
        """Until the next attempt."""
        self._settled: Callable[[], Awaitable[None]] | None = None
        self._ending: tuple[Failure, EndedBy] | None = None
        self._force: asyncio.TimerHandle | None = None
        self._probing: Probing | None = None

    @property
    def has_key(self) -> bool:
        """Whether it has taken its completion key (D1)."""
        return bool(getattr(self.live, "has_key", False))

    def _begin(self) -> None:
        raise NotImplementedError

    def _cancel_timers(self) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        """Another process runs it."""
        raise NotImplementedError

    def _again(self) -> bool:
        """After a transient failure: whether there is to be another attempt, which is then on its way."""
        handle, retry = self.handle, self.handle.tool.retry
        if self.letting_go or handle.lingering:
            return False
        if self._ending is not None and self._ending[1] != "timeout":
            return False
        if retry.policy == "never" or handle.attempt >= retry.max_attempts or self.has_key:
            return False
        self.plan(_pause(retry, handle.attempt))
        return True

    def plan(self, delay: float) -> None:
        """The next attempt begins in so many seconds; that it will is written first, so a crash cannot lose it."""
        handle, registry = self.handle, self.registry
        self._cancel_timers()
        if self._force is not None:
            self._force.cancel()
        self._settled = getattr(self.live, "settled", None)
        self.live, self._probing, self._ending, self._between = None, None, None, True
        handle.attempt += 1
        handle.next_attempt_at = registry.clock.now() + delay
        op = Attempted(handle.uid, handle.fence, handle.attempt, handle.next_attempt_at)
        registry.commit((op,), lambda _: self.resume_in(delay), self._refused, keep=True)

    def resume_in(self, delay: float) -> None:
        """Wait for the time of a planned attempt."""
        self._between = True
        if not isinstance(self.handle.decided, Stopped) and not self.letting_go:
            self._next = asyncio.get_running_loop().call_later(delay, self._attempt)

    def _attempt(self) -> None:
        handle = self.handle
        op = Attempted(handle.uid, handle.fence, handle.attempt, None)
        handle.next_attempt_at = None
        self.registry.commit((op,), lambda _: self.registry.run_soon(self._load()), self._refused, keep=True)

    async def _load(self) -> None:
        """Begin an attempt with what the ones before have recorded."""
        assert self._invocation is not None
        handle = self.handle
        if self._settled is not None:
            await self._settled()  # what the attempt before has not finished recording
        try:
            entries = await self.registry.store.journal(handle.uid) if handle.tool.on_crash == "replay" else ()
        except KeepholdError as error:
            _log.warning("the journal of call %s cannot be read: %s", handle.uid, error)
            self.resume_in(_READ_AGAIN_SECS)
            return
        self._invocation = replace(self._invocation, attempt=handle.attempt, fence=handle.fence, entries=entries)
        if self._ending is None and not self.letting_go:
            self._between = False
            self.mark_attempt()
            self._begin()

    def mark_attempt(self) -> None:
        """A line in the output that tells the attempts apart (E10)."""
        output = self.handle.output
        if output is not None and output.total:
            start = b"" if output.before(output.total, 1) == b"\n" else b"\n"
            output.append(start + f"--- attempt {self.handle.attempt} ---\n".encode())

    def _refused(self, error: Exception) -> None:
        self.lost()


def _pause(retry: RetryPolicy, attempt: int) -> float:
    """Seconds to wait after a failed attempt: exponential, up to half of it taken away by chance (R5)."""
    longest = retry.base_delay_ms * 2.0 ** min(attempt - 1, 60)
    if retry.max_delay_ms:
        longest = min(longest, retry.max_delay_ms)
    return longest / 1000 * (1 - random.random() / 2)
