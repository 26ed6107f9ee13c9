"""A day of three agents with 500 handles, put into a store: what somebody sees who comes at its end."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keephold.handles.state import EndedBy, Failure, Ok, Outcome, Running, Stopped
from keephold.store.base import Journaled, KeptOutput, Op, Record, Registered, TurnBegan, TurnEnded
from keephold.store.sqlite import SqliteStore

AGENTS = ("builder", "researcher", "reviewer")
HOURS = 9
TOOLS = {
    "builder": (("build", {"target": "web"}), ("test", {"path": "tests/unit"}), ("deploy", {"host": "web-1"})),
    "researcher": (("fetch_page", {"url": "https://docs.example/api"}), ("search", {"query": "retry policy"})),
    "reviewer": (("lint", {"path": "src/app.py"}), ("review", {"change": 412}), ("test", {"path": "tests/e2e"})),
}
ENDS: tuple[tuple[Outcome, EndedBy, str], ...] = (
    (Failure("exit code 2: 3 tests failed, 214 passed", "command_failed"), "self", "FAILED tests/unit/test_login.py\n"),
    (Failure("ran longer than 120 s", "timeout"), "timeout", "waiting for port 5432\n"),
    (Failure("aborted by the user", "aborted"), "abort", "[37/980] compiling\n"),
)
STEPS = 10_000


def day(handles: int, now: float) -> Iterator[Record]:
    """The handles of the day, oldest first; a tenth of them failed or were ended."""
    chance = random.Random(1)
    for number in range(handles):
        agent = AGENTS[number % 3]
        tool, arguments = TOOLS[agent][number // 3 % len(TOOLS[agent])]
        at = now - HOURS * 3600 * (1 - number / handles) - 60
        outcome, by, printed = ENDS[number % 3] if number % 10 == 7 else (Ok("done"), "self", f"{tool} finished\n")
        state = Stopped(at, at + chance.random(), at + 2 + chance.random() * 90, outcome, by)
        data = (f"$ {tool}\n" * 3 + printed).encode()
        output = KeptOutput(len(data), len(data), 0, data=data)
        yield record(number, at, agent, tool, state=state, arguments={**arguments, "run": number}, output=output)


def record(number: int, at: float, agent: str, tool: str, **more: Any) -> Record:
    return Record(
        uid=f"{int(at * 1000):012x}{number:020x}", id=f"{tool}-{number}", tool=tool, conversation=agent,
        turn=f"{agent}-{number // 60}", batch=1, position=number % 60, call_id=f"c{number}", stateful=True, **more,
    )  # fmt: skip


def turns(now: float, records: Sequence[Record]) -> Iterator[Op]:
    """Turns that have ended, with their handles."""
    for conversation, turn in dict.fromkeys((each.conversation, each.turn) for each in records):
        mine = [each for each in records if each.turn == turn]
        yield TurnBegan(conversation, turn, mine[0].state.created)
        yield from map(Registered, mine)
        yield TurnEnded(conversation, turn, max(each.state.stopped for each in mine if isinstance(each.state, Stopped)))


async def fill(path: Path, handles: int = 500, steps: int = 0) -> str:
    """Fill a store; with `steps`, add a migration with so many recorded steps. Return the uid of that one, or of the
    last handle."""
    store, now = SqliteStore(path), time.time()
    await store.open(lambda _: None)
    try:
        records = list(day(handles, now))
        ops = list(turns(now, records))
        last = records[-1].uid
        if steps:
            begun = now - 1800
            long = record(handles, begun, "builder", "migrate", state=Running(begun, begun), arguments={"rows": steps})
            long.owner, last = store.owner, long.uid
            ops.append(Registered(long))
            ops += [journaled(long.uid, number, begun + number * 0.1) for number in range(steps)]
        for first in range(0, len(ops), 1000):
            await commit(store, ops[first : first + 1000])
    finally:
        await store.close()
    return last


def journaled(uid: str, number: int, at: float) -> Op:
    given, value = b'{"row":%d}' % number, b'{"copied":%d}' % (number * 3)
    return Journaled(uid, 1, "step", f"row-{number:05}", b"d", value, number % 997 != 0, given)


async def commit(store: SqliteStore, ops: Sequence[Op]) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.commit(ops, done.set_result, done.set_exception)
    await done
