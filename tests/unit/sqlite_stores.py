"""What the tests of the SQLite store share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keephold.handles.state import Ended, Ok, Running, Started, transition
from keephold.store.base import Changed, Heard, Journaled, Op, Record, Registered
from keephold.store.sqlite import SqliteStore

NOON = 1_767_225_600.0


@asynccontextmanager
async def opened(
    path: Path, *, fault: Callable[[str], None] | None = None, heard: Heard = lambda _: None
) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, fault=fault)
    await store.open(heard)
    try:
        yield store
    finally:
        await store.close()


def give(store: SqliteStore, *ops: Op, keep: bool = False) -> "asyncio.Future[list[Any]]":
    """Commit, and do not wait."""
    answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    store.commit(ops, lambda results: answer.set_result(list(results)), answer.set_exception, keep=keep)
    return answer


async def commit(store: SqliteStore, *ops: Op, keep: bool = False) -> list[Any]:
    return await give(store, *ops, keep=keep)


def uid(number: int) -> str:
    return f"{number:012x}{0:020x}"


def record(number: int, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "uid": uid(number),
        "id": f"h{number}",
        "tool": "deploy",
        "conversation": "main",
        "turn": "t1",
        "batch": 1,
        "position": 0,
        "call_id": f"label{number}",
        "stateful": True,
        "state": Running(NOON, NOON),
        "arguments": {"env": "production"},
    }
    return Record(**{**fields, **changes})


def registered(number: int, **changes: Any) -> Registered:
    return Registered(record(number, **changes))


def line(number: int, name: str, value: bytes = b"1", fence: int = 1) -> Journaled:
    return Journaled(uid(number), fence, "step", name, b"digest", value)


def end(number: int, fence: int = 1, at: float = NOON + 9) -> Changed:
    event = Ended(at, Ok("done"))
    return Changed(uid(number), fence, event, transition(Running(NOON, NOON), event))


def start(number: int) -> Changed:
    return Changed(uid(number), 1, Started(NOON), Running(NOON, NOON))
