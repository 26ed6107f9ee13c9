"""A store that is only looked at: nothing is written, so nothing is needed that writing needs."""

import asyncio
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sqlite_stores import commit, opened, registered, uid

from keephold import KeepholdError
from keephold.store.base import HandleQuery, SecretAdded
from keephold.store.sqlite.reads import ReadOnlyStore

FIXTURES = Path(__file__).parent.parent / "fixtures"


def files(path: Path) -> dict[str, int]:
    """The files of the store, by name, and when each was changed."""
    return {str(file.relative_to(path.parent)): file.stat().st_mtime_ns for file in path.parent.rglob("*")}


async def test_L3_it_is_seen_as_it_is_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await commit(store, registered(1), registered(2))
        before = files(path)
        looking = ReadOnlyStore(path)
        await looking.open(lambda _: None)
        assert [record.uid for record in await looking.handles()] == [uid(1), uid(2)]
        assert [record.uid for record in await looking.handles(HandleQuery(search="h2"))] == [uid(2)], (
            "by its own thread"
        )
        assert looking.alive(store.owner) and not looking.alive("somebody") and looking.stream(store.owner)
        await commit(store, registered(3))
        assert await looking.handle(uid(3)) is not None
        refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        looking.commit((SecretAdded("s", b"", 0.0),), lambda _: None, refused.set_result)
        assert "nothing was written" in str(await refused)
        await looking.close()
        assert files(path).keys() == before.keys()
    left = files(path)
    await looking.open(lambda _: None)  # nobody else has it now
    assert len(await looking.handles()) == 3 and not looking.alive(store.owner)
    await looking.close()
    assert {name: left[name] for name in left if not name.endswith("-shm")}.items() <= files(path).items()


async def test_R4_a_full_disk_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with opened(path) as store:
        await commit(store, registered(1))
        looking = ReadOnlyStore(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file may grow
        try:
            await looking.open(lambda _: None)
            assert [record.uid for record in await looking.handles()] == [uid(1)]
            await looking.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("version", sorted(each.name for each in FIXTURES.glob("[0-9]*")))
async def test_D7_an_older_store_is_refused_without_changing_a_byte(tmp_path: Path, version: str) -> None:
    path = tmp_path / "store.db"
    shutil.copy(FIXTURES / version / "store.db", path)
    before = path.read_bytes()
    looking = ReadOnlyStore(path)
    with pytest.raises(KeepholdError, match="`keephold store migrate`") as refused:
        await looking.open(lambda _: None)
    await looking.close()
    assert refused.value.code == "store_unusable" and "changed nothing" in str(refused.value)
    assert path.read_bytes() == before and not any(file.stat().st_size for file in tmp_path.glob("store.db-wal"))
    async with opened(path):  # a program that opens it for writing upgrades it
        pass
    await looking.open(lambda _: None)
    assert await looking.handles()
    await looking.close()


@pytest.mark.parametrize("what", ["newer", "foreign", "damaged"])
async def test_D7_what_is_no_store_of_ours_is_refused(tmp_path: Path, what: str) -> None:
    path: Any = tmp_path / "store.db"
    async with opened(path) as store:
        await commit(store, registered(1))
    if what == "newer":
        import apsw

        connection = apsw.Connection(str(path))
        connection.pragma("user_version", 99)
        connection.close()
    else:
        path.write_bytes(b"something else" * 100 if what == "foreign" else path.read_bytes()[:5000])
    with pytest.raises(KeepholdError) as caught:
        looking = ReadOnlyStore(path)
        await looking.open(lambda _: None)
        try:
            await looking.handles()
        finally:
            await looking.close()
    assert caught.value.code in ("store_unusable", "store_unavailable")
