"""Pages of long lists: read from an index in order, however many handles there are; and what the triggers count."""

import re
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.unit.sqlite_stores import NOON, commit, opened, registered, uid

from keephold.handles.state import Ok, Running, Stopped, name
from keephold.store.base import EVENTS_LIMIT, Collected, HandleQuery, status_of
from keephold.store.sql import transaction
from keephold.store.sql.listing import listing
from keephold.store.sqlite.statements import APPLICATION_ID, SQL, migrations

ALL = {"handles_live", "handles_over"}


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        ({}, ALL),
        ({"newest": False}, ALL),
        ({"after": uid(7)}, ALL),
        ({"state": "stopped"}, {"handles_over"}),
        ({"state": "running"}, {"handles_live"}),
        ({"state": "waiting", "stateful": None}, {"handles_live"}),
        ({"live": True}, {"handles_live"}),
        ({"live": True, "stateful": None}, {"handles_live"}),
        ({"live": True, "stateful": False, "conversation": "main"}, {"handles_live"}),
        ({"parked": True}, {"handles_parked"}),
        ({"conversation": "main"}, {"handles_status"}),
        ({"conversation": "main", "live": True}, {"handles_status"}),
        ({"conversation": "main", "state": "stopped", "after": uid(7)}, {"handles_status"}),
        ({"conversation": "main", "stateful": None}, {"handles_conversation"}),
        ({"conversation": "main", "parked": True}, {"handles_status"}),
        ({"conversation": "main", "parked": True, "stateful": None}, {"handles_status", "handles_parked_in"}),
    ],
)
def test_L3_a_page_is_read_from_an_index_in_order(wanted: dict[str, Any], indexes: set[str]) -> None:
    connection = apsw.Connection(":memory:")
    for script in migrations().values():
        connection.execute(script)
    query, bound = listing(SQL, HandleQuery(**{"limit": 50, "newest": True, **wanted}))
    plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", bound)]
    connection.close()
    assert {found for step in plan for found in re.findall(r"INDEX (handles_\w+)", step)} == indexes, plan
    # What is sorted is a page: the handles that were chosen, by their numbers.
    sorted_ = [step for step in plan if "TEMP B-TREE" in step]
    assert not sorted_ or any(step.startswith("SEARCH h USING INTEGER PRIMARY KEY") for step in plan), plan
    assert len(sorted_) <= 1, plan


def fourth_version(path: Path, number: int) -> None:
    """A store of schema 4 with that many handles: every second one is spawned, every third one lives."""
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", APPLICATION_ID)
    for script in range(1, 5):
        connection.execute(migrations()[script])
    connection.pragma("user_version", 4)
    connection.execute("INSERT INTO secrets (id, secret, at) VALUES ('s', x'00', ?)", (time.time(),))
    for each in range(number):
        state = Running(NOON, NOON) if each % 3 == 0 else Stopped(NOON, NOON, NOON + 1, Ok(each))
        columns: dict[str, Any] = {
            "uid": uid(each), "id": f"h{each}", "tool": "deploy", "conversation": ("main", "other")[each % 4 // 2],
            "turn": "t", "batch": 1, "position": 0, "call_id": "c", "kind": "tool", "priority": 0,
            "stateful": each % 2 == 0, "fence": 1, "attempt": 1, "cursor": 0, "arguments": b"{}",
            "state_name": name(state), "status": status_of(state), "state": msgspec.json.encode(state),
            "stopped_at": state.stopped if isinstance(state, Stopped) else None,
        }  # fmt: skip
        places = ", ".join("?" for _ in columns)
        connection.execute(f"INSERT INTO handles ({', '.join(columns)}) VALUES ({places})", tuple(columns.values()))
    connection.execute(
        "INSERT INTO journal (handle, kind, name, digest, value, ok) VALUES (1, 'step', 'a', x'', x'31', 1)"
    )
    connection.pragma("journal_mode", "wal")
    connection.close()


async def test_D7_handles_of_the_fourth_schema_are_listed_and_counted(tmp_path: Path) -> None:
    fourth_version(tmp_path / "store.db", 24)
    async with opened(tmp_path / "store.db") as store:
        spawned = list(range(0, 24, 2))
        assert [each.uid for each in await store.handles()] == [uid(number) for number in spawned]
        live = [number for number in spawned if number % 3 == 0]
        assert [each.uid for each in await store.handles(HandleQuery(live=True, newest=True))] == [
            uid(n) for n in live[::-1]
        ]
        assert await store.count() == {"pending": 0, "running": 4, "waiting": 0, "stopped": 8, "parked": 0}
        assert [(place.id, place.handles, place.live) for place in await store.summaries()] == [
            ("main", 6, 2), ("other", 6, 2),
        ]  # fmt: skip
        (entry,) = await store.journal(uid(0))
        assert entry.input == b"" and await store.events_range() == (1, 0), "nobody noted that then"
        await commit(store, Collected(NOON + 2, NOON + 2))
        assert await store.count() == {"pending": 0, "running": 4, "waiting": 0, "stopped": 0, "parked": 0}
        await commit(store, registered(50))
        assert await store.events_range() == (1, 1)


async def test_S5_too_many_events_go_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVENTS_LIMIT == 1_000_000
    monkeypatch.setattr(transaction, "EVENTS_LIMIT", 30)
    async with opened(tmp_path / "store.db") as store:
        for number in range(100):
            await commit(store, registered(number))
        for first in (21, 41, 61, 71, 71):
            await commit(store, Collected(NOON, NOON, limit=2))
            assert await store.events_range() == (first, 100)
        assert [event.seq for event in await store.events()] == list(range(71, 101))
