"""News of what ended outside (D9, N3, S3): what nobody has seen is told, what somebody has is not."""

import asyncio
from pathlib import Path

import pytest
from tests.durable.lives import approval, notifications, ok, only, parked, parsed, stored_in
from tests.patience import until
from tests.turn.calls import abort, call, fetch, opened, reply, spawn, wait_all

from keephold import Key, Pending, Runtime, ToolCall
from keephold.testing import VirtualClock

FAILED = {"status": "err", "payload": {"code": "no", "message": "Ann said no"}}


async def test_N3_the_news_of_a_resolution_waits_until_a_reply_has_shown_it(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("approve", "b"), spawn("approve", "c")])
        await clock.advance(1)
        assert await notifications(rt) == []
        await rt.resolve(keys[0], ok("yes"))
        await rt.resolve(keys[1], FAILED)
        assert await notifications(rt) == [("tool.stopped", "info"), ("tool.failed", "error")]
        fetched = await only(turn, fetch("approve", "a"))  # shows one, and the news of the other rides on it
        assert [each.kind for each in fetched.notifications] == ["tool.failed"]
        assert await notifications(rt) == []


async def test_N4_the_news_of_a_resolution_rides_on_the_first_response_that_does_not_show_it(
    clock: VirtualClock,
) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await turn.run([spawn("approve", "a"), spawn("approve", "b")])
        await clock.advance(1)
        await rt.resolve(keys[0], ok("yes"))
        fetched = await only(turn, fetch("approve", "b"))
        assert [(each.kind, each.message) for each in fetched.notifications] == [
            ("tool.stopped", "`a` (approve) stopped: yes")
        ]
        assert (await only(turn, wait_all("a"))).notifications == ()


async def test_N3_the_news_of_a_deadline_outlives_the_turn(clock: VirtualClock) -> None:
    async with Runtime([approval([], Pending(deadline=60))], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("approve", "a"))
            await clock.advance(1)
        await clock.advance(600)
        assert await notifications(rt) == [("tool.failed", "error")]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("resolution", [ok("yes"), FAILED, {"status": "cancelled"}])
async def test_N3_the_answer_to_a_one_shot_call_is_no_news(
    tmp_path: Path, store: str, resolution: dict[str, object]
) -> None:
    keys: list[Key] = []
    url = "memory:" if store == "memory" else stored_in(tmp_path)
    async with Runtime([approval(keys)], store=url) as rt, rt.turn("main") as turn:
        batch = asyncio.create_task(turn.run([call("approve")]))
        await until(lambda: len(keys) == 1)
        await parked(rt)
        await rt.resolve(keys[0], resolution)
        await batch
        assert await notifications(rt) == []


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_N3_an_abort_shows_what_it_did(tmp_path: Path, store: str) -> None:
    url = "memory:" if store == "memory" else stored_in(tmp_path)
    async with Runtime([approval([])], store=url) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await reply(turn, abort("approve", "a"))
        assert await notifications(rt) == []


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_S3_what_was_cancelled_is_not_told_as_a_failure_of_the_tool(tmp_path: Path, store: str) -> None:
    url = "memory:" if store == "memory" else stored_in(tmp_path)
    async with Runtime([approval([])], store=url) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("approve", "a"))
            await parked(rt)
            turn.cancel()
        assert "tool.failed" not in [kind for kind, _ in await notifications(rt)]


async def test_N3_rt_wait_shows_the_assistant_nothing(clock: VirtualClock) -> None:
    """It is a program that waits: the assistant has yet to hear of it."""
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        await rt.resolve(keys[0], ok("yes"))
        await rt.wait(all=["a"], conversation="main")
        assert await notifications(rt) == [("tool.stopped", "info")]


async def test_N3_what_is_waited_for_in_the_same_batch_is_shown(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        batch = asyncio.create_task(turn.run([spawn("approve", "a"), wait_all("a")]))
        await clock.advance(1)
        await rt.resolve(keys[0], ok("yes"))
        _, waited = await batch
        assert parsed(waited)["completed"][0]["result"] == "yes"
        assert await notifications(rt) == []


async def test_N3_a_call_that_was_let_go_of_is_news_when_it_ends(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with opened(clock, [approval(keys)]) as (rt, turn):
        await turn.run([ToolCall("c1", "approve")], park_after=1)
        await rt.resolve(keys[0], ok("yes"))
        assert await notifications(rt) == [("tool.stopped", "info")]
        assert (await only(turn, fetch("approve", "call:c1"))).result
        assert await notifications(rt) == []
