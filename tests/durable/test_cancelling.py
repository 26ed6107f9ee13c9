"""Cancelling what waits outside (D2, T4, T5): the words of the end, and the hook that stops the work out there."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import HandClock, approval, ok, only, parked, power_cut, stored_in
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, abort, call, opened, reply, spawn

import keephold
from keephold import Call, KeepholdError, Key, Pending, Runtime, ToolError
from keephold.store.base import Record
from keephold.testing import VirtualClock
from keephold.tools.function import FunctionTool

CANCELLED = "pending tool completion cancelled"
Hooked = list[tuple[Key, dict[str, Any]]]


def hooked(keys: list[Key], called: Hooked, pending: Pending | None = None, **options: Any) -> FunctionTool:
    """A tool that waits for an approval, and says so outside when nobody wants it any more."""
    approve = approval(keys, pending, **options)

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append((key, arguments))

    return approve


async def test_D2_an_abort_cancels_and_calls_the_hook(clock: VirtualClock) -> None:
    keys: list[Key] = []
    called: Hooked = []
    async with opened(clock, [hooked(keys, called)]) as (rt, turn):
        await reply(turn, spawn("approve", "a", what="deploy"))
        await clock.advance(1)
        end = {"id": "a", "state": "stopped", "result": CANCELLED, "ended_by": "abort"}
        assert await reply(turn, abort("approve", "a")) == end
        await clock.advance(1)
        assert called == [(keys[0], {"what": "deploy"})]
        assert called[0][0].key_id == keys[0].key_id
        assert await reply(turn, abort("approve", "a")) == end  # twice is harmless
        outcome = await rt.resolve(keys[0], ok("late"))
        assert (str(outcome), outcome.terminal) == ("already_resolved", {"status": "cancelled"})
        await clock.advance(60)
        assert len(called) == 1


async def test_D2_cancelling_the_turn_cancels_its_parked_calls(clock: VirtualClock) -> None:
    keys: list[Key] = []
    called: Hooked = []
    async with Runtime([hooked(keys, called)], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("approve", "a"))
            batch = asyncio.create_task(turn.run([call("approve", what="that")]))
            await clock.advance(1)
            begun = clock.now()
            turn.cancel()
            (response,) = await batch
            assert clock.now() - begun <= 0.5
            assert (response.result, response.is_error) == (CANCELLED, False)
        info = await rt.handle("a", conversation="main")
        assert (info.state, info.ended_by) == ("stopped", "cancel")
        await clock.advance(1)
        assert sorted(arguments["what"] for _, arguments in called) == ["it", "that"]


async def test_D2_a_store_that_cannot_be_read_is_not_a_call_of_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[Key] = []
    called: Hooked = []
    async with Runtime([hooked(keys, called)], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        key_of, refused = rt.durability.waits.key_of, list[Record]()

        async def unreadable(record: Record) -> Key:
            if refused:
                return await key_of(record)
            refused.append(record)
            raise KeepholdError("the store cannot be read", code="store_unavailable")

        monkeypatch.setattr(rt.durability.waits, "key_of", unreadable)
        monkeypatch.setattr("keephold.turn.recovery.HOOK_AGAIN_SECS", 0.05)
        await reply(turn, abort("approve", "a"))
        await until(lambda: called)
        assert [key for key, _ in called] == keys


async def test_R9_an_exception_in_the_block_cancels_nothing_that_is_parked(clock: VirtualClock) -> None:
    called: Hooked = []
    keys: list[Key] = []
    async with Runtime([hooked(keys, called)], clock=clock) as rt:
        with pytest.raises(ZeroDivisionError):
            async with rt.turn("main") as turn:
                await reply(turn, spawn("approve", "a"))
                await clock.advance(1)
                _ = 1 // 0
        await clock.advance(1)
        assert (await rt.handle("a", conversation="main")).parked and called == []
        assert str(await rt.resolve(keys[0], ok("yes"))) == "accepted"


async def test_D2_ignore_ends_the_call_and_leaves_the_work_alone(clock: VirtualClock) -> None:
    called: Hooked = []
    async with Runtime([hooked([], called, Pending(on_cancel="ignore"))], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await turn.run([spawn("approve", "a"), spawn("approve", "b")])
            await clock.advance(1)
            assert (await reply(turn, abort("approve", "a")))["result"] == CANCELLED
            turn.cancel()
        assert (await rt.handle("b", conversation="main")).ended_by == "cancel"
        await clock.advance(60)
        assert called == []


@pytest.mark.parametrize("resolution", [ok(1), {"status": "timeout"}, {"status": "cancelled"}, None])
async def test_D2_no_other_end_calls_the_hook(clock: VirtualClock, resolution: dict[str, Any] | None) -> None:
    keys: list[Key] = []
    called: Hooked = []
    async with opened(clock, [hooked(keys, called, Pending(deadline=5))]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        if resolution is not None:
            await rt.resolve(keys[0], resolution)
        await clock.advance(60)
        assert (await rt.handle("a", conversation="main")).state == "stopped"
        assert called == []


async def test_D2_a_tool_without_a_hook_is_cancelled_in_the_same_words(clock: VirtualClock) -> None:
    async with opened(clock, [approval([])]) as (_, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        assert (await reply(turn, abort("approve", "a")))["result"] == CANCELLED


async def test_D2_told_to_end_before_it_parks_the_hook_is_called_all_the_same(clock: VirtualClock) -> None:
    """The tool has published its key and does not let itself be cancelled: it returns `Pending`, and that is undone."""
    called: Hooked = []
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
        return Pending()

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append((key, arguments))

    async with opened(clock, [approve]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        assert (await reply(turn, abort("approve", "a")))["ended_by"] == "abort"
        await clock.advance(1)
        assert (await rt.handle("a", conversation="main")).state == "stopped"
        assert [key for key, _ in called] == keys


async def test_D2_a_hook_that_fails_is_logged_and_hurts_nobody(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    approve = approval([])

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        raise ValueError("the ticket system is down")

    caplog.set_level(logging.ERROR, "keephold")
    async with opened(clock, [approve]) as (rt, turn):
        await reply(turn, spawn("approve", "a"))
        await clock.advance(1)
        await reply(turn, abort("approve", "a"))
        await clock.advance(30)
        assert (await rt.handle("a", conversation="main")).state == "stopped"
    assert "on_cancel" in caplog.text and "ticket system" in caplog.text
    assert "hf1." not in caplog.text  # K5: no key in a log


async def test_D2_a_hook_is_called_again_if_the_process_died_in_it(tmp_path: Path) -> None:
    clock, began, store = HandClock(), list[str](), stored_in(tmp_path)
    approve = approval([])
    go_on = asyncio.Event()

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        began.append(key.key_id)
        await go_on.wait()

    async with Runtime([approve], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await reply(turn, abort("approve", "a"))
        await until(lambda: len(began) == 1)
        cut = power_cut(store)
        go_on.set()
    async with Runtime([approve], store=cut, clock=clock) as rt:
        await until(lambda: len(began) == 2)
        assert (await rt.handle("a", conversation="main")).ended_by == "abort"
    assert began[0] == began[1]
    async with Runtime([approve], store=cut, clock=clock):
        await asyncio.sleep(0.05)
    assert len(began) == 2  # it was called, and that is known


async def test_D2_a_transient_failure_of_the_hook_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.turn.recovery.HOOK_AGAIN_SECS", 0.05)
    approve, called = approval([]), list[Key]()

    @approve.on_cancel
    async def withdraw(key: Key, arguments: dict[str, Any]) -> None:
        called.append(key)
        if len(called) < 3:
            raise ToolError("busy", transient=True)

    async with Runtime([approve], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        await reply(turn, abort("approve", "a"))
        await until(lambda: len(called) == 3)
        await asyncio.sleep(0.2)
    assert len(called) == 3 and len(set(called)) == 1


async def test_D2_aborted_where_the_tool_is_not_the_hook_waits_for_a_runtime_that_has_it(tmp_path: Path) -> None:
    store, called = stored_in(tmp_path), Hooked()
    approve = hooked([], called)
    async with Runtime([approve], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("approve", "a", what="x"))
        await parked(rt)
    async with Runtime(store=store) as rt:  # a runtime without tools
        async with rt.turn("main", resume=True) as turn:
            turn.cancel()
        info = await rt.handle("a", conversation="main")
        assert (info.state, info.ended_by, info.tool) == ("stopped", "cancel", "approve")
    assert called == []
    async with Runtime([approve], store=store):
        await until(lambda: len(called) == 1)
    assert called[0][1] == {"what": "x"}


# T4, T5: the end of the turn


async def test_T4_a_parked_call_is_not_live_and_stays(clock: VirtualClock) -> None:
    keys: list[Key] = []
    called: Hooked = []
    async with Runtime([hooked(keys, called, on_turn_end="abort")], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await reply(turn, spawn("approve", "a"))
            await clock.advance(1)
            begun = clock.now()
            ending = await turn.end()
            assert clock.now() == begun and ending.results == ()
        await clock.advance(3600)
        assert (await rt.handle("a", conversation="main")).parked
        async with rt.turn("main") as turn:
            await rt.resolve(keys[0], ok("yes"))
            assert (await reply(turn, call("await", all=["a"])))["completed"][0]["result"] == "yes"
    assert called == []


async def test_T5_a_cancelled_turn_leaves_the_parked_calls_of_other_turns_alone(clock: VirtualClock) -> None:
    async with Runtime([approval([])], clock=clock) as rt:
        for conversation, id in (("main", "old"), ("other", "foreign")):
            async with rt.turn(conversation) as turn:
                await reply(turn, spawn("approve", id))
                await clock.advance(1)
        async with rt.turn("main") as turn:
            await reply(turn, spawn("approve", "new"))
            await clock.advance(1)
            turn.cancel()
        states = {info.id: info.state for info in await rt.handles()}
        assert states == {"old": "running", "foreign": "running", "new": "stopped"}


async def test_T4_the_end_of_a_turn_ends_the_batch_that_waits_for_a_parked_call(clock: VirtualClock) -> None:
    """`end` while `run` waits: the batch is answered, because nothing of a turn runs on when it has ended."""
    async with Runtime([approval([])], clock=clock) as rt:
        async with rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([call("approve")]))
            await clock.advance(1)
        (response,) = await batch
        assert response.result == CANCELLED


@pytest.mark.parametrize("end", ["turn", "runtime"])
async def test_T4_R6_what_has_returned_pending_is_parked_although_that_is_still_being_written(
    tmp_path: Path, end: str
) -> None:
    keys: list[Key] = []
    called: Hooked = []
    approve, store = hooked(keys, called), stored_in(tmp_path)
    async with Runtime([approve], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("approve", "a"))
        while not keys:  # noqa: ASYNC110 (to be here in the very pass in which the tool returns)
            await asyncio.sleep(0)
        if end == "turn":
            await asyncio.wait_for(turn.end(), PATIENCE)
    async with Runtime([approve], store=store) as rt:
        assert (await rt.handle("a", conversation="main")).parked
        assert str(await rt.resolve(keys[0], ok(7))) == "accepted"
    assert called == []


async def test_R6_closing_leaves_parked_calls_and_calls_no_hook(tmp_path: Path) -> None:
    keys: list[Key] = []
    called: Hooked = []
    approve, store = hooked(keys, called), stored_in(tmp_path)
    async with Runtime([approve], store=store) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
    async with Runtime([approve], store=store) as rt, rt.turn("main") as turn:
        assert (await rt.handle("a", conversation="main")).parked
        assert str(await rt.resolve(keys[0], ok(7))) == "accepted"
        assert (await only(turn, call("approve", action="fetch", id="a"))).result.endswith('"result":"7"}')
    assert called == []
