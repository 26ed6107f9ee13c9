"""Sites for the suite of durable effects: a runtime on each store, and one whose calls run on Temporal."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keephold.runtime import Runtime
from keephold.store.housekeeping import housekeeping_of
from keephold.store.urls import open_store
from keephold.testing.conformance import EffectsConformance, Site
from keephold.tools.base import Tool

if TYPE_CHECKING:
    from tests.temporal import Place

    from keephold.engines.temporal.worker import TemporalWorker


class StoreSite(Site):
    """A runtime on a store. A crash is a power cut: what is committed is copied to a new store, where nobody runs
    anything, and the next runtime is opened there."""

    def __init__(self, tools: Sequence[Tool], store: str, new: Callable[[], str], directory: Path) -> None:
        super().__init__()
        self._tools, self._store, self._new, self._directory = tools, store, new, directory
        self.runtime = Runtime(tools, store=store)

    async def crash(self) -> None:
        old, left, self._turn = self.runtime, self._new(), None
        file = self._directory / f"cut-{id(old)}"
        await asyncio.to_thread(lambda: housekeeping_of(open_store(self._store)).backup(file, force=True))
        await old.close()
        await asyncio.to_thread(lambda: housekeeping_of(open_store(left)).restore(file, force=True))
        self._store, self.runtime = left, Runtime(self._tools, store=left)
        await self.runtime.open()


class OnStore(EffectsConformance):
    """Calls that run where their runtime is. `new` returns the URL of an empty store."""

    def __init__(self, new: Callable[[], str], directory: Path) -> None:
        self._new, self._directory = new, directory

    @asynccontextmanager
    async def make(self, tools: Sequence[Tool]) -> AsyncIterator[Site]:
        site = StoreSite(tools, self._new(), self._new, self._directory)
        await site.runtime.open()
        try:
            yield site
        finally:
            await site.runtime.close()


class InMemory(OnStore):
    crashes = False

    def __init__(self) -> None:
        super().__init__(lambda: "memory:", Path())


class TemporalSite(Site):
    """A front end, and a worker that takes its calls from a real server. In a crash all attempts of the worker are
    lost, as they are when the server misses the heartbeats of a worker that died; that alone would take 15 s."""

    def __init__(self, runtime: Runtime, worker: "TemporalWorker") -> None:
        super().__init__()
        self.runtime, self._worker = runtime, worker

    async def crash(self) -> None:
        for body in tuple(self._worker._bodies):
            body.lost()


class OnTemporal(EffectsConformance):
    engine = "temporal"

    def __init__(self, place: "Place") -> None:
        self._place = place

    @asynccontextmanager
    async def make(self, tools: Sequence[Tool]) -> AsyncIterator[Site]:
        from tests.engines.site import front_end, working

        workers, served = working(self._place, tools), front_end(self._place, tools)
        async with workers as (worker,), served as runtime:
            yield TemporalSite(runtime, worker)
