"""What must not grow with the number of handles: work is counted here, time is measured in `bench/`."""

import asyncio
from typing import Any

import pytest

import keephold
from keephold.handles.handle import Handle
from keephold.testing import VirtualClock

MANY = 60


def spawns(tool: str, **arguments: object) -> list[keephold.ToolCall]:
    ids = [f"{tool}{number}" for number in range(MANY)]
    return [keephold.ToolCall(id, tool, {"action": "spawn", "id": id, **arguments}) for id in ids]


async def test_A7_a_stop_costs_no_look_at_those_that_stay(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them wait for their caller, the others finish one by one: no stop looks through the first half."""
    looks = 0
    blocked_on_caller = Handle.blocked_on_caller

    def counted(handle: Handle, *already_handled: Any) -> bool:
        nonlocal looks
        looks += 1
        return blocked_on_caller(handle, *already_handled)

    @keephold.tool(actions=("spawn", "apply"))
    async def reads(call: keephold.Call) -> str:
        return str(await call.input())

    finished = 0

    @keephold.tool(actions=("spawn",))
    async def ends() -> str:
        nonlocal finished
        finished += 1
        await asyncio.sleep(finished)
        return "done"

    async with keephold.Runtime([reads, ends], clock=clock) as rt, rt.turn("c") as turn:
        await turn.run([*spawns("reads"), *spawns("ends")])
        monkeypatch.setattr(Handle, "blocked_on_caller", counted)
        waited = await rt.wait(all=[f"{tool}{n}" for tool in ("reads", "ends") for n in range(MANY)], conversation="c")
        assert waited["needs_input"] is True
        assert len(waited["completed"]) == MANY
        # One for each that stops, one for each that blocks, and the last, which finds nobody else.
        assert looks <= 4 * MANY


async def test_T4_the_end_of_a_turn_compares_no_handle_with_every_other(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    def counted(one: Handle, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    async def forever() -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    stays = keephold.tool(name="stays", actions=("spawn",), on_turn_end="keep")(forever)
    goes = keephold.tool(name="goes", actions=("spawn",), on_turn_end="abort")(forever)
    async with keephold.Runtime([stays, goes], clock=clock) as rt:
        async with rt.turn("c") as turn:
            await turn.run([*spawns("stays"), *spawns("goes")])
            monkeypatch.setattr(Handle, "__eq__", counted)
        assert turn.ending is not None
        assert len(turn.ending.kept) == len(turn.ending.results) == MANY
        assert compared <= MANY
