"""A full disk as a runtime sees it (R4, S2): whoever can be told is told what to do, whoever cannot waits, nothing is
half-written, and when there is room again everything goes on.

The disk is full in two ways. SQLite says so when its database may not grow; the system says so when no file of this
process may grow, as with a quota. The files of the test runner are small, so that does not concern it.
"""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.durable.lives import Story, approval, ok, parked, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold import Call, KeepholdError, Key, Runtime, Turn
from keephold.handles.state import name
from keephold.outcomes import Ok
from keephold.store.base import HandleQuery
from keephold.store.sqlite import opening, writer
from keephold.turn import ending

LARGE = "x" * 60_000
"""Small enough for a row, too large for the free part of any page."""


class Database:
    """It may not grow: SQLITE_FULL."""

    says = ("is full", "free some space on it")

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._full = False
        self._limited: list[apsw.Connection] = []
        self._connect = opening.connect
        patch.setattr(opening, "connect", self.connect)

    def connect(self, path: Path) -> apsw.Connection:
        """After each failure the store makes a new connection, and that would have no limit."""
        connection = self._connect(path)
        if self._full:
            self._limit(connection)
        return connection

    def _limit(self, connection: apsw.Connection) -> None:
        connection.pragma("max_page_count", connection.pragma("page_count"))
        self._limited.append(connection)

    def fill(self, rt: Runtime) -> None:
        self._full = True
        store: Any = rt.registry.store
        self._limit(store._place.connection)

    def free(self) -> None:
        self._full = False
        while self._limited:
            with suppress(apsw.ThreadingViolationError, apsw.CursorClosedError):  # the writer is at it
                with suppress(apsw.ConnectionClosedError):
                    self._limited[-1].pragma("max_page_count", 2**30)
                self._limited.pop()


class Quota:
    """No file may grow: EFBIG, or less written than was given."""

    says = ("the disk",)

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._wal = Path(f"{path}-wal")
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, rt: Runtime) -> None:
        # The next page begins before the limit and ends behind it.
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._wal.stat().st_size + 1000, self._before[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


Disk = Database | Quota


@pytest.fixture(params=[Database, Quota])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(writer, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(writer, "LAST_ATTEMPTS", 0.2)
    made: Disk = request.param(tmp_path / "work.db", monkeypatch)
    yield made
    made.free()


@keephold.tool(actions=STATEFUL)
async def count(text: str) -> int:
    return len(text)


async def refused(turn: Turn, disk: Disk, calls: int = 2) -> None:
    """The responses to a batch that is too large for the disk; soon."""
    async with asyncio.timeout(PATIENCE):
        responses = await turn.run([call("count", text=LARGE) for _ in range(calls)])
    for response in responses:
        assert response.is_error and response.code == "store_unavailable"
        assert "Nothing of this batch ran" in response.result
        assert all(words in response.result for words in disk.says), response.result


@asynccontextmanager
async def full(disk: Disk, rt: Runtime) -> AsyncIterator[None]:
    """In here the disk is full; behind it there is room again, and the store has found out."""
    disk.fill(rt)
    try:
        yield
    finally:
        disk.free()
    await until(lambda: rt.registry.store.trouble is None)


async def trouble(rt: Runtime) -> None:
    """Until the store has found out that it cannot write."""
    await until(lambda: rt.registry.store.trouble is not None)


async def committed(rt: Runtime) -> list[tuple[str, str]]:
    """The calls that a power cut now would leave, and their states."""
    return [(each.id, name(each.state)) for each in await rt.registry.store.handles(HandleQuery(stateful=None))]


async def test_R4_new_batches_are_refused_with_what_to_do(tmp_path: Path, disk: Disk) -> None:
    async with Runtime([count], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        async with full(disk, rt):
            await refused(turn, disk)
            await refused(turn, disk, 1)  # the store knows by now
            assert await committed(rt) == [], "all of a batch or nothing"
            is_open = await rt.registry.store.turn("main")
            assert is_open is not None and is_open.batch is None
            assert rt.live() == []
        assert [response.result for response in await turn.run([call("count", text=LARGE)])] == [str(len(LARGE))]


async def test_R4_the_end_of_a_call_waits_and_becomes_visible(tmp_path: Path, disk: Disk) -> None:
    finish = asyncio.Event()

    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await finish.wait()
        return LARGE

    async with Runtime([work], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "a"), spawn("work", "b")])
        async with full(disk, rt):
            finish.set()
            await trouble(rt)
            waited = await rt.wait(all=["a", "b"], timeout=0.05, conversation="main")
            assert waited["completed"] == [] and waited["timed_out"], waited
            assert [each.state for each in await rt.handles()] == ["running", "running"], "durable before visible"
            assert await committed(rt) == [("a", "running"), ("b", "running")]
        for id in ("a", "b"):
            assert (await stopped(rt, id)).outcome == Ok(LARGE)


async def test_E2_a_step_waits_for_its_record_and_runs_once(tmp_path: Path, disk: Disk) -> None:
    story = Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> int:
        fx = call.durable()
        await story.reached.wait()
        await fx.run_json("one", None, story.step("one", LARGE))
        await fx.emit_process_event("progress", LARGE)
        await fx.run_json("two", None, story.step("two", LARGE))
        return call.attempt

    async with Runtime([work], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("work", "w")])
        async with full(disk, rt):
            story.reached.set()
            await trouble(rt)
            await asyncio.sleep(0.05)
            assert story.did == ["one"], "nobody goes on before it is written"
        info = await stopped(rt, "w")
        assert info.outcome == Ok(1) and story.did == ["one", "two"]
        assert [event.type for event in await rt.process_events(info.uid)] == ["progress"]


async def test_D5_resolving_is_refused_and_works_afterwards(tmp_path: Path, disk: Disk) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys)], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", "a")])
        await parked(rt)
        async with full(disk, rt):
            for _ in range(2):
                with pytest.raises(KeepholdError) as caught:
                    async with asyncio.timeout(PATIENCE):
                        await rt.resolve(keys[0], ok(LARGE))
                assert caught.value.code == "store_unavailable"
                assert all(words in caught.value.message for words in ("nothing was written", *disk.says))
            assert await committed(rt) == [("a", "running")]
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert (await stopped(rt, "a")).outcome == Ok("yes")


async def test_R6_closing_does_not_wait_for_room(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is lost with the process, as in a crash; what was is there."""
    finish, keys = asyncio.Event(), list[Key]()
    monkeypatch.setattr(ending, "_CLOSE_SECS", 0.2)

    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await finish.wait()
        return LARGE

    tools = [work, approval(keys)]
    rt = await Runtime(tools, store=stored_in(tmp_path)).__aenter__()
    turn = await rt.turn("main").__aenter__()
    await turn.run([spawn("work", "w"), spawn("approve", "a")])
    await parked(rt)
    disk.fill(rt)
    finish.set()
    await trouble(rt)
    async with asyncio.timeout(PATIENCE):
        await rt.close()
    disk.free()
    async with Runtime(tools, store=stored_in(tmp_path)) as rt:
        assert (await stopped(rt, "w")).ended_by == "crash"
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"


async def test_a_store_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(KeepholdError) as caught:
            await Runtime(store=stored_in(tmp_path)).open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "store_unusable"
    assert not (tmp_path / "work.db").exists()
    async with Runtime(store=stored_in(tmp_path)):
        pass
