"""How long steps take while a million expired handles are deleted, and while nothing is.

A durable function records one step after the other, each on the disk. Retention deletes the handles in ten windows, a
tenth of them in each. Before each of these windows is one as long in which nothing is deleted. So both kinds see the
same machine, but what a deletion leaves for the server to do later falls into the windows without one.

The figure is the longest step of all windows with a deletion. Beside it is the longest step of the windows without one.
Each has the time that 99.9 % of the steps of its windows did not exceed. The store is a file, and then a PostgreSQL
server like that of `postgres`, with one event for each handle, which is deleted, too. One round: it takes minutes.
`--quick` deletes 20,000.

Another process writes 8 KiB to a file on the same disk every 5 ms, and waits until the disk has them (`fdatasync`). It
knows nothing of the store. A step cannot be quicker than the disk, so a long step is the disk's if this process waited
as long at the same time.
"""

import asyncio
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import asyncpg
from tests.postgres import own_server

import keephold
from bench.rounds import FULL, Plan, Row, seconds
from bench.serve_stock import stock

BAR = 0.05
MANY, FEW, BY_API = 1_000_000, 20_000, 1000
WINDOWS = 10
FIRST = 10.0
"""Seconds of the first window, in which nothing is deleted: nobody knows yet how long a deletion takes."""


class Steps:
    """Records steps until it is told to stop, and notes how long each took."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.ends = False
        self.tool = keephold.tool(on_crash="replay", timeout_secs=None)(self.step_on)

    async def step_on(self, call: keephold.Call) -> int:
        """Records steps."""
        effects, count = call.durable(), 0
        while not self.ends:
            began = perf_counter()
            await effects.run_json(str(count), count, _same)
            count += 1
            self.times.append(perf_counter() - began)
        return count

    def take(self) -> list[float]:
        times, self.times = self.times, []
        return times


async def _same(value: object) -> object:
    return value


class Disk:
    """The process that writes to the disk meanwhile."""

    def __init__(self, file: Path) -> None:
        command = [sys.executable, "-m", "bench.collecting", str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def take(self) -> float:
        """Return the longest wait since the last call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def _write_until_the_end(file: Path) -> None:
    longest = 0.0
    with file.open("wb", buffering=0) as opened:
        while True:
            began = perf_counter()
            os.pwrite(opened.fileno(), bytes(8192), 0)
            os.fdatasync(opened.fileno())
            longest = max(longest, perf_counter() - began)
            if select.select([sys.stdin], [], [], 0.005)[0]:
                if not sys.stdin.readline():
                    return
                print(longest, flush=True)
                longest = 0.0


class Windows(NamedTuple):
    """The times of the steps of each window, and the longest wait for the disk, without and with a deletion."""

    quiet: list[list[float]]
    deleting: list[list[float]]
    disk_quiet: list[float]
    disk_deleting: list[float]


async def collect(store: str, oldest: float, newest: float, directory: Path) -> Windows:
    """Delete the handles that stopped between these times."""
    steps, windows, disk = Steps(), Windows([], [], [], []), Disk(directory / "probe")
    runtime = keephold.Runtime([steps.tool], store=store)
    runtime.registry.retention = math.inf
    async with runtime as rt, rt.turn("steps") as turn:
        running = asyncio.create_task(turn.run([keephold.ToolCall("1", "step_on", {})]))
        await asyncio.sleep(1.0)
        length = FIRST
        for number in range(1, WINDOWS + 1):
            steps.take()
            disk.take()
            await asyncio.sleep(length)
            windows.quiet.append(steps.take())
            windows.disk_quiet.append(disk.take())
            began = perf_counter()
            rt.registry.retention = rt.registry.clock.now() - (oldest + (newest - oldest) * number / WINDOWS)
            await rt.registry.collect()
            rt.registry.retention = math.inf
            windows.deleting.append(steps.take())
            windows.disk_deleting.append(disk.take())
            length = perf_counter() - began
        assert not await rt.registry.store.handles()
        steps.ends = True
        await running
    disk.end()
    return windows


_COPIES = """
SET search_path = {schema};
SET session_replication_role = replica;
INSERT INTO handles (uid, id, tool, conversation, turn, batch, position, call_id, kind, priority, stateful, state_name,
    status, stopped_at, fence, attempt, cursor, state, arguments)
SELECT substr(uid, 1, 16) || substr(md5(uid || n), 1, 16), id || '-' || n, tool, conversation, turn, batch, position,
    call_id, kind, priority, stateful, state_name, status, stopped_at, fence, attempt, cursor, state, arguments
FROM handles, generate_series(1, {times}) AS n ORDER BY number, n;
INSERT INTO events (at, type, conversation, uid, data)
SELECT h.stopped_at, 'handle.created', h.conversation, h.uid, '{{}}' FROM handles h
WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.uid = h.uid) ORDER BY h.number;
UPDATE spawned SET handles = (SELECT count(*) FROM handles h WHERE h.conversation = spawned.conversation);
SET session_replication_role = origin;
ANALYZE;
"""


async def stocked(server: str, schema: str, count: int) -> str:
    """A store in that schema with so many expired handles. Most are copies, made by SQL."""
    url = f"{server}?schema={schema}"
    await stock(url, stopped=BY_API)
    connection = await asyncpg.connect(server)
    await connection.execute(_COPIES.format(schema=schema, times=count // BY_API - 1), timeout=3600)
    for settle in ("VACUUM", "CHECKPOINT"):  # or the server would do it soon, and steps would wait for the copies
        await connection.execute(settle, timeout=3600)
    await connection.close()
    return url


def rows(count: int, where: str, windows: Windows) -> list[Row]:
    """The rows of the longest steps, and of the longest waits for the disk."""
    longest = [max(times) for times in windows.deleting]
    return [
        Row(
            what=f"longest step while {count:,} expired handles are deleted, against one while nothing is{where}",
            bare=_shown(windows.quiet),
            ours=_shown(windows.deleting),
            result=_longest(longest),
            bar=f"≤ {seconds(BAR)}",
            met=max(longest) <= BAR,
        ),
        Row(
            what=f"longest wait of another process for the disk meanwhile{where}",
            bare=seconds(max(windows.disk_quiet)),
            ours=seconds(max(windows.disk_deleting)),
            result=_longest(windows.disk_deleting),
        ),
    ]


def _longest(windows: list[float]) -> str:
    return f"{seconds(max(windows))} ({seconds(min(windows))}–{seconds(max(windows))})"


def _shown(windows: list[list[float]]) -> str:
    times = sorted(each for times in windows for each in times)
    return f"{seconds(times[-1])}; 99.9 %: {seconds(times[len(times) * 999 // 1000])}"


def run(plan: Plan) -> list[Row]:
    count = MANY if plan is FULL else FEW
    with tempfile.TemporaryDirectory() as directory:
        path, oldest = Path(directory) / "store.db", time.time() - count
        asyncio.run(stock(path, stopped=count))
        found = rows(count, "", asyncio.run(collect(f"sqlite:///{path}", oldest, time.time(), Path(directory))))
    with own_server() as server:
        oldest = time.time() - BY_API
        url = asyncio.run(stocked(server.url, "gc", count))
        windows = asyncio.run(collect(url, oldest, time.time(), server.directory))
        return [*found, *rows(count, ", PostgreSQL", windows)]


if __name__ == "__main__":
    _write_until_the_end(Path(sys.argv[1]))
