"""1,000,000 calls that wait for their completion from outside, and nobody runs them.

100,000 are parked by a process through the API: a spawned tool that takes its completion key and returns
`keephold.Pending`, in batches of 1,000, each in a turn. The rest are copies of them, made by SQL in the file while that
process has it open, with uids, ids and keys of their own; not copied is what a turn keeps of its batches.

- *Memory*: growth of that process's resident set from the 1,000th parked call to all of them, garbage collected, after
  the sweep that the runtime makes every 5 s has seen them.
- *Restart*: that process is killed, and so is each of those that follow. From the moment a fresh process is started
  (Python's own start and all imports included) to the answer of its first `rt.resolve`, of a random one of the calls.
  The file is in the page cache.
"""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import apsw
import psutil

import keephold
from bench.gaps import figure
from bench.rounds import Plan, Row
from keephold.durable.keys import key_id, make_key
from keephold.upkeep import SWEEP_SECS

BAR_MEMORY, BAR_RESTART = 64 << 20, 2.0
PARKED, BY_API = 1_000_000, 100_000
BATCH = 1000
CONVERSATIONS = 20
_COPY = 10_000  # rows in a transaction: the runtime must be able to write meanwhile


@keephold.tool(actions=("spawn", "abort"))
async def approve(call: keephold.Call) -> keephold.Pending:
    """Waits for somebody outside."""
    await call.completion_key()
    return keephold.Pending(deadline=7 * 86_400)


def _resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


# The processes


async def park(path: str, count: int) -> None:
    """Park calls; after a line on stdin, which says that the copies exist, print how memory has grown."""
    async with keephold.Runtime([approve], store=f"sqlite:///{path}") as rt:
        await _batch(rt, 0)
        before = _resident()
        for first in range(BATCH, count, BATCH):
            await _batch(rt, first)
        print("parked", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await asyncio.sleep(SWEEP_SECS + 1)
        print(_resident() - before, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def _batch(rt: keephold.Runtime, first: int) -> None:
    async with rt.turn(f"parked-{first // BATCH % CONVERSATIONS}") as turn:
        ids = [f"p{number}" for number in range(first, first + BATCH)]
        responses = await turn.run([keephold.ToolCall(id, "approve", {"action": "spawn", "id": id}) for id in ids])
        assert not any(response.is_error for response in responses), responses[0].result
        await all_parked(rt)


async def all_parked(rt: keephold.Runtime) -> None:
    """Until nothing runs any more. Not timed."""
    while rt.live():  # noqa: ASYNC110 (nobody tells when a call is parked)
        await asyncio.sleep(0.001)


async def resolve(path: str, key: str) -> None:
    """Open, resolve, print when that was answered."""
    async with keephold.Runtime([approve], store=f"sqlite:///{path}") as rt:
        outcome = await rt.resolve(key, {"status": "ok", "payload": "yes"})
        print(perf_counter(), outcome.status, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "bench.durable_parked", *map(str, arguments)]


# The file


def copy_parked(path: Path, total: int) -> None:
    """Copy the parked calls of a store until it has this many."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -200_000)
    connection.create_scalar_function("key_id", _key_id, 2)
    handles, waits = _columns(connection, "handles"), _columns(connection, "waits")
    connection.execute("CREATE TEMP TABLE copies (old INTEGER PRIMARY KEY, old_uid TEXT, uid TEXT)")
    new_handle = {"number": "NULL", "uid": "c.uid", "id": "h.id || '-' || ?1"}
    new_wait = {"number": "NULL", "uid": "c.uid", "key_id": "key_id(w.conversation, c.uid)"}
    ((originals, last),) = _rows(connection, "SELECT count(*), max(number) FROM handles")
    for copy in range(1, total // originals):
        for first in range(0, last + 1, _COPY):
            with connection:
                connection.execute("DELETE FROM copies")
                connection.execute(
                    "INSERT INTO copies SELECT number, uid, substr(uid, 1, 12) || lower(hex(randomblob(10)))"
                    " FROM handles WHERE number BETWEEN ? AND ?",
                    (first, min(first + _COPY - 1, last)),
                )
                connection.execute(
                    f"INSERT INTO handles ({', '.join(handles)}) SELECT {_values('h', handles, new_handle)}"
                    " FROM copies c JOIN handles h ON h.number = c.old",
                    (copy,),
                )
                connection.execute(
                    f"INSERT INTO waits ({', '.join(waits)}) SELECT {_values('w', waits, new_wait)}"
                    " FROM copies c JOIN waits w ON w.uid = c.old_uid"
                )
    connection.pragma("wal_checkpoint", "truncate")
    connection.close()


def _key_id(*bound: Any) -> str:
    conversation, uid = bound
    return key_id(conversation, uid, "completion")


def _columns(connection: apsw.Connection, table: str) -> list[str]:
    return [name for (name,) in _rows(connection, "SELECT name FROM pragma_table_info(?)", table)]


def _rows(connection: apsw.Connection, query: str, *bindings: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, bindings).fetchall()


def _values(table: str, columns: list[str], new: dict[str, str]) -> str:
    return ", ".join(new.get(column, f"{table}.{column}") for column in columns)


def some_keys(path: Path, count: int) -> list[str]:
    """The keys of some of the parked calls, chosen at random."""
    connection = apsw.Connection(str(path))
    secrets = dict[str, bytes](_rows(connection, "SELECT id, secret FROM secrets"))
    ((last,),) = _rows(connection, "SELECT max(number) FROM waits")
    keys: list[str] = []
    for number in random.sample(range(1, last + 1), count):
        ((conversation, uid, secret),) = _rows(
            connection,
            "SELECT conversation, uid, secret_id FROM waits WHERE number >= ? ORDER BY number LIMIT 1",
            number,
        )
        keys.append(make_key(conversation, uid, "completion", secret, secrets[secret]))
    connection.close()
    return keys


def _restart(path: Path, key: str) -> float:
    began = perf_counter()
    done = subprocess.run(_command("resolve", path, key), stdout=subprocess.PIPE, text=True)
    at, status = done.stdout.split()
    assert (status, done.returncode) == ("accepted", -signal.SIGKILL)
    return float(at) - began


def run(plan: Plan) -> list[Row]:
    scale = 1 if plan.seconds >= 1 else 50
    by_api, total = BY_API // scale, PARKED // scale
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ours.db"
        with subprocess.Popen(
            _command("park", path, by_api), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parking:
            assert parking.stdin is not None and parking.stdout is not None
            assert parking.stdout.readline() == "parked\n"
            copy_parked(path, total)
            print(file=parking.stdin, flush=True)
            grown = int(parking.stdout.readline())
        restarts = [_restart(path, key) for key in some_keys(path, plan.rounds)]
        size = path.stat().st_size
    return [
        Row(
            what=f"{total:,} parked calls: growth of resident memory; beside it: the file",
            bare=_mib(size),
            ours=_mib(grown),
            result=_mib(grown),
            bar=f"≤ {_mib(BAR_MEMORY)}",
            met=grown <= BAR_MEMORY,
        ),
        figure(
            f"restart with {total:,} parked, from the start of Python to the first `rt.resolve` answered",
            BAR_RESTART,
            restarts,
        ),
    ]


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"


if __name__ == "__main__":
    what, where, given = sys.argv[1:]
    asyncio.run(park(where, int(given)) if what == "park" else resolve(where, given))
