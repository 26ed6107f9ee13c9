"""`keephold serve` under load: 500 completions a second and 200 event streams, for a minute.

Each completion is of another handle that waits, at its moment whether or not those before it have been answered. Every
stream must hear of every one of them, once. Nothing may fail and, after the first half, nothing may grow: memory (in
the medians of the third and of the last quarter), descriptors, threads.
"""

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from bench.raw import percentile
from bench.rounds import seconds
from bench.serve_clients import Plain, Stream, connected
from bench.serve_servers import Server, ours
from bench.serve_stock import stock

RATE, STREAMS, SECONDS = 500, 200, 60.0
_CONNECTIONS = 64
_GROWTH = 4 << 20
"""Bytes by which the memory of a server goes up and down by itself. A leak would be more than that."""


@dataclass
class Load:
    """The result of one load."""

    rate: int
    streams: int
    length: float
    times: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    events: int = 0

    def __str__(self) -> str:
        told = ", ".join(self.wrong[:5]) or "no error, no growth"
        before, after = _quarters(self.resident)
        return (
            f"serve: {len(self.times):,} completions at {self.rate}/s with {self.streams} event streams for "
            f"{self.length:g} s: {told}\n"
            f"  answered within {seconds(statistics.median(self.times))} (p50), "
            f"{seconds(percentile(self.times, 0.99))} (p99); {self.events:,} events came\n"
            f"  resident {before / 2**20:.1f} → {after / 2**20:.1f} MiB, descriptors {self.descriptors[-1]}, "
            f"threads {self.threads[-1]}"
        )


def run(length: float = SECONDS, rate: int = RATE, streams: int = STREAMS) -> Load:
    """The load, on a server and a store of its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ours.db"
        keys = asyncio.run(stock(path, parked=int(length * rate)))
        with ours(path) as server:
            return asyncio.run(_run(server, keys, Load(rate, streams, length)))


async def _run(server: Server, keys: list[str], load: Load) -> Load:
    async with AsyncExitStack() as stack:
        streams = await stack.enter_async_context(connected(server.port, load.streams, Stream))
        posting = await stack.enter_async_context(connected(server.port, _CONNECTIONS, Plain))
        await asyncio.gather(*(stream.opened for stream in streams))
        watching = asyncio.create_task(_watch(server, load))
        await _post(keys, posting, load)
        await _all_heard(streams)
        watching.cancel()
        load.wrong += _complaints(streams, len(keys), load)
        load.events = sum(stream.events for stream in streams)
    return load


async def _post(keys: list[str], connections: list[Plain], load: Load) -> None:
    """Each at its moment; a request that must wait for a connection counts from that moment on."""
    free: asyncio.Queue[Plain] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)

    async def one(key: str, due: float) -> None:
        connection = await free.get()
        try:
            status = await connection.complete(key)
        except ConnectionError as error:
            load.wrong.append(f"a request failed: {error}")
            return
        load.times.append(perf_counter() - due)
        if status != 200:
            load.wrong.append(f"a request was answered {status}")
        free.put_nowait(connection)

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for due, key in _due(keys, began, load.rate):
            await asyncio.sleep(max(due - perf_counter(), 0))
            group.create_task(one(key, due))


def _due(keys: list[str], began: float, rate: int) -> Iterator[tuple[float, str]]:
    return ((began + number / rate, key) for number, key in enumerate(keys))


async def _watch(server: Server, load: Load) -> None:
    while True:
        load.resident.append(server.resident)
        load.descriptors.append(server.descriptors)
        load.threads.append(server.threads)
        await asyncio.sleep(load.length / 60)


async def _all_heard(streams: list[Stream]) -> None:
    """Until nothing more comes, so that what comes twice is seen as well."""
    last = -1
    while (now := sum(stream.events for stream in streams)) != last:
        last = now
        await asyncio.sleep(1)


def _complaints(streams: list[Stream], completions: int, load: Load) -> list[str]:
    wrong = [f"{sum(stream.lost for stream in streams)} streams were cut"] if any(s.lost for s in streams) else []
    counts = {stream.told for stream in streams}
    if counts != {completions}:
        wrong.append(f"streams heard of {min(counts)} to {max(counts)} completions, not of {completions}")
    before, after = _quarters(load.resident)
    if after > before + _GROWTH:
        wrong.append(f"memory grew from {before / 2**20:.1f} to {after / 2**20:.1f} MiB")
    half = len(load.descriptors) // 2
    for what, samples in (("descriptors", load.descriptors), ("threads", load.threads)):
        if samples[-1] > max(samples[: half + 1]):
            wrong.append(f"{what} grew to {samples[-1]}")
    return wrong


def _quarters(samples: list[int]) -> tuple[float, float]:
    """The medians of the third quarter and of the last."""
    size = max(len(samples) // 4, 1)
    return statistics.median(samples[-2 * size : -size] or samples), statistics.median(samples[-size:])
