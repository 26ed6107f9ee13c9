"""Looking after a store in a file: its check finds what must never be, and its copies are whole."""

import asyncio
import io
import os
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.soak import tries
from tests.unit.housekept import BROKEN, LARGE, approve, make, printing
from tests.unit.sqlite_stores import NOON, commit, end, opened, registered

from keephold import KeepholdError, Runtime
from keephold.handles.output import Output
from keephold.store.base import Collected, HandleQuery, KeptOutput
from keephold.store.housekeeping import housekeeping_of
from keephold.store.memory import MemoryStore
from keephold.store.sql.checking import INVARIANTS, SENTENCES
from keephold.store.sqlite import SqliteStore
from keephold.store.sqlite.housekeeping import SqliteHousekeeping
from keephold.store.sqlite.processes import Owners, owners_of
from keephold.store.sqlite.statements import migrations

FIXTURE = Path(__file__).parent.parent / "fixtures" / "0.1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something in every table that the check looks at."""
    file = tmp_path_factory.mktemp("made") / "work.db"
    asyncio.run(make(f"sqlite:///{file}"))
    return file


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    shutil.copy(made, tmp_path)
    shutil.copytree(made.with_name("work.db-output"), tmp_path / "work.db-output")
    return tmp_path / "work.db"


@contextmanager
def changed(path: Path) -> Iterator[sqlite3.Connection]:
    """Do what no keephold would do."""
    with closing(sqlite3.connect(path)) as connection:
        yield connection
        connection.commit()


def rules(path: Path) -> set[str]:
    return {problem.rule for problem in SqliteHousekeeping(path).check()}


# Checking


def test_every_rule_is_tried_and_has_its_sentence() -> None:
    assert set(BROKEN) == set(INVARIANTS) == set(SENTENCES)


async def test_a_store_that_was_used_has_no_problems(path: Path) -> None:
    assert SqliteHousekeeping(path).check() == []


@pytest.mark.parametrize("rule", BROKEN)
async def test_the_check_finds_what_must_never_be(path: Path, rule: str) -> None:
    with changed(path) as connection:
        connection.execute(BROKEN[rule])
    found = {problem.rule: problem.says for problem in SqliteHousekeeping(path).check()}
    assert rule in found
    assert "{" not in found[rule] and ";" in found[rule]  # what is wrong; what to do


async def test_many_violations_of_a_rule_are_counted(path: Path) -> None:
    with changed(path) as connection:
        rows = ((f"u{number}", f"k{number}") for number in range(30))
        connection.executemany(
            "INSERT INTO waits (uid, key_id, conversation, kind, name, secret_id, revoked) "
            "VALUES (?, ?, 'c', 'event', '', '', 1)",
            rows,
        )
    found = [problem.says for problem in SqliteHousekeeping(path).check() if problem.rule == "key_of_no_handle"]
    assert len(found) == 21 and found[-1] == "the same holds for 10 more"


async def test_the_check_knows_the_output_files(path: Path) -> None:
    output = path.with_name("work.db-output")
    (file,) = output.iterdir()
    stray = output / ("0" * 32)
    stray.write_bytes(b"x")
    assert rules(path) == set(), "a young file may belong to a call that is not written yet"
    os.utime(stray, (time.time() - 61, time.time() - 61))
    assert rules(path) == {"orphaned_output"}
    stray.unlink()
    file.unlink()
    assert rules(path) == {"missing_output"}


async def test_the_check_finds_a_damaged_page(path: Path) -> None:
    with path.open("r+b") as file:
        for page in range(8, 40):
            file.seek(4096 * page + 8)
            file.write(b"\xff" * 200)
    try:
        assert rules(path) & {"sqlite"}
    except KeepholdError as refused:  # it cannot even be read
        assert "restore it from a backup" in refused.message


async def test_E6_the_check_finds_a_live_process_that_others_took_for_dead(path: Path) -> None:
    async with opened(path) as store:
        await commit(store, registered(1, turn="t"))
        assert rules(path) == set()
        with changed(path) as connection:
            connection.execute("DELETE FROM owners")
        assert rules(path) == {"displaced_owner"}


async def test_a_store_in_memory_has_no_housekeeping() -> None:
    with pytest.raises(KeepholdError, match="name a store in a file"):
        housekeeping_of(MemoryStore())


# Facts


async def test_info_counts_rows_and_names_processes_and_secrets(path: Path) -> None:
    async with Runtime([approve], store=f"sqlite:///{path}") as rt:
        id = await rt.rotate_secret()
        facts = SqliteHousekeeping(path).info()
        assert facts.rows["handles"] == 4 and facts.rows["notifications"] >= 1
        assert facts.schema == facts.newest_schema
        (owner,) = facts.owners
        assert owner.id == rt.registry.store.owner
        assert owner.process is not None and owner.process.startswith(f"{os.getpid()} (")
    assert [secret.open_keys for secret in facts.secrets] == [1, 0] and facts.secrets[-1].id == id
    assert (facts.output_files, facts.output_bytes) == (1, len(LARGE))
    assert facts.bytes > 100_000 and facts.oldest is not None


