"""Resuming (B9): a batch that its process did not live to answer is answered by the next one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, Story, approval, ok, only, parked, parsed, power_cut, stopped, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, abort, call, fetch, reply, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Pending, Runtime, Tool, ToolCall
from keephold.errors import TurnFailed
from keephold.store.base import HandleQuery


class Cut:
    """A store whose power was cut while a batch was open, and the calls of that batch."""

    def __init__(self, store: str, calls: list[ToolCall], turn: str) -> None:
        self.store = store
        self.calls = calls
        self.turn = turn


async def cut_in(
    tools: list[Tool],
    calls: list[ToolCall],
    story: Story,
    directory: Path,
    clock: HandClock | None = None,
    *,
    parks: int = 0,
    stops: int = 0,
) -> Cut:
    """Run the batch, and cut the power where the story says, when so many calls are parked, and so many stopped."""
    store = stored_in(directory)

    async def stopped_calls() -> bool:
        return len(await rt.registry.store.handles(HandleQuery(state="stopped", stateful=None))) >= stops

    async with Runtime(tools, store=store, clock=clock) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run(calls))
        async with asyncio.timeout(PATIENCE):
            await story.reached.wait()
        await parked(rt, parks)
        await until(stopped_calls)
        cut = power_cut(store)
    await asyncio.wait([batch])
    batch.exception()  # it was left unanswered, or answered with the end of the runtime
    story.dies = False
    return Cut(cut, calls, turn.id)


async def test_B9_finished_calls_as_recorded_others_by_how_far_they_came(tmp_path: Path) -> None:
    story, ran = Story(), list[str]()

    @keephold.tool
    async def quick(call: Call) -> dict[str, int]:
        ran.append(f"quick {call.attempt}")
        return {"n": 1}

    @keephold.tool
    async def fails(call: Call) -> str:
        ran.append(f"fails {call.attempt}")
        raise keephold.ToolError("no", code="mine")

    @keephold.tool
    async def started(call: Call) -> str:
        ran.append(f"started {call.attempt}")
        await until(lambda: len(ran) == 4)
        await story.cut_here()
        return "never"

    @keephold.tool(on_crash="replay")
    async def replays(call: Call) -> str:
        ran.append(f"replays {call.attempt}")
        if call.attempt == 1:
            await asyncio.sleep(600)
        return f"attempt {call.attempt}"

    @keephold.tool(scheduling="serial")
    async def later(call: Call, n: int) -> int:
        ran.append(f"later {n}")
        return n

    calls = [
        call("quick"),
        call("fails"),
        call("started"),
        call("replays"),
        call("later", n=1),
        call("later", n=2),
        call("nobody"),
        call("quick", wrong=1),
    ]
    tools: list[Tool] = [quick, fails, started, replays, later]
    cut = await cut_in(tools, calls, story, tmp_path, stops=2)
    assert sorted(ran) == ["fails 1", "quick 1", "replays 1", "started 1"]
    async with Runtime(tools, store=cut.store) as rt, rt.turn("main", resume=True) as turn:
        assert turn.id == cut.turn
        unfinished = turn.unfinished
        assert unfinished is not None and list(unfinished.calls) == calls
        responses = await turn.resume()
        assert [response.id for response in responses] == [each.id for each in calls]
        assert [response.result for response in responses[:2]] == ['{"n":1}', "no"]
        assert responses[1].code == "mine" and responses[2].code == "crashed"
        assert [response.result for response in responses[3:6]] == ["attempt 2", "1", "2"]
        assert (responses[6].code, responses[7].code) == ("unknown_tool", "invalid_arguments")
        assert turn.unfinished is None
        assert sorted(ran) == ["fails 1", "later 1", "later 2", "quick 1", "replays 1", "replays 2", "started 1"]
        assert (await only(turn, call("quick"))).result == '{"n":1}'  # and the turn goes on


async def test_B9_the_open_batch_comes_first(tmp_path: Path) -> None:
    story, keys = Story(), list[Key]()
    approve = approval(keys)

    @keephold.tool
    async def dies() -> None:
        await story.cut_here()

    cut = await cut_in([approve, dies], [call("approve"), call("dies")], story, tmp_path, parks=1)
    async with Runtime([approve, dies], store=cut.store) as rt:
        turn = await rt.turn("main", resume=True).__aenter__()
        with pytest.raises(KeepholdError) as caught:
            await turn.run([call("dies")])
        assert caught.value.code == "batch_open"
        resuming = asyncio.create_task(turn.resume())
        await asyncio.sleep(0.05)
        with pytest.raises(KeepholdError) as caught:
            await turn.resume()
        assert not resuming.done()
        await rt.resolve(keys[0], ok("yes"))
        first, _ = await resuming
        assert first.result == "yes"
        with pytest.raises(KeepholdError):
            await turn.resume()  # answered: there is no other
        await turn.end()


async def test_B9_a_turn_without_an_open_batch_can_be_taken_up_too(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    @keephold.tool
    async def quick() -> str:
        return "quick"

    async with Runtime([quick], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([call("quick")])
        cut = power_cut(store)
    async with Runtime([quick], store=cut) as rt:
        async with rt.turn("main", resume=True) as resumed:
            assert (resumed.id, resumed.unfinished) == (turn.id, None)
            assert (await only(resumed, call("quick"))).result == "quick"
        async with rt.turn("main", resume=True) as fresh:  # nothing to resume: a turn like any other
            assert fresh.id != turn.id and fresh.unfinished is None
            assert (await only(fresh, call("quick"))).result == "quick"


async def test_B9_spawned_handles_of_the_open_batch(tmp_path: Path) -> None:
    """A spawn that was made is answered by what has become of its handle; nothing is spawned twice."""
    story, ran = Story(), list[str]()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def server(call: Call) -> str:
        ran.append(f"server {call.attempt}")
        await call.durable().sleep(600)
        return "never"

    @keephold.tool(actions=STATEFUL)
    async def worker(call: Call) -> str:
        ran.append(f"worker {call.attempt}")
        await asyncio.sleep(600)
        return "never"

    @keephold.tool
    async def dies() -> None:
        await story.cut_here()

    calls = [spawn("server", "s"), spawn("worker", "w"), call("dies"), wait_all("w")]
    tools: list[Tool] = [server, worker, dies]
    cut = await cut_in(tools, calls, story, tmp_path)
    async with Runtime(tools, store=cut.store) as rt, rt.turn("main", resume=True) as turn:
        responses = await turn.resume()
        assert parsed(responses[0]) == {"id": "s", "state": "running"}
        assert parsed(responses[1])["state"] == "stopped" and "is_error" in parsed(responses[1])
        assert responses[2].code == "crashed"
        assert parsed(responses[3])["completed"][0]["id"] == "w"
        assert sorted(ran) == ["server 1", "server 2", "worker 1"]
        assert len(await rt.handles()) == 2
        await reply(turn, abort("server", "s"))


@pytest.mark.parametrize("ending", ["close", "crash"])
async def test_D10_a_resumed_turn_waits_on_for_what_is_parked(tmp_path: Path, ending: str) -> None:
    keys: list[Key] = []
    store, approve = stored_in(tmp_path), approval(keys)
    async with Runtime([approve], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("approve"), call("approve")]))
        await until(lambda: len(keys) == 2)
        await parked(rt, 2)
        if ending == "crash":
            store = power_cut(store)
    with pytest.raises(KeepholdError) as caught:
        await batch
    assert caught.value.code == "runtime_closed" and "resume=True" in str(caught.value)
    async with Runtime(store=store) as rt:
        await rt.resolve(keys[0], ok("while nobody ran"))
    async with Runtime([approve], store=store) as rt, rt.turn("main", resume=True) as turn:
        resuming = asyncio.create_task(turn.resume())
        await asyncio.sleep(0.05)
        assert not resuming.done() and rt.live() == []
        await rt.resolve(keys[1], ok("later"))
        assert [response.result for response in await resuming] == ["while nobody ran", "later"]
    assert len(keys) == 2


async def test_D10_park_after_in_a_resumed_turn(tmp_path: Path) -> None:
    story, keys = Story(), list[Key]()
    approve = approval(keys)

    @keephold.tool
    async def dies() -> None:
        await story.cut_here()

    cut = await cut_in([approve, dies], [ToolCall("c1", "approve"), call("dies")], story, tmp_path, parks=1)
    async with Runtime([approve, dies], store=cut.store) as rt, rt.turn("main", resume=True) as turn:
        first, _ = await turn.resume(park_after=0.05)
        assert parsed(first) == {"id": "call:c1", "state": "running", "parked": True}
        await rt.resolve(keys[0], ok("yes"))
        assert (await reply(turn, fetch("approve", "call:c1")))["result"] == "yes"


async def test_D11_a_deadline_that_passed_while_nobody_ran_fails_the_turn_that_is_resumed(tmp_path: Path) -> None:
    story, clock = Story(), HandClock()
    strict = approval([], Pending(deadline=60, on_timeout="fail_turn"))

    @keephold.tool
    async def dies() -> None:
        await story.cut_here()

    cut = await cut_in([strict, dies], [call("approve"), call("dies")], story, tmp_path, clock, parks=1)
    clock.at += 3600
    async with Runtime([strict, dies], store=cut.store, clock=clock) as rt, rt.turn("main", resume=True) as turn:
        responses = await turn.resume()
        assert [response.code for response in responses] == ["tool_completion_timeout", "crashed"]
        assert turn.failed is not None and turn.failed.code == "tool_completion_timeout"
        with pytest.raises(TurnFailed):
            await turn.run([])


async def test_T5_a_turn_that_is_not_resumed_is_over_and_nothing_of_it_starts(tmp_path: Path) -> None:
    story, ran = Story(), list[str]()

    @keephold.tool
    async def dies() -> None:
        await story.cut_here()

    @keephold.tool(actions=STATEFUL, scheduling="serial")
    async def later(call: Call) -> str:
        ran.append("later")
        return "later"

    tools: list[Tool] = [dies, later]
    cut = await cut_in(tools, [call("dies"), call("later"), spawn("later", "l")], story, tmp_path)
    async with Runtime(tools, store=cut.store) as rt:
        async with rt.turn("main") as turn:
            assert turn.id != cut.turn and turn.unfinished is None
            info = await stopped(rt, "l")
            assert (info.ended_by, info.started) == ("crash", None)
            assert (await only(turn, call("later"))).result == "later"
        async with rt.turn("main", resume=True) as turn:
            assert turn.unfinished is None
    assert ran == ["later"]


async def test_T5_handles_of_a_dead_turn_come_under_the_next_one(tmp_path: Path) -> None:
    story = Story()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def busy(call: Call) -> str:
        await story.cut_here()
        await asyncio.sleep(600)
        return "never"

    store = stored_in(tmp_path)
    async with Runtime([busy], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("busy", "b"))
        await story.reached.wait()
        cut = power_cut(store)
    story.dies = False
    async with Runtime([busy], store=cut) as rt:
        async with rt.turn("main") as turn:
            assert (await reply(turn, fetch("busy", "b")))["state"] == "running"
        assert (await rt.handle("b", conversation="main")).ended_by == "turn_end"


async def test_B9_a_resumed_turn_can_be_cancelled(tmp_path: Path) -> None:
    story, called = Story(), list[Any]()
    approve = approval([])

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append(arguments)

    @keephold.tool
    async def dies() -> None:
        await story.cut_here()

    cut = await cut_in([approve, dies], [call("approve"), call("dies")], story, tmp_path, parks=1)
    async with Runtime([approve, dies], store=cut.store) as rt:
        async with rt.turn("main", resume=True) as turn:
            resuming = asyncio.create_task(turn.resume())
            await asyncio.sleep(0.05)
            turn.cancel()
            first, second = await resuming
            assert first.result == "pending tool completion cancelled" and second.code == "crashed"
        await until(lambda: len(called) == 1)


async def test_B9_a_resumed_batch_that_is_cut_off_again_is_resumed_again(tmp_path: Path) -> None:
    story, ran = Story(), list[int]()

    @keephold.tool(on_crash="replay")
    async def work(call: Call) -> str:
        ran.append(call.attempt)
        await call.durable().run_json("once", None, story.step("once"))
        await story.cut_here()
        return f"attempt {call.attempt}"

    cut = await cut_in([work], [call("work")], story, tmp_path)
    story.dies, story.reached = True, asyncio.Event()
    store = cut.store
    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main", resume=True).__aenter__()
        resuming = asyncio.create_task(turn.resume())
        async with asyncio.timeout(PATIENCE):
            await story.reached.wait()
        store = power_cut(store)
    with pytest.raises(KeepholdError):
        await resuming
    story.dies = False
    async with Runtime([work], store=store) as rt, rt.turn("main", resume=True) as turn:
        (response,) = await turn.resume()
        assert response.result == "attempt 3"
    assert ran == [1, 2, 3] and story.did == ["once"]
