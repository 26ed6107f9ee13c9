"""Deleting much from PostgreSQL: one process at a time, and beside all other commits (S5). The space of deleted rows
does not count."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psutil
import pytest
from tests.durable.lives import START, HandClock
from tests.patience import PATIENCE, until
from tests.postgres import own_server
from tests.unit.test_collecting import DAY, deploy, over, some

from keephold import KeepholdError, Runtime
from keephold.control.retention import collect
from keephold.store.base import Expired, KeptOutput, Notified
from keephold.store.housekeeping import SupportsSole, SupportsVacuum
from keephold.store.postgres import reads, store
from keephold.store.postgres.connecting import SQL, Session, session

pytestmark = pytest.mark.slow


async def test_S5_what_is_deleted_is_weighed_and_its_space_returned(postgres: str) -> None:
    clock = HandClock()
    async with Runtime([deploy], store=postgres, clock=clock) as rt:
        kept = rt.registry.store
        assert isinstance(kept, SupportsVacuum)
        await some(rt, 50)
        text = secrets.token_urlsafe(2 << 20)
        await rt.registry.write([over(9001, output=KeptOutput(3, 3, 0, data=b"abc")), over(9002, text)])
        clock.at += 30 * DAY
        would = await collect(rt.registry, older_than=None, dry_run=True, vacuum=False)
        assert (would["handles"], would["calls"], would["output_bytes"]) == (52, 0, 0)
        assert len(text) < would["row_bytes"] < len(text) + 50_000
        done = await collect(rt.registry, older_than=None, dry_run=False, vacuum=True)
        assert done["handles"] == 52
        returned = done["bytes"]
        while returned < len(text) / 2:  # compressed; an open transaction of another test may still see it
            returned += (await collect(rt.registry, older_than=None, dry_run=False, vacuum=True))["bytes"]
        assert await kept.disk_bytes() < 2 << 20
        await some(rt, 10)
        assert len(await rt.registry.store.handles()) == 10


async def test_K6_the_space_of_deleted_rows_is_not_used(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `[limits] disk` would delete everything, and refuse new calls."""
    clock = HandClock()
    async with Runtime([deploy], store=postgres, clock=clock) as rt:
        before = await rt.registry.store.used_bytes()
        await rt.registry.write([over(number, secrets.token_urlsafe(60_000)) for number in range(1, 41)])
        used = await rt.registry.store.used_bytes()
        assert 1_600_000 < used - before < 4_000_000
        monkeypatch.setattr(reads, "SAMPLE", 1)
        assert await rt.registry.store.used_bytes() > 0, "of some pages"
        monkeypatch.undo()
        clock.at += 30 * DAY
        await rt.registry.collect()
        assert await rt.registry.store.used_bytes() < before + 100_000


async def test_W8_the_lock_excludes_others_and_ends_with_its_block(postgres: str) -> None:
    async with Runtime(store=postgres) as one, Runtime(store=postgres) as other:
        first, second = one.registry.store, other.registry.store
        assert isinstance(first, SupportsSole) and isinstance(second, SupportsSole)
        async with first.sole() as alone, second.sole() as too, first.sole() as again:
            assert (alone, too, again) == (True, False, False)
        async with second.sole() as alone:
            assert alone


