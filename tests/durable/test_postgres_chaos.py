"""PostgreSQL under attack: stopped owners, a network that swallows everything, cut connections, and hostile values."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import asyncpg
import psutil
import pytest
from tests.cutting import Cut, Proxy, proxy
from tests.durable.lives import approval, ok, stopped
from tests.durable.test_postgres_outage import behind as stored_behind
from tests.durable.test_postgres_outage import commit, take_for_dead
from tests.durable.test_postgres_outage import opened as stored
from tests.patience import PATIENCE, until
from tests.soak import tries
from tests.turn.calls import STATEFUL, call, fetch, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Runtime, Tool, ToolCall, Turn
from keephold.outcomes import Ok
from keephold.store.base import Claimed, Emitted, Journaled, Registered
from keephold.store.postgres import connecting, presence
from keephold.store.postgres.address import address
from keephold.store.postgres.store import PostgresStore
from keephold.testing.conformance.suite import NOON, record, uid

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def behind(url: str, tools: Sequence[Tool]) -> AsyncIterator[tuple[Runtime, Proxy]]:
    """A runtime whose connections go through a proxy."""
    port = urlsplit(url).port
    assert port is not None
    async with proxy(port) as between, Runtime(tools, store=url.replace(f":{port}", f":{between.port}")) as rt:
        yield rt, between
        between.silent = False


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is given up sooner."""
    monkeypatch.setattr(connecting, "CONNECT_SECS", 1.0)
    monkeypatch.setattr(connecting, "GONE_SECS", 1)
    monkeypatch.setattr(presence, "SWEEP_SECS", 0.2)


@keephold.tool(actions=STATEFUL, on_crash="replay")
async def steps(call: Call, count: int) -> int:
    """Records numbers, and waits for an event after the first."""
    effects = call.durable()

    async def note(given: Any) -> Any:
        return given

    await effects.run_json("first", 0, note)
    await effects.await_event_json(await effects.external_event_key("go"))
    return sum([await effects.run_json(f"s{number}", number, note) for number in range(count)])


async def lines(rt: Runtime, id: str) -> list[str]:
    uid = (await rt.handle(id, conversation="main")).uid
    return [entry.name for entry in await rt.registry.store.journal(uid)]


async def opened(rt: Runtime, id: str) -> bool:
    return "go" in await rt.keys(id, conversation="main")


@pytest.mark.usefixtures("soon")
async def test_R4_a_network_that_swallows_everything_and_comes_back(postgres: str) -> None:
    """The sockets stay open, and nothing tells the process: it finds out, says so, and continues afterwards."""
    keys: list[Key] = []
    tools = [steps, approval(keys)]
    async with (
        behind(postgres, tools) as (rt, between),
        Runtime(tools, store=postgres) as other,
        rt.turn("main") as turn,
    ):
        await turn.run([spawn("approve", "a"), spawn("approve", "b"), spawn("steps", "s", count=3)])
        await until(lambda: len(keys) == 2)
        store: Any = rt.registry.store
        waiting = asyncio.ensure_future(rt.wait(all=["a"], timeout=PATIENCE, conversation="main"))
        await until(lambda: any(each.watchers for each in rt.registry._idle.values()))
        between.silent = True
        kept = asyncio.ensure_future(rt.registry.write((), keep=True))
        said = asyncio.ensure_future(rt.notify("disk.full", "info", "lost?", conversation="main"))
        read = asyncio.ensure_future(store.handles())
        assert str(await other.resolve(keys[0], ok("meanwhile"))) == "accepted"
        await until(lambda: store.trouble)
        assert "cannot be reached" in store.trouble
        with pytest.raises(KeepholdError, match="cannot be read"):
            await asyncio.wait_for(read, PATIENCE)
        between.silent = False
        async with asyncio.timeout(PATIENCE):
            assert (await waiting)["completed"][0]["result"] == "meanwhile"
            await asyncio.wait([said])
            await kept
        told = [each.message for each in await other.registry.store.notifications("main")]
        assert told.count("lost?") == (said.exception() is None)
        await until(lambda: store.trouble is None)
        assert str(await rt.resolve(keys[1], ok("after"))) == "accepted"
        assert (await stopped(other, "b")).outcome == Ok("after")
        await until(lambda: opened(rt, "s"))
        await rt.resolve((await rt.keys("s", conversation="main"))["go"], ok(None))
        assert (await stopped(rt, "s")).outcome == Ok(3)
        assert len(await lines(rt, "s")) == len(set(await lines(rt, "s")))


