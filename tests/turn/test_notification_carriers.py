"""What news rides on, and in which order (N4): a response, a user's message, the start of a turn; `critical` first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.simulation.stores import HeldStore
from tests.turn.calls import call
from tests.turn.puppets import STORES, Puppets, heard, lines, nothing, over, start, store_url, told

from keephold import KeepholdError, Runtime, Turn
from keephold.policies import NotificationPolicy
from keephold.store.base import Delivered, Responded
from keephold.store.rows import CARRIERS, Carrier
from keephold.testing import VirtualClock

both = pytest.mark.parametrize("store", STORES)
DONE = ("tool.stopped", "`a` (work) stopped: done")


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


async def message(turn: Turn) -> list[tuple[str, str]]:
    """What rides on a user's message, or on the start of the turn."""
    return lines(await turn.notifications())


@asynccontextmanager
async def ended_before(puppets: Puppets, url: str, *deliver: Carrier, **more: Any) -> AsyncIterator[Runtime]:
    """A runtime in which a handle of the turn before has ended since: its news waits for a carrier."""
    work = puppets.tool(on_turn_end="keep", notifications=NotificationPolicy(deliver=deliver or CARRIERS), **more)
    async with Runtime([work, nothing], store=url) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"))
        puppets.ends("a")
        await over(rt, "a")
        yield rt


