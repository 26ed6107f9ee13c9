"""News of ends (N3): what nobody has seen is told once, what a reply has shown is not."""

import asyncio
from pathlib import Path

import pytest
from tests.turn.calls import TALKING, abort, apply, call, fetch, spawn, wait_all, wait_any
from tests.turn.puppets import STORES, Puppets, heard, hold, nothing, over, start, store_url, told

from keephold import Runtime
from keephold.turn.notifications import Notification

both = pytest.mark.parametrize("store", STORES)
DONE = ("tool.stopped", "`a` (work) stopped: done")
FAILED = ("tool.failed", "`a` (work) failed: no luck")


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


@both
async def test_N3_what_finished_unwatched_is_told_once_on_the_next_response(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        assert await heard(turn, start("a"), start("b")) == []
        puppets.ends("a")
        puppets.fails("b")
        await over(rt, "a", "b")
        first, second = await turn.run([call("nothing"), call("nothing")])
        assert first.notifications == (
            Notification("tool.stopped", "info", "`a` (work) stopped: done"),
            Notification("tool.failed", "error", "`b` (work) failed: no luck"),
        )
        assert second.notifications == ()
        assert await heard(turn) == []


@both
@pytest.mark.parametrize("show", ["await", "fetch", "abort"])
async def test_N3_what_a_reply_shows_is_not_told(puppets: Puppets, tmp_path: Path, store: str, show: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.ends("a")
        await over(rt, "a")
        shows = {"await": wait_all("a"), "fetch": fetch("work", "a"), "abort": abort("work", "a")}[show]
        assert await heard(turn, call("nothing"), shows) == []  # also if it is not the first call of its batch
        assert await heard(turn) == []


@both
async def test_N3_an_apply_that_ends_it_shows_that(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(actions=TALKING, patient=True)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        puppets.asks("a")
        puppets.ends("a")
        assert await heard(turn, start("a")) == []  # its question was shown
        response = await turn.run([apply("work", "a", True)])
        assert '"stopped"' in response[0].result and told(response) == []
        assert await heard(turn) == []


@both
async def test_N3_an_abort_shows_what_it_did(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        assert await heard(turn, abort("work", "a")) == []
        assert await heard(turn) == []


@both
async def test_N3_a_spawn_that_settled_stopped_shows_that(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(actions=TALKING, patient=True)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        puppets.ends("a")
        (response,) = await turn.run([start("a")])
        assert '"stopped"' in response.result and response.notifications == ()
        assert await heard(turn) == []


@both
async def test_N3_a_spawn_that_never_started_shows_that(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        assert await heard(turn, spawn("work", "a", wrong=1)) == []
        assert await heard(turn) == []


@both
async def test_N3_an_await_in_the_same_batch_shows_it(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        puppets.ends("a")
        assert await heard(turn, start("a"), wait_all("a")) == []
        assert await heard(turn) == []


@both
async def test_N3_an_await_takes_back_only_what_it_showed(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """`any` is satisfied by the first; the other has stopped when the batch is answered, but was not when it was."""
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"), start("b"))
        batch = asyncio.create_task(turn.run([wait_any("a", "b"), hold()]))
        await puppets.done("held")
        puppets.ends("b")
        await over(rt, "b")
        puppets.ends("a")
        await over(rt, "a")
        puppets.ends("held")
        assert told(await batch) == [DONE]
        assert await heard(turn) == []


@both
async def test_N3_what_stops_between_a_reply_and_its_commit_is_told_with_it(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    """The fetch has shown it running, and waits for the other call of its batch."""
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        batch = asyncio.create_task(turn.run([fetch("work", "a"), hold()]))
        await puppets.done("held")
        puppets.ends("a")
        await over(rt, "a")
        puppets.ends("held")
        responses = await batch
        assert '"running"' in responses[0].result
        assert told(responses) == [DONE]
        assert await heard(turn) == []


async def test_N3_what_ends_as_soon_as_it_is_spawned_is_shown_running_and_told(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt, rt.turn("main") as turn:
        puppets.ends("a")
        batch = await turn.run([start("a"), call("nothing")])
        await over(rt, "a")
        assert [*told(batch), *await heard(turn)] == [DONE]  # on whichever of the two it was in time for


@both
async def test_N3_a_read_of_its_output_shows_no_state(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.prints("a", "hello")
        puppets.ends("a")
        await over(rt, "a")
        assert await heard(turn, call("read_output", id="a")) == [DONE]


@both
async def test_N3_a_wrong_call_of_it_shows_nothing(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.ends("a")
        await over(rt, "a")
        assert await heard(turn, apply("work", "a", 1), call("await", all=["a"], timeout_secs=-1)) == [DONE]


@both
async def test_N3_a_reused_id_is_another_handle(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """What the new one shows takes nothing from the news of the old one."""
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.fails("a")
        await over(rt, "a")
        batch = asyncio.create_task(turn.run([start("a"), wait_all("a")]))
        await puppets.done("a")
        puppets.ends("a")
        assert told(await batch) == [FAILED]
        assert await heard(turn) == []


@both
async def test_N_one_shot_calls_are_answered_and_never_news(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        puppets.ends("a")
        puppets.fails("b")
        assert await heard(turn, call("work", who="a"), call("work", who="b")) == []
        assert await heard(turn) == []


async def test_N_a_batch_that_is_rejected_carries_nothing_and_loses_nothing(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"), start("b"))
        puppets.ends("a")
        await over(rt, "a")
        (rejected,) = await turn.run([start("b")])
        assert rejected.code == "batch_rejected"
        assert [*told([rejected]), *await heard(turn)] == [DONE]


async def test_N_an_empty_batch_carries_nothing_and_loses_nothing(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.ends("a")
        await over(rt, "a")
        assert await turn.run([]) == []
        assert await heard(turn) == [DONE]


@both
async def test_N_conversations_hear_nothing_of_each_other(puppets: Puppets, tmp_path: Path, store: str) -> None:
    tools = [puppets.tool(), nothing]
    async with (
        Runtime(tools, store=store_url(store, tmp_path)) as rt,
        rt.turn("main") as turn,
        rt.turn("other") as other,
    ):
        await heard(turn, start("a"))
        await heard(other, spawn("work", "a", who="b"))
        puppets.ends("a")
        await over(rt, "a")
        assert await heard(other) == []
        assert await heard(turn) == [DONE]
        puppets.fails("b")
        await over(rt, "a", conversation="other")
        assert await heard(turn) == []
        assert await heard(other) == [FAILED]
