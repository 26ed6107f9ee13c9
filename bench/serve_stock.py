"""Stores with many handles in them, made quickly: by commits of a thousand operations, without running anything."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keephold.durable.keys import key_id, make_key, new_secret
from keephold.handles.state import Failure, Ok, Running, Stopped
from keephold.store.base import Op, Parking, Record, Registered, SecretAdded, WaitOpened
from keephold.store.postgres.store import PostgresStore
from keephold.store.sqlite import SqliteStore

_CHUNK = 1000
_CONVERSATIONS, _TOOLS = 20, ("build", "deploy", "test", "fetch_page", "summarise")


async def stock(place: Path | str, *, stopped: int = 0, parked: int = 0) -> list[str]:
    """Put handles into a file, or the PostgreSQL store of that URL, oldest first. Return the completion keys of those
    that are parked."""
    store = SqliteStore(place) if isinstance(place, Path) else PostgresStore(place)
    await store.open(lambda _: None)
    try:
        secret_id, secret = await _secret(store)
        began = time.time() - stopped - parked
        for first in range(0, stopped, _CHUNK):
            numbers = range(first, min(first + _CHUNK, stopped))
            await _commit(store, [Registered(_stopped(number, began + number)) for number in numbers])
        keys: list[str] = []
        for first in range(0, parked, _CHUNK):
            records = [
                _parked(number, began + stopped + number) for number in range(first, min(first + _CHUNK, parked))
            ]
            await _commit(store, [op for record in records for op in _with_key(record, secret_id)])
            keys += [make_key(each.conversation, each.uid, "completion", secret_id, secret) for each in records]
        return keys
    finally:
        await store.close()


async def _secret(store: SqliteStore | PostgresStore) -> tuple[str, bytes]:
    found = await store.secret()
    if found is None:
        found = new_secret()
        await _commit(store, [SecretAdded(*found, time.time())])
    return found


def _record(number: int, at: float, **more: Any) -> Record:
    return Record(
        uid=f"{int(at * 1000) << 16:016x}{secrets.token_hex(8)}",
        conversation=f"conversation-{number % _CONVERSATIONS}",
        turn="t1",
        batch=1,
        position=0,
        call_id=f"c{number}",
        stateful=True,
        **more,
    )


def _stopped(number: int, at: float) -> Record:
    outcome = Failure("it did not work") if number % 10 == 0 else Ok("done")
    tool = _TOOLS[number % len(_TOOLS)]
    state = Stopped(at, at, at + 0.5, outcome)
    return _record(number, at, id=f"{tool}-{number}", tool=tool, state=state, arguments={"target": f"t{number}"})


def _parked(number: int, at: float) -> Record:
    return _record(
        number,
        at,
        id=f"hook-{number}",
        tool="create_wait_handle",
        kind="hook",
        state=Running(at, at),
        arguments={"handleId": f"hook-{number}", "type": "hook"},
        parking=Parking(),
    )


def _with_key(record: Record, secret_id: str) -> tuple[Op, Op]:
    id = key_id(record.conversation, record.uid, "completion")
    return Registered(record), WaitOpened(record.uid, 1, id, "completion", "", secret_id)


async def _commit(store: SqliteStore | PostgresStore, ops: Sequence[Op]) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.commit(ops, done.set_result, done.set_exception)
    await done
