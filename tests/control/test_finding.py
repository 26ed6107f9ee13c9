"""Which handle is meant by an id (L): the one that is live, never a wrong one. Clients number their calls each from 1,
so that several calls of one conversation can bear the same id."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.durable.lives import stored_in
from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Call, KeepholdError, Pending, Response, Runtime, ToolCall
from keephold.control.control import Control
from keephold.control.resolve_handle import find
from keephold.store.base import HandleQuery


@keephold.tool
async def gate() -> str:
    """Waits for ever."""
    await asyncio.Event().wait()
    return "never"


@keephold.tool(actions=STATEFUL)
async def door(call: Call) -> Pending:
    """Waits for somebody outside, by a name."""
    await call.completion_key()
    return Pending()


class Place:
    """A runtime, and the calls that clients make there."""

    def __init__(self, rt: Runtime, tasks: asyncio.TaskGroup) -> None:
        self.rt = rt
        self._tasks = tasks
        self._calls: list[asyncio.Task[Response]] = []

    async def call(self, label: str, conversation: str = "main") -> str:
        """A client's call of that number, which goes on; its uid."""
        before = await self._uids()
        calling = self.rt.call_queue(conversation).call(ToolCall(label, "gate"))
        self._calls.append(self._tasks.create_task(calling))
        while not (new := await self._uids() - before):  # noqa: ASYNC110 (it is written down after a moment)
            await asyncio.sleep(0.002)
        return new.pop()

    async def _uids(self) -> set[str]:
        return {record.uid for record in await self.rt.registry.store.handles(HandleQuery(stateful=None))}

    async def found(self, id: str, conversation: str | None = None) -> str:
        (record,) = await find(self.rt.registry.store, (id,), conversation)
        return record.uid

    async def abort(self, uid: str) -> None:
        await Control(self.rt).abort(uid)

    def leave(self) -> None:
        for call in self._calls:
            call.cancel()


@asynccontextmanager
async def running(store: str, directory: Path) -> AsyncIterator[Place]:
    url = "memory:" if store == "memory" else stored_in(directory)
    async with asyncio.timeout(PATIENCE), Runtime([gate, door], store=url) as rt, asyncio.TaskGroup() as tasks:
        place = Place(rt, tasks)
        try:
            yield place
        finally:
            place.leave()


STORES = pytest.mark.parametrize("store", ["memory", "sqlite"])
WHERE = pytest.mark.parametrize("conversation", [None, "main"])


@STORES
@WHERE
async def test_L_several_live_ones_are_refused_with_their_uids(
    tmp_path: Path, store: str, conversation: str | None
) -> None:
    async with running(store, tmp_path) as place:
        first, second = await place.call("2"), await place.call("2")
        await place.call("22")  # its id begins alike
        with pytest.raises(KeepholdError) as refused:
            await place.found("call:2", conversation)
        told = f"2 live handles are called `call:2`: {first} (gate), {second} (gate); name one by its uid"
        assert refused.value.message == told
        assert [await place.found(uid, conversation) for uid in (first, second)] == [first, second]


@STORES
@WHERE
async def test_L_the_live_one_is_meant_however_old(tmp_path: Path, store: str, conversation: str | None) -> None:
    async with running(store, tmp_path) as place:
        first, second = await place.call("2"), await place.call("2")
        await place.abort(second)
        assert await place.found("call:2", conversation) == first
        await place.abort(first)
        assert await place.found("call:2", conversation) == second, "none is live: the newest"


@STORES
async def test_L_a_live_one_goes_before_those_that_have_stopped_in_other_conversations(
    tmp_path: Path, store: str
) -> None:
    async with running(store, tmp_path) as place:
        here, there = await place.call("2", "here"), await place.call("2", "there")
        with pytest.raises(KeepholdError, match="in 2 conversations: `here`, `there`; name one by --conversation"):
            await place.found("call:2")
        assert await place.found("call:2", "there") == there
        await place.abort(there)
        assert await place.found("call:2") == here
        assert await place.found("call:2", "there") == there
        await place.abort(here)
        with pytest.raises(KeepholdError, match="in 2 conversations"):
            await place.found("call:2")


@STORES
async def test_L_names_that_were_used_again_mean_the_newest(tmp_path: Path, store: str) -> None:
    async with running(store, tmp_path) as place:
        uids = []
        for _ in range(2):
            async with place.rt.turn("main") as turn:
                await turn.run([spawn("door", "d")])
            uids.append(await place.found("d"))
            await place.abort(uids[-1])
        assert uids[0] != uids[1]
        assert [await place.found("d", where) for where in (None, "main")] == [uids[1], uids[1]]
        for where in (None, "main"):
            with pytest.raises(KeepholdError, match="Handle `e` not found in the store"):
                await place.found("e", where)
