"""Looking after a store in PostgreSQL: facts, the check, copies that other schemas are made from, upgrades."""

import asyncio
import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest
from tests.soak import tries
from tests.turn.calls import spawn
from tests.unit.housekept import BROKEN, LARGE, approve, make, printing

from keephold import KeepholdError, Runtime
from keephold.store import open_store
from keephold.store.base import Emitted
from keephold.store.housekeeping import Housekeeping, housekeeping_of
from keephold.store.postgres import copying, opening
from keephold.store.postgres.address import address
from keephold.store.postgres.connecting import sentence, session
from keephold.store.postgres.store import PostgresStore
from keephold.testing.conformance.suite import NOON

if TYPE_CHECKING:
    from tests.postgres import Schemas

pytestmark = pytest.mark.slow


def keeping(url: str) -> Housekeeping:
    return housekeeping_of(open_store(url))


async def elsewhere(operation: Any, *given: Any, **more: Any) -> Any:
    """Look after a store as a command does, beside the runtime of this loop."""
    return await asyncio.to_thread(operation, *given, **more)


@pytest.fixture
def url(postgres: str) -> str:
    """A store with something in every table that the check looks at."""
    asyncio.run(make(postgres))
    return postgres


@pytest.fixture
def other(postgres_schemas: "Schemas") -> Iterator[str]:
    """A second empty store."""
    with postgres_schemas.one() as found:
        yield found


