"""What else a child does than play scenes: recover beside another one, stand by, visit, compete."""

import asyncio
import mmap
import os
import signal
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.crash.stage import Commits, runtime_of
from tests.crash.talk import Play
from tests.crash.world import World
from tests.patience import PATIENCE

import keephold.runtime
import keephold.turn.relay
from keephold import KeepholdError, ToolCall
from keephold.store.base import HandleQuery

Request = dict[str, Any]


async def recover(world: World, request: Request) -> str:
    """Open the store at a given moment, take up what is there, and stay until all of it has stopped."""
    _impatient()
    await asyncio.sleep(max(0.0, request["at"] - time.monotonic()))
    async with runtime_of(world) as runtime:
        world.say("opened")
        for conversation, ids in request["wanted"].items():
            await runtime.wait(all=ids, conversation=conversation)
        world.say("recovered")
        await _until_released(world)
    return "done"


async def visit(world: World, request: Request) -> str:
    """Open the store again and again, tools and all, while others work on it."""
    _impatient()
    visits = 0
    while not _released(world):
        async with runtime_of(world) as runtime:
            await runtime.handles()
            await asyncio.sleep(0.02)
        visits += 1
    world.say("visited", visits=visits)
    return "done"


async def compete(world: World, request: Request) -> str:
    """Take up a turn at the same moment as somebody else; whoever gets it answers its batch."""
    _impatient()
    name = request["conversation"]
    async with runtime_of(world) as runtime:
        await asyncio.sleep(max(0.0, request["at"] - time.monotonic()))
        try:
            play = Play(runtime, world)
            async with play.resolving(name), play.turn(name):
                pass
        except KeepholdError as error:
            assert error.code == "turn_open", error
        world.say("competed")
        await _until_released(world)
    return "done"


async def host(world: World, request: Request) -> str:
    """Run a handle that outlives its turn, for others to talk to. Dies where it is told to."""
    commits = Commits(strike=lambda: os.kill(os.getpid(), signal.SIGKILL))
    async with runtime_of(world, commits) as runtime:
        async with Play(runtime, world).turn("house") as talk:
            await talk.spawn("keeper", "k")
            await talk.wait("k")
        await runtime.registry.write(())
        commits.count_from_here(request["kill"])
        world.say("ready")
        await _until_released(world)
    world.say("served", commits=commits.count)
    return "done"


async def guest(world: World, request: Request) -> str:
    """Talk to a handle that another process runs."""
    _impatient()
    async with runtime_of(world) as runtime, Play(runtime, world).turn("house") as talk:
        for line in ("one", "two", "end"):
            response = None
            while response is None or response.code == "not_running":  # while it is resumed, it takes nothing
                (response,) = await talk.run(("keeper", {"action": "apply", "id": "k", "input": line}))
            world.say("applied", id="k", said=line, is_error=response.is_error, result=response.result)
        await talk.finish("k")
    return "done"


async def park(world: World, request: Request) -> str:
    """Many calls that wait for their completion."""
    calls = [
        ToolCall(str(number), "approve", {"action": "spawn", "id": f"a{number}"}) for number in range(request["count"])
    ]
    async with runtime_of(world) as runtime, runtime.turn("many") as turn:
        await turn.run(calls)
        while len(await runtime.registry.store.handles(HandleQuery(parked=True, limit=10_000))) < len(calls):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return "done"


async def resolve(world: World, request: Request) -> str:
    """Resolve keys; with a place, each at the same moment as the process that has the other one."""
    place = request["place"]
    came_to = []
    async with runtime_of(world) as runtime:
        with Step(world.directory / "step", place) as step:
            for key in request["keys"]:
                step.together()
                outcome = await runtime.resolve(key, {"status": "ok", "payload": place})
                winner = place if outcome.terminal is None else outcome.terminal["payload"]
                came_to.append([outcome.status, winner])
    world.say("raced", came_to=came_to)  # at the end: a pipe that nobody reads yet is soon full
    return "done"


class Step:
    """Two processes in step: each counts in shared memory, and neither goes on before the other has counted as far."""

    def __init__(self, file: Path, place: int | None) -> None:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, 16)
        self._memory = mmap.mmap(descriptor, 16)
        os.close(descriptor)
        self._place = place
        self._count = 0

    def together(self) -> None:
        if self._place is None:
            return
        self._count += 1
        struct.pack_into("q", self._memory, 8 * self._place, self._count)
        until = time.monotonic() + PATIENCE
        while struct.unpack_from("q", self._memory, 8 * (1 - self._place))[0] < self._count:
            assert time.monotonic() < until, "the other one does not come"
            os.sched_yield()

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()


def release(directory: Path) -> None:
    """The parent lets children go that wait for it."""
    (directory / "released").touch()


def _released(world: World) -> bool:
    return (world.directory / "released").exists()


async def _until_released(world: World) -> None:
    while not _released(world):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def _impatient() -> None:
    """A peer that has died is noticed after 5 s; a test does not wait so long."""
    keephold.upkeep.SWEEP_SECS = 0.1
    keephold.turn.relay.SILENT_SECS = PATIENCE


Role = Callable[[World, Request], Awaitable[str]]
ROLES: dict[str, Role] = {role.__name__: role for role in (recover, visit, compete, host, guest, park, resolve)}
