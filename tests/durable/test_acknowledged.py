"""Nothing acknowledged is lost (R4), and of two ends one counts for everyone (S2): power cuts and races on SQLite."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import (
    HandClock,
    Story,
    approval,
    notifications,
    ok,
    only,
    parked,
    parsed,
    power_cut,
    stopped,
    stored_in,
)
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, abort, call, fetch, reply, spawn

import keephold
from keephold import Call, Key, Pending, Runtime, Tool
from keephold.handles.handle import Handle
from keephold.outcomes import Failure, Ok


async def test_R4_a_reply_that_was_given_is_recorded(tmp_path: Path) -> None:
    """The power goes in the instant after each reply."""
    store, ran = stored_in(tmp_path), list[str]()

    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        ran.append(call.id)
        if call.process_id is not None:
            await asyncio.sleep(600)
        return "done"

    async with Runtime([work], store=store) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([call("work")])
        answered = power_cut(store)
        await turn.run([spawn("work", "w")])
        spawned = power_cut(store)
        await turn.run([abort("work", "w")])
        aborted = power_cut(store)
        await turn.end()
        ended = power_cut(store)
    assert response.result == "done"
    for cut, ended_by in ((answered, None), (spawned, "crash"), (aborted, "abort")):
        async with Runtime([work], store=cut) as rt, rt.turn("main", resume=True) as resumed:
            assert resumed.id == turn.id and resumed.unfinished is None
            if ended_by is not None:
                assert (await stopped(rt, "w")).ended_by == ended_by
    async with Runtime([work], store=ended) as rt, rt.turn("main", resume=True) as following:
        assert following.id != turn.id
    assert len(ran) == 2


async def test_R4_a_resolution_that_was_accepted_counts(tmp_path: Path) -> None:
    keys: list[Key] = []
    events: list[Key] = []
    store, clock = stored_in(tmp_path), HandClock()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def listens(call: Call) -> Any:
        fx = call.durable()
        events.append(await fx.external_event_key("go"))
        return await fx.await_event_json(events[0])

    tools = [approval(keys, Pending(deadline=60)), listens]
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", "a"), spawn("listens", "l")])
        await until(lambda: bool(keys and events))
        await parked(rt)
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        after_one = power_cut(store)
        assert str(await rt.resolve(events[0], ok("now"))) == "accepted"
        after_two = power_cut(store)
    clock.at += 3600
    async with Runtime(tools, store=after_one, clock=clock) as rt:
        assert (await rt.handle("a", conversation="main")).outcome == Ok("yes")
        assert await notifications(rt) == [("tool.stopped", "info")]
    async with Runtime(tools, store=after_two, clock=clock) as rt:
        assert (await stopped(rt, "l")).outcome == Ok("now")


async def test_N3_a_crash_loses_no_news(tmp_path: Path) -> None:
    store, clock = stored_in(tmp_path), HandClock()
    tools = [approval([], Pending(deadline=60))]
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await parked(rt, 2)
    clock.at += 61
    async with Runtime(tools, store=store, clock=clock) as rt:
        await stopped(rt, "b")
        store = power_cut(store)
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main") as turn:
        assert await notifications(rt) == [("tool.failed", "error")] * 2
        fetched = await only(turn, fetch("approve", "a"))
        assert [each.message.split()[0] for each in fetched.notifications] == ["`b`"], "of the one it did not show"
        store = power_cut(store)
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main", resume=True) as turn:
        assert turn.answered is not None and turn.answered[0].notifications == fetched.notifications
        assert await notifications(rt) == []


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_E10_what_a_call_printed_is_neither_repeated_nor_removed(tmp_path: Path, ending: str) -> None:
    store, story = stored_in(tmp_path), Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def prints(call: Call) -> str:
        fx = call.durable()
        call.emit(f"one of {call.attempt}\n")
        await fx.run_json("step", None, story.step("step"))
        await story.cut_here()
        call.emit(f"two of {call.attempt}\n")
        return "done"

    async with Runtime([prints], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("prints", "p"))
        await story.reached.wait()
        if ending == "crash":
            store = power_cut(store)
    story.dies = False
    async with Runtime([prints], store=store) as rt, rt.turn("main") as turn:
        await stopped(rt, "p")
        kept = await reply(turn, call("read_output", id="p"))
        assert kept["content"] == "one of 1\n--- attempt 2 ---\none of 2\ntwo of 2\ndone"


async def test_R3_what_is_parked_costs_nothing_at_the_start(tmp_path: Path) -> None:
    keys: list[Key] = []
    store, clock = stored_in(tmp_path), HandClock()
    tools = [approval(keys, Pending(deadline=3600))]
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main") as turn:
        for batch in range(4):
            await turn.run([spawn("approve", f"a{batch}-{n}") for n in range(500)])
        await until(lambda: len(keys) == 2000 and rt.live() == [])
    gc.collect()
    before = sum(isinstance(each, Handle) for each in gc.get_objects())
    async with Runtime(tools, store=store, clock=clock) as rt:
        gc.collect()
        assert sum(isinstance(each, Handle) for each in gc.get_objects()) - before <= 10
        assert len(asyncio.all_tasks()) == 1
        assert str(await rt.resolve(keys[1234], ok("yes"))) == "accepted"
    assert len(keys) == 2000


async def test_S5_in_a_store_handles_expire_after_a_week_and_parked_ones_never(tmp_path: Path) -> None:
    keys: list[Key] = []
    store, clock = stored_in(tmp_path), HandClock()
    tools = [approval(keys)]
    async with Runtime(tools, store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await until(lambda: len(keys) == 1)
        await reply(turn, spawn("approve", "b"))
        await until(lambda: len(keys) == 2)
        await parked(rt, 2)
        await rt.resolve(keys[0], ok("yes"))
    clock.at += 6 * 86_400
    async with Runtime(tools, store=store, clock=clock) as rt:
        assert [(info.id, info.state) for info in await rt.handles()] == [("a", "stopped"), ("b", "running")]
    clock.at += 2 * 86_400
    async with Runtime(tools, store=store, clock=clock) as rt:
        assert [(info.id, info.parked) for info in await rt.handles()] == [("b", True)]
        with pytest.raises(keephold.ToolError) as caught:
            await rt.handle("a", conversation="main")
        assert caught.value.code == "handle_expired"
        answer = await rt.resolve(keys[0], ok("late"))
        assert (str(answer), answer.terminal) == ("already_resolved", ok("yes"))
        assert str(await rt.resolve(keys[1], ok("late"))) == "accepted"


# Races


@pytest.mark.parametrize("runtimes", [1, 2])
async def test_S2_an_abort_and_a_resolution_at_once(tmp_path: Path, runtimes: int) -> None:
    keys: list[Key] = []
    called: list[Key] = []
    approve = approval(keys)

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append(key)

    tools: list[Tool] = [approve]
    store = stored_in(tmp_path)
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two, one.turn("main") as turn:
        other = two if runtimes == 2 else one
        won: list[bool] = []
        for n in range(12):
            await reply(turn, spawn("approve", f"a{n}"))
            await until(lambda n=n: len(keys) == n + 1)  # type: ignore[misc]
            await parked(one)

            async def resolve(n: int = n) -> keephold.outcomes.ResolveOutcome:
                await asyncio.sleep(n * 0.0005)
                return await other.resolve(keys[n], ok("yes"))

            outcome, shown = await asyncio.gather(resolve(), reply(turn, abort("approve", f"a{n}")))
            info = await one.handle(f"a{n}", conversation="main")
            if str(outcome) == "accepted":
                assert shown == {"id": f"a{n}", "state": "stopped", "result": "yes"}
                assert info.outcome == Ok("yes")
            else:
                assert (str(outcome), outcome.terminal) == ("already_resolved", {"status": "cancelled"})
                assert (shown["ended_by"], info.ended_by) == ("abort", "abort")
            assert (await stopped(two, f"a{n}")).outcome == info.outcome
            won.append(str(outcome) == "accepted")
        await until(lambda: len(set(called)) == won.count(False))
        assert set(called) == {key for key, resolved in zip(keys, won, strict=True) if not resolved}


async def test_S2_an_abort_while_the_call_is_being_parked(tmp_path: Path) -> None:
    """Whenever it comes: the call ends, its key is worth nothing, and if it was parked its hook is called."""
    keys: list[Key] = []
    called: list[Key] = []
    approve = approval(keys)

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append(key)

    async with Runtime([approve], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        for n in range(15):
            await reply(turn, spawn("approve", f"a{n}"))
            await asyncio.sleep(n * 0.0004)
            async with asyncio.timeout(PATIENCE):
                assert (await reply(turn, abort("approve", f"a{n}")))["ended_by"] == "abort"
            info = await rt.handle(f"a{n}", conversation="main")
            assert info.state == "stopped" and isinstance(info.outcome, Failure)
        await asyncio.sleep(0.1)
        for key in keys:
            assert str(await rt.resolve(key, ok("late"))) == "already_resolved"
        assert set(called) <= set(keys) and len(called) == len(set(called))


async def test_S2_a_resolution_while_the_call_is_being_parked(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    async with Runtime(store=store) as other:
        resolving: list[asyncio.Task[keephold.outcomes.ResolveOutcome]] = []

        @keephold.tool(actions=STATEFUL)
        async def approve(call: Call, delay: float) -> Pending:
            key = await call.completion_key()

            async def resolve() -> keephold.outcomes.ResolveOutcome:
                await asyncio.sleep(delay)
                return await other.resolve(key, ok(delay))

            resolving.append(asyncio.create_task(resolve()))
            return Pending()

        async with Runtime([approve], store=store) as rt, rt.turn("main") as turn:
            responses = await asyncio.wait_for(
                turn.run([call("approve", delay=n * 0.0005) for n in range(30)]), timeout=PATIENCE
            )
            assert [float(response.result) for response in responses] == [n * 0.0005 for n in range(30)]
            assert {str(await each) for each in resolving} == {"accepted"}


async def test_R9_cancelling_the_task_that_runs_a_batch_keeps_what_is_parked(tmp_path: Path) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys)], store=stored_in(tmp_path)) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("approve")]))
        await until(lambda: len(keys) == 1)
        await parked(rt)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"
        assert [each.result for each in await turn.resume()] == ["yes"]
        await turn.end()


async def test_D10_a_call_that_was_let_go_of_can_be_aborted(tmp_path: Path) -> None:
    async with Runtime([approval([])], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([keephold.ToolCall("c1", "approve")], park_after=0.01)
        assert parsed(response)["id"] == "call:c1"
        aborted = parsed(await only(turn, abort("approve", "call:c1")))
        assert (aborted["result"], aborted["ended_by"]) == ("pending tool completion cancelled", "abort")
