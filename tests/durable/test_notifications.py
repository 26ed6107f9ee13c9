"""News that outlives its process (N3, N5, T5): queued again, or given again with what carried it; never lost."""

import asyncio
from pathlib import Path

import pytest
from tests.durable.lives import power_cut, stored_in
from tests.turn.assistant import Assistant
from tests.turn.calls import call, fetch, reply, spawn
from tests.turn.puppets import Puppets, heard, hold, in_state, lines, nothing, over, start, told, waited_for

import keephold
from keephold import Call, Runtime, Turn
from keephold.policies import NotificationPolicy
from keephold.tools.base import OnTurnEnd

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
            ("tool.stopped", "`a` (work) stopped: done"),
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
        assert told(given) == [("tool.stopped", "`a` (work) stopped: done")]
        cut = power_cut(url)
    async with Runtime(tools, store=cut) as rt, rt.turn("main", resume=True) as turn:
        assert turn.answered == given
        assert await heard(turn) == []  # recorded with its carrier: it comes with that, and not again


@pytest.mark.parametrize("carrier", ["response", "message"])
@pytest.mark.parametrize("resume", [False, True])
async def test_N3_what_may_not_have_arrived_is_repeated_and_what_did_is_not(
    tmp_path: Path, carrier: str, resume: bool
) -> None:
    """The first has arrived: the loop came back for the second. Nobody knows of that one."""
    url = stored_in(tmp_path)

    async def take(turn: Turn) -> list[tuple[str, str]]:
        return await heard(turn) if carrier == "response" else lines(await turn.notifications())

    async with Runtime([nothing], store=url) as rt, rt.turn("main") as turn:
        for text in ("first", "second"):
            await rt.notify("a.b", "info", text, conversation="main")
            assert await take(turn) == [("a.b", text)]
        cut = power_cut(url)
    async with Runtime([nothing], store=cut) as rt:
        async with rt.turn("main", resume=resume) as turn:
            recalled = told(turn.answered) if turn.answered else []
            assert [*recalled, *lines(await turn.notifications())] == [("a.b", "second")]
        assert await next_turn(rt) == []


async def test_N3_the_end_of_the_turn_shows_that_it_arrived(tmp_path: Path) -> None:
    url = stored_in(tmp_path)
    async with Runtime([nothing], store=url) as rt:
        await rt.notify("a.b", "info", "x", conversation="main")
        assert await next_turn(rt) == [("a.b", "x")]
        cut = power_cut(url)
    async with Runtime([nothing], store=cut) as rt:
        assert await next_turn(rt) == []


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
        assert told(responses) == [("tool.stopped", "`a` (work) stopped: done")]


async def test_N3_an_open_question_is_news_again_after_a_crash(tmp_path: Path) -> None:
    """Replayed, it asks again: nobody has answered."""
    url = stored_in(tmp_path)

    @keephold.tool(actions=("spawn", "fetch", "apply", "abort"), on_crash="replay", on_turn_end="keep")
    async def deploy(call: Call) -> str:
        await go.wait()
        return str(await call.ask(keephold.Question(id="sure", text="Sure?")))

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
    tools = [puppets.tool(on_crash="replay", on_turn_end=policy), nothing]
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
