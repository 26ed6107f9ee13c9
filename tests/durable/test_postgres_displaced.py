"""Who may write when the processes of a PostgreSQL store disagree about who lives (E6), and when they wait for each
other."""

import asyncio
from typing import Any

import pytest
from tests.durable.test_postgres_outage import behind, commit, opened, until

from keephold.errors import KeepholdError
from keephold.store.base import (
    Claimed,
    Emitted,
    Journaled,
    Op,
    Readied,
    Registered,
    Resolution,
    Resolved,
    Revoked,
    TurnBegan,
    TurnEnded,
    WaitOpened,
)
from keephold.store.postgres import presence
from keephold.store.postgres.connecting import SQL, Session, session
from keephold.store.postgres.store import PostgresStore
from keephold.testing.conformance.suite import NOON, record, uid


async def lose_presence(store: PostgresStore) -> None:
    """Cut the connection that holds the lock, and only that. It cannot be made again."""

    async def never(*_: Any) -> Session:
        raise ConnectionError("the network is gone")

    store._presence._connect = never  # type: ignore[method-assign]
    assert store._presence._session is not None
    store._presence._session.connection.terminate()
    looking = await session(store.address)
    async with asyncio.timeout(60):
        while any(held for owner, _, held in await looking.rows(SQL["present"], ()) if owner == store.owner):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await looking.close()


