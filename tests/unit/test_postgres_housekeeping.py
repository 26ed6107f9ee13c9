"""Looking after a store in PostgreSQL: facts, the check, copies that other schemas are made from, upgrades."""

import asyncio
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.turn.calls import spawn
from tests.unit.housekept import BROKEN, LARGE, approve, make, printing

from keephold import KeepholdError, Runtime
from keephold.store.housekeeping import Housekeeping, housekeeping_of
from keephold.store.postgres import copying, sql
from keephold.store.postgres.address import address
from keephold.store.postgres.connecting import session
from keephold.store.postgres.store import PostgresStore
from keephold.store.urls import open_store

if TYPE_CHECKING:
    from tests.postgres import Schemas


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
    newest = max(sql.migrations())
    later = {**sql.migrations(), newest + 1: "-- A column for tests. More.\nALTER TABLE turns ADD COLUMN later bigint;"}
    monkeypatch.chdir(tmp_path)
    assert (await elsewhere(keeping(url).migrate, None)).backup is None
    for module in ("copying", "housekeeping", "opening", "sql"):
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
