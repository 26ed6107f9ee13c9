"""When writing fails: what happened nevertheless is done, what did not waits or fails, and nothing is done twice."""

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.patience import PATIENCE, until
from tests.unit.sqlite_stores import NOON, commit, end, give, line, opened, registered, uid

from keephold.errors import KeepholdError
from keephold.store.base import Claimed, Emitted, HandleQuery, Record, TurnBegan, TurnEnded
from keephold.store.sqlite import SqliteStore, opening, writer

pytestmark = pytest.mark.usefixtures("by")


class Faults:
    """Fails at a point of a transaction, as often as told."""

    def __init__(self) -> None:
        self.at: str | None = None
        self.times = 0
        self.error: Exception = OSError(errno.EIO, "the cable is out")

    def __call__(self, point: str) -> None:
        if point == self.at and self.times:
            self.times -= 1
            raise self.error

    def fail(self, at: str, times: int = 1, error: Exception | None = None) -> None:
        self.error = error or self.error
        self.at, self.times = at, times


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(writer, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(writer, "LAST_ATTEMPTS", 0.1)
    yield


async def settled(store: SqliteStore) -> None:
    """Wait until the store can write."""
    await until(lambda: store.trouble is None)


def unexpected(error: Exception) -> None:
    raise AssertionError(error)


async def fails(given: "asyncio.Future[Any]") -> str:
    with pytest.raises(KeepholdError) as caught:
        await given
    assert caught.value.code == "store_unavailable"
    return caught.value.message


async def test_a_failure_before_the_commit_is_told(tmp_path: Path, faults: Faults) -> None:
    async with opened(tmp_path / "store.db", fault=faults) as store:
        faults.fail("before")
        said = await fails(give(store, registered(1)))
        assert "the cable is out" in said and "nothing was written" in said and str(store.path) in said
        assert store.trouble is not None and "the cable is out" in store.trouble
        assert await store.handle(uid(1)) is None
        await settled(store)
        await commit(store, registered(1))


async def test_a_store_in_trouble_finds_out_by_itself_that_it_can_write_again(tmp_path: Path, faults: Faults) -> None:
    """Whoever looks at `trouble` before giving anything would wait forever otherwise."""
    async with opened(tmp_path / "store.db", fault=faults) as store:
        faults.fail("before", times=4)
        await fails(give(store, registered(1)))
        await settled(store)
        assert faults.times == 0


async def test_what_is_kept_waits_until_it_is_written(tmp_path: Path, faults: Faults) -> None:
    async with opened(tmp_path / "store.db", fault=faults) as store:
        faults.fail("before", times=3)
        told: list[str] = []
        store.commit([registered(1)], lambda _: told.append("first"), unexpected, keep=True)
        await fails(give(store, registered(2)))
        assert told == [] and store.trouble is not None
        store.commit([end(1)], lambda _: told.append("second"), unexpected, keep=True)
        await fails(give(store, line(1, "a")))
        assert told == []
        await settled(store)
        assert told == ["first", "second"]
        assert await store.handle(uid(2)) is None
        found = await store.handle(uid(1))
        assert found is not None and found.owner is None, "it has stopped"


@pytest.mark.parametrize("keep", [False, True])
async def test_a_commit_that_happened_and_failed_is_done(tmp_path: Path, faults: Faults, keep: bool) -> None:
    """The cruel failure: the write happened and the caller is told that it did not."""
    async with opened(tmp_path / "store.db", fault=faults) as store:
        await commit(store, registered(1))
        faults.fail("after")
        results = await commit(store, Emitted("p", "t", 1, NOON), Claimed(uid(1), store.owner), keep=keep)
        assert results[0] == 1 and isinstance(results[1], Record) and results[1].fence == 2
        assert store.trouble is None and store.commits == 2
        faults.fail("after")
        assert await commit(store, line(1, "a", fence=2), keep=keep) == [None]
        assert await commit(store, line(1, "b", fence=2), Emitted("p", "t", 2, NOON), keep=keep) == [None, 2]
        assert [entry.name for entry in await store.journal(uid(1))] == ["a", "b"]
        assert len(await store.process_events("p")) == 2
        assert store.commits == 4


async def test_a_refusal_is_told_though_its_group_failed(tmp_path: Path, faults: Faults) -> None:
    async with opened(tmp_path / "store.db", fault=faults) as store:
        await commit(store, registered(1))
        for point in ("before", "after"):
            faults.fail(point)
            given = [
                give(store, registered(2, id="h1"), keep=True),
                give(store, Emitted(point, "t", 1, NOON), keep=True),
            ]
            told = await asyncio.gather(*given, return_exceptions=True)
            assert isinstance(told[0], KeepholdError) and told[0].code == "batch_rejected"
            assert told[1] == [1]


async def test_a_refusal_of_a_failed_attempt_is_forgotten(tmp_path: Path, faults: Faults) -> None:
    """What counts is what was true when it was written at last."""
    async with opened(tmp_path / "store.db", fault=faults) as store, opened(tmp_path / "store.db") as other:
        await commit(store, registered(1))
        faults.fail("before", times=3)
        waiting = give(store, registered(2, id="h1"), keep=True)
        await fails(give(store, Emitted("p", "t", 1, NOON)))
        await commit(other, end(1))
        faults.times = min(faults.times, 1)
        assert await waiting == [None]


async def test_what_cannot_be_read_back_is_settled_later(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    def connect(path: Path) -> apsw.Connection:
        if broken:
            raise apsw.CantOpenError("no such directory")
        return opening_connect(path)

    opening_connect = opening.connect
    async with opened(tmp_path / "store.db", fault=faults) as store:
        await commit(store, registered(1))
        monkeypatch.setattr(opening, "connect", connect)
        faults.fail("after")
        kept = give(store, Emitted("p", "t", 1, NOON), keep=True)
        second = give(store, Emitted("p", "t", 2, NOON))
        await until(lambda: store.trouble is not None)
        behind = give(store, Emitted("p", "t", 3, NOON), keep=True)
        assert "nothing was written" in await fails(give(store, Emitted("p", "t", 4, NOON))), "nobody has tried"
        assert not second.done(), "nobody knows yet whether it was written"
        broken = False
        assert await kept == [1] and await second == [2] and await behind == [3]
        assert [event.payload for event in await store.process_events("p")] == [1, 2, 3]


async def test_a_full_disk_is_told_and_left_behind(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await commit(store, registered(1))
        assert store._place is not None
        connection = store._place.connection
        connection.pragma("max_page_count", connection.pragma("page_count"))
        kept = give(store, line(1, "large", b'"' + b"x" * 100_000 + b'"'), keep=True)
        said = await fails(give(store, registered(2)))
        assert "full" in said and "free some space" in said
        assert await kept == [None], "a new connection has no such limit"
        assert store.trouble is None and await store.handle(uid(2)) is None


async def test_a_program_that_locks_the_database_is_waited_for_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "BUSY_MS", 50)
    async with opened(tmp_path / "store.db") as store:
        other = apsw.Connection(str(store.path))
        other.execute("BEGIN IMMEDIATE")
        kept = give(store, registered(1), keep=True)
        assert "another program" in await fails(give(store, registered(2)))
        assert await store.handle(uid(1)) is None, "reads go on"
        other.execute("ROLLBACK")
        await kept
        other.close()


async def test_closing_goes_on_trying_and_gives_up_in_the_end(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = writer.LAST_ATTEMPTS
    monkeypatch.setattr(writer, "LAST_ATTEMPTS", PATIENCE)
    async with opened(tmp_path / "store.db", fault=faults) as store:
        faults.fail("before", times=3)
        kept = give(store, registered(1), keep=True)
        await store.close()
        assert await kept == [None]
    async with opened(tmp_path / "store.db", fault=faults) as store:
        assert await store.handle(uid(1)) is not None
        monkeypatch.setattr(writer, "LAST_ATTEMPTS", enough)
        faults.fail("before", times=1_000_000)
        kept = give(store, registered(2), keep=True)
        barrier = give(store, keep=True)
        await store.close()
        await fails(kept)
        await fails(barrier)


async def test_nothing_is_lost_or_done_twice_whatever_fails(tmp_path: Path, faults: Faults) -> None:
    """Each kept commit happens once, in order, with points failing all over."""
    async with opened(tmp_path / "store.db", fault=faults) as store:
        given = []
        for number in range(60):
            faults.fail("after" if number % 3 else "before", times=number % 4)
            given.append(give(store, Emitted("p", "t", number, NOON), keep=True))
            if number % 5 == 0:
                await given[-1]
        assert await asyncio.gather(*given) == [[number + 1] for number in range(60)]
        assert [event.payload for event in await store.process_events("p")] == list(range(60))


async def test_a_group_that_fails_is_told_or_kept_each_for_itself_and_in_order(tmp_path: Path, faults: Faults) -> None:
    async with opened(tmp_path / "store.db", fault=faults) as store:
        faults.fail("before")
        told, kept = give(store, registered(1)), give(store, registered(2), keep=True)
        await asyncio.sleep(0)
        later = give(store, end(2), keep=True)  # of a handle that is not written yet
        await fails(told)
        await asyncio.gather(kept, later)
        assert await store.handle(uid(1)) is None
        assert [each.uid for each in await store.handles(HandleQuery(state="stopped"))] == [uid(2)]


async def test_E6_a_journal_line_lets_no_displaced_process_end_a_turn(tmp_path: Path, by: str) -> None:
    """Its call is still its own; its turn is not, and has no fencing number."""
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await commit(store, TurnBegan("main", "t1", NOON), registered(1))
        (tmp_path / "store.db-owners" / store.owner).unlink()
        async with opened(path) as other:
            await commit(other, TurnBegan("main", "t1", NOON, "t1", store.owner))
            with pytest.raises(KeepholdError) as refused:
                await commit(store, line(1, "s"), TurnEnded("main", "t1", NOON))
            assert refused.value.code == "lease_lost"
            turn = await other.turn("main")
            assert turn is not None and turn.owner == other.owner