async def test_E6_a_journal_line_lets_no_displaced_process_end_a_turn(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost only the connection that holds its lock, so its writer has no trouble. One of its calls is still its
    own; its turn is not."""
    monkeypatch.setattr(presence, "GRACE", 0.0)
    async with opened(postgres) as store, opened(postgres) as other:
        await commit(store, TurnBegan("main", "t1", NOON), Registered(record(1)), Registered(record(2)))
        await lose_presence(store)
        while other.alive(store.owner):
            await other.owners()
        (claimed,) = await commit(other, Claimed(uid(1), store.owner))
        assert claimed is not None
        await commit(other, TurnBegan("main", "t1", NOON, "t1", store.owner))
        ops = (Journaled(uid(2), 1, "step", "s", b"d", b"1"), TurnEnded("main", "t1", NOON), Emitted("p", "t", 1, NOON))
        with pytest.raises(KeepholdError) as refused:
            await commit(store, *ops, keep=True)
        assert refused.value.code == "lease_lost"
        turn = await other.turn("main")
        assert turn is not None and (turn.turn, turn.owner) == ("t1", other.owner)
        assert await other.process_events("p") == [] and await other.journal(uid(2)) == []


async def test_E6_a_process_that_is_back_knows_that_it_was_displaced_before_its_writer_writes(postgres: str) -> None:
    async with behind(postgres) as (store, between):
        held: list[bool] = []
        rows = Session.rows

        async def watched(self: Session, query: str, bindings: tuple[Any, ...]) -> Any:
            if query == SQL["registered"]:
                held.append(store._presence.held)
            return await rows(self, query, bindings)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "rows", watched)
            between.cut_all()
            await until(lambda: bool(held) and store._presence.held)
        assert held == [False]


@pytest.mark.parametrize(
    "op",
    [Claimed(uid(1), "A"), TurnBegan("main", "t2", NOON, "t1", "A"), TurnBegan("main", "t1", NOON, "t1", "A")],
    ids=["claim", "turn", "resume"],
)
async def test_E6_nothing_of_a_process_that_lives_is_taken_over(op: Any, postgres: str) -> None:
    """Others take it for dead and are wrong."""
    async with opened(postgres) as store, opened(postgres) as other:
        await commit(store, TurnBegan("main", "t1", NOON), Registered(record(1)))
        if isinstance(op, Claimed):
            assert await commit(other, Claimed(op.uid, store.owner)) == [None]
        else:
            with pytest.raises(KeepholdError) as refused:
                await commit(other, TurnBegan(op.conversation, op.turn, op.at, op.was, store.owner))
            assert refused.value.code == "turn_open"
        await commit(store, Journaled(uid(1), 1, "step", "s", b"d", b"1"))
        await commit(store, TurnEnded("main", "t1", NOON))


async def test_E6_a_process_that_takes_its_lock_again_during_a_look_is_alive(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look found its lock free for long; when the row is to be removed, the lock is held again."""
    async with opened(postgres) as store, opened(postgres) as other:
        rows = Session.rows
        free: list[str] = []

        async def found_free(self: Session, query: str, bindings: tuple[Any, ...]) -> Any:
            found = await rows(self, query, bindings)
            if query != SQL["present"] or self is not other._presence._session:
                return found
            free.append(store.owner)
            return [(*row[:-1], row[-1] and row[0] != store.owner) for row in found]

        monkeypatch.setattr(Session, "rows", found_free)
        monkeypatch.setattr(presence, "GRACE", 0.0)
        await other.owners()
        assert free and other.alive(store.owner)
        await commit(store, Registered(record(1)))


async def test_E6_a_process_is_not_removed_in_the_middle_of_its_transaction(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be acknowledged after the takeover. Nobody waits for it, because its machine may be gone."""
    async with opened(postgres) as store, opened(postgres) as other:
        await lose_presence(store)
        writing = await session(store.address)
        await writing.run("BEGIN")
        columns: tuple[Any, ...] = (0.0, [], [], [], [])
        assert await writing.rows(SQL["finish"], (store.owner, None, 1, *columns, "channel", None)) == [(True,)]
        monkeypatch.setattr(presence, "GRACE", 0.0)
        for _ in range(2):
            async with asyncio.timeout(5):
                await other.owners()
            assert other.alive(store.owner)
        await writing.run("COMMIT")
        await other.owners()
        assert not other.alive(store.owner)
        await writing.close()


async def waits_for_a_lock(store: PostgresStore) -> None:
    looking = await session(store.address)
    waits = "SELECT 1 FROM pg_stat_activity WHERE application_name = ? AND wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while not await looking.rows(waits, (f"keephold {store.address.schema}",)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await looking.close()


@pytest.mark.parametrize(
    "op",
    [Resolved("key-1", Resolution("ok", 1), NOON), Revoked("main", NOON)],
    ids=["resolved", "revoked"],
)
async def test_D5_a_call_is_locked_before_its_key(op: Op, postgres: str) -> None:
    """As an operation that stops the call does. Otherwise each would wait for the other, until the server finds the
    deadlock after a second."""
    async with opened(postgres) as store:
        await commit(store, Registered(record(1)), WaitOpened(uid(1), 1, "key-1", "completion", "", "s"))
        stopping = await session(store.address)
        await stopping.run("BEGIN")
        await stopping.rows("SELECT 1 FROM handles WHERE uid = ? FOR NO KEY UPDATE", (uid(1),))
        resolving = asyncio.ensure_future(commit(store, op))
        await waits_for_a_lock(store)
        assert await stopping.rows("SELECT key_id FROM waits WHERE uid = ? FOR UPDATE NOWAIT", (uid(1),)) == [
            ("key-1",)
        ]
        await stopping.run("COMMIT")
        await resolving
        await stopping.close()


async def test_R4_a_commit_waits_although_its_role_may_not_wait_for_locks(postgres: str) -> None:
    """An administrator has limited it. The commit would be refused as one that no store can keep."""
    async with opened(f"{postgres}&lock_timeout=1") as store:
        await commit(store, Registered(record(1)))
        holding, looking = await session(store.address), await session(store.address)
        await holding.run("BEGIN")
        await holding.rows(SQL["hold_call"], (uid(1),))
        ready = asyncio.ensure_future(commit(store, Readied(uid(1), 1)))
        waits = (
            "SELECT 1 FROM pg_stat_activity WHERE application_name = ? AND wait_event_type = 'Lock' "
            "AND now() - query_start > '50 ms'"
        )
        name = (f"keephold {store.address.schema}",)
        while not ready.done() and not await looking.rows(waits, name):  # noqa: ASYNC110 (a fact of another process)
            await asyncio.sleep(0.005)
        await holding.run("COMMIT")
        assert await ready == [None]
        await holding.close()
        await looking.close()
