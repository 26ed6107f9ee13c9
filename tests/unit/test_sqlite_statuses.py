"""A store that knew no statuses: after its migration each handle has the one its state says (W1)."""

import time
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.unit.sqlite_stores import NOON, commit, end, opened, registered, uid

from keephold.handles.state import (
    Failure,
    Ok,
    Outcome,
    PendingState,
    PrintedOutput,
    Progress,
    Reply,
    Running,
    State,
    Stopped,
)
from keephold.store.base import Annotated, HandleQuery, Status, status_of
from keephold.store.rules import CANCELLED, TIMED_OUT
from keephold.store.sqlite.statements import APPLICATION_ID, migrations

OUTCOMES: list[Outcome] = [
    Ok(None),
    Ok({"type": "error", "code": "timeout"}),
    Ok("\u0000 ' \U0001f600"),
    PrintedOutput(),
    Reply("r", "m", True, "timeout"),
    Failure("broke"),
    Failure("broke", "command_failed", ("line",), True),
    Failure('"ended_by":"timeout"', "crashed"),
    CANCELLED,
    Failure("late", "timeout"),
    TIMED_OUT,
]
STATES: list[State] = [
    PendingState(NOON),
    Running(NOON, NOON),
    *(Stopped(NOON, NOON, NOON + 1, outcome) for outcome in OUTCOMES),
    *(Stopped(NOON, None, NOON + 1, outcome, "timeout") for outcome in OUTCOMES),
]
STATUSES: tuple[Status, ...] = ("pending", "completed", "failed", "timeout")


def second_version(path: Path, states: list[bytes], stopped: list[bool]) -> None:
    """A store of schema 2 with a handle in each of these states."""
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", APPLICATION_ID)
    for number in (1, 2):
        connection.execute(migrations()[number])
    connection.pragma("user_version", 2)
    connection.execute("INSERT INTO secrets (id, secret, at) VALUES ('s', x'00', ?)", (time.time(),))
    for number, (state, over) in enumerate(zip(states, stopped, strict=True)):
        columns: dict[str, Any] = {
            "uid": uid(number), "id": f"h{number}", "tool": "deploy", "conversation": "main", "turn": "t", "batch": 1,
            "position": 0, "call_id": "c", "kind": "tool", "priority": 0, "stateful": 1, "fence": 1, "attempt": 1,
            "state_name": "stopped" if over else "running", "cursor": 0, "state": state, "arguments": b"{}",
            "stopped_at": NOON + 1 if over else None,
        }  # fmt: skip
        places = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO handles ({', '.join(columns)}) VALUES ({places})", tuple(columns.values()))
    connection.pragma("journal_mode", "wal")
    connection.close()


async def test_W1_handles_of_the_second_schema_have_their_status(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    second_version(path, [msgspec.json.encode(state) for state in STATES], [isinstance(s, Stopped) for s in STATES])
    wanted = {status: [uid(n) for n, state in enumerate(STATES) if status_of(state) == status] for status in STATUSES}
    assert all(wanted.values()), "each of them is tried"
    async with opened(path) as store:
        for status in STATUSES:
            found = await store.handles(HandleQuery(conversation="main", status=status))
            assert [each.uid for each in found] == wanted[status], status
        assert await store.tally("main") == {("tool", status): len(wanted[status]) for status in STATUSES}
        assert [each.state for each in await store.handles(HandleQuery(limit=100))] == STATES
        assert all(each.progress is None for each in await store.handles(HandleQuery(limit=100)))


async def test_W1_they_change_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    second_version(path, [msgspec.json.encode(Running(NOON, NOON))] * 2, [False, False])
    async with opened(path) as store:
        await commit(store, Annotated(uid(0), Progress(1, 2)), end(0), registered(7))
        counts = {("tool", "completed"): 1, ("tool", "pending"): 2}
        assert await store.tally("main") == counts
    async with opened(path) as store:
        assert await store.tally("main") == counts
        found = await store.handle(uid(0))
        assert found is not None and found.progress == Progress(1, 2)


@pytest.mark.parametrize("depth", [100, 5000])
async def test_W1_a_deep_result_does_not_stop_the_migration(tmp_path: Path, depth: int) -> None:
    """SQLite reads JSON a thousand levels deep and no deeper."""
    path = tmp_path / "store.db"
    state = msgspec.json.encode(Stopped(NOON, NOON, NOON + 1, Ok("VALUE")))
    second_version(path, [state.replace(b'"VALUE"', b"[" * depth + b"]" * depth)], [True])
    async with opened(path) as store:
        assert await store.tally("main") == {("tool", "completed"): 1}
