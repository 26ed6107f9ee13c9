"""Upkeep of an open runtime: changes by other processes, and those that bells and timers may have missed (A7)."""

import asyncio
import logging
import math

from keephold.errors import KeepholdError
from keephold.handles.clock import TOLERATED_SECS
from keephold.listeners import Listeners
from keephold.store.base import Collected
from keephold.turn.parts import Parts
from keephold.turn.recovery import Deadlines

_log = logging.getLogger("keephold.runtime")

SWEEP_SECS = 5.0
"""Seconds between two sweeps."""
_COLLECT_SECS = 61.0
"""Seconds between two deletions, at least."""


class Upkeep:
    """Passes changes on, and sweeps."""

    def __init__(self, parts: Parts, deadlines: Deadlines) -> None:
        self._parts = parts
        self._deadlines = deadlines
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0.0
        """The jump of the time of day that was logged last."""
        self.on_heard: Listeners[[]] = Listeners()
        """Called when another process has, or may have, changed something."""

    def begin(self) -> None:
        """Start sweeping."""
        if not self._parts.lifecycle.closing:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECS, self._sweep)

    def begin_collecting(self) -> None:
        """Delete expired handles of a store that needs no sweep because no other process has it. The timer runs only
        while there is something to delete."""
        self._parts.registry.may_expire = self._collect_later

    def _collect_later(self) -> None:
        registry = self._parts.registry
        if self._timer is None and not self._parts.lifecycle.closing:
            secs = min(registry.retention, *registry.shorter.values(), math.inf)
            self._timer = asyncio.get_running_loop().call_later(max(secs, _COLLECT_SECS), self._collect)

    def _collect(self) -> None:
        self._timer = None
        self._parts.registry.run_soon(self._collect_all())

    async def _collect_all(self) -> None:
        registry = self._parts.registry
        await registry.collect_sometimes()
        if await registry.store.expiring(Collected(math.inf, registry.clock.now(), limit=1)):
            self._collect_later()

    def stop(self) -> None:
        """Stop sweeping."""
        if self._timer is not None:
            self._timer.cancel()

    def heard(self, ids: frozenset[str] | None) -> None:
        """Another process has changed something. The ids are a hint; the rows are the truth."""
        parts = self._parts
        if parts.lifecycle.closing:
            return
        parts.durability.waits.recheck(ids)
        parts.relay.notify(ids)
        parts.notifications.heard(ids)
        parts.admission.lanes.heard(ids)
        self.on_heard()
        parts.registry.run_soon(self._catch_up(ids))

    async def _catch_up(self, ids: frozenset[str] | None) -> None:
        try:
            await self._parts.registry.refresh(ids)
            await self._parts.registry.facts.refresh(ids)
            await self._parts.relay.serve()
            await self._parts.recovery.unowned()
        except KeepholdError as error:  # the next sweep reads it again
            if error.code != "store_unavailable":
                raise
            _log.info("changes of other processes cannot be read at present: %s", error)

    @property
    def jump(self) -> float:
        """By how many seconds the machine's time of day was set since the runtime began."""
        jump = getattr(self._parts.registry.clock, "jump", 0.0)  # a program's own clock may have none
        return round(float(jump))

    def _tell_jump(self) -> None:
        jump = self.jump
        if abs(jump - self._told) > TOLERATED_SECS:
            self._told = jump
            _log.warning("%s", _jumped(jump))

    def _sweep(self) -> None:
        self._tell_jump()
        self._parts.registry.run_soon(self._sweep_all())

    async def _sweep_all(self) -> None:
        try:
            self.heard(None)
            await self._parts.recovery.sweep()
            await self._deadlines.check()
            await self._parts.registry.collect_sometimes()
        except KeepholdError as error:
            _log.warning("the store cannot be swept: %s", error)
        finally:
            self.begin()


def _jumped(jump: float) -> str:
    if not jump:
        return "the time of day of this machine agrees with that of this runtime again"
    way = "forward" if jump > 0 else "back"
    return (
        f"the time of day of this machine was set {way} by {abs(jump):.0f} s; this runtime keeps counting from its own "
        "time, so no wait ends early or late and no result expires early; the times that it stores differ by as much, "
        "until you restart it"
    )
