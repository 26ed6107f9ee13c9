"""News of output, and how much news there may be (N2, N6): one line for a burst, the oldest `info` goes first."""

import asyncio
from pathlib import Path

import pytest
from tests.turn.calls import TALKING, call, fetch, reply, wait_all
from tests.turn.puppets import STORES, Puppets, heard, hold, in_state, nothing, over, start, store_url, told

from keephold import Runtime
from keephold.policies import NotificationPolicy

both = pytest.mark.parametrize("store", STORES)
CONTENT = ("tool.content", "`a` (work) has new output.")
DONE = ("tool.stopped", "`a` (work) stopped: done")
ON = NotificationPolicy(on_content=True)


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


async def quiet(rt: Runtime) -> None:
    """Until what was printed so far has been told to the store."""
    await rt.registry.write(())


async def test_N2_output_is_no_news_unless_it_is_wanted(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.prints("a", "hello")
        await puppets.done("a")
        assert await heard(turn) == []
        assert (await reply(turn, fetch("work", "a")))["content"] == "hello"


@both
async def test_N6_ten_thousand_pieces_of_output_are_one_line(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        for number in range(10_000):
            puppets.prints("a", f"{number}\n")
        await puppets.done("a")
        await quiet(rt)
        (response,) = await turn.run([call("nothing")])
        assert told([response]) == [CONTENT]
        assert response.notifications[0].level == "info"


@both
async def test_N4_what_was_told_is_not_told_again_without_more_output(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.prints("a", "hello")
        await puppets.done("a")
        await quiet(rt)
        assert await heard(turn) == [CONTENT]
        await quiet(rt)
        assert await heard(turn) == []
        assert await turn.notifications() == ()


@both
async def test_N6_after_it_was_told_more_output_is_news_again(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        for _ in range(3):
            puppets.prints("a", "more")
            await puppets.done("a")
            await quiet(rt)
            assert await heard(turn) == [CONTENT]


@both
async def test_N6_what_a_fetch_shows_is_no_news_and_what_comes_after_it_is(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        for text in ("one", "two"):
            puppets.prints("a", text)
            await puppets.done("a")
            await quiet(rt)
            (response,) = await turn.run([fetch("work", "a")])
            assert text in response.result and told([response]) == []
        assert await heard(turn) == []


@both
async def test_N6_output_between_a_reply_and_its_commit_is_news(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """The fetch has shown what there was, and waits for the other call of its batch."""
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.prints("a", "one")
        await puppets.done("a")
        batch = asyncio.create_task(turn.run([fetch("work", "a"), hold()]))
        await puppets.done("held")
        puppets.prints("a", "two")
        await puppets.done("a")
        puppets.ends("held")
        responses = await batch
        assert "two" not in responses[0].result
        await quiet(rt)
        assert [*told(responses), *await heard(turn)] == [CONTENT]
        assert (await reply(turn, fetch("work", "a")))["content"] == "two"


@both
async def test_N6_an_await_that_shows_no_output_leaves_it_news(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """It shows the question alone (A6)."""
    work = puppets.tool(actions=TALKING, notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.prints("a", "about to delete everything\n")
        puppets.asks("a")
        await in_state(rt, "a", "waiting")
        (response,) = await turn.run([wait_all("a")])
        assert "Sure?" in response.result and "delete" not in response.result
        assert told([response]) == [CONTENT]
        await quiet(rt)
        assert await heard(turn) == []


@both
async def test_N6_each_handle_has_a_line_of_its_own(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"), start("b"))
        for who in ("a", "b", "a"):
            puppets.prints(who, "x")
            await puppets.done(who)
        await quiet(rt)
        assert await heard(turn) == [CONTENT, ("tool.content", "`b` (work) has new output.")]


@both
async def test_N6_output_and_end_are_told_in_order_and_shown_together(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    work = puppets.tool(notifications=ON)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        for show, expected in (([], [CONTENT, DONE]), ([fetch("work", "a")], [])):
            await heard(turn, start("a"))
            puppets.prints("a", "x")
            puppets.ends("a")
            await over(rt, "a")
            assert await heard(turn, *show) == expected
            assert await heard(turn) == []


async def test_N6_what_a_spawn_shows_of_its_output_is_no_news(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(actions=TALKING, notifications=ON), nothing]) as rt, rt.turn("main") as turn:
        puppets.prints("a", "hello")
        puppets.asks("a")
        (response,) = await turn.run([start("a")])
        assert "hello" in response.result and told([response]) == []
        await quiet(rt)
        assert await heard(turn) == []


async def test_N6_a_one_shot_call_may_print_what_it_likes(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(notifications=ON), nothing]) as rt, rt.turn("main") as turn:
        puppets.prints("a", "hello")
        puppets.ends("a")
        assert await heard(turn, call("work", who="a")) == []
        await quiet(rt)
        assert await heard(turn) == []


# At most 1,000 wait


@both
async def test_N6_beyond_a_thousand_the_oldest_info_go_and_one_line_says_how_many(tmp_path: Path, store: str) -> None:
    async with Runtime([nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await rt.notify("disk.full", "error", "the first", conversation="main")
        await asyncio.gather(*(rt.notify("a.b", "info", str(number), conversation="main") for number in range(1500)))
        await rt.notify("disk.full", "warning", "the last", conversation="main")
        (response,) = await turn.run([call("nothing")])
        line, *kept = response.notifications
        assert (line.kind, line.level) == ("keephold.dropped", "info")
        assert "502 " in line.message
        assert [kept[0].message, kept[-1].message] == ["the first", "the last"]
        assert [each.message for each in kept[1:-1]] == [str(number) for number in range(502, 1500)]
        assert await heard(turn) == []


@both
async def test_N6_handles_that_failed_are_told_when_those_that_ended_well_had_to_go(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    tools = [puppets.tool(), nothing]
    async with Runtime(tools, store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        good, bad = [f"good{number}" for number in range(6)], [f"bad{number}" for number in range(6)]
        await heard(turn, *map(start, (*good, *bad)))
        for who in good:
            puppets.ends(who)
        for who in bad:
            puppets.fails(who)
        await over(rt, *good, *bad)
        await asyncio.gather(*(rt.notify("a.b", "warning", str(n), conversation="main") for n in range(992)))
        told_of = await heard(turn)
        assert told_of[0] == ("keephold.dropped", "4 earlier notifications were dropped.")
        assert [kind for kind, _ in told_of[1:]] == ["tool.stopped"] * 2 + ["tool.failed"] * 6 + ["a.b"] * 992


@both
async def test_N6_critical_is_never_let_go(tmp_path: Path, store: str) -> None:
    async with Runtime([nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await asyncio.gather(*(rt.notify("a.b", "critical", str(n), conversation="main") for n in range(1001)))
        assert [message for _, message in await heard(turn)] == [str(number) for number in range(1001)]
