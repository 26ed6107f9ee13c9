"""10,000 wait handles that nobody has completed: the growth of the resident memory of the server.

The server is a process of its own with a SQLite store. The handles are made by `create_wait_handle` over HTTP, through
a few connections; 1,000 before the first figure, so that what is loaded and compiled once is not counted. Both figures
are taken after a collection of garbage, the second one after the sweep that the runtime makes every 5 s has seen them.
"""

import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack

from bench.mcp_clients import Caller, connected
from bench.mcp_servers import served, sqlite
from bench.rounds import Plan, Row
from keephold.upkeep import SWEEP_SECS

BAR = 4 << 20
PARKED, BEFORE = 10_000, 1000
_CONNECTIONS = 8


async def _grown(store: str) -> int:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(served(store))
        callers = [await stack.enter_async_context(connected("plain", url)) for _ in range(_CONNECTIONS)]
        await _park(callers, 0, BEFORE)
        before = await _resident(callers[0])
        await _park(callers, BEFORE, BEFORE + PARKED)
        return await _resident(callers[0]) - before


async def _resident(caller: Caller) -> int:
    await asyncio.sleep(SWEEP_SECS + 1)
    return int(await caller.call("resident"))


async def _park(callers: list[Caller], first: int, end: int) -> None:
    numbers = iter(range(first, end))

    async def one_by_one(caller: Caller) -> None:
        for number in numbers:
            await caller.call("create_wait_handle", handleId=f"p{number}", type="hook", metadata={"number": number})

    await asyncio.gather(*map(one_by_one, callers))


def run(plan: Plan) -> list[Row]:
    """A few processes are enough: memory does not depend on who else works on the machine."""
    with tempfile.TemporaryDirectory() as directory:
        grown = [asyncio.run(_grown(sqlite(directory, str(number)))) for number in range(plan.rounds // 2)]
    middle = statistics.median(grown)
    return [
        Row(
            what=f"{PARKED:,} wait handles that wait: growth of resident memory of the server; beside it: for each",
            bare=f"{middle / PARKED:.0f} B",
            ours=_mib(middle),
            result=f"{_mib(middle)} ({_mib(min(grown))}–{_mib(max(grown))})",
            bar=f"≤ {_mib(BAR)}",
            met=middle <= BAR,
        )
    ]


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
