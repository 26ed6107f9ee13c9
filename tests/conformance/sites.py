"""Sites for the suite of durable effects: a runtime on a store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from keephold.runtime import Runtime
from keephold.store import open_store
from keephold.store.housekeeping import housekeeping_of
from keephold.testing.conformance import EffectsConformance, Site
from keephold.tools.base import Tool


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


def _answered_soon(tool: Tool) -> Tool:
    """Return the tool with a spawn that is answered at once: a call that waits for an event would take a second."""
    return replace(tool, spawn=replace(tool.spawn, settle_ms=1, settle_max_ms=1))


class OnStore(EffectsConformance):
    """Calls that run where their runtime is. `new` returns the URL of an empty store."""

    def __init__(self, new: Callable[[], str], directory: Path) -> None:
        self._new, self._directory = new, directory

    @asynccontextmanager
    async def make(self, tools: Sequence[Tool]) -> AsyncIterator[Site]:
        site = StoreSite([_answered_soon(tool) for tool in tools], self._new(), self._new, self._directory)
        await site.runtime.open()
        try:
            yield site
        finally:
            await site.runtime.close()


class InMemory(OnStore):
    crashes = False

    def __init__(self) -> None:
        super().__init__(lambda: "memory:", Path())
