"""A runtime on the store of a life, with the tools of the crash tests, and scenes played on it."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.crash.scenes import ALL
from tests.crash.talk import Later, Play
from tests.crash.tools import TOOLS, config_file
from tests.crash.world import World

from keephold import KeepholdError, Runtime
from keephold.store.base import Store
from keephold.store.sqlite import SqliteStore


def store_file(directory: Path) -> Path:
    return directory / "work.db"


def store_url(directory: Path) -> str | None:
    """The URL of the PostgreSQL store of a life; None: it has a file."""
    named = directory / "store-url"
    return named.read_text() if named.exists() else None


class Commits:
    """The fault seam of the store: counts transactions, and strikes at the chosen one (`before:3`, `after:3`)."""

    def __init__(self, at: str | None = None, strike: Callable[[], None] | None = None) -> None:
        self.strike = strike
        self.count_from_here(at)

    def count_from_here(self, at: str | None) -> None:
        self.count = 0
        side, _, number = (at or ":0").partition(":")
        self._at = side, int(number)

    def __call__(self, side: str) -> None:
        self.count += side == "before"
        if (side, self.count) == self._at and self.strike is not None:
            self.strike()


def runtime_of(world: World, commits: Commits | None = None, *, commands: bool = False) -> Runtime:
    """The runtime, with the command tool only if it is needed: to read a configuration takes its time."""
    store = _store(world.directory, commits)
    config = config_file(world.directory) if commands else None
    runtime = Runtime(TOOLS, store=store, clock=world.clock, config=config)
    world.say("mark", mark=runtime._guard.mark)
    return runtime


def _store(directory: Path, commits: Commits | None) -> Store:
    url = store_url(directory)
    if url is None:
        return SqliteStore(store_file(directory), fault=commits)
    from keephold.store.postgres.store import PostgresStore

    return PostgresStore(url, fault=commits)


async def opened(world: World, commits: Commits, *, commands: bool) -> Runtime:
    """A runtime that is open; another one if the store could not write just then."""
    while True:
        runtime = runtime_of(world, commits, commands=commands)
        try:
            await runtime.open()
        except KeepholdError as error:
            await runtime.close()
            if error.code != "store_unavailable":
                raise
        else:
            return runtime


async def play(names: Sequence[str], world: World, commits: Commits) -> str:
    """Play scenes side by side. `later` if the clock must move on before one of them can end."""
    async with await opened(world, commits, commands="command" in names) as runtime:
        world.say("opened")
        scenes = (ALL[name](Play(runtime, world)) for name in names)
        ends = await asyncio.gather(*scenes, return_exceptions=True)
    return _verdict(ends)


async def play_until_closed(names: Sequence[str], world: World, commits: Commits) -> str:
    """The same, but the runtime is closed in good order at the chosen commit, whatever is going on."""
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []

    def close() -> None:
        closing.append(loop.create_task(runtime.close()))

    def strike() -> None:
        loop.call_soon_threadsafe(close)

    commits.strike = strike
    runtime = runtime_of(world, commits, commands="command" in names)
    ends: list[BaseException | None]
    try:
        async with runtime:
            scenes = (ALL[name](Play(runtime, world)) for name in names)
            ends = await asyncio.gather(*scenes, return_exceptions=True)
    except KeepholdError as error:
        ends = [error]
    await asyncio.gather(*closing)
    for end in ends if closing else ():
        if not isinstance(end, KeepholdError | Later | None):
            raise end
    return "closed" if closing else _verdict(ends)


def _verdict(ends: list[BaseException | None]) -> str:
    for end in ends:
        if end is not None and not isinstance(end, Later):
            raise end
    return "later" if any(ends) else "done"
