"""What the assistant hears of the end of a turn (T2, T3, T4, D9): results that nobody took are news."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import approval, ok, parked
from tests.turn.assistant import Assistant
from tests.turn.calls import call
from tests.turn.puppets import STORES, Puppets, heard, lines, nothing, over, start, store_url, waited_for

from keephold import Key, Pending, Runtime, Tool, ToolError
from keephold.policies import NotificationPolicy
from keephold.store.rows import Carrier
from keephold.turn.inquiry import Inquiry

both = pytest.mark.parametrize("store", STORES)
SILENT = NotificationPolicy(on_success=False, on_failure=False, on_waiting=False)


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


async def next_turn(rt: Runtime, conversation: str = "main") -> list[tuple[str, str]]:
    """What the assistant is told when its next turn begins."""
    async with rt.turn(conversation) as turn:
        return lines(await turn.notifications())


async def left(rt: Runtime, *ids: str, then: Callable[[], None] | None = None) -> None:
    """A turn in which these are spawned, and that is left without another word. `then`: when they are waited for."""
    async with asyncio.TaskGroup() as group, rt.turn("main") as turn:
        await heard(turn, *map(start, ids))
        if then is not None:
            group.create_task(_then(rt, ids, then))


async def _then(rt: Runtime, ids: Sequence[str], then: Callable[[], None]) -> None:
    await waited_for(rt, *ids)
    then()


@both
@pytest.mark.parametrize("policy", [NotificationPolicy(), SILENT])
async def test_T3_what_was_waited_for_is_told_with_id_tool_and_result(
    puppets: Puppets, tmp_path: Path, store: str, policy: NotificationPolicy
) -> None:
    work = puppets.tool(on_turn_end="await", notifications=policy)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:

        def end() -> None:
            puppets.fails("bad")
            puppets.ends("good", {"answer": 42})

        await left(rt, "good", "bad", then=end)
        assert await next_turn(rt) == [
            ("tool.stopped", '`good` (work) stopped: {"answer":42}'),
            ("tool.failed", "`bad` (work) failed: no luck"),
        ]
        assert await next_turn(rt) == []


@both
async def test_T2_what_the_assistant_chose_to_wait_for_is_told_as_well(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    """Nobody is there to let it speak again: the block is left."""
    work, assistant = puppets.tool(notifications=SILENT), Assistant("wait")
    async with Runtime([work, nothing], store=store_url(store, tmp_path), inquiry=assistant) as rt:
        await left(rt, "a", then=lambda: puppets.ends("a", "the end"))
        assert len(assistant.asked) == 1
        assert await next_turn(rt) == [("tool.stopped", "`a` (work) stopped: the end")]


@both
async def test_T2_what_the_next_word_answers_is_no_news(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """The message holds it, and the assistant speaks again."""
    url, assistant = store_url(store, tmp_path), Assistant("wait")
    async with Runtime([puppets.tool(), nothing], store=url, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"))
            ends = asyncio.create_task(turn.end())
            await waited_for(rt, "a")
            puppets.ends("a", "the end")
            ending = await ends
            assert ending.again and "the end" in ending.message
            assert await heard(turn) == []
            assert not (await turn.end()).again
        assert await next_turn(rt) == []


@both
async def test_T3_without_another_word_results_are_news_also_if_the_program_has_them(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    work = puppets.tool(on_turn_end="await", notifications=SILENT)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"), start("b"))
            ends = asyncio.create_task(turn.end())
            await waited_for(rt, "a", "b")
            puppets.ends("a")
            puppets.fails("b")
            ending = await ends
            assert [each["result"] for each in ending.results] == ["done", "no luck"] and not ending.again
        assert await next_turn(rt) == [
            ("tool.stopped", "`a` (work) stopped: done"),
            ("tool.failed", "`b` (work) failed: no luck"),
        ]


@both
async def test_T2_the_results_of_the_last_round_are_news(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """Three times it chose to wait; the third time it may not speak again."""
    url, assistant = store_url(store, tmp_path), Assistant("wait")
    async with Runtime([puppets.tool(notifications=SILENT), nothing], store=url, inquiry=assistant) as rt:
        async with rt.turn("main") as turn:
            for who in ("a", "b", "c"):
                assert await heard(turn, start(who)) == []
                ends = asyncio.create_task(turn.end())
                await waited_for(rt, who)
                puppets.ends(who)
                assert (await ends).again == (who != "c")
        assert await next_turn(rt) == [("tool.stopped", "`c` (work) stopped: done")]


@both
async def test_N3_what_stopped_before_the_end_of_its_turn_stays_news(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    """The end says nothing of it."""
    work = puppets.tool(on_turn_end="abort")
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"), start("b"))
            puppets.ends("a")
            await over(rt, "a")
            ending = await turn.end()
            assert [each["id"] for each in ending.results] == ["b"]
        assert await next_turn(rt) == [
            ("tool.stopped", "`a` (work) stopped: done"),
            ("tool.stopped", "`b` (work) stopped: Aborted at the end of the turn."),
        ]


@both
async def test_T4_a_kept_handle_reports_when_it_ends(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(on_turn_end="keep")
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        await left(rt, "a", "b")
        assert await next_turn(rt) == []
        puppets.ends("a")
        puppets.fails("b")
        await over(rt, "a", "b")
        told = await next_turn(rt)
        assert sorted(told) == [
            ("tool.failed", "`b` (work) failed: no luck"),
            ("tool.stopped", "`a` (work) stopped: done"),
        ]
        assert await next_turn(rt) == []


@both
async def test_T3_what_was_aborted_is_told_once(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(on_turn_end="abort")
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        await left(rt, "a")
        assert await next_turn(rt) == [("tool.stopped", "`a` (work) stopped: Aborted at the end of the turn.")]
        assert await next_turn(rt) == []


@both
async def test_N2_what_was_aborted_by_its_policy_is_told_only_if_its_tool_wants_that(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    """Nothing is owed for it: nobody has waited."""
    work = puppets.tool(on_turn_end="abort", notifications=SILENT)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        await left(rt, "a")
        assert await next_turn(rt) == []


@pytest.mark.parametrize("deliver", ["turn", "response", "message"])
async def test_N4_results_ride_only_on_what_their_tool_allows(puppets: Puppets, deliver: Carrier) -> None:
    work = puppets.tool(on_turn_end="await", notifications=NotificationPolicy(deliver=(deliver,)))
    async with Runtime([work, nothing]) as rt:
        await left(rt, "a", then=lambda: puppets.ends("a"))
        async with rt.turn("main") as turn:
            at_start = lines(await turn.notifications())
            on_response = await heard(turn)
            with_message = lines(await turn.notifications())
            told = {"turn": at_start, "response": on_response, "message": with_message}
        assert [carrier for carrier, news in told.items() if news] == [deliver]


async def test_O2_a_long_result_is_cut_to_the_models_view(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(on_turn_end="await"), nothing]) as rt:

        def end() -> None:
            puppets.ends("good", "x" * 1_000_000)
            puppets.fails("bad", ToolError("y" * 1_000_000))

        await left(rt, "good", "bad", then=end)
        told = await next_turn(rt)
        assert [kind for kind, _ in told] == ["tool.stopped", "tool.failed"]
        assert all(len(message) < 20_000 for _, message in told)


async def test_T2_that_nobody_could_be_asked_is_told_in_place_of_the_ends(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt:
        await left(rt, "a", "b")
        ((kind, message),) = await next_turn(rt)
        assert kind == "turn.aborted" and "`a`, `b`" in message and "to ask" in message


@pytest.mark.parametrize("answer", ["abort", "nonsense"])
async def test_T2_one_that_finished_before_it_could_be_aborted_is_news(puppets: Puppets, answer: str) -> None:
    """The assistant takes it for aborted, or was not understood; but it has a result."""

    async def finish(inquiry: Inquiry) -> None:
        puppets.ends("a")
        await over(rt, "a")

    async with Runtime([puppets.tool(), nothing], inquiry=Assistant(answer, finish)) as rt:
        await left(rt, "a")
        ((kind, message),) = await next_turn(rt)
        assert kind == "tool.stopped" and message.startswith("`a` (work) stopped")


# Parked calls


def silent(keys: list[Key], pending: Pending | None = None, **more: Any) -> Tool:
    approve = approval(keys, pending)
    return replace(approve, spawn=replace(approve.spawn, notifications=replace(SILENT, **more)))


@both
async def test_T4_a_parked_call_stays_and_its_end_is_one_line_whatever_N2_says(tmp_path: Path, store: str) -> None:
    keys: list[Key] = []
    async with Runtime([silent(keys), nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await turn.run([call("approve", action="spawn", id="a")])
            await parked(rt)
            ending = await turn.end()
            assert ending.results == () and ending.kept == ()
        assert (await rt.handle("a", conversation="main")).parked
        await rt.resolve(keys[0], ok("yes"))
        assert await next_turn(rt) == [("tool.stopped", "`a` (approve) stopped: yes")]
        assert await next_turn(rt) == []


@both
async def test_D9_a_parked_call_that_a_cancelled_turn_ends_is_one_line(tmp_path: Path, store: str) -> None:
    async with Runtime([silent([]), nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await turn.run([call("approve", action="spawn", id="a")])
            await parked(rt)
            turn.cancel()
        assert await next_turn(rt) == [("tool.stopped", "`a` (approve) stopped: pending tool completion cancelled")]


@both
async def test_D9_a_parked_call_of_a_tool_that_wants_news_is_one_line_as_well(tmp_path: Path, store: str) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys), nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await turn.run([call("approve", action="spawn", id="a")])
            await parked(rt)
            await rt.resolve(keys[0], {"status": "err", "payload": {"code": "no", "message": "Ann said no"}})
            assert await heard(turn) == [("tool.failed", "`a` (approve) failed: Ann said no")]
            assert await heard(turn) == []
        assert await next_turn(rt) == []


@both
async def test_N4_a_parked_call_rides_only_on_what_its_tool_allows(tmp_path: Path, store: str) -> None:
    keys: list[Key] = []
    async with Runtime([silent(keys, deliver=("turn",)), nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await turn.run([call("approve", action="spawn", id="a")])
            await parked(rt)
            await rt.resolve(keys[0], ok("yes"))
            assert await heard(turn) == []
        assert await next_turn(rt) == [("tool.stopped", "`a` (approve) stopped: yes")]
