"""Work that runs inside spawned calls of a runtime on a store, for benchmarks of what such a call does."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import keephold
from keephold.durable.effects import Effects

Work = Callable[[Effects], Awaitable[None]]


class Inside:
    """A runtime with an open turn, to run things inside of calls."""

    def __init__(self) -> None:
        self.rt: keephold.Runtime
        self._turn: keephold.Turn
        self._work: dict[str, Work] = {}
        self._ids = itertools.count()

    async def run(self, work: Work, calls: int = 1) -> None:
        """Spawn calls whose tool does the work, and wait for them."""
        ids = [f"w{next(self._ids)}" for _ in range(calls)]
        self._work.update(dict.fromkeys(ids, work))
        spawned = [keephold.ToolCall(id, "work", {"action": "spawn", "id": id}) for id in ids]
        for response in await self._turn.run(spawned):
            assert not response.is_error, response.result
        waited = await self.rt.wait(all=ids, conversation=self._turn.conversation)
        for handle in waited["completed"]:
            assert not handle["is_error"], handle["result"]

    @asynccontextmanager
    async def opened(self, store: str) -> AsyncIterator["Inside"]:
        @keephold.tool(actions=("spawn", "abort"), on_crash="replay")
        async def work(call: keephold.Call) -> str:
            await self._work.pop(call.id)(call.durable())
            return "done"

        async with keephold.Runtime([work], store=store) as self.rt, self.rt.turn() as self._turn:
            yield self


def inside(store: Path | str) -> AbstractAsyncContextManager[Inside]:
    """A runtime on that file, or on the store of that URL, as an async context manager."""
    return Inside().opened(f"sqlite:///{store}" if isinstance(store, Path) else store)


async def trivial(given: Any) -> Any:
    """Do nothing, when only the step is measured."""
    return given


async def step_on(effects: Effects, count: int) -> None:
    """Run this many steps, one after another."""
    for number in range(count):
        await effects.run_json(f"s{number}", number, trivial)


async def pause() -> None:
    """Let everything run that is ready, and what that makes ready."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