# Copies


async def test_a_copy_restored_elsewhere_is_the_same(path: Path, tmp_path: Path) -> None:
    done = SqliteHousekeeping(path).backup(tmp_path / "copy.tar", force=False)
    assert (done.output_files, done.problems) == (1, [])
    assert (tmp_path / "copy.tar").stat().st_mode & 0o777 == 0o600, "it has the secrets"
    other = tmp_path / "new" / "other.db"
    restored = SqliteHousekeeping(other).restore(tmp_path / "copy.tar", force=False)
    assert restored.output_files == 1 and rules(other) == set()
    assert not [*path.with_name("work.db-output").glob(".*")], "no second names are left"
    async with Runtime([approve, printing], store=f"sqlite:///{other}") as rt:
        assert {each.id: each.state for each in await rt.handles()} == {"a": "running", "p": "stopped"}
        (printed,) = [each for each in await rt.registry.store.handles() if each.id == "p"]
        output = Output.restored(rt.registry.spool, printed.output, printed.uid) if printed.output else None
        assert output is not None and output.before(len(LARGE), len(LARGE)) == LARGE.encode()


async def test_a_copy_made_while_a_process_writes_and_deletes_is_consistent(tmp_path: Path) -> None:
    path, stop = tmp_path / "work.db", asyncio.Event()
    async with opened(path) as store:

        async def work() -> int:
            number = 0
            while not stop.is_set():
                number += 1
                file = f"{number:012x}{0:020x}"
                assert store.directory is not None
                (store.directory / file).write_bytes(file.encode() * 100)
                kept = KeptOutput(total=3200, head=3200, ring=0, in_file=3200, file=file)
                await commit(store, registered(number))
                await commit(store, replace(end(number), output=kept))
                if number % 20 == 0:
                    await commit(store, Collected(NOON + 1e6, NOON + 2e6, limit=19))
            return number

        working = asyncio.create_task(work())
        try:
            for copy in range(5):
                file = tmp_path / f"{copy}.tar"
                assert (await asyncio.to_thread(SqliteHousekeeping(path).backup, file, force=False)).problems == []
        finally:
            stop.set()
            written = await working
    assert written
    for copy in range(5):
        other = tmp_path / f"{copy}.db"
        SqliteHousekeeping(other).restore(tmp_path / f"{copy}.tar", force=False)
        assert rules(other) == set()


async def test_a_backup_is_never_overwritten_unless_told(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "copy.tar"
    file.write_text("mine")
    with pytest.raises(KeepholdError, match="replace it with --force"):
        SqliteHousekeeping(path).backup(file, force=False)
    assert file.read_text() == "mine"
    SqliteHousekeeping(path).backup(file, force=True)
    assert tarfile.is_tarfile(file)
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".")) == []


async def test_a_damaged_store_is_not_backed_up_and_one_with_problems_is(path: Path, tmp_path: Path) -> None:
    with changed(path) as connection:
        connection.execute(BROKEN["journal_of_no_handle"])
    done = SqliteHousekeeping(path).backup(tmp_path / "copy.tar", force=False)
    assert [problem.rule for problem in done.problems] == ["journal_of_no_handle"]


