"""When a tool that takes input has settled (C4): the moment to answer a spawn or an apply.

It has settled as soon as it is known to wait for input, asks a question, ends, has been quiet for `settle_ms` after its
first byte of output, or `settle_max_ms` have passed.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from keephold.handles.handle import Handle, Watcher
from keephold.handles.state import Running

Because = Literal["exited", "quiet", "waiting_for_input", "deadline"]
"""Why a reply came when it did."""

_PROBE_SECS = 0.02


class Settle(Watcher):
    """Watches one handle and calls `done` once, when it has settled."""

    wants_reading = True

    def __init__(self, handle: Handle, done: Callable[[Because], None], *, since: int) -> None:
        """`since`: the size of its output before the call that it settles from."""
        self._handle = handle
        self._done: Callable[[Because], None] | None = done
        self._loop = asyncio.get_running_loop()
        self._quiet_secs = handle.tool.spawn.settle_ms / 1000
        self._heard = 0.0
        self._quiet: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._last = self._loop.call_later(handle.tool.spawn.settle_max_ms / 1000, self._finish, "deadline")
        handle.watch(self)
        self._check()
        if self._done is not None and handle.run is not None:
            if printed(handle) > since:
                self.printed(handle)
            self._tick()

    def stopped(self, handle: Handle) -> None:
        self._finish("exited")

    def parked(self, handle: Handle) -> None:
        self._finish("quiet")

    def handle_changed(self, handle: Handle) -> None:
        self._check()

    def _check(self) -> None:
        if not isinstance(self._handle.state, Running) or self._handle.reading:
            self._finish("waiting_for_input" if self._handle.active else "exited")

    def printed(self, handle: Handle) -> None:
        if self._handle.run is not None and self._handle.run.typing:
            return  # the echo of the first half: the program's reaction to the whole is still to come
        self._heard = self._loop.time()
        if self._quiet is None and self._done is not None:
            self._quiet = self._loop.call_later(self._quiet_secs, self._maybe_quiet)

    def _maybe_quiet(self) -> None:
        left = self._heard + self._quiet_secs - self._loop.time()
        if left > 0:
            self._quiet = self._loop.call_later(left, self._maybe_quiet)
        else:
            self._finish("quiet")

    def _tick(self) -> None:
        run = self._handle.run
        if run is not None and run.can_probe and self._done is not None:
            self._probe = self._loop.call_later(_PROBE_SECS, self._tick)
            run.probe()  # a positive answer comes back through `handle_changed`

    def _finish(self, because: Because) -> None:
        if self._done is None:
            return
        done, self._done = self._done, None
        for timer in (self._quiet, self._probe, self._last):
            if timer is not None:
                timer.cancel()
        self._handle.unwatch(self)
        done(because)


def printed(handle: Handle) -> int:
    """Return how many bytes a handle has printed."""
    return 0 if handle.output is None else handle.output.total