async def test_R4_a_call_takes_a_key_and_waits_while_nothing_can_be_read(postgres: str) -> None:
    """Its writes wait for the server, and so do its reads: an outage is not an error of the tool."""
    go = asyncio.Event()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def waiter(call: Call) -> Any:
        await go.wait()
        effects = call.durable()
        return await effects.await_event_json(await effects.external_event_key("go"))

    async with behind(postgres, [waiter]) as (rt, between), rt.turn("main") as turn:
        await turn.run([spawn("waiter", "w")])
        refused, store = 0, cast(PostgresStore, rt.registry.store)

        def refuse(data: bytes) -> Cut:
            nonlocal refused
            refused += 1
            return "request"

        async def outage() -> None:
            """No connection is of use until a few new ones were refused."""
            nonlocal refused
            refused, between.cut = 0, refuse
            between.cut_all()
            rt.durability.waits.recheck()
            await until(lambda: refused > 10)
            between.cut = lambda _: None
            await until(lambda: store._presence.held)

        go.set()
        await outage()
        await until(lambda: opened(rt, "w"))
        await outage()
        key = (await rt.keys("w", conversation="main"))["go"]
        assert str(await rt.resolve(key, ok("came"))) == "accepted"
        assert (await stopped(rt, "w")).outcome == Ok("came")


