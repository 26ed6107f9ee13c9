"""`POST /complete/<key>`, durable: requests a second. Against an empty Starlette handler with a raw group commit.

Ours is `keephold serve` with a SQLite store in which many handles wait for their completion; each request resolves
another of them, with a key that is verified, and is answered when that is on the disk. The other is a Starlette handler
that reads the body, has one row written (see `durable-steps`, in groups as requests come together) and answers. Both
are served by uvicorn with the same options in a process of their own and called by the same client: 32 connections that
stay open, each with the next request as soon as the last is answered.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter

from bench.rounds import Bar, Plan, Row, measure
from bench.serve_clients import Plain, connected
from bench.serve_servers import empty, ours
from bench.serve_stock import stock

BAR = Bar(0.5, of="speed")
CONNECTIONS = 32
_KEYS_A_SECOND = 4000
"""More than are needed, on any machine that this was tried on."""


async def _posting(port: int, keys: Iterator[str], length: float) -> float:
    """Seconds for a request."""
    answered = 0

    async def post(connection: Plain, until: float) -> None:
        nonlocal answered
        while True:
            assert await connection.complete(next(keys)) == 200
            answered += 1
            if perf_counter() >= until:
                break

    async with connected(port, CONNECTIONS, Plain) as connections:
        began = perf_counter()
        await asyncio.gather(*(post(connection, began + length) for connection in connections))
        return (perf_counter() - began) / answered


def run(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        needed = int(_KEYS_A_SECOND * plan.seconds * (plan.rounds + 1)) + 1000
        keys = iter(asyncio.run(stock(place / "ours.db", parked=needed)))
        made_up = (f"key-{number}" for number in count())
        with ours(place / "ours.db") as mine, empty(place / "empty.db") as other:
            return [
                measure(
                    "`POST /complete`, durable, requests a second, against an empty handler with a group commit",
                    plan,
                    BAR,
                    partial(_posting, other.port, made_up),
                    partial(_posting, mine.port, keys),
                    show=lambda value: f"{1 / value:,.0f}/s",
                )
            ]
