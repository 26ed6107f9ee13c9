"""Deleting much from PostgreSQL: one process at a time, and the space of deleted rows does not count (S5)."""

import secrets

import pytest
from tests.durable.lives import HandClock
from tests.unit.test_collecting import DAY, deploy, over, some

from keephold import KeepholdError, Runtime
from keephold.control.retention import collect
from keephold.store.base import Expired, KeptOutput
from keephold.store.housekeeping import SupportsSole, SupportsVacuum
from keephold.store.postgres import reads, store
from keephold.store.postgres.connecting import session


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
        assert done["bytes"] > len(text) / 2, "the server compresses it"
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
