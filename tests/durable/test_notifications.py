"""News that outlives its process, and news between processes (N3, N4, N5, T5): rows of the store, like all else."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.durable.lives import approval, ok, parked, power_cut, stored_in
from tests.turn.assistant import Assistant
from tests.turn.calls import call, fetch, reply, spawn, wait_all
from tests.turn.puppets import Puppets, heard, hold, in_state, lines, nothing, over, start, told, waited_for

import holdfast
from holdfast import Call, Key, NotificationPolicy, Runtime, Tool
from holdfast.tools.base import OnTurnEnd

bug = pytest.mark.xfail(reason="bug")
CRASHED = "The process that ran this call ended before the call did."


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


async def next_turn(rt: Runtime) -> list[tuple[str, str]]:
    async with rt.turn("main") as turn:
        return lines(await turn.notifications())


# After a power cut


async def test_N5_what_was_queued_is_delivered_after_a_crash_in_order(puppets: Puppets, tmp_path: Path) -> None:
    url, tools = stored_in(tmp_path), [puppets.tool(), nothing]
    async with Runtime(tools, store=url) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"), start("b"))
        puppets.ends("a")
        await over(rt, "a")
        await rt.notify("disk.full", "critical", "no room", conversation="main")
        puppets.fails("b")
        await over(rt, "b")
        cut = power_cut(url)
    async with Runtime(tools, store=cut) as rt:
        assert await next_turn(rt) == [
            ("disk.full", "no room"),
            ("tool.stopped", "`a` (work) stopped."),
            ("tool.failed", "`b` (work) failed: no luck"),
        ]
        assert await next_turn(rt) == []


async def test_R1_that_a_call_went_with_its_process_is_news(puppets: Puppets, tmp_path: Path) -> None:
    url, tools = stored_in(tmp_path), [puppets.tool(), nothing]
    async with Runtime(tools, store=url) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        cut = power_cut(url)
    async with Runtime(tools, store=cut) as rt:
        assert await next_turn(rt) == [("tool.failed", f"`a` (work) failed: {CRASHED}")]
        assert await next_turn(rt) == []


async def test_N2_it_is_news_only_if_its_tool_wants_that_told(puppets: Puppets, tmp_path: Path) -> None:
    policy = NotificationPolicy(on_failure=False)
    url, tools = stored_in(tmp_path), [puppets.tool(notifications=policy), nothing]
    async with Runtime(tools, store=url) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        cut = power_cut(url)
    async with Runtime(tools, store=cut) as rt:
        assert await next_turn(rt) == []


async def test_N3_what_a_resumed_batch_shows_of_the_crash_is_no_news(puppets: Puppets, tmp_path: Path) -> None:
    """The spawn was never answered; now it is, and says how it ended."""
    url, tools = stored_in(tmp_path), [puppets.tool(), nothing]
    async with Runtime(tools, store=url) as rt, rt.turn("main") as turn:
        batch = asyncio.create_task(turn.run([start("a"), hold()]))
        await puppets.done("held")
        cut = power_cut(url)
        puppets.ends("held")
        await batch
    async with Runtime(tools, store=cut) as rt, rt.turn("main", resume=True) as turn:
        responses = await turn.resume()
        assert CRASHED in responses[0].result and told(responses) == []
        assert await heard(turn) == []


async def test_B9_responses_that_may_not_have_arrived_come_with_the_news_that_rode_on_them(
    puppets: Puppets, tmp_path: Path
) -> None:
    url, tools = stored_in(tmp_path), [puppets.tool(), nothing]
    async with Runtime(tools, store=url) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.ends("a")
        await over(rt, "a")
        given = await turn.run([call("nothing"), call("nothing")])
        assert told(given) == [("tool.stopped", "`a` (work) stopped.")]
        cut = power_cut(url)
    async with Runtime(tools, store=cut) as rt, rt.turn("main", resume=True) as turn:
        assert turn.answered == given
        assert await heard(turn) == []  # recorded with its carrier: it comes with that, and not again


@bug
async def test_N4_a_resumed_first_batch_still_stands_for_the_start_of_the_turn(
    puppets: Puppets, tmp_path: Path
) -> None:
    """It was never answered, so nothing of this turn has carried anything yet."""
    policy = NotificationPolicy(deliver=("turn",))
    url, tools = stored_in(tmp_path), [puppets.tool(on_turn_end="keep", notifications=policy), nothing]
    async with Runtime(tools, store=url) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"))
        puppets.ends("a")
        await over(rt, "a")
        async with rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([hold()]))
            await puppets.done("held")
            cut = power_cut(url)
            puppets.ends("held")
            await batch
    async with Runtime(tools, store=cut) as rt, rt.turn("main", resume=True) as turn:
        responses = await turn.resume()
        assert told(responses) == [("tool.stopped", "`a` (work) stopped.")]


async def test_N3_an_open_question_is_news_again_after_a_crash(tmp_path: Path) -> None:
    """Replayed, it asks again: nobody has answered."""
    url = stored_in(tmp_path)

    @holdfast.tool(actions=("spawn", "fetch", "apply", "abort"), on_crash="replay", on_turn_end="keep")
    async def deploy(call: Call) -> str:
        await go.wait()
        return str(await call.ask(holdfast.Question(id="sure", text="Sure?")))

    go, tools = asyncio.Event(), [deploy, nothing]
    async with Runtime(tools, store=url) as rt, rt.turn("main") as turn:
        await heard(turn, spawn("deploy", "d"))
        go.set()
        await in_state(rt, "d", "waiting")
        cut = power_cut(url)
    async with Runtime(tools, store=cut) as rt, rt.turn("main") as turn:
        await in_state(rt, "d", "waiting")
        await rt.registry.write(())
        assert set(await heard(turn)) == {("tool.waiting", "`d` (deploy) asks: Sure?")}
        await turn.run([call("deploy", action="abort", id="d")])


# A turn whose process died (T5)


@pytest.mark.parametrize("policy", ["abort", "inquire", "keep"])
async def test_T5_handles_of_a_dead_turn_come_under_the_next(
    puppets: Puppets, tmp_path: Path, policy: OnTurnEnd
) -> None:
    url, assistant = stored_in(tmp_path), Assistant("abort")
    tools: Sequence[Tool] = [puppets.tool(on_crash="replay", on_turn_end=policy), nothing]
    async with Runtime(tools, store=url, inquiry=assistant) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        cut = power_cut(url)
    assistant.asked.clear()
    async with Runtime(tools, store=cut, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            assert (await reply(turn, fetch("work", "a")))["state"] == "running"
            ending = await turn.end()
        gone = ["a"] if policy != "keep" else []
        assert [each["id"] for each in ending.results] == gone
        assert len(assistant.asked) == (policy == "inquire")


async def test_Q6_a_resumed_turn_asks_again(puppets: Puppets, tmp_path: Path) -> None:
    """The inquiry was answered and recorded, and then the machine died: nobody knows what was done about it."""
    url, assistant = stored_in(tmp_path), Assistant("wait")
    tools = [puppets.tool(on_crash="replay"), nothing]
    async with Runtime(tools, store=url, inquiry=assistant) as rt:
        turn = await rt.turn("main").__aenter__()
        await heard(turn, start("a"))
        ends = asyncio.create_task(turn.end())
        await waited_for(rt, "a")
        await rt.registry.write(())
        cut = power_cut(url)
        puppets.ends("a")
        await ends
    async with Runtime(tools, store=cut, inquiry=assistant) as rt:
        turn = await rt.turn("main", resume=True).__aenter__()
        ends = asyncio.create_task(turn.end())
        await waited_for(rt, "a")
        puppets.ends("a", "at last")
        ending = await ends
        assert [each["result"] for each in ending.results] == ["at last"]
        assert [row.error for row in await rt.registry.store.inquiries("main")] == [None, None]
        while ending.again:
            ending = await turn.end()


# Several processes on one store


async def test_N_a_call_that_another_process_resolves_is_news_here(tmp_path: Path) -> None:
    url, keys = stored_in(tmp_path), list[Key]()
    tools = [approval(keys), nothing]
    async with Runtime(tools, store=url) as one, Runtime([], store=url) as two, one.turn("main") as turn:
        await heard(turn, spawn("approve", "a"))
        await parked(one)
        await two.resolve(keys[0], ok("yes"))
        assert await heard(turn) == [("tool.stopped", "`a` (approve) stopped.")]
        assert await heard(turn) == []


async def test_N_a_handle_that_another_process_runs_is_news_here_once(puppets: Puppets, tmp_path: Path) -> None:
    url, tools = stored_in(tmp_path), [puppets.tool(on_turn_end="keep"), nothing]
    async with Runtime(tools, store=url) as one, Runtime(tools, store=url) as two:
        async with one.turn("main") as turn:
            await heard(turn, start("a"), start("b"))
        async with two.turn("main") as turn:
            assert await heard(turn) == []
            puppets.ends("a")
            puppets.ends("b")
            await over(one, "a", "b")
            assert await heard(turn, wait_all("b")) == [("tool.stopped", "`a` (work) stopped.")]
            assert await heard(turn) == []
        assert await next_turn(one) == []


@bug
async def test_N6_output_of_a_handle_that_another_process_runs_is_news_again(puppets: Puppets, tmp_path: Path) -> None:
    """Told or shown by one process, printed in the other."""
    policy = NotificationPolicy(on_content=True)
    url, tools = stored_in(tmp_path), [puppets.tool(on_turn_end="keep", notifications=policy), nothing]
    content = [("tool.content", "`a` (work) has new output.")]
    async with Runtime(tools, store=url) as one, Runtime(tools, store=url) as two:
        async with one.turn("main") as turn:
            await heard(turn, start("a"))
        async with two.turn("main") as turn:
            for _ in range(2):
                puppets.prints("a", "told")
                await puppets.done("a")
                await one.registry.write(())
                assert await heard(turn) == content
            puppets.prints("a", "shown")
            await puppets.done("a")
            await one.registry.write(())
            assert await heard(turn, fetch("work", "a")) == []
            puppets.prints("a", "more")
            await puppets.done("a")
            await one.registry.write(())
            assert await heard(turn) == content


async def test_T4_the_end_of_a_turn_here_ends_nothing_that_another_process_was_left_with(
    puppets: Puppets, tmp_path: Path
) -> None:
    url = stored_in(tmp_path)
    kept = puppets.tool(on_turn_end="keep")
    aborting = replace(kept, spawn=replace(kept.spawn, on_turn_end="abort"))
    async with Runtime([kept, nothing], store=url) as one, Runtime([aborting, nothing], store=url) as two:
        async with one.turn("main") as turn:
            await heard(turn, start("a"))
        async with two.turn("main") as turn:
            ending = await turn.end()
            assert ending.results == () and ending.kept == ()
        assert [info.state for info in await one.handles()] == ["running"]


async def test_N4_two_processes_deliver_each_piece_once(tmp_path: Path) -> None:
    """They take the conversation in turn, and news comes from both."""
    url = stored_in(tmp_path)
    async with Runtime([nothing], store=url) as one, Runtime([nothing], store=url) as two:
        got: list[tuple[str, str]] = []
        for number in range(10):
            await one.notify("a.b", "info", f"{number} from one", conversation="main")
            await two.notify("a.b", "info", f"{number} from two", conversation="main")
            got += await next_turn(two if number % 2 else one)
        assert [text for _, text in got] == [f"{n} from {who}" for n in range(10) for who in ("one", "two")]