@pytest.mark.timeout(tries(240, soak=3600))
async def test_R4_connections_cut_at_any_byte(postgres: str) -> None:
    """Every acknowledged fact is there once, no refused one is, and nothing is stuck."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    ran: list[tuple[str, int]] = []
    keys: list[Key] = []
    ending = asyncio.Event()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def busy(call: Call) -> int:
        effects, number = call.durable(), 0

        async def note(given: Any) -> Any:
            ran.append((call.uid, given))
            return given

        while not ending.is_set():
            number += 1
            assert await effects.run_json(f"s{number}", number, note) == number
        return number

    told: dict[str, bool] = {}
    spawned: dict[str, bool] = {}
    resolved: list[str] = []

    async def acknowledged(doing: Awaitable[Any]) -> bool:
        try:
            said = await asyncio.wait_for(doing, PATIENCE)
        except KeepholdError as error:
            assert error.code == "store_unavailable" and "not known" not in error.message, error
            return False
        assert said is None or str(said) == "accepted", said
        return True

    async def begin(turn: Turn, name: str) -> None:
        (response,) = await turn.run([spawn("approve", name)])
        if response.is_error:
            raise KeepholdError(response.result, code=response.code or "")

    async def resolve(name: str) -> None:
        if keys and await acknowledged(rt.resolve(keys[-1], ok(name))):
            resolved.append(name)
            keys.pop()

    async with behind(postgres, [busy, approval(keys)]) as (rt, between), rt.turn("main") as turn:
        await turn.run([spawn("busy", f"w{number}") for number in range(3)])
        for number in range(tries(15, soak=1000)):
            between.cut_after(chance.choice(("there", "back")), chance.randrange(1, 6000))
            while not between.cuts:
                name = f"n{number}.{len(told)}"
                told[name] = await acknowledged(rt.notify("disk.full", "info", name, conversation=name))
                spawned[name] = await acknowledged(begin(turn, name))
                await resolve(name)
        ending.set()
        async with asyncio.timeout(PATIENCE):
            while len(resolved) < sum(spawned.values()):
                await resolve(f"end {len(resolved)}")
                await asyncio.sleep(0)
        counts = {f"w{number}": (await stopped(rt, f"w{number}")).outcome for number in range(3)}
        results = [(await stopped(rt, id)).outcome for id, accepted in spawned.items() if accepted]
    assert sorted(map(repr, results)) == sorted(repr(Ok(name)) for name in resolved)
    async with Runtime(store=postgres) as rt:
        store = rt.registry.store
        for name, accepted in told.items():
            assert [each.message for each in await store.notifications(name)] == [name] * accepted
        handles = {each.id: each.uid for each in await store.handles()}
        assert sorted(handles) == sorted([*counts, *(id for id, accepted in spawned.items() if accepted)])
        for id, outcome in counts.items():
            assert isinstance(outcome, Ok)
            lines = [entry.name for entry in await store.journal(handles[id])]
            assert lines == [f"s{number}" for number in range(1, outcome.value + 1)]
    assert len(ran) == len(set(ran)), "no step ran twice: its process did not die"


async def test_R4_a_commit_that_comes_while_another_is_in_doubt_is_not_taken_for_written(postgres: str) -> None:
    async with stored_behind(postgres) as (store, between):
        await commit(store, Registered(record(1)))
        later: list[asyncio.Future[list[Any]]] = []

        def cut(data: bytes) -> Cut | None:
            if b"the-step" not in data or later:
                return None
            later.append(asyncio.ensure_future(commit(store, Emitted("p", "t", 1, NOON), keep=True)))
            return "answer"

        between.cut = cut
        assert await commit(store, Journaled(uid(1), 1, "step", "the-step", b"d", b"1"), keep=True) == [None]
        assert len(await later[0]) == 1
        assert len(await store.process_events("p")) == len(await store.journal(uid(1))) == 1


async def test_R4_a_connection_that_is_cut_while_much_is_sent_ends_the_wait(postgres: str) -> None:
    """The driver waits for room to send, and is not told that nobody makes any."""
    async with stored_behind(postgres) as (store, between):
        session = await connecting.session(store.address)
        between.cut_once(b"much" * 1000, "request")
        much = [(b"much" * (1 << 18),)] * 8
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
            await asyncio.wait_for(session.many("SELECT length(CAST(? AS bytea))", much), PATIENCE)


HOSTILE: dict[str, Any] = {
    "nul": "a\0b",
    "lone": "a\ud800b",
    "long": "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=20_000)),
    "big": 2**70,
}


@keephold.tool(actions=STATEFUL, on_crash="replay")
async def echo(call: Call, value: Any, how: str) -> Any:
    """Puts a value wherever a tool can put one."""
    effects = call.durable()

    async def note(given: Any) -> Any:
        return given

    match how:
        case "step":
            return await effects.run_json("step", value, note)
        case "name":
            return await effects.run_json(str(value), 1, note)
        case "key":
            return await effects.external_event_key(str(value))
        case "output":
            call.emit(str(value))
        case "error":
            raise keephold.ToolError(str(value), code=str(value))
    return value


@pytest.mark.parametrize("what", HOSTILE)
async def test_S3_no_value_breaks_the_store(postgres: str, what: str) -> None:
    """It is kept, not found or refused in words, and the next call works."""
    value, text = HOSTILE[what], str(HOSTILE[what])
    keys: list[Key] = []

    async def in_words(doing: Awaitable[Any]) -> Any:
        try:
            return await asyncio.wait_for(doing, PATIENCE)
        except (KeepholdError, keephold.ToolError) as error:
            assert "CharacterNot" not in str(error), error
            return error

    async def open_turn() -> None:
        async with rt.turn(text):
            pass

    async with Runtime([echo, approval(keys)], store=postgres) as rt:
        async with rt.turn("main") as turn:
            for how in ("result", "step", "name", "key", "output", "error"):
                await in_words(turn.run([spawn("echo", how, value=value, how=how), call("echo", value=value, how=how)]))
                await in_words(stopped(rt, how))
            await in_words(turn.run([spawn("echo", text, value=1, how="result")]))
            (found,) = await turn.run([fetch("echo", text)])
            assert what in ("big", "long") or found.is_error
            await in_words(turn.run([wait_all(text)]))
            await in_words(turn.run([ToolCall(text, "echo", {"value": value, "how": "result"})]))
            await turn.run([spawn("approve", "a")])
            await in_words(rt.resolve(text, ok(value)))
            if not isinstance(await in_words(rt.resolve(keys[0], ok(value))), KeepholdError):
                await stopped(rt, "a")
        await in_words(open_turn())
        for conversation, id in (("main", text), (text, "x")):
            await in_words(rt.handle(id, conversation=conversation))
            await in_words(rt.handles(conversation=conversation))
            await in_words(rt.notify("disk.full", "info", text, conversation=conversation))
        await in_words(rt.process_events(text))
        async with rt.turn("main") as turn:
            (response,) = await turn.run([call("echo", value="fine", how="step")])
            assert response.result == "fine" and rt.registry.store.trouble is None


async def test_E6_a_line_of_the_process_that_took_over_is_no_evidence(postgres: str) -> None:
    """The answer to a step is lost, and before this process is back, another one has recorded that step."""
    async with stored_behind(postgres) as (store, between), stored(postgres) as other:
        await commit(store, Registered(record(1)))
        between.cut_once(b"the-step", "request")
        store._presence.held = False  # it cannot write before it is back
        mine = asyncio.ensure_future(commit(store, Journaled(uid(1), 1, "step", "the-step", b"d", b"1"), keep=True))
        await until(lambda: between.cuts)
        await take_for_dead(store)
        await commit(other, Claimed(uid(1), store.owner))
        await commit(other, Journaled(uid(1), 2, "step", "the-step", b"d", b"2"))
        store._presence.held = True
        with pytest.raises(KeepholdError) as refused:
            await mine
        assert refused.value.code == "lease_lost"
        assert [entry.value for entry in await other.journal(uid(1))] == [b"2"]


def working(directory: Path) -> Tool:
    """A call whose second step lasts until there is a file `go`."""

    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
    async def work(call: Call) -> list[str]:
        effects = call.durable()

        async def first(given: Any) -> str:
            return f"first by {call.attempt}"

        async def second(given: Any) -> str:
            (directory / f"attempt {call.attempt}").touch()
            while not (directory / "go").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return f"second by {call.attempt}"

        return [await effects.run_json("first", 1, first), await effects.run_json("second", 2, second)]

    return work


async def owner(url: str, directory: Path) -> None:
    """The process that is stopped."""
    async with Runtime([working(directory)], store=url) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "w")])
        print("ready", flush=True)
        while rt.live():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_E6_a_stopped_owner_that_continues_finds_its_call_taken_over(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "GRACE", 0.2)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.durable.test_postgres_chaos", postgres, str(tmp_path),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE) == b"ready\n"
        await until((tmp_path / "attempt 1").exists)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        server = await asyncpg.connect(postgres.partition("?")[0])
        name = f"keephold {address(postgres).schema}"
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
        assert await server.fetch(ended, name)
        await server.close()
        async with Runtime([working(tmp_path)], store=postgres) as rt:

            async def taken() -> bool:
                await rt.recovery.sweep()
                return (tmp_path / "attempt 2").exists()

            await until(taken)
            (tmp_path / "go").touch()
            assert (await stopped(rt, "w")).outcome == Ok(["first by 1", "second by 2"])
            process.send_signal(signal.SIGCONT)
            _, said = await asyncio.wait_for(process.communicate(), PATIENCE)
            assert b"restart it" in said, said
            assert await lines(rt, "w") == ["first", "second"]
            info = await rt.handle("w", conversation="main")
            assert (info.outcome, info.attempt) == (Ok(["first by 1", "second by 2"]), 2)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(owner(sys.argv[1], Path(sys.argv[2])))