@both
async def test_N4_by_default_it_rides_on_whatever_comes_first(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(on_turn_end="keep")
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"), start("b"), start("c"))
            puppets.ends("a")
            await over(rt, "a")
            assert await heard(turn) == [DONE]
            puppets.ends("b")
            await over(rt, "b")
            assert await message(turn) == [("tool.stopped", "`b` (work) stopped: done")]
            assert await heard(turn) == [] and await message(turn) == []
        puppets.ends("c")
        await over(rt, "c")
        async with rt.turn("main") as turn:
            assert await message(turn) == [("tool.stopped", "`c` (work) stopped: done")]
            assert await heard(turn) == [] and await message(turn) == []


@both
async def test_N4_the_start_of_a_turn_comes_once_and_then_there_are_messages(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    async with ended_before(puppets, store_url(store, tmp_path), "turn") as rt:
        async with rt.turn("main") as turn:
            assert await message(turn) == [DONE]
        assert await rt.registry.store.notifications("main") == []


@both
async def test_N4_only_on_responses(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with ended_before(puppets, store_url(store, tmp_path), "response") as rt, rt.turn("main") as turn:
        assert await message(turn) == [] and await message(turn) == []
        assert await heard(turn) == [DONE]


@both
async def test_N4_only_on_messages(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """The first one of a turn is its start, and no message in it."""
    async with ended_before(puppets, store_url(store, tmp_path), "message") as rt, rt.turn("main") as turn:
        assert await message(turn) == []
        assert await heard(turn) == []
        assert await message(turn) == [DONE]


@both
async def test_N4_only_at_the_start_of_a_turn(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(notifications=NotificationPolicy(deliver=("turn",)))
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt:
        async with rt.turn("main") as turn:
            await heard(turn, start("a"))
            puppets.ends("a")
            await over(rt, "a")
            assert await heard(turn) == [] and await message(turn) == []
        async with rt.turn("main") as turn:
            assert await message(turn) == [DONE]


@both
@pytest.mark.parametrize("deliver", ["turn", "response"])
async def test_N4_the_first_batch_also_stands_for_the_start_of_the_turn(
    puppets: Puppets, tmp_path: Path, store: str, deliver: Carrier
) -> None:
    async with ended_before(puppets, store_url(store, tmp_path), deliver) as rt, rt.turn("main") as turn:
        assert await heard(turn) == [DONE]
        assert await heard(turn) == []


@both
async def test_N4_a_turn_without_a_batch_or_a_message_delivers_nothing(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    async with ended_before(puppets, store_url(store, tmp_path)) as rt:
        async with rt.turn("main"):
            pass
        async with rt.turn("main") as turn:
            assert await heard(turn) == [DONE]


@both
async def test_N4_an_empty_or_rejected_batch_is_no_start_of_the_turn(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    async with ended_before(puppets, store_url(store, tmp_path), "turn") as rt, rt.turn("main") as turn:
        assert await turn.run([]) == []
        assert all(each.is_error for each in await turn.run([start("x"), start("x")]))
        assert await heard(turn) == [DONE]


@both
async def test_N4_in_order_whatever_it_is_about(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with Runtime([puppets.tool(), nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"), start("b"), start("c"))
        for who, ends in (("c", puppets.ends), ("a", puppets.fails), ("b", puppets.ends)):
            ends(who)
            await over(rt, who)
            await rt.notify("after.it", "info", who, conversation="main")
        assert [text.replace("(work) ", "") for _, text in await heard(turn)] == [
            "`c` stopped: done",
            "c",
            "`a` failed: no luck",
            "a",
            "`b` stopped: done",
            "b",
        ]


@both
async def test_N4_critical_comes_first_and_else_nothing_changes_places(tmp_path: Path, store: str) -> None:
    async with Runtime([nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        for number, level in enumerate(["info", "error", "critical", "warning", "critical", "info"]):
            await rt.notify("a.b", level, str(number), conversation="main")  # type: ignore[arg-type]
        assert "".join(text for _, text in await heard(turn)) == "240135"


@both
async def test_N4_what_is_told_between_turns_waits_for_the_next(tmp_path: Path, store: str) -> None:
    async with Runtime([nothing], store=store_url(store, tmp_path)) as rt:
        await rt.notify("a.b", "info", "x", conversation="new")
        async with rt.turn("other") as turn:
            assert await heard(turn) == []
        async with rt.turn("new") as turn:
            assert await message(turn) == [("a.b", "x")]


# Whoever streams the assistant's answer


async def test_N4_critical_news_wakes_whoever_streams(clock: VirtualClock) -> None:
    async with Runtime([nothing], clock=clock) as rt, rt.turn("main") as turn, rt.turn("other") as other:
        streams = [asyncio.create_task(turn.urgent()) for _ in range(2)]
        elsewhere = asyncio.create_task(other.urgent())
        for level in ("info", "warning", "error"):
            await rt.notify("a.b", level, level, conversation="main")
        await clock.advance(60)
        assert not any(stream.done() for stream in streams)
        await rt.notify("a.b", "critical", "stop", conversation="main")
        await asyncio.gather(*streams)
        await clock.advance(60)
        assert not elsewhere.done()
        assert [text for _, text in await message(turn)] == ["stop", "info", "warning", "error"]
        elsewhere.cancel()
        await asyncio.gather(elsewhere, return_exceptions=True)


async def test_N4_what_was_critical_and_is_delivered_wakes_nobody_again(clock: VirtualClock) -> None:
    async with Runtime([nothing], clock=clock) as rt, rt.turn("main") as turn:
        await rt.notify("a.b", "critical", "stop", conversation="main")
        await turn.urgent()  # it was there before anyone listened
        await turn.urgent()  # and is not delivered yet
        for deliver in (message, heard):
            assert [text for _, text in await deliver(turn)] == ["stop"]
            stream = asyncio.create_task(turn.urgent())
            await clock.advance(60)
            assert not stream.done()
            await rt.notify("a.b", "critical", "stop", conversation="main")
            await stream


async def test_N4_whoever_streams_is_let_go_when_the_turn_is_over(clock: VirtualClock) -> None:
    async with Runtime([nothing], clock=clock) as rt:
        async with rt.turn("main") as turn:
            stream = asyncio.create_task(turn.urgent())
            await clock.advance(1)
        await clock.advance(1)
        over = stream.done()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        assert over


async def test_N4_critical_news_of_another_process_wakes_whoever_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.upkeep.SWEEP_SECS", 3600)  # by the bell
    url = store_url("sqlite", tmp_path)
    async with Runtime([nothing], store=url) as one, Runtime([], store=url) as two, one.turn("main") as turn:
        stream = asyncio.create_task(turn.urgent())
        await two.notify("a.b", "info", "soon", conversation="main")
        await two.notify("a.b", "critical", "stop", conversation="main")
        async with asyncio.timeout(PATIENCE):
            await stream
        assert [text for _, text in await heard(turn)] == ["stop", "soon"]


# Turns in which it cannot be had


async def test_N4_only_an_open_turn_has_notifications(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt:
        turn = rt.turn("main")
        for ask in (turn.notifications, turn.urgent):
            with pytest.raises(KeepholdError) as caught:
                await ask()
            assert caught.value.code == "turn_not_open"
        async with turn:
            batch = asyncio.create_task(turn.run([call("work", who="a")]))
            await puppets.done("a")
            with pytest.raises(KeepholdError) as caught:
                await turn.notifications()
            assert caught.value.code == "batch_open"
            puppets.ends("a")
            assert told(await batch) == []
        for ask in (turn.notifications, turn.urgent):
            with pytest.raises(KeepholdError) as caught:
                await ask()
            assert caught.value.code == "turn_ended"


@both
async def test_N4_a_cancelled_turn_still_tells(puppets: Puppets, tmp_path: Path, store: str) -> None:
    async with ended_before(puppets, store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        turn.cancel()
        responses = await turn.run([call("nothing")])
        assert responses[0].result == "Tool execution cancelled."
        assert told(responses) == [DONE]


@pytest.mark.parametrize("carrier", ["message", "response"])
async def test_N3_whoever_is_cancelled_while_news_is_on_its_way_loses_none(clock: VirtualClock, carrier: str) -> None:
    """The commit that delivers it is being written, and then nobody takes it."""
    store = HeldStore()
    async with Runtime([nothing], clock=clock, store=store) as rt, rt.turn("main") as turn:
        await rt.notify("a.b", "info", "x", conversation="main")
        store.on_hold = True
        taking = asyncio.create_task(_take(turn, carrier))
        while not any(isinstance(op, Delivered | Responded) for ops, _ in store.held for op in ops):
            store.release(1)
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.sleep(0)
        store.on_hold = False
        store.release()
        await asyncio.gather(taking, return_exceptions=True)
        assert [*await message(turn), *await heard(turn)] == [("a.b", "x")]


async def _take(turn: Turn, carrier: str) -> None:
    await (message(turn) if carrier == "message" else heard(turn))
