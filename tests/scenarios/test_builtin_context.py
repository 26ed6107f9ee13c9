"""Tools that work on handles, as `await` does: they see the registry, and are cancelled like any other (B8, A8)."""

import asyncio

from tests.scenarios.assistant import batch, call

import keephold
from keephold.testing import VirtualClock


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build(seconds: int) -> str:
    await asyncio.sleep(seconds)
    return "built"


@keephold.tool(scheduling="synchronising")
async def slowest(call: keephold.Call, ids: list[str]) -> dict[str, float | None]:
    """A user's own tool of the kind of `await`: waits for handles and tells when the last of them stopped."""
    await call.handles.wait(all=ids)
    stopped = [handle.stopped or 0 for handle in await call.handles.list() if handle.id in ids]
    started = [handle.created for handle in await call.handles.list() if handle.id in ids]
    return {"seconds": max(stopped) - min(started)}


async def test_B8_a_tool_of_ones_own_waits_for_handles_of_its_batch(clock: VirtualClock) -> None:
    async with keephold.Runtime([build, slowest], clock=clock) as rt, rt.turn("main") as turn:
        answer, *_ = await batch(
            turn,
            call("slowest", {"ids": ["a", "b"]}),
            call("build", {"action": "spawn", "id": "a", "seconds": 7}),
            call("build", {"action": "spawn", "id": "b", "seconds": 3}),
        )
        assert answer == {"seconds": 7}


async def test_A8_a_cancelled_turn_ends_await_and_leaves_the_handles_to_its_end(clock: VirtualClock) -> None:
    async with keephold.Runtime([build, slowest], clock=clock) as rt, rt.turn("main") as turn:
        calls = [
            call("build", {"action": "spawn", "id": "a", "seconds": 7}),
            call("await", {"all": ["a"]}),
            call("slowest", {"ids": ["a"]}),
        ]
        running = asyncio.create_task(turn.run(calls))
        await clock.advance(1)
        turn.cancel()
        spawned, waited, own = await running
        assert spawned.result == '{"id":"a","state":"running"}'
        assert waited.result == own.result == "Tool execution cancelled."
        assert (await rt.handle("a", conversation="main")).state == "running"
        ending = await turn.end()
        assert [(handle["id"], handle["ended_by"]) for handle in ending.results] == [("a", "cancel")]
        assert clock.now() - (await rt.handle("a", conversation="main")).created < 2


async def test_T5_a_turn_that_is_cancelled_while_it_ends_waits_for_nobody(clock: VirtualClock) -> None:
    @keephold.tool(actions=("spawn", "fetch"), on_turn_end="await")
    async def awaited() -> str:
        await asyncio.sleep(100)
        return "never"

    async with keephold.Runtime([awaited], clock=clock) as rt, rt.turn("main") as turn:
        await batch(turn, call("awaited", {"action": "spawn", "id": "a"}))
        began = clock.now()
        ending = asyncio.create_task(turn.end())
        await clock.advance(1)
        turn.cancel()
        (result,) = (await ending).results
        assert (result["id"], result["ended_by"]) == ("a", "cancel")
        assert clock.now() - began < 2
