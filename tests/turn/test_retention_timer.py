"""S5 in a store of one process: handles are deleted when their retention is over, although nothing is called."""

import asyncio

import pytest
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Call, Runtime
from keephold.store.base import HandleQuery
from keephold.testing import VirtualClock

HOUR = 3600.0


@keephold.tool(actions=STATEFUL)
async def quick(call: Call) -> str:
    return "done"


async def left(rt: Runtime) -> int:
    return len(await rt.registry.store.handles(HandleQuery(stateful=None)))


async def test_S5_a_timer_deletes_expired_handles(clock: VirtualClock) -> None:
    async with Runtime([quick], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("quick", f"h{number}") for number in range(3)])
            await asyncio.sleep(10)
            assert await left(rt) == 3
        await asyncio.sleep(HOUR - 60)
        assert await left(rt) == 3
        await asyncio.sleep(120)
        assert await left(rt) == 0


async def test_S5_a_long_turn_keeps_its_own_handles_only(clock: VirtualClock) -> None:
    async with Runtime([quick], clock=clock) as rt:
        async with rt.turn("long") as turn:
            await turn.run([spawn("quick", "kept")])
            async with rt.turn("short") as other:
                await other.run([spawn("quick", "gone")])
            await asyncio.sleep(2 * HOUR)
            (record,) = await rt.registry.store.handles(HandleQuery(stateful=None))
            assert record.id == "kept"
        await asyncio.sleep(2 * HOUR)
        assert await left(rt) == 0


async def test_S5_a_turn_that_was_left_by_an_exception_keeps_nothing_for_ever(clock: VirtualClock) -> None:
    async with Runtime([quick], clock=clock) as rt:
        with pytest.raises(ConnectionError):
            async with rt.turn("main") as turn:
                await turn.run([spawn("quick", "h")])
                await asyncio.sleep(10)
                raise ConnectionError
        await asyncio.sleep(HOUR - 60)
        assert await left(rt) == 1 and await rt.registry.store.turn("main") is not None, "it can be resumed"
        await asyncio.sleep(HOUR)
        assert await left(rt) == 0 and await rt.registry.store.turn("main") is None