async def everything(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a store."""
    found = await session(address(url))
    try:
        names = await copying.tables(found)
        return {name: sorted(map(tuple, await found.rows(f'SELECT * FROM "{name}"', ())), key=repr) for name in names}
    finally:
        await found.close()


async def test_info_counts_rows_and_names_processes_and_secrets(url: str) -> None:
    async with Runtime([approve], store=url) as rt:
        id = await rt.rotate_secret()
        facts = await elsewhere(keeping(url).info)
        (owner,) = facts.owners
        assert owner.id == rt.registry.store.owner and owner.process.startswith(f"{os.getpid()} (")
    assert (facts.rows["handles"], facts.rows["outputs"], facts.rows["transcripts"]) == (4, 1, 1)
    assert facts.bytes > len(LARGE) / 10 and facts.free_bytes is None and facts.oldest <= facts.newest
    assert [secret.open_keys for secret in facts.secrets] == [1, 0] and facts.secrets[-1].id == id
    assert facts.schema == facts.newest_schema and "postgres@" not in facts.store
    assert (await elsewhere(keeping(url).info)).owners == []


async def test_the_check_finds_what_must_never_be(url: str) -> None:
    assert await elsewhere(keeping(url).check) == []
    found = await session(address(url))
    try:
        for rule in [each for each in BROKEN if each != "missing_events"]:
            await found.run("BEGIN")
            await found.run(BROKEN[rule])
            broken = {problem.rule: problem.says for problem in await copying.problems(found)}
            await found.run("ROLLBACK")
            assert rule in broken and "{" not in broken[rule] and ";" in broken[rule]
    finally:
        await found.close()


async def test_a_copy_is_the_store_as_it_was_and_makes_another(url: str, other: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.tar"
    async with Runtime([approve, printing], store=url) as rt:
        done = await elsewhere(keeping(url).backup, file, force=False)
        copied = await everything(url)
        await rt.rotate_secret()
        with pytest.raises(KeepholdError, match="is in use by process"):
            await elsewhere(keeping(url).restore, file, force=True)
        restored = await elsewhere(keeping(other).restore, file, force=False)
        assert (done.problems, done.bytes, restored.schema) == ([], file.stat().st_size, done.schema)
        now = await everything(other)
        assert now.pop("owners") == [] and copied.pop("owners") != []
        assert now == copied
        async with Runtime([approve, printing], store=other) as second:  # while the processes of the original live
            assert {each.id: each.state for each in await second.handles()} == {"a": "running", "p": "stopped"}
            (printed,) = [each for each in await second.registry.store.handles() if each.id == "p"]
            assert printed.output is not None and printed.output.total == len(LARGE)
            async with second.turn("main") as turn:
                (reply,) = await turn.run([spawn("approve", "b")])
            assert not reply.is_error, "numbers continue after those of the copy"
    assert await elsewhere(keeping(other).check) == []
    with pytest.raises(KeepholdError, match=r"has handles; name another schema .* or replace them with --force"):
        await elsewhere(keeping(other).restore, file, force=False)
    await elsewhere(keeping(other).restore, file, force=True)
    assert (await everything(other))["handles"] == copied["handles"]


def _altered(file: Path, name: str, alter: Any) -> Path:
    """A copy one member of which was changed."""
    new = file.with_name("altered.tar")
    with tarfile.open(file) as source, tarfile.open(new, "w") as target:
        for member in source:
            opened = source.extractfile(member)
            assert opened is not None
            data = opened.read()
            if member.name == name:
                data = alter(data)
                member.size = len(data)
            target.addfile(member, io.BytesIO(data))
    return new


def _without_a_row(data: bytes) -> bytes:
    contents = msgspec.json.decode(data)
    contents["tables"]["handles"]["rows"] += 1
    return bytes(msgspec.json.encode(contents))


def _with_another_schema(data: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(data) | {"schema": 999})


async def test_a_damaged_copy_changes_nothing(url: str, other: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.tar"
    await elsewhere(keeping(url).backup, file, force=False)
    before = await everything(other)
    for name, alter, says in (
        ("tables/handles.gz", lambda data: data[:-1], "it is damaged"),
        ("keephold.json", _without_a_row, "it is damaged"),
        ("keephold.json", _with_another_schema, "this keephold knows"),
    ):
        with pytest.raises(KeepholdError, match=f"nothing was restored from .*{says}"):
            await elsewhere(keeping(other).restore, _altered(file, name, alter), force=True)
    with file.open("r+b") as cut:
        cut.truncate(file.stat().st_size // 2)
    with pytest.raises(KeepholdError, match="nothing was restored"):
        await elsewhere(keeping(other).restore, file, force=True)
    assert await everything(other) == before


async def test_a_store_is_upgraded_after_a_backup(
    url: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = max(opening.migrations())
    later = {
        **opening.migrations(),
        newest + 1: "-- A column for tests. More.\nALTER TABLE turns ADD COLUMN later bigint;",
    }
    monkeypatch.chdir(tmp_path)
    assert (await elsewhere(keeping(url).migrate, None)).backup is None
    for module in ("copying", "housekeeping", "opening"):
        monkeypatch.setattr(f"keephold.store.postgres.{module}.migrations", lambda: later)
    try:
        (problem,) = await elsewhere(keeping(url).check)
        assert problem.rule == "schema"
        done = await elsewhere(keeping(url).migrate, None)
        assert (done.was, done.schema, done.steps) == (newest, newest + 1, [f"schema {newest + 1}: A column for tests"])
        assert await elsewhere(keeping(url).check) == []
        restored = await elsewhere(keeping(other).restore, tmp_path / str(done.backup), force=False)
        assert restored.schema == newest, "as it was"
    finally:
        await _downgrade(url, newest)


async def _downgrade(url: str, version: int) -> None:
    found = await session(address(url))
    await found.run("ALTER TABLE turns DROP COLUMN IF EXISTS later")
    await found.rows("UPDATE schema_version SET version = ?", (version,))
    await found.close()


async def test_what_needs_the_store_alone_does_not_hold_up_those_who_use_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction is under way, so a lock of the table would wait for it, and all processes behind the lock."""
    file = tmp_path / "copy.tar"
    await elsewhere(keeping(url).backup, file, force=False)
    reading = await session(address(url))
    await reading.run("BEGIN; SELECT * FROM owners")
    try:
        async with Runtime([approve], store=url), asyncio.timeout(60):
            with pytest.raises(KeepholdError, match="is in use by process"):
                await elsewhere(keeping(url).restore, file, force=True)
        monkeypatch.setattr(opening, "BUSY", "10ms")
        with pytest.raises(KeepholdError, match="is busy: another transaction uses its tables; try again later"):
            await elsewhere(keeping(url).restore, file, force=True)
    finally:
        await reading.close()
    await elsewhere(keeping(url).restore, file, force=True)


@pytest.fixture
def newer(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, str]]:
    """The migrations of a newer keephold."""
    newest = max(opening.migrations())
    later = {**opening.migrations(), newest + 1: "ALTER TABLE turns ADD COLUMN later bigint;"}
    yield later
    monkeypatch.undo()
    asyncio.run(_downgrade(url, newest))


