"""Closing a runtime (R6), and what a turn's end keeps (T1): what is durable is let go, not ended."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import Story, ok, only, stopped, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, apply, call, reply, spawn

import keephold
from keephold import Call, KeepholdError, Key, Runtime
from keephold.outcomes import Failure, Ok
from keephold.testing import VirtualClock
from keephold.tools.base import OnTurnEnd


async def test_R6_a_replay_call_is_let_go_and_the_next_runtime_goes_on(tmp_path: Path) -> None:
    story, store = Story(), stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        fx = call.durable()
        await fx.run_json("first", None, story.step("first"))
        await story.cut_here()
        await fx.run_json("second", None, story.step("second"))
        return story.did

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
    async with Runtime(store=store) as rt:  # in between: nobody runs it, and it has not ended
        info = await rt.handle("w", conversation="main")
        assert (info.state, info.ended_by, info.attempt) == ("running", None, 1)
    story.dies = False
    async with Runtime([work], store=store) as rt:
        info = await stopped(rt, "w")
        assert (info.outcome, info.attempt) == (Ok(["first", "second"]), 2)


async def test_R6_a_fail_function_ends(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=STATEFUL)
    async def work() -> None:
        await asyncio.sleep(600)

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([spawn("work", "w"), call("work")]))
        await until(lambda: len(rt.live()) == 2)
    assert [response.result for response in await batch][1] == "Ended: the runtime was closed."
    async with Runtime([work], store=store) as rt:
        info = await rt.handle("w", conversation="main")
        assert (info.state, info.ended_by) == ("stopped", "shutdown")
        async with rt.turn("main", resume=True) as turn:
            assert turn.unfinished is None  # it was answered


async def test_R6_the_effects_of_a_call_that_is_let_go_refuse(tmp_path: Path) -> None:
    """Also in what a tool does last: nothing is begun that could not be recorded."""
    store, told, story = stored_in(tmp_path), list[str](), Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> str:
        fx = call.durable()
        try:
            await story.cut_here()
        except asyncio.CancelledError:
            for effect in (
                lambda: fx.run_json("cleanup", None, story.step("cleanup")),
                lambda: fx.external_event_key("x"),
                lambda: fx.await_event_json("x"),
                lambda: fx.sleep(0),
                lambda: fx.emit_process_event("x"),
            ):
                try:
                    await effect()
                except KeepholdError as error:
                    told.append(error.code)
            raise
        return f"attempt {call.attempt}"

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
    assert told == ["runtime_closing"] * 5 and story.did == []
    story.dies = False
    async with Runtime([work], store=store) as rt:
        assert (await stopped(rt, "w")).outcome == Ok("attempt 2")
        assert await rt.process_events((await rt.handle("w", conversation="main")).uid) == []


@pytest.mark.parametrize("last_words", ["return", "raise", "transient"])
async def test_R6_what_a_tool_says_when_it_is_let_go_is_not_its_end(tmp_path: Path, last_words: str) -> None:
    store, story = stored_in(tmp_path), Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay", retry="idempotent")
    async def work(call: Call) -> str:
        try:
            await story.cut_here()
        except asyncio.CancelledError:
            if last_words == "return":
                return "gave up"
            raise keephold.ToolError("gave up", transient=last_words == "transient") from None
        return "finished"

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
    story.dies = False
    async with Runtime([work], store=store) as rt:
        assert (await stopped(rt, "w")).outcome == Ok("finished")


async def test_R6_a_step_that_is_under_way_is_cut_off_like_in_a_crash(tmp_path: Path) -> None:
    store, story = stored_in(tmp_path), Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> Any:
        async def pay(given: Any) -> str:
            story.did.append(f"pay {call.attempt}")
            await story.cut_here()
            return "paid"

        return await call.durable().run_json("pay", None, pay)

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
    story.dies = False
    async with Runtime([work], store=store) as rt:
        assert (await stopped(rt, "w")).outcome == Ok("paid")
    assert story.did == ["pay 1", "pay 2"]


async def test_R6_what_waits_in_effects_and_for_input_goes_on(tmp_path: Path) -> None:
    store, keys = stored_in(tmp_path), list[Key]()

    @keephold.tool(actions=TALKING, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        fx = call.durable()
        line = await call.input()
        keys.append(await fx.external_event_key("go"))
        return [line, await fx.await_event_json(keys[0]), await call.input()]

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await reply(turn, apply("work", "w", "one"))
        await until(lambda: len(keys) == 1)
    async with Runtime([work], store=store) as rt:
        await until(lambda: len(keys) == 2)
        await rt.resolve(keys[0], ok(2))
        await asyncio.sleep(0.05)
    async with Runtime([work], store=store) as rt, rt.turn("main") as turn:
        await until(lambda: len(keys) == 3)
        await reply(turn, apply("work", "w", "three"))
        assert (await stopped(rt, "w")).outcome == Ok(["one", 2, "three"])


async def test_R6_a_queued_replay_call_is_not_lost(tmp_path: Path) -> None:
    """A spawned serial call that waits for another has a batch that was answered: it starts in the next runtime."""
    store, story = stored_in(tmp_path), Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay", scheduling="serial")
    async def work(call: Call) -> str:
        await story.cut_here()
        return call.id

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("work", "a"), spawn("work", "b")])
        await story.reached.wait()
    story.dies = False
    async with Runtime([work], store=store) as rt:
        assert (await stopped(rt, "a")).ok
        assert (await stopped(rt, "b")).ok


async def test_B4_serial_calls_that_are_taken_up_again_keep_emitted_order(tmp_path: Path) -> None:
    store, story, ran = stored_in(tmp_path), Story(), list[int]()

    @keephold.tool(actions=STATEFUL, on_crash="replay", scheduling="serial")
    async def work(call: Call, n: int) -> int:
        await story.cut_here()
        ran.append(n)
        return n

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("work", f"w{n}", n=n) for n in range(6)])
        await story.reached.wait()
    story.dies = False
    async with Runtime([work], store=store) as rt:
        for n in range(6):
            await stopped(rt, f"w{n}")
    assert ran == list(range(6))


async def test_R6_on_memory_nothing_is_let_go(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> None:
        await call.durable().sleep(600)

    async with Runtime([work], clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("work")]))
        await clock.advance(1)
    assert [response.result for response in await batch] == ["Ended: the runtime was closed."]


async def test_R6_a_closed_runtime_says_so(tmp_path: Path) -> None:
    async with Runtime(store=stored_in(tmp_path)) as rt:
        pass
    for use in (lambda: rt.resolve("x", ok(1)), lambda: rt.turn("main").__aenter__()):
        with pytest.raises(KeepholdError) as caught:
            await use()
        assert caught.value.code == "runtime_closed"


# T1


def durable_tool(policy: OnTurnEnd | None, **options: Any) -> keephold.Tool:
    """Waits in durable effects, or works, as it is told."""

    @keephold.tool(**{"actions": STATEFUL, "on_crash": "replay", "on_turn_end": policy, **options})
    async def work(call: Call, how: str) -> str:
        fx = call.durable()
        if how == "sleep":
            await fx.sleep(3600)
        elif how == "event":
            await fx.await_event_json(await fx.external_event_key("go"))
        elif how == "step":
            await fx.run_json("step", None, lambda _: asyncio.sleep(3600))
        else:
            await asyncio.sleep(3600)
        return "done"

    return work


async def test_T1_a_replay_call_that_waits_in_effects_is_kept(clock: VirtualClock) -> None:
    async with Runtime([durable_tool(None)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", how, how=how) for how in ("sleep", "event", "step", "work")])
            await clock.advance(1)
            ending = await turn.end()
        assert [entry["id"] for entry in ending.kept] == ["sleep", "event"]
        states = {info.id: info.ended_by for info in await rt.handles()}
        assert states == {"sleep": None, "event": None, "step": "turn_end", "work": "turn_end"}
        async with rt.turn("main") as turn:
            assert (await reply(turn, call("await", all=["sleep"])))["completed"][0]["result"] == "done"


@pytest.mark.parametrize("policy", ["abort", "inquire"])
async def test_T1_what_the_tool_says_itself_counts(clock: VirtualClock, policy: OnTurnEnd) -> None:
    async with Runtime([durable_tool(policy)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("work", "w", how="sleep"))
            await clock.advance(1)
        assert (await rt.handle("w", conversation="main")).ended_by == "turn_end"


async def test_T1_await_waits_for_it(clock: VirtualClock) -> None:
    async with Runtime([durable_tool("await", turn_end_timeout_secs=7200)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("work", "w", how="sleep"))
            ending = await turn.end()
        assert [entry["result"] for entry in ending.results] == ["done"]


async def test_T5_a_cancelled_turn_keeps_what_is_kept(clock: VirtualClock) -> None:
    async with Runtime([durable_tool(None)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("work", "s", how="sleep"), spawn("work", "w", how="work")])
            await clock.advance(1)
            turn.cancel()
        states = {info.id: info.ended_by for info in await rt.handles()}
        assert states == {"s": None, "w": "cancel"}


async def test_T4_a_one_shot_call_that_waits_in_effects_is_part_of_its_batch(clock: VirtualClock) -> None:
    """It cannot be kept: nobody could name it."""
    async with Runtime([durable_tool(None)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([call("work", how="sleep")]))
            await clock.advance(1)
        assert [response.result for response in await batch] == ["Tool execution cancelled."]
        assert rt.live() == []


async def test_T5_a_cancelled_call_with_effects_does_not_come_back(tmp_path: Path) -> None:
    """Aborted and cancelled calls have ended: the next runtime leaves them alone."""
    store, ran = stored_in(tmp_path), list[int]()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> None:
        ran.append(call.attempt)
        await asyncio.sleep(600)

    async with Runtime([work], store=store) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("work", "w"))
        await until(lambda: ran == [1])
        turn.cancel()
    async with Runtime([work], store=store) as rt:
        await asyncio.sleep(0.05)
        outcome = (await rt.handle("w", conversation="main")).outcome
        assert isinstance(outcome, Failure) and ran == [1]
        async with rt.turn("main") as turn:
            assert (await only(turn, call("work", action="fetch", id="w"))).result
