"""The longest pause that deleting a million expired handles causes to a step.

A durable function records one step after the other, each on the disk, while retention deletes the handles in parts. The
figure is the longest step; beside it the longest step before that. The store is a file, and then a PostgreSQL server
like that of `postgres`, with one event for each handle, which is deleted, too. One round: it takes minutes. `--quick`
deletes 20,000.
"""

import asyncio
import math
import tempfile
from pathlib import Path
from time import perf_counter

import asyncpg
from tests.postgres import own_server

import keephold
from bench.gaps import figure
from bench.rounds import FULL, Plan, Row, seconds
from bench.serve_stock import stock

BAR = 0.05
MANY, FEW, BY_API = 1_000_000, 20_000, 1000
BEFORE = 20.0
"""Seconds of steps before anything is deleted."""


class Steps:
    """Records steps until it is told to stop, and notes the longest."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.count = 0
        self.ends = False
        self.tool = keephold.tool(on_crash="replay", timeout_secs=None)(self.step_on)

    async def step_on(self, call: keephold.Call) -> int:
        """Records steps."""
        effects = call.durable()
        while not self.ends:
            began = perf_counter()
            await effects.run_json(str(self.count), self.count, _same)
            self.count += 1
            self.longest = max(self.longest, perf_counter() - began)
        return self.count

    def take(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest


async def _same(value: object) -> object:
    return value


async def collect(store: str, before: float) -> tuple[float, float]:
    """Return the longest step before everything is deleted, and while it is."""
    steps = Steps()
    runtime = keephold.Runtime([steps.tool], store=store)
    runtime.registry.retention = math.inf
    async with runtime as rt, rt.turn("steps") as turn:
        running = asyncio.create_task(turn.run([keephold.ToolCall("1", "step_on", {})]))
        await asyncio.sleep(1.0)
        steps.take()
        await asyncio.sleep(before)
        quiet = steps.take()
        rt.registry.retention = 0.0
        await rt.registry.collect()
        paused = steps.take()
        steps.ends = True
        await running
    return quiet, paused


_COPIES = """
SET search_path = {schema};
SET session_replication_role = replica;
INSERT INTO handles (uid, id, tool, conversation, turn, batch, position, call_id, kind, priority, stateful, state_name,
    status, stopped_at, fence, attempt, cursor, state, arguments)
SELECT substr(uid, 1, 16) || substr(md5(uid || n), 1, 16), id || '-' || n, tool, conversation, turn, batch, position,
    call_id, kind, priority, stateful, state_name, status, stopped_at, fence, attempt, cursor, state, arguments
FROM handles, generate_series(1, {times}) AS n;
INSERT INTO events (at, type, conversation, uid, data)
SELECT h.stopped_at, 'handle.created', h.conversation, h.uid, '{{}}' FROM handles h
WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.uid = h.uid);
UPDATE spawned SET handles = (SELECT count(*) FROM handles h WHERE h.conversation = spawned.conversation);
SET session_replication_role = origin;
ANALYZE;
"""


async def _stocked(server: str, schema: str, count: int) -> str:
    """A store in that schema with so many expired handles. Most are copies, made by SQL."""
    url = f"{server}?schema={schema}"
    await stock(url, stopped=BY_API)
    connection = await asyncpg.connect(server)
    await connection.execute(_COPIES.format(schema=schema, times=count // BY_API - 1), timeout=3600)
    for settle in ("VACUUM", "CHECKPOINT"):  # or the server would do it soon, and steps would wait for the copies
        await connection.execute(settle, timeout=3600)
    await connection.close()
    return url


def run(plan: Plan) -> list[Row]:
    count, before = (MANY, BEFORE) if plan is FULL else (FEW, 2.0)
    what = f"longest step while {count:,} expired handles are deleted, against the longest before"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        asyncio.run(stock(path, stopped=count))
        quiet, paused = asyncio.run(collect(f"sqlite:///{path}", before))
    rows = [figure(what, BAR, [paused], against=seconds(quiet))]
    with own_server() as server:
        url = asyncio.run(_stocked(server.url, "gc", count))
        quiet, paused = asyncio.run(collect(url, before))
    return [*rows, figure(f"{what}, PostgreSQL", BAR, [paused], against=seconds(quiet))]
