"""Transcripts in SQLite: older stores get them, long ones are read by an index, and no other process is woken (G1)."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec
from tests.fixtures.make import HERE
from tests.patience import PATIENCE
from tests.unit.sqlite_stores import NOON, commit, opened, registered, uid

from keephold.handles.state import Running
from keephold.store.base import ConversationRow, Described, Forgotten, TranscriptAppended, TranscriptLine
from keephold.store.sql.listing import conversations
from keephold.store.sqlite.opening import reader
from keephold.store.sqlite.statements import APPLICATION_ID, SQL, migrations

SAID = TranscriptAppended("main", "t1", NOON, (("request", b"{}"), ("response", b"[]")))
LINES = [TranscriptLine(1, "t1", "request", b"{}", NOON), TranscriptLine(2, "t1", "response", b"[]", NOON)]


def third_version(path: Path) -> None:
    """A store of schema 3 with a turn and a handle in `main`."""
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", APPLICATION_ID)
    for number in (1, 2, 3):
        connection.execute(migrations()[number])
    connection.pragma("user_version", 3)
    connection.execute("INSERT INTO secrets (id, secret, at) VALUES ('s', x'00', ?)", (time.time(),))
    connection.execute("INSERT INTO turns (conversation, turn, owner, began_at) VALUES ('main', 't1', 'o', ?)", (NOON,))
    columns: dict[str, Any] = {
        "uid": uid(1), "id": "h1", "tool": "deploy", "conversation": "main", "turn": "t1", "batch": 1, "position": 0,
        "call_id": "c", "kind": "tool", "priority": 0, "stateful": 1, "state_name": "running", "fence": 1, "attempt": 1,
        "cursor": 0, "state": msgspec.json.encode(Running(NOON, NOON)), "arguments": b"{}",
    }  # fmt: skip
    places = ", ".join("?" for _ in columns)
    connection.execute(f"INSERT INTO handles ({', '.join(columns)}) VALUES ({places})", tuple(columns.values()))
    connection.pragma("journal_mode", "wal")
    connection.close()


async def test_G1_a_store_of_the_third_schema_gets_transcripts(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    third_version(path)
    async with opened(path) as store:
        assert await store.conversations() == [] and await store.transcript("main") == []
        assert await commit(store, SAID, Described("main", NOON + 1, {"title": "x"})) == [2, None]
    async with opened(path) as store:
        assert await store.transcript("main") == LINES
        assert await store.conversations() == [ConversationRow("main", NOON, NOON + 1, {"title": "x"}, 2)]
        await commit(store, Forgotten("main"))
        handle, turn = await store.handle(uid(1)), await store.turn("main")
        assert handle is not None and handle.state == Running(NOON, NOON)
        assert turn is not None and turn.turn == "t1", "what the store had before is as it was"


async def test_G1_the_store_of_the_first_version_gets_transcripts(tmp_path: Path) -> None:
    copy = shutil.copytree(HERE / "0.1", tmp_path / "copy")
    async with opened(copy / "store.db") as store:
        assert await store.conversations() == []
        assert await commit(store, SAID) == [2]
        assert await store.transcript("main") == LINES


async def test_G1_pages_are_found_by_an_index_and_are_in_order_there(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        connection = reader(store.path)
        try:
            transcript = _plan(connection, SQL["transcript"], ("main", 5, 10))
            lists = [_plan(connection, *conversations(SQL, wanted, None, 10)) for wanted in (None, {"a": 1})]
        finally:
            connection.close()
    assert "SEARCH transcripts USING INDEX transcripts_in (conversation=? AND line>?)" in transcript
    assert not any("SCAN" in step or "TEMP" in step for step in transcript), transcript
    for steps in lists:
        assert [step.partition(" (")[0] for step in steps] == ["SEARCH conversations USING INDEX conversations_newest"]


def _plan(connection: apsw.Connection, query: str, bound: tuple[Any, ...]) -> list[str]:
    return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", bound)]


async def test_G1_a_forgotten_conversation_leaves_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await commit(store, SAID, TranscriptAppended("other", "t1", NOON, (("request", b"1"),)))
        await commit(store, Forgotten("main"))
    connection = apsw.Connection(str(path))
    try:
        kept = connection.execute("SELECT body FROM transcripts").fetchall()
    finally:
        connection.close()
    assert kept == [(b"1",)]


async def test_G1_what_is_said_is_heard_and_a_description_is_not(tmp_path: Path) -> None:
    heard: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()

    async def until(name: str) -> set[str]:
        """All that is heard, until this is: rings that come together are heard as one."""
        names: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            while name not in names:
                names |= await heard.get() or set()
        return names

    async with opened(tmp_path / "store.db", heard=heard.put_nowait), opened(tmp_path / "store.db") as store:
        await commit(store, SAID)
        assert await until("main") == {"main"}
        await commit(store, Described("main", NOON, {"a": 1}))
        await commit(store, registered(1))  # of this it is told, and word comes in order
        assert await until(uid(1)) == {uid(1)}
        await commit(store, Forgotten("main"))
        assert await until("main") == {"main"}
