"""From an event to its arrival at 200 event streams, p99.

200 connections hear `/api/events` of a `keephold serve` with a SQLite store. Completions of handles that wait are sent
one after the other, with pauses, and each is timed from the moment its request is begun to the moment at which each of
the streams has the event that tells of it: the request, the commit and the way to all streams are in the figure, and so
is the client, which is one process for all of them.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.gaps import figure
from bench.raw import percentile
from bench.rounds import Plan, Row
from bench.serve_clients import Plain, Stream, connected
from bench.serve_servers import Server, ours
from bench.serve_stock import stock

BAR = 0.050
STREAMS = 200
_PAUSE = 0.02


async def _round(server: Server, keys: Iterator[str], length: float) -> float:
    arrived: list[float] = []
    all_here = asyncio.Event()

    def heard(at: float) -> None:
        arrived.append(at)
        if len(arrived) == STREAMS:
            all_here.set()

    times: list[float] = []
    async with (
        connected(server.port, STREAMS, lambda: Stream(heard)) as streams,
        connected(server.port, 1, Plain) as one,
    ):
        await asyncio.gather(*(stream.opened for stream in streams))
        until = perf_counter() + length
        while perf_counter() < until:
            arrived.clear()
            all_here.clear()
            began = perf_counter()
            assert await one[0].complete(next(keys)) == 200
            async with asyncio.timeout(10):
                await all_here.wait()
            times += [at - began for at in arrived]
            await asyncio.sleep(_PAUSE)
    return percentile(times, 0.99)


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ours.db"
        keys = iter(asyncio.run(stock(path, parked=int(plan.seconds * plan.rounds / _PAUSE) + 100)))
        with ours(path) as server:
            rounds = [asyncio.run(_round(server, keys, plan.seconds)) for _ in range(plan.rounds)]
    return [figure(f"an event → {STREAMS} event streams, p99", BAR, rounds)]