async def test_S5_a_vacuum_does_not_make_others_wait_for_a_backup(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY", "10ms")
    async with Runtime(store=postgres) as rt:
        kept = rt.registry.store
        assert isinstance(kept, store.PostgresStore)
        reading = await session(kept.address)
        try:
            await reading.run("BEGIN; SELECT 1 FROM handles")
            with pytest.raises(KeepholdError, match="is busy: another transaction uses its tables"):
                await kept.vacuum()
        finally:
            await reading.close()
        await kept.vacuum()


async def test_S5_the_newest_tombstones_of_a_conversation_stay(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keephold.store.sql.operations.TOMBSTONES", 20)
    clock = HandClock()
    async with Runtime([deploy], store=postgres, clock=clock) as rt:
        await some(rt, 30)
        clock.at += 30 * DAY
        await rt.registry.collect()
        found = [await rt.registry.store.named("main", f"h{number}") for number in range(1, 31)]
        assert [isinstance(each, Expired) for each in found] == [False] * 10 + [True] * 20


@contextlib.asynccontextmanager
async def a_deletion_that_waits(rt: Runtime) -> "AsyncIterator[tuple[asyncpg.Connection, asyncio.Task[None], int]]":
    """Collect, and hold a lock meanwhile that the deletion needs. Yields the connection with the lock, the collection,
    and the process of the session that waits."""
    kept = rt.registry.store
    assert isinstance(kept, store.PostgresStore)
    other = await session(kept.address)

    async def waiting() -> list[int]:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = ? AND wait_event = 'advisory'"
        return [pid for (pid,) in await other.rows(query, (f"keephold {kept.address.schema}",))]

    await other.run(f"SELECT pg_advisory_lock({kept.address.key('name collected')})")
    deleting = asyncio.create_task(rt.registry.collect())
    try:
        (pid,) = await until(waiting)
        yield other.connection, deleting, pid
        await other.run("SELECT pg_advisory_unlock_all()")
        await deleting
    finally:
        await other.close()


async def test_S5_other_commits_do_not_wait_for_a_deletion(postgres: str) -> None:
    clock = HandClock()
    async with Runtime([deploy], store=postgres, clock=clock) as rt:
        await some(rt, 10)
        clock.at += 30 * DAY
        async with a_deletion_that_waits(rt) as (_, deleting, _):
            await rt.registry.write([over(9001)])
            assert not deleting.done() and len(await rt.registry.store.handles()) == 11
        assert await rt.registry.store.handles() == []


async def test_S5_a_deletion_whose_connection_is_lost_is_done_again(postgres: str) -> None:
    clock = HandClock()
    async with Runtime([deploy], store=postgres, clock=clock) as rt:
        await some(rt, 10)
        clock.at += 30 * DAY
        async with a_deletion_that_waits(rt) as (other, deleting, pid):
            assert await other.fetchval("SELECT pg_terminate_backend($1)", pid)
            assert not deleting.done()
        assert await rt.registry.store.handles() == []
        await rt.registry.write([over(9001)])
        await rt.registry.collect()
        assert await rt.registry.store.handles() == []


async def test_S5_a_deletion_whose_connection_is_lost_does_not_hold_up_others(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has not noticed the loss, so the lost session keeps the locks of its deletion."""
    clock = HandClock()
    async with Runtime([deploy], store=postgres, clock=clock) as rt:
        kept = rt.registry.store
        assert isinstance(kept, store.PostgresStore)
        await some(rt, 10)
        clock.at += 30 * DAY
        rows, lost = Session.rows, list[Session]()

        async def lose(self: Session, query: str, bindings: tuple[Any, ...]) -> Any:
            if query == SQL["finish"] and bindings[1] is None and not lost:
                lost.append(self)
                raise ConnectionError("the network is gone")
            return await rows(self, query, bindings)

        monkeypatch.setattr(Session, "rows", lose)
        monkeypatch.setattr(asyncpg.Connection, "terminate", lambda self: None)
        async with asyncio.timeout(10):  # less than the server's patience with a session in the middle of a transaction
            await rt.registry.collect()
        monkeypatch.undo()
        assert lost and await kept.handles() == []


async def test_S5_a_cancelled_deletion_does_not_wait_for_a_server_that_hangs() -> None:
    clock = HandClock()
    with own_server("fsync=off") as server:
        async with Runtime([deploy], store=server.url, clock=clock) as rt:
            kept = rt.registry.store
            assert isinstance(kept, store.PostgresStore)
            await some(rt, 10)
            clock.at += 30 * DAY
            with contextlib.suppress(asyncio.CancelledError):
                async with a_deletion_that_waits(rt) as (_, deleting, pid):
                    backend = psutil.Process(pid)
                    backend.suspend()
                    try:
                        deleting.cancel()
                        await asyncio.sleep(0)
                        kept._give_up()  # as when the server has not answered in time
                        await asyncio.wait([deleting], timeout=PATIENCE)
                        assert deleting.done()
                    finally:
                        backend.resume()
            assert deleting.cancelled()


async def test_S5_killing_the_server_leaves_no_handle_half_deleted() -> None:
    clock, count = HandClock(), 3000
    with own_server("fsync=off") as server:
        async with Runtime([deploy], store=server.url, clock=clock) as rt:
            kept = rt.registry.store
            assert isinstance(kept, store.PostgresStore)
            for first in range(1, count, 500):
                some_of_them = [over(n, output=KeptOutput(3, 3, 0, data=b"abc")) for n in range(first, first + 500)]
                await rt.registry.write(some_of_them)
            await rt.registry.write(
                [Notified("main", "a", "info", "b", START, over(n).record.uid) for n in range(1, 99)]
            )
            clock.at += 30 * DAY
            before = kept.commits
            deleting = asyncio.create_task(rt.registry.collect())
            await until(lambda: kept.commits > before + 2)
            server.kill()
            with pytest.raises(KeepholdError, match=r"cannot be reached|has just come back"):
                await deleting
            server.start()
            found = await session(kept.address)
            ((left, tombstones),) = await found.rows(
                "SELECT (SELECT count(*) FROM handles), (SELECT count(*) FROM tombstones)", ()
            )
            await found.close()
            assert left and left + tombstones == count
            assert await asyncio.to_thread(kept.housekeeping().check) == []

            async def all_deleted() -> bool:
                with contextlib.suppress(KeepholdError):  # the server has just come back
                    await rt.registry.collect()  # or the runtime does it at this moment
                    return not await kept.handles()
                return False

            await until(all_deleted)
            assert await asyncio.to_thread(kept.housekeeping().check) == []
