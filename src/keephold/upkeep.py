"""What a runtime looks after while it is open: what other processes have changed, and what bells and timers may have
missed (A7)."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.runtime import Runtime

_log = logging.getLogger("keephold.runtime")

SWEEP_SECS = 5.0
"""How often everything is looked at."""


class Upkeep:
    """Hears of changes, and sweeps."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._timer: asyncio.TimerHandle | None = None
        self.on_heard: list[Callable[[], None]] = []
        """Called when another process has changed something, or may have."""

    def begin(self) -> None:
        """Sweep from now on."""
        if not self._runtime.closing:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECS, self._sweep)

    def stop(self) -> None:
        """Sweep no more."""
        if self._timer is not None:
            self._timer.cancel()

    def heard(self, ids: frozenset[str] | None) -> None:
        """Another process has changed something: its ids are a hint, the rows are the truth."""
        runtime = self._runtime
        if runtime.closing:
            return
        runtime.durability.waits.look(ids)
        runtime.relay.look(ids)
        runtime.notifications.heard(ids)
        for told in tuple(self.on_heard):
            told()
        runtime.registry.run_soon(self._look(ids))

    async def _look(self, ids: frozenset[str] | None) -> None:
        runtime = self._runtime
        await runtime.registry.refresh(ids)
        await runtime.relay.serve()
        await runtime.recovery.unowned()

    def _sweep(self) -> None:
        self._runtime.registry.run_soon(self._look_everywhere())

    async def _look_everywhere(self) -> None:
        try:
            self.heard(None)
            await self._runtime.recovery.sweep()
            await self._runtime.deadlines.check()
        except KeepholdError as error:
            _log.warning("the store cannot be looked through: %s", error)
        finally:
            self.begin()
