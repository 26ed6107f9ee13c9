"""A tool that prints without end cannot fill the disk (K6): the oldest output is deleted, and then none is kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.durable.lives import stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold import Call, Runtime, ToolError
from keephold.policies import OutputPolicy

MIB = 1 << 20


@keephold.tool(actions=STATEFUL, on_turn_end="keep", output=OutputPolicy(max_output=64 * MIB))
async def prints(call: Call, mib: int, stay: bool = False) -> str:
    """Prints so much, and returns or stays."""
    for _ in range(mib * 16):
        call.emit(b"x" * (MIB // 16))
        await asyncio.sleep(0)
    if stay:
        await asyncio.Event().wait()
    return "printed"


@keephold.tool(actions=STATEFUL)
async def returns(call: Call, kib: int) -> str:
    return "x" * (kib << 10)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else stored_in(tmp_path)


@asynccontextmanager
async def limited(store: str, mib: int) -> AsyncIterator[Runtime]:
    async with Runtime([prints, returns], store=store) as rt:
        rt.registry.spool.disk.limit = mib * MIB
        yield rt


def on_disk(rt: Runtime) -> int:
    """What the files take, by looking."""
    directory = rt.registry.spool._directory
    return 0 if directory is None else sum(file.stat().st_size for file in directory.iterdir())


async def printed(rt: Runtime, id: str, mib: int, conversation: str = "main") -> None:
    async with rt.turn(conversation) as turn:
        await turn.run([spawn("prints", id, mib=mib), call("await", all=[id])])


async def kept(rt: Runtime, id: str, conversation: str = "main") -> bool:
    try:
        await rt.handle(id, conversation=conversation)
    except ToolError as error:
        assert error.code == "handle_expired" and "[limits] disk" in error.message
        return False
    return True


async def test_K6_the_oldest_output_is_deleted_first(store: str) -> None:
    async with limited(store, 20) as rt:
        for number in range(8):
            await printed(rt, f"p{number}", 4)
            await until(lambda: not rt.registry.room._making)
            assert on_disk(rt) <= 20 * MIB
        there = [await kept(rt, f"p{number}") for number in range(8)]
        assert there == sorted(there), "the oldest first"
        assert 2 <= sum(there) <= 4, there
        assert rt.registry.spool.disk.files == pytest.approx(on_disk(rt), abs=MIB)


async def test_K6_an_end_that_nobody_was_told_of_stays_longer(store: str) -> None:
    async with limited(store, 20) as rt:
        async with rt.turn("other") as turn:
            await turn.run([spawn("prints", "untold", mib=4)])
        await rt.wait(all=["untold"], timeout=PATIENCE, conversation="other")
        for number in range(4):
            await printed(rt, "p", 4, f"c{number}")
            await until(lambda: not rt.registry.room._making)
        assert await kept(rt, "untold", "other") and not await kept(rt, "p", "c0")


async def test_K6_if_nothing_can_be_deleted_output_is_cut_and_calls_are_refused(store: str) -> None:
    async with limited(store, 8) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("prints", "long", mib=40, stay=True)])

            async def all_of_it() -> bool:
                return (await rt.handle("long", conversation="main")).output_bytes == 40 * MIB

            await until(all_of_it)
            assert on_disk(rt) <= 8 * MIB
            await until(lambda: rt.registry.spool.disk.stuck)
            output = rt.registry.find("long", "main").output
            assert output is not None and output.failure is not None and "[limits] disk" in output.failure
            assert output.read(0, 10).data == b"x" * 10, "the first part is kept"
            assert output.before(40 * MIB, 10) == b"x" * 10, "and the latest"
            (response,) = await turn.run([call("read_output", id="long", offset=16 * MIB)])
            assert "were not kept (" in response.result and "[limits] disk" in response.result
            # New calls are refused as long as it stays; what exists can be ended.
            rt.registry.spool.disk.limit = rt.registry.spool.disk.used
            (refused,) = await turn.run([call("returns", kib=1)])
            assert refused.code == "limit_exceeded" and "[limits] disk" in refused.result
            await turn.run([call("prints", action="abort", id="long")])
        await until(lambda: not rt.registry.room._making)
        async with rt.turn("main") as turn:
            (taken,) = await turn.run([call("returns", kib=1)])
            assert not taken.is_error
        assert not await kept(rt, "long")


async def test_K6_results_in_the_store_count(tmp_path: Path) -> None:
    async with limited(stored_in(tmp_path), 10) as rt:
        for number in range(12):
            async with rt.turn("main") as turn:
                await turn.run([spawn("returns", f"r{number}", kib=1024), call("await", all=[f"r{number}"])])
            await until(lambda: not rt.registry.room._making)
        assert await rt.registry.store.used_bytes() <= 10 * MIB
        assert not await kept(rt, "r0") and await kept(rt, "r11")


async def test_K6_files_of_earlier_processes_count(tmp_path: Path) -> None:
    async with limited(stored_in(tmp_path), 100) as rt:
        for number in range(4):
            await printed(rt, f"p{number}", 4)
    async with Runtime([prints], store=stored_in(tmp_path)) as rt:
        rt.registry.spool.disk.limit = 10 * MIB
        await rt.registry.room.check()
        await until(lambda: not rt.registry.room._making)
        assert on_disk(rt) <= 9 * MIB
        assert [await kept(rt, f"p{number}") for number in range(4)] == [False, False, False, True]


async def test_K6_commands_without_a_configuration_delete_nothing(tmp_path: Path) -> None:
    from keephold.cli.store import without_tools

    async with limited(stored_in(tmp_path), 100) as rt:
        await printed(rt, "p", 4)
    async with without_tools(stored_in(tmp_path)) as rt:
        assert rt.registry.spool.disk.limit is None
        await rt.registry.room.check()
        assert await kept(rt, "p")
