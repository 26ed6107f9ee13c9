"""From `complete_wait_handle` of one MCP client to the reply of `wait_for` that another has, p50.

The server is a process of its own with a SQLite store, reached by streamable HTTP of 2026-07-28 on loopback. The client
that waits is a process of its own, too, so that the two replies do not queue for one interpreter. Timed from the moment
the completing client begins its call to the moment the waiting one has its reply; in between the completion has come to
the disk, so a raw commit (see `durable-steps`) is measured in the same turns. The handle is created and waited for
before that, and a wait that had not begun when it was completed (the server says how long it waited) does not count.

- *Against an empty tool*: its round trip, by the completing client; the tool is the SDK's own on the same server, so
  nothing of keephold is in it. It is called after the same pause as a completion: processes that have slept for 30 ms
  take half as long again as busy ones. A wake-up is half of each of two requests: about one round trip.
- *Against polling*: the tools as they were before, on a bare server, with a look every 100 ms. Completions come at
  moments that are spread evenly over that interval.

The clients are the SDK's, which is what one has; the rows *by plain sockets* show the servers without that. The bar for
polling is for those: half of 100 ms is about twenty round trips of the SDK's client, however quick the server is.
"""

import asyncio
import itertools
import random
import tempfile
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path

from bench.durable_steps import inserting
from bench.gaps import TURN, Times, Turn, alternate
from bench.mcp_clients import Caller, Calling, Kind, Waiter, connected, waiting
from bench.mcp_rows import beside, ratio
from bench.mcp_servers import MEMORY, POLL_SECS, served, sqlite
from bench.raw import Raw
from bench.rounds import Bar, Plan, Row

BAR_EMPTY, BAR_POLLING = Bar(2), Bar(20, of="speed")
_SETTLE_SECS = 0.03
"""The time for a wait to arrive. A wait that is late is not counted."""


class Waking:
    """Handles that one client waits for and the other completes."""

    def __init__(self, caller: Caller, waiter: Waiter, spread: float = 0.0) -> None:
        self._caller, self._waiter = caller, waiter
        self._pauses = [_SETTLE_SECS + spread * number / TURN for number in range(TURN)]
        self._names = itertools.count()

    async def __call__(self, times: Times) -> None:
        random.shuffle(self._pauses)
        for pause in self._pauses:
            while (took := await self._once(pause)) is None:
                pass
            times.append(took)

    async def _once(self, pause: float) -> float | None:
        id = f"h{next(self._names)}"
        await self._caller.call("create_wait_handle", handleId=id, type="custom")
        self._waiter.wait_for(id)
        await asyncio.sleep(pause)
        began = asyncio.get_running_loop().time()
        await self._caller.call("complete_wait_handle", handleId=id, result="done")
        woken, waited = await self._waiter.woken()
        return woken - began if waited else None


async def _against_empty(plan: Plan, kind: Kind, directory: str) -> list[Row]:
    async with AsyncExitStack() as stack:
        raw = stack.enter_context(closing(Raw(Path(directory) / f"{kind}-raw.db")))
        sides: list[Turn] = [partial(inserting, raw)]
        for store in (sqlite(directory, kind), MEMORY):
            url = stack.enter_context(served(store))
            caller = await stack.enter_async_context(connected(kind, url))
            waiter = await stack.enter_async_context(waiting(kind, url))
            sides += [Calling(caller, "empty", {}, _SETTLE_SECS), Waking(caller, waiter)]
        rounds = await alternate(plan, sides)
    what = f"`complete_wait_handle` → `wait_for` reply of another client, p50, against an empty tool{_by(kind)}"
    bar = BAR_EMPTY if kind == "sdk" else None
    return [
        ratio(f"{what}: SQLite", bar, [(empty, wake) for _, empty, wake, _, _ in rounds]),
        ratio(f"{what}: memory", None, [(empty, wake) for _, _, _, empty, wake in rounds]),
        beside("… a raw commit meanwhile", [commit for commit, *_ in rounds]),
    ]


async def _against_polling(plan: Plan, kind: Kind, directory: str) -> Row:
    async with AsyncExitStack() as stack:
        sides = []
        for what, spread in (("polling", POLL_SECS), (sqlite(directory, f"{kind}-polling"), 0.0)):
            url = stack.enter_context(served(what))
            caller = await stack.enter_async_context(connected(kind, url))
            sides.append(Waking(caller, await stack.enter_async_context(waiting(kind, url)), spread))
        rounds = await alternate(plan, sides)
    what = f"the same on SQLite, against polling every {POLL_SECS * 1000:g} ms{_by(kind)}"
    bar = BAR_POLLING if kind == "plain" else None
    return ratio(what, bar, [(polling, wake) for polling, wake in rounds], BAR_POLLING.of)


def _by(kind: Kind) -> str:
    return "" if kind == "sdk" else ", by plain sockets"


def run(plan: Plan) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        for kind in ("sdk", "plain"):
            rows += asyncio.run(_against_empty(plan, kind, directory))
            rows.append(asyncio.run(_against_polling(plan, kind, directory)))
    return rows
