"""A PostgreSQL store while its server is away, and when its connections are cut at the worst moment."""

import asyncio
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cutting import Cut, Proxy, proxy
from tests.postgres import QUICK, Server, own_server
from tests.soak import SOAK

import keephold
from keephold.errors import KeepholdError
from keephold.store.base import Claimed, Emitted, Journaled, Notified, Op, Registered
from keephold.store.postgres import connecting, presence
from keephold.store.postgres.address import address
from keephold.store.postgres.connecting import Session, session, whose
from keephold.store.postgres.housekeeping import PostgresHousekeeping
from keephold.store.postgres.presence import Table, here, place_of
from keephold.store.postgres.reads import Reads
from keephold.store.postgres.store import PostgresStore, ReadOnlyPostgres
from keephold.testing.conformance.suite import NOON, record, uid

MINUTE = 60.0


async def commit(store: PostgresStore, *ops: Op, keep: bool = False) -> list[Any]:
    answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    store.commit(ops, lambda results: answer.set_result(list(results)), answer.set_exception, keep=keep)
    return await asyncio.wait_for(answer, MINUTE)


async def take_for_dead(store: PostgresStore) -> None:
    """Remove a process, as others do that have not heard of it for long."""
    found = await session(store.address)
    await found.rows("DELETE FROM owners WHERE owner = ?", (store.owner,))
    await found.close()


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(MINUTE):
        while not fact():  # noqa: ASYNC110 (a fact of another process)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open(lambda _: None)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def behind(url: str) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    """A store whose connections go through a proxy."""
    parts = urlsplit(url)
    assert parts.port is not None
    async with proxy(parts.port) as between, opened(url.replace(f":{parts.port}", f":{between.port}")) as store:
        yield store, between


async def test_R4_a_commit_waits_for_the_server_or_says_that_it_is_away() -> None:
    with own_server(*QUICK) as server:
        async with opened(server.url) as store, opened(server.url) as other:
            await commit(store, Registered(record(1)))
            await asyncio.to_thread(server.stop, "immediate")
            with pytest.raises(KeepholdError) as refused:
                await commit(store, Emitted("p", "t", 1, NOON))
            assert refused.value.code == "store_unavailable" and "nothing was written" in refused.value.message
            assert "cannot be reached" in str(store.trouble)
            with pytest.raises(KeepholdError) as unread:
                await store.handle(uid(1))
            assert unread.value.code == "store_unavailable" and "cannot be reached" in unread.value.message
            kept = asyncio.ensure_future(commit(store, Journaled(uid(1), 1, "step", "s", b"d", b"1"), keep=True))
            await asyncio.sleep(0)
            await asyncio.to_thread(server.start)
            await kept
            assert [entry.name for entry in await store.journal(uid(1))] == ["s"]
            assert not store.trouble
            await until(lambda: store._presence.held and other._presence.held)
            await other.owners()
            assert other.alive(store.owner), "it has taken its lock again"
            await commit(other, Registered(record(2)))


@pytest.mark.parametrize("wrong", ["schem=x", "statement_timeout=soon", "sslmode=bogus"])
async def test_Y1_a_parameter_that_does_not_exist_is_refused_as_such(wrong: str, postgres: str) -> None:
    with pytest.raises(KeepholdError) as refused:
        await PostgresStore(f"{postgres}&{wrong}").open(lambda _: None)
    name = wrong.partition("=")[0]
    assert refused.value.code == "unsupported_store" and name in refused.value.message, refused.value.message
    assert "`postgresql://user@host/database`" in refused.value.message


@asynccontextmanager
async def replicated() -> AsyncIterator[tuple[Server, Server, str]]:
    """A primary, its standby, and a URL that names the standby first."""
    with own_server(*QUICK) as first:
        second = await asyncio.to_thread(lambda: Server(first.directory / "standby", *QUICK, primary=first))
        await asyncio.to_thread(second.start)
        try:
            here = f"127.0.0.1:{first.port}"
            yield first, second, first.url.replace(here, f"127.0.0.1:{second.port},{here}")
        finally:
            await asyncio.to_thread(second.stop, "immediate")


