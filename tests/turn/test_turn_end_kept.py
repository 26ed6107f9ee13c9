"""What outlives a turn that does not say so (T1, T4): calls that wait in their effects, and parked ones."""

import asyncio

import pytest
from tests.turn.assistant import Assistant
from tests.turn.calls import STATEFUL, replies, spawn

import keephold
from keephold import Call, Pending, Runtime
from keephold.testing import VirtualClock
from keephold.tools.base import OnTurnEnd
from keephold.turn.inquiry import Inquiry


async def ended(rt: Runtime) -> dict[str, tuple[str, str | None]]:
    return {info.id: (info.state, info.ended_by) for info in await rt.handles()}


@pytest.mark.parametrize("chosen", [None, "inquire", "await", "abort"])
async def test_T1_a_replay_call_that_waits_in_its_effects_is_kept_unless_its_tool_says_otherwise(
    clock: VirtualClock, chosen: OnTurnEnd | None
) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end=chosen, turn_end_timeout_secs=60)
    async def nap(call: Call) -> str:
        await call.durable().sleep(3600)
        return "rested"

    assistant = Assistant("abort")
    async with Runtime([nap], clock=clock, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("nap", "n"))
            await clock.advance(1)
            ending = await turn.end()
        assert [each["id"] for each in ending.kept] == (["n"] if chosen is None else [])
        assert len(assistant.asked) == (chosen == "inquire")
        if chosen is None:
            await clock.advance(3600)
            async with rt.turn("main") as turn:
                assert [each.message for each in await turn.notifications()] == ["`n` (nap) stopped: rested"]


async def test_T1_a_replay_call_that_works_is_not_kept(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def toil(call: Call) -> str:
        await call.durable().sleep(1)
        await asyncio.sleep(3600)
        return "done"

    async with Runtime([toil], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("toil", "t"))
            await clock.advance(5)
        assert await ended(rt) == {"t": ("stopped", "turn_end")}


@pytest.mark.parametrize("policy", ["await", "inquire"])
async def test_T4_a_call_that_parks_while_its_turn_ends_stays(clock: VirtualClock, policy: OnTurnEnd) -> None:
    """Parked calls are not live. Nobody has to wait for this one any more, and nobody may end it."""

    @keephold.tool(actions=STATEFUL, on_turn_end=policy, turn_end_timeout_secs=60)
    async def approve(call: Call) -> Pending:
        await call.completion_key()
        await asyncio.sleep(5)
        return Pending()

    async def slowly(inquiry: Inquiry) -> None:
        await asyncio.sleep(10)

    async with Runtime([approve], clock=clock, inquiry=Assistant("wait", slowly)) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("approve", "a"))
            await turn.end()
            while turn.ending is None:
                await turn.end()
        assert await ended(rt) == {"a": ("running", None)}
        assert (await rt.handle("a", conversation="main")).parked