async def test_a_copy_that_is_not_whole_is_refused(path: Path, tmp_path: Path) -> None:
    whole = tmp_path / "copy.tar"
    SqliteHousekeeping(path).backup(whole, force=False)
    data = whole.read_bytes()
    other, file = SqliteHousekeeping(tmp_path / "other.db"), tmp_path / "bad.tar"
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    for bad in (b"", data[: len(data) // 2], data[: data.rindex(b"keephold.json")], bytes(damaged), b"x" * 5000):
        file.write_bytes(bad)
        with pytest.raises(KeepholdError, match="nothing was restored"):
            other.restore(file, force=False)
    assert not (tmp_path / "other.db").exists()
    assert [each.name for each in tmp_path.iterdir() if "restore-" in each.name] == []


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", "output/../../escape", "output/.hidden", "other"])
async def test_a_member_that_does_not_belong_into_a_copy_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "bad.tar"
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(KeepholdError, match="does not belong into a backup"):
        SqliteHousekeeping(tmp_path / "other.db").restore(file, force=False)
    assert [each.name for each in tmp_path.rglob("*") if "escape" in each.name] == []


@pytest.mark.parametrize("name", ["keephold.db", "keephold.json"])
async def test_a_sparse_member_is_refused(tmp_path: Path, name: str) -> None:
    """A few bytes of the copy could fill the disk or the memory."""
    file = tmp_path / "bad.tar"
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("any")
        member.pax_headers = {
            "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": name, "GNU.sparse.numblocks": "1",
            "GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 24),
        }  # fmt: skip
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(KeepholdError, match="does not belong into a backup"):
        SqliteHousekeeping(tmp_path / "other.db").restore(file, force=False)


async def test_a_store_is_replaced_only_on_demand_and_never_while_it_is_used(path: Path, tmp_path: Path) -> None:
    file, keeping = tmp_path / "copy.tar", SqliteHousekeeping(path)
    keeping.backup(file, force=False)
    with pytest.raises(KeepholdError, match="replace it with --force"):
        keeping.restore(file, force=False)
    async with opened(path) as store:
        await commit(store, registered(1, turn="t"))
        with pytest.raises(KeepholdError, match=f"is in use by process {os.getpid()} "):
            await asyncio.to_thread(keeping.restore, file, force=True)
    keeping.restore(file, force=True)
    async with opened(path) as store:
        assert len(await store.handles(HandleQuery(stateful=None))) == 4, "the fifth was made after the copy"
    assert rules(path) == set()


async def test_a_copy_whose_rows_name_files_elsewhere_is_refused(path: Path, tmp_path: Path) -> None:
    """The next runtime would delete them."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO litter (file) VALUES ('../mine')")
    SqliteHousekeeping(path).backup(tmp_path / "copy.tar", force=False)
    with pytest.raises(KeepholdError, match="which is not the name of an output file"):
        SqliteHousekeeping(tmp_path / "other.db").restore(tmp_path / "copy.tar", force=False)
    assert not (tmp_path / "other.db").exists()


async def test_another_file_is_not_replaced_by_a_store(path: Path, tmp_path: Path) -> None:
    SqliteHousekeeping(path).backup(tmp_path / "copy.tar", force=False)
    (tmp_path / "letter").write_text("dear reader" * 100)
    with pytest.raises(KeepholdError, match="not a SQLite database"):
        SqliteHousekeeping(tmp_path / "letter").restore(tmp_path / "copy.tar", force=True)
    assert (tmp_path / "letter").read_text().startswith("dear reader")


# Upgrades


async def test_an_older_store_is_upgraded_after_a_backup(tmp_path: Path) -> None:
    old = tmp_path / "old" / "store.db"
    shutil.copytree(FIXTURE, old.parent)
    keeping = SqliteHousekeeping(old)
    assert rules(old) == {"schema"}
    done = keeping.migrate(None)
    assert (done.was, done.schema) == (1, max(migrations())) and len(done.steps) == done.schema - 1
    assert rules(old) == set()
    assert keeping.migrate(None).backup is None, "there is nothing left to do"
    assert done.backup is not None
    again = tmp_path / "again.db"
    assert SqliteHousekeeping(again).restore(Path(done.backup), force=False).schema == 1
    store = SqliteStore(again)
    await store.open(lambda _: None)  # which upgrades it
    await store.close()
    assert rules(again) == set()


async def test_a_store_in_use_is_not_upgraded(tmp_path: Path) -> None:
    old = tmp_path / "old" / "store.db"
    shutil.copytree(FIXTURE, old.parent)
    async with opened(old):
        with changed(old) as connection:
            connection.execute("PRAGMA user_version = 8")  # as an older process has it open
        with pytest.raises(KeepholdError, match="is in use by process"):
            await asyncio.to_thread(SqliteHousekeeping(old).migrate, None)
        with changed(old) as connection:
            connection.execute(f"PRAGMA user_version = {max(migrations())}")
    assert not [*old.parent.glob("*.tar")]


async def test_a_store_in_use_is_not_upgraded_by_opening_it(tmp_path: Path) -> None:
    old = tmp_path / "old" / "store.db"
    shutil.copytree(FIXTURE, old.parent)
    older, newer = Owners(owners_of(old).directory), SqliteStore(old)
    older.enter()
    with pytest.raises(KeepholdError, match=rf"is in use by process {os.getpid()} .*`keephold store migrate`"):
        await newer.open(lambda _: None)
    assert rules(old) == {"schema"} and owners_of(old).living() == [older.me]
    older.leave()
    async with opened(old):
        assert rules(old) == set()


async def test_processes_that_upgrade_a_store_at_once_share_it(tmp_path: Path) -> None:
    for number in range(tries(3, soak=100)):
        old = tmp_path / str(number) / "store.db"
        shutil.copytree(FIXTURE, old.parent)
        stores = [SqliteStore(old) for _ in range(4)]
        await asyncio.gather(*(store.open(lambda _: None) for store in stores))
        assert sorted(owners_of(old).living()) == sorted(store.owner for store in stores)
        for store in stores:
            await store.close()