async def port_of(store: Reads) -> int:
    """The server that a store reads from."""
    ((port,),) = await store._rows("SELECT inet_server_port()", ())
    return int(port)


async def test_E6_after_a_fail_over_the_store_is_at_the_new_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old primary becomes read-only and keeps all connections. The standby is not used before it is promoted."""
    monkeypatch.setattr(presence, "SWEEP_SECS", 0.1)
    async with replicated() as (first, second, url), opened(url) as store:
        assert (
            store.address.name
            == f"PostgreSQL at 127.0.0.1:{second.port},127.0.0.1:{first.port}/postgres, schema keephold"
        )
        await commit(store, Registered(record(1)))
        assert await port_of(store) == first.port, "a standby may lack the newest commits"
        old = await session(address(first.url))
        await _replayed(old)
        for statement in ("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"):
            await old.run(statement)
        await until(lambda: "is read-only" in str(store.trouble))
        kept = asyncio.ensure_future(commit(store, Journaled(uid(1), 1, "step", "s", b"d", b"1"), keep=True))
        await asyncio.to_thread(second.promote)
        await asyncio.wait_for(kept, MINUTE)
        await until(lambda: not store.trouble)
        assert [entry.name for entry in await store.journal(uid(1))] == ["s"]
        assert await port_of(store) == second.port
        await old.close()


async def test_E6_a_store_that_is_only_read_is_read_at_the_primary_if_there_is_one() -> None:
    async with replicated() as (first, second, url):
        async with opened(first.url) as store, store._session() as primary:
            await _replayed(primary)

        async def ports() -> tuple[int, int]:
            store = ReadOnlyPostgres(url)
            await store.open(lambda _: None)
            async with PostgresHousekeeping(address(url))._reading() as (found, _):
                ((port,),) = await found.rows("SELECT inet_server_port()", ())
            try:
                return await port_of(store), port
            finally:
                await store.close()

        assert await ports() == (first.port, first.port)
        await asyncio.to_thread(first.stop, "immediate")
        assert await ports() == (second.port, second.port)


async def test_E6_servers_that_do_not_answer_do_not_keep_the_store_from_another(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together take less time than a connection that brings no answer."""
    assert connecting.CONNECT_SECS < connecting.GONE_SECS
    monkeypatch.setattr(connecting, "CONNECT_SECS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where, mute = urlsplit(postgres).netloc.rpartition("@")[2], f"127.0.0.1:{silent.getsockname()[1]}"
        async with opened(postgres.replace(where, f"{mute},{where}")) as store:
            await commit(store, Registered(record(1)))
            assert await store.handle(uid(1))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await session(address(postgres.replace(where, ",".join([mute] * 20))), any_server=True)
        assert time.monotonic() - began < 39  # with two seconds for each, they would take forty


async def _replayed(primary: Session) -> None:
    """Wait until the standby has everything."""
    async with asyncio.timeout(MINUTE):
        query = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
        while (await primary.rows(query, ()))[0][0] == 0:  # noqa: ASYNC110 (a fact of another process)
            await asyncio.sleep(0.05)


async def test_E2_steps_are_recorded_once_while_the_server_crashes_again_and_again() -> None:
    """Calls run steps without pause. Work that must be recorded waits for the server; none is lost, none is there
    twice."""
    done: list[tuple[str, int]] = []
    enough = asyncio.Event()

    @keephold.tool(actions=("spawn", "abort"), on_crash="replay")
    async def work(call: keephold.Call) -> int:
        effects, number = call.durable(), 0

        async def note(given: Any) -> Any:
            done.append((call.uid, given))
            return given

        while not enough.is_set():
            number += 1
            assert await effects.run_json(f"s{number}", number, note) == number
        return number

    with own_server(*QUICK) as server:
        async with keephold.Runtime([work], store=server.url) as runtime, runtime.turn("main") as turn:
            ids = [f"w{number}" for number in range(8)]
            spawned = [keephold.ToolCall(id, "work", {"action": "spawn", "id": id}) for id in ids]
            assert not any(response.is_error for response in await turn.run(spawned))
            for _ in range(100 if SOAK else 2):
                count = len(done)
                await until(lambda count=count: len(done) > count + 100)  # type: ignore[misc]
                await asyncio.to_thread(server.stop, "immediate")
                await asyncio.to_thread(server.start)
            enough.set()
            waited = await runtime.wait(all=ids, conversation="main")
            results = {handle["id"]: handle["result"] for handle in waited["completed"]}
            for record_ in await runtime.registry.store.handles():
                lines = [entry.name for entry in await runtime.registry.store.journal(record_.uid)]
                assert lines == [f"s{number}" for number in range(1, results[record_.id] + 1)]
            assert sorted(done) == sorted(set(done)), "no step ran twice: its process did not die"


@pytest.mark.parametrize("how", ["request", "answer"])
@pytest.mark.parametrize(
    "op",
    [Emitted("p", "t", 1, NOON), Journaled(uid(1), 1, "step", "the-step", b"d", b"1")],
    ids=["counted", "journaled"],
)
async def test_R4_a_connection_that_is_cut_in_a_commit(op: Op, how: Cut, postgres: str) -> None:
    """Written and told that it was not, or not written: it is found out, and there once."""
    async with behind(postgres) as (store, between):
        await commit(store, Registered(record(1)))
        between.cut_once(b"the-step" if isinstance(op, Journaled) else b"COMMIT", how)
        assert len(await commit(store, op, keep=True)) == 1
        assert between.cuts == 1
        assert store.trouble is None, "calls would be refused until something else is written"
        await commit(store, Registered(record(2)))
        lines = [entry.name for entry in await store.journal(uid(1))]
        assert lines + [str(event.sequence) for event in await store.process_events("p")] == (
            ["the-step"] if isinstance(op, Journaled) else ["1"]
        )


async def test_R4_a_line_that_was_there_before_does_not_prove_those_that_were_sent_with_it(postgres: str) -> None:
    """A worker of an engine may send a value again. The commit beside it was not written."""
    async with behind(postgres) as (store, between):
        again, other = (Journaled(uid(number), 1, "step", f"step-{number}", b"d", b"1") for number in (1, 2))
        await commit(store, Registered(record(1)), Registered(record(2)), again)
        between.cut_once(b"step-2", "request")
        both = [commit(store, op, keep=True) for op in (again, other)]
        refused, recorded = await asyncio.gather(*both, return_exceptions=True)
        assert between.cuts == 1 and recorded == [None]
        assert isinstance(refused, KeepholdError) and refused.code == "durable_effect_duplicate_step_id"
        assert [len(await store.journal(uid(number))) for number in (1, 2)] == [1, 1]


async def test_R4_a_call_that_is_still_being_committed_is_not_written_again() -> None:
    """Its first line is in the same transaction, as traces write it, so there is no row of it to wait for."""
    waits = ("synchronous_standby_names=nobody", "synchronous_commit=local")
    with own_server(*QUICK, *waits) as server:
        async with behind(server.url) as (store, between):
            await commit(store, Registered(record(1)))
            assert store._writer is not None and store._writer._session is not None
            await store._writer._session.run("SET synchronous_commit = on")  # its next COMMIT is not answered
            pid, _ = await whose(store._writer._session)
            looking = await session(address(server.url))

            async def waits_for(event: str) -> None:
                query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type || ' ' || wait_event LIKE ?"
                async with asyncio.timeout(MINUTE):
                    while not await looking.rows(query, (event,)):  # noqa: ASYNC110 (a fact of another process)
                        await asyncio.sleep(0.01)

            line = Journaled(uid(2), 1, "trace", "span", b"", b"1")
            written = asyncio.ensure_future(commit(store, Registered(record(2)), line, keep=True))
            await waits_for("IPC SyncRep")
            os.kill(pid, signal.SIGSTOP)
            between.cut_all()
            await waits_for("Lock %")
            os.kill(pid, signal.SIGCONT)
            assert await written == [None, None]
            assert [entry.name for entry in await store.journal(uid(2))] == ["span"]
            await looking.close()


async def test_R4_a_session_that_the_server_ends_is_replaced_before_its_connection_ends(postgres: str) -> None:
    """The driver has read why the server ends the session, and refuses to use the connection."""
    async with behind(postgres) as (store, between):
        await commit(store, Registered(record(1)))
        assert await store.handle(uid(1)) is not None
        between.lingers, other = True, await session(store.address)
        name, ended = f"keephold {store.address.schema}", between.ended
        sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ? AND pid <> ?"
        await other.rows(sessions, (name, (await whose(other))[0]))
        await until(lambda: between.ended >= ended + 3)
        for _ in range(100):
            await asyncio.sleep(0)  # the driver reads
        assert await store.handle(uid(1)) is not None
        await commit(store, Journaled(uid(1), 1, "step", "s", b"d", b"1"), keep=True)
        assert len(await store.journal(uid(1))) == 1
        await other.close()


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_E6_steps_that_wait_for_a_claim_are_refused(names: str, postgres: str) -> None:
    """They arrive when another process has claimed the call, and has not committed the claim."""
    async with opened(postgres) as store:
        await commit(store, Registered(record(1)))
        claiming, looking = await session(store.address), await session(store.address)
        await claiming.run("BEGIN")
        await claiming.rows("UPDATE handles SET fence = fence + 1, owner = ? WHERE uid = ?", ("other", uid(1)))
        ops = [Journaled(uid(1), 1, "step", name, b"d", b"1") for name in names]
        steps = asyncio.ensure_future(commit(store, *ops, keep=True))
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        async with asyncio.timeout(MINUTE):
            while not await looking.rows(waits, ()):
                assert not steps.done()
        await claiming.run("COMMIT")
        with pytest.raises(KeepholdError) as refused:
            await steps
        assert refused.value.code == "lease_lost"
        assert not await store.journal(uid(1))
        await claiming.close()
        await looking.close()


async def test_E2_the_server_does_not_plan_every_step(postgres: str) -> None:
    """Planning takes about half as long as writing. The server plans a statement that has a name five times."""
    async with opened(postgres) as store:
        await commit(store, Registered(record(1)))
        for number in range(10):
            await commit(store, Journaled(uid(1), 1, "step", str(number), b"d", b"1"))
        assert store._writer is not None and store._writer._session is not None
        planned = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE 'WITH line%'"
        assert await store._writer._session.rows(planned, ()) == [(5, 5)]


async def test_E6_one_that_was_taken_for_dead_writes_nothing_any_more(postgres: str) -> None:
    async with opened(postgres) as store, opened(postgres) as other:
        await commit(store, Registered(record(1)), Registered(record(2)))
        await take_for_dead(store)
        (taken,) = await commit(other, Claimed(uid(1), store.owner))
        assert taken.owner == other.owner and taken.fence == 2
        for op in (Journaled(uid(1), 1, "step", "s", b"d", b"1"), Emitted("p", "t", 1, NOON)):
            with pytest.raises(KeepholdError) as refused:
                await commit(store, op, keep=True)
            assert refused.value.code == "lease_lost"
        assert await other.journal(uid(1)) == [] and await other.process_events("p") == []
        await other.owners()
        assert not other.alive(store.owner)


async def test_E6_cut_connections_are_made_again_and_the_process_stays_alive(postgres: str) -> None:
    heard: list[object] = []
    async with behind(postgres) as (store, between), opened(postgres) as other:
        await commit(store, Registered(record(1)))
        await store.handle(uid(1))
        between.cut_all()
        store._presence._heard = heard.append
        await commit(store, Registered(record(2)), keep=True)
        assert await store.handle(uid(2)) is not None
        await until(lambda: store._presence.held and bool(heard))
        assert heard[0] is None, "anything may have changed meanwhile"
        await other.owners()
        assert other.alive(store.owner)
        await commit(other, Registered(record(3)))
        await until(lambda: any(isinstance(each, frozenset) and uid(3) in each for each in heard))


async def test_E6_a_forked_child_does_not_keep_the_lock(postgres: str) -> None:
    async with opened(postgres) as store:
        found = store._presence._session
        assert found is not None
        number = found.connection._transport.get_extra_info("socket").fileno()
        assert stat.S_ISSOCK(os.fstat(number).st_mode)
        child = os.fork()
        if child == 0:
            try:
                os.fstat(number)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        await commit(store, Registered(record(1)))


async def test_E6_a_process_that_appears_during_a_look_is_looked_for(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "SWEEP_SECS", 3600.0)
    async with opened(postgres) as store:
        table, looks = store._presence.table, 0
        look = table.look

        async def looking(found: Any, grace: float) -> Any:
            nonlocal looks
            looks += 1
            if looks == 1:
                table.surprised()
            return await look(found, grace)

        monkeypatch.setattr(table, "look", looking)
        store._presence._wake.set()
        await until(lambda: looks > 1)


class Looked:
    """The server's answers to a look."""

    def __init__(self, last: int, *rows: tuple[str, str, bool]) -> None:
        self._answers: list[list[Any]] = [[(last,)], list(rows)]

    async def rows(self, query: str, bindings: tuple[Any, ...]) -> list[Any]:
        return self._answers.pop(0)


async def test_E6_a_lock_is_free_when_two_looks_apart_found_it_free(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("keephold.store.postgres.presence.time", SimpleNamespace(monotonic=lambda: now))
    first, elsewhere = "0000000100000000", "another machine pid 1"
    table = Table()

    async def look(held: bool, place: str = elsewhere) -> bool:
        dead = await table.look(Looked(1, (first, place, held)), presence.GRACE)  # type: ignore[arg-type]
        assert table.alive(first), "until it is removed"
        return first not in dead

    assert await look(True) and await look(False)
    now += 4.9
    assert await look(False)
    table.forget()  # this process was away, too
    now += 1
    assert await look(False)
    now += 5
    assert not await look(False)
    assert await look(True), "it is back"
    assert not await look(False, str(here()._replace(began="1"))), "a process of this machine that is gone"
    table.bury(first)
    assert not table.alive(first)
    assert table.alive("0000000200000000"), "it has registered since the look"
    assert not table.alive("00000001ffffffff") and not table.alive("nobody")


def test_E6_a_process_of_this_machine_is_known_by_its_start() -> None:
    assert not here().is_gone()
    assert here()._replace(began="1").is_gone()
    assert place_of(str(here()._replace(bell="/a b"))) == here()._replace(bell="/a b")
    assert not place_of("another machine pid 1").is_gone() and not place_of("").is_gone()


async def test_R4_a_commit_that_collides_for_ever_is_refused_and_others_are_written(postgres: str) -> None:
    """A row that two processes add at the same time is found by the second attempt. This one is never found."""

    def note(kind: str) -> Notified:
        return Notified("main", kind, "info", "hello", NOON)

    async with opened(postgres) as store:
        by_hand = await session(store.address)
        try:
            await by_hand.run("CREATE UNIQUE INDEX once ON notifications (kind)")
            await commit(store, note("one"), keep=True)
            both = [commit(store, note("one"), keep=True), commit(store, note("two"), keep=True)]
            async with asyncio.timeout(MINUTE):
                refused, written = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(refused, KeepholdError) and refused.code == "not_storable"
            assert not isinstance(written, BaseException)
            assert [row[0] for row in await by_hand.rows("SELECT kind FROM notifications ORDER BY number", ())] == [
                "one",
                "two",
            ]
        finally:
            await by_hand.run("DROP INDEX once")
            await by_hand.close()
