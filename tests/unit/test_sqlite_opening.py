"""Opening a store's file: what is made, what is refused and left as it is, and how an older schema comes up to date."""

import asyncio
import hashlib
import os
import stat
import tempfile
import threading
from pathlib import Path

import apsw
import pytest
from tests.patience import PATIENCE
from tests.unit.sqlite_stores import commit, opened, record, registered

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.store.base import SecretAdded
from keephold.store.sqlite import SqliteStore, opening, statements, store


def dumped(path: Path) -> dict[str, str]:
    """Every file below a directory but SQLite's shared memory, by what is in it."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.endswith("-shm")
    }


async def refused(path: Path, *words: str) -> None:
    """Opening fails with a sentence that has these words, and changes nothing."""
    before = dumped(path.parent) if path.parent.is_dir() else {}
    store = SqliteStore(path)
    with pytest.raises(KeepholdError) as caught:
        await store.open(lambda _: None)
    assert caught.value.code == "store_unusable"
    assert all(word in caught.value.message for word in (*words, str(path))), caught.value.message
    await store.close()
    if path.parent.is_dir():
        assert dumped(path.parent) == before


async def made(path: Path) -> None:
    async with opened(path) as store:
        await commit(store, registered(1))


async def test_a_missing_file_is_made_with_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "store.db"
    async with opened(path) as store:
        assert store.directory == path.with_name("store.db-output")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "secrets live in it"
        for beside in ("-output", "-owners"):
            assert stat.S_IMODE(path.with_name(f"store.db{beside}").stat().st_mode) == 0o700
        secret = await store.secret()
        assert secret is not None and len(secret[1]) == 32
        assert await store.secret(secret[0]) == secret
    async with opened(path) as store:
        assert await store.secret() == secret


async def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    await made(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_symbolic_link_leads_to_the_same_store(tmp_path: Path) -> None:
    await made(tmp_path / "store.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    async with opened(tmp_path / "link.db") as store, opened(tmp_path / "store.db") as same:
        assert store.path == same.path and same.alive(store.owner)


async def test_what_was_given_to_a_closed_store_fails(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        pass
    with pytest.raises(KeepholdError, match="closed") as caught:
        await commit(store, registered(1))
    assert caught.value.code == "store_unavailable"
    with pytest.raises(KeepholdError, match="not open") as caught:
        await store.handle("x")
    assert caught.value.code == "store_unavailable"
    await store.close()


# What is not ours


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    await refused(tmp_path / "store.db", "is a directory; name a file")


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("Dear diary, " * 100)
    await refused(tmp_path / "store.db", "not a SQLite database")
    (tmp_path / "store.db").write_bytes(b"SQLite format 3\0")
    await refused(tmp_path / "store.db", "not a SQLite database")


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_database_of_another_program_is_refused(tmp_path: Path, mode: str) -> None:
    foreign = apsw.Connection(str(tmp_path / "store.db"))
    foreign.pragma("journal_mode", mode)
    foreign.execute("CREATE TABLE photos (name TEXT); INSERT INTO photos VALUES ('cat')")
    if mode == "wal":  # in use: with a WAL that a closing connection would write back
        await refused(tmp_path / "store.db", "another program")
    foreign.close()
    await refused(tmp_path / "store.db", "another program")


async def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "store.db")
    await refused(tmp_path / "store.db", "not a regular file")


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    await made(tmp_path / "store.db")
    newer = apsw.Connection(str(tmp_path / "store.db"))
    newer.pragma("user_version", max(statements.migrations()) + 1)
    newer.close()
    await refused(tmp_path / "store.db", "schema", "use a newer keephold")


async def test_a_newer_schema_is_refused_with_its_wal_in_place(tmp_path: Path) -> None:
    """It crashed, and what it had written waits in the WAL: that is not ours to write back."""
    await made(tmp_path / "store.db")
    newer = apsw.Connection(str(tmp_path / "store.db"))
    newer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    newer.pragma("user_version", max(statements.migrations()) + 1)
    newer.close()
    assert (tmp_path / "store.db-wal").stat().st_size
    await refused(tmp_path / "store.db", "schema", "use a newer keephold")


@pytest.mark.parametrize("damage", ["page", "cut"])
async def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"
    await made(path)
    content = bytearray(path.read_bytes())
    if damage == "page":
        content[100:4096] = os.urandom(3996)
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)
    await refused(path, "damaged", "backup")


async def test_a_wal_without_its_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db-wal").write_bytes(b"x" * 5000)
    await refused(tmp_path / "store.db", "store.db-wal", "put the database back")


async def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await refused(tmp_path / "file" / "store.db", "cannot be opened")


async def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(tmp_path / "store.db")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root, whom containers run tests as, may do anything
    await refused(tmp_path / "store.db", "readable and writable")


async def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_REMOTE", frozenset({machine.file_system(tmp_path)}))
    await refused(tmp_path / "store.db", "network file system", "local disk")


async def test_a_runtime_directory_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        (Path(short) / "keephold").mkdir(mode=0o777)
        (Path(short) / "keephold").chmod(0o777)
        with pytest.raises(KeepholdError, match="nobody else can enter"):
            await SqliteStore(tmp_path / "store.db").open(lambda _: None)
    assert not (tmp_path / "store.db").exists()


async def test_where_a_runtime_directory_is_too_long_for_sockets_another_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    heard = asyncio.Event()
    one, two = SqliteStore(tmp_path / "store.db"), SqliteStore(tmp_path / "store.db")
    await one.open(lambda _: heard.set())
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/" + "nowhere" * 20)  # two that do not agree find each other
    await two.open(lambda _: None)
    await commit(two, registered(1))
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    await two.close()
    await one.close()
    assert not (tmp_path / ("long" * 30)).exists()


# Schemas


async def test_an_older_schema_comes_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    await made(path)
    scripts = statements.migrations()
    newest = max(scripts)
    further = {
        newest + 1: "ALTER TABLE handles ADD COLUMN colour TEXT; UPDATE handles SET colour = 'blue';",
        newest + 2: "CREATE INDEX handles_colour ON handles (colour);",
    }
    monkeypatch.setattr(opening, "migrations", lambda: {**scripts, **further})
    async with opened(path) as store:
        found = await store.handle(record(1).uid)
        assert found is not None and found.id == "h1"
        await commit(store, registered(2))
    after = apsw.Connection(str(path))
    assert after.pragma("user_version") == newest + 2
    assert after.execute("SELECT colour FROM handles ORDER BY uid").fetchall() == [("blue",), (None,)]
    after.close()


async def test_a_migration_that_fails_leaves_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    await made(path)
    scripts = statements.migrations()
    newest = max(scripts)
    with monkeypatch.context() as patched:
        broken = {newest + 1: "DROP TABLE journal;", newest + 2: "DROP TABLE no_such_table;"}
        patched.setattr(opening, "migrations", lambda: {**scripts, **broken})
        await refused(path, "no_such_table")
    async with opened(path) as store:
        assert await store.journal(record(1).uid) == []


def test_every_query_is_described_and_scans_no_large_table() -> None:
    connection = apsw.Connection(":memory:")
    for script in statements.migrations().values():
        connection.execute(script)
    small = (
        "owners",
        "requests",
        "posts",
        "litter",
        "secrets",
        "found",
        "CONSTANT ROW",
        "sqlite_sequence",
        "spawned",
        "place",
    )
    for name, query in statements.SQL.items():
        whole = query.startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE"))  # others are parts of queries
        if whole and name not in ("records", "events", "weigh"):
            numbered = [n for n in range(1, 10) if f"?{n}" in query]
            count = max(numbered, default=0) + query.count("?") - sum(query.count(f"?{n}") for n in numbered)
            plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", [None] * count)]
            scans = [
                step for step in plan if step.startswith("SCAN") and not step.removeprefix("SCAN ").startswith(small)
            ]
            of_few = [
                "h USING INDEX handles_holding",
                "handles USING INDEX handles_live",
                "handles USING INDEX handles_parked",
                "t USING INDEX turns_open",
            ]
            assert not {step.removeprefix("SCAN ").replace("COVERING ", "") for step in scans} - {*of_few}, (
                f"{name}: {scans}"
            )
    connection.close()


async def test_the_newest_secret_is_for_new_keys(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        first = await store.secret()
        await commit(store, SecretAdded("second", b"2" * 32, 1.0))
        assert await store.secret() == ("second", b"2" * 32)
        assert first is not None and await store.secret(first[0]) == first


async def test_a_path_that_is_not_UTF8_is_told_as_such(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")) / "store.db"
    path.parent.mkdir()
    with pytest.raises(KeepholdError, match=r"path of the store is not UTF-8.*d\\udcff") as caught:
        await SqliteStore(path).open(lambda _: None)
    assert caught.value.code == "store_unusable"


async def test_E6_a_cancelled_open_ends_when_its_files_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, continued = threading.Event(), threading.Event()

    class Slow(opening.StoreFiles):
        def __init__(self, path: Path, directory: Path) -> None:
            begun.set()
            continued.wait()
            super().__init__(path, directory)

    monkeypatch.setattr(store, "StoreFiles", Slow)
    task = asyncio.ensure_future(SqliteStore(tmp_path / "work.db").open(lambda _: None))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    asyncio.get_running_loop().call_later(0.01, continued.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list((tmp_path / "work.db-owners").iterdir()) == []