async def test_a_store_in_use_is_not_upgraded_by_opening_it(
    url: str, newer: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime([approve], store=url) as older:
        monkeypatch.setattr(opening, "migrations", lambda: newer)
        with pytest.raises(KeepholdError, match=rf"is in use by process {os.getpid()} .*`keephold store migrate`"):
            await PostgresStore(url).open(lambda _: None)
        async with older.turn("main") as turn:
            assert not (await turn.run([spawn("approve", "b")]))[0].is_error
    async with Runtime([approve], store=url):
        pass
    monkeypatch.undo()
    with pytest.raises(KeepholdError, match="use a newer keephold"):
        await PostgresStore(url).open(lambda _: None)


async def test_a_process_that_comes_back_after_an_upgrade_writes_nothing_any_more(
    url: str, newer: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off, and its lock was free when another process upgraded the store."""
    older = PostgresStore(url)
    await older.open(lambda _: None)
    back = asyncio.Event()
    connect = older._presence._connect

    async def when_back() -> Any:
        await back.wait()
        return await connect()

    monkeypatch.setattr(older._presence, "_connect", when_back)
    assert older._presence._session is not None
    older._presence._session.connection.terminate()
    monkeypatch.setattr(opening, "migrations", lambda: newer)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(KeepholdError):  # the server has not noticed the cut yet
                async with Runtime([approve], store=url):
                    break
    back.set()
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    older.commit((Emitted("p", "t", 1, NOON),), answer.set_result, answer.set_exception, keep=True)
    with pytest.raises(KeepholdError) as refused:
        await asyncio.wait_for(answer, 60)
    assert refused.value.code == "lease_lost"
    await older.close()


async def test_a_process_that_opens_the_store_while_it_is_upgraded_notices(
    url: str, newer: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen its own schema, and is not registered yet."""
    store = PostgresStore(url)
    enter = store._presence.enter

    async def upgraded_before(heard: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(opening, "migrations", lambda: newer)
            other = PostgresStore(url)
            await other.open(heard)
            await other.close()
        await enter(heard)

    monkeypatch.setattr(store._presence, "enter", upgraded_before)
    with pytest.raises(KeepholdError, match="use a newer keephold"):
        await store.open(lambda _: None)
    assert (await everything(url))["owners"] == []


async def test_processes_that_make_a_store_at_once_share_it(postgres_schemas: "Schemas") -> None:
    url = f"{postgres_schemas._url}?schema=test_made_at_once_{os.getpid()}"
    by_hand = await session(address(url))
    try:
        for _ in range(tries(1, soak=50)):
            stores = [PostgresStore(url) for _ in range(4)]
            await asyncio.gather(*(store.open(lambda _: None) for store in stores))
            assert len({await store.secret() for store in stores}) == 1
            for store in stores:
                await store.close()
            await by_hand.run(f"DROP SCHEMA {address(url).schema} CASCADE")
    finally:
        await by_hand.close()


async def test_what_is_missing_is_refused(postgres_schemas: "Schemas", tmp_path: Path) -> None:
    nothing = f"{postgres_schemas._url}?schema=not_there"
    for operation in (keeping(nothing).info, keeping(nothing).check, lambda: keeping(nothing).migrate(None)):
        with pytest.raises(KeepholdError, match="holds no store"):
            await elsewhere(operation)
    with pytest.raises(KeepholdError, match="cannot be reached"):
        await elsewhere(PostgresStore("postgresql://127.0.0.1:1/x").housekeeping().info)
    with pytest.raises(KeepholdError, match="holds no store"):
        await elsewhere(keeping(nothing).backup, tmp_path / "copy.tar", force=False)
    assert [*tmp_path.iterdir()] == []


def test_a_refused_login_names_where_a_password_belongs() -> None:
    said = sentence(address("postgresql://ada@db.example/work"), asyncpg.InvalidPasswordError("no"))
    assert "the user in the URL" in said and "password in PGPASSWORD or ~/.pgpass" in said
