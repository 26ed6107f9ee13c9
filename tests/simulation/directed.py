"""For tests that stage one race by hand: a world to act in, and moments of rest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.simulation.ops import MOMENT, Call, Once, Spawn
from tests.simulation.world import Answer, Crew, Stage, World

from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.store.base import Store
from keephold.testing import VirtualClock


async def rest() -> None:
    """Until everything that is under way has happened."""
    await asyncio.sleep(MOMENT)


class Theatre:
    """A world whose puppets are known by the id of their newest call."""

    def __init__(self, stage: Stage, world: World) -> None:
        self.world = world
        self.registry: Registry = stage.runtime.registry
        self._numbers: dict[str, int] = {}

    def run(self, *calls: Call, conversation: int = 0) -> Answer:
        numbers = []
        for call in calls:
            numbers.append(len(self._numbers) if isinstance(call, Spawn | Once) else -1)
            if isinstance(call, Spawn | Once):
                self._numbers[f"{conversation}:{call.id}"] = numbers[-1]
        return self.world.run(conversation, calls, numbers)

    def tell(self, id: str, order: str, text: str = "", conversation: int = 0) -> None:
        self.world.tell(self._numbers[f"{conversation}:{id}"], order, text)  # type: ignore[arg-type]

    def state(self, id: str) -> str:
        return next(state for _, other, state, _ in self.world.states() if other == id)

    def handle(self, id: str, conversation: int = 0) -> Handle:
        return self.registry.find(id, f"directed.{conversation}")


@asynccontextmanager
async def theatre(clock: VirtualClock, store: Store | str = "memory:") -> AsyncIterator[Theatre]:
    async with Stage(Crew(), clock, store) as stage, World(stage, "directed") as world:
        yield Theatre(stage, world)
