"""Cancelling a turn: its tools have 50 ms for a result of their own, the batch returns soon (B7, A8, T5)."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, abort, call, fetch, opened, replies, settings, spawn, texts, wait_all

import keephold
from keephold import Call, Response, Runtime, ToolCall, ToolError, Turn
from keephold.testing import VirtualClock

CANCELLED = "Tool execution cancelled."


@keephold.tool(actions=STATEFUL)
async def work(secs: float = 600) -> str:
    await asyncio.sleep(secs)
    return "done"


async def cancelled_after(
    clock: VirtualClock, turn: Turn, secs: float, calls: Sequence[ToolCall]
) -> tuple[float, list[Response]]:
    """Cancel the turn while the batch runs: how long it then took to be answered, and its responses."""
    batch = asyncio.create_task(turn.run(calls))
    await clock.advance(secs)
    begun = clock.now()
    turn.cancel()
    responses = await batch
    return round(clock.now() - begun, 6), responses


async def test_B7_every_call_is_answered_and_what_had_finished_keeps_its_result(clock: VirtualClock) -> None:
    async with opened(clock, [work]) as (_, turn):
        calls = [call("work", secs=1), call("work"), call("unknown"), spawn("work", "w"), call("work")]
        _, responses = await cancelled_after(clock, turn, 2, calls)
        assert [response.id for response in responses] == [each.id for each in calls]
        results = [response.result for response in responses]
        assert [results[at] for at in (0, 1, 4)] == ["done", CANCELLED, CANCELLED]
        assert "running" in results[3]
        assert [response.is_error for response in responses] == [False, False, True, False, False]


async def test_B7_a_tool_has_50_ms_to_return_a_result_of_its_own(clock: VirtualClock) -> None:
    @keephold.tool
    async def saves(secs: float, fails: bool = False) -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(secs)
        if fails:
            raise ToolError("could not save")
        return f"saved in {secs} s"

    async with opened(clock, [saves]) as (rt, turn):
        calls = [call("saves", secs=0.04), call("saves", secs=0.04, fails=True), call("saves", secs=0.06)]
        took, responses = await cancelled_after(clock, turn, 1, calls)
        assert [response.result for response in responses] == ["saved in 0.04 s", "could not save", CANCELLED]
        assert [response.is_error for response in responses] == [False, True, False]
        assert took == 0.05
        assert [info.id for info in rt.live()] == [f"call:{calls[2].id}"]  # still about to end


async def test_B7_the_batch_returns_however_deaf_its_tools_are(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def deaf() -> str:
        end = clock.now() + 4
        while clock.now() < end:
            try:
                await asyncio.sleep(end - clock.now())
            except asyncio.CancelledError:
                continue
        return "late"

    async with opened(clock, [deaf, work]) as (_, turn):
        await replies(turn, spawn("deaf", "d"))
        calls = [call("deaf"), abort("deaf", "d"), wait_all("d"), call("work")]
        took, responses = await cancelled_after(clock, turn, 1, calls)
        assert took <= 0.5
        assert [response.result for response in responses] == [CANCELLED] * 4


async def test_B7_what_has_not_started_never_does(clock: VirtualClock) -> None:
    ran: list[str] = []

    @keephold.tool(actions=STATEFUL, scheduling="serial", resources=["x"])
    async def note(name: str) -> str:
        ran.append(name)
        await asyncio.sleep(600)
        return name

    async with opened(clock, [note]) as (rt, turn):
        calls = [call("note", name="a"), call("note", name="b"), spawn("note", "s", name="s"), call("note", name="c")]
        _, responses = await cancelled_after(clock, turn, 1, calls)
        assert [response.result for response in responses] == [CANCELLED] * 4
        await clock.advance(5)
        assert ran == ["a"]
        spawned = await rt.handle("s", conversation="main")
        assert (spawned.state, spawned.ended_by, spawned.started) == ("stopped", "cancel", None)


async def test_B7_a_cancelled_turn_runs_nothing_more(clock: VirtualClock) -> None:
    ran: list[int] = []

    @keephold.tool(actions=STATEFUL)
    async def note() -> str:
        ran.append(1)
        return "ran"

    async with opened(clock, [note]) as (rt, turn):
        turn.cancel()
        turn.cancel()  # twice is harmless
        assert await texts(turn, call("note"), spawn("note", "n"), wait_all("n")) == [CANCELLED] * 3
        await clock.advance(1)
        assert ran == [] and rt.live() == []


async def test_B7_processes_go_through_C7_and_their_handles_stop_when_that_is_done(
    clock: VirtualClock, tmp_path: Path
) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.deaf]
        source = "local"
        run = "unattended"
        command = ["sh", "-c", "trap '' TERM; echo up > up; while :; do sleep 0.01; done"]
        spawn = { stateful = true, abort_grace_ms = 700 }
        """,
    )
    async with Runtime(config=config, clock=clock) as rt:
        async with rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([call("deaf")]))
            await until((tmp_path / "up").exists)
            begun = clock.now()
            turn.cancel()
            (response,) = await batch
            assert response.result == CANCELLED and clock.now() - begun < 0.5
            (live,) = rt.live()
            assert (live.state, live.ended_by) == ("running", None)
        assert clock.now() - begun >= 0.7
        assert rt.live() == []  # T4: the turn ends when nothing of it is left


async def test_B7_cancelling_the_task_that_runs_a_batch_cancels_the_batch(clock: VirtualClock) -> None:
    ended: list[str] = []

    @keephold.tool
    async def tidy() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("tidy")
        return "never"

    async with opened(clock, [tidy, work]) as (_, turn):
        begun = clock.now()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await turn.run([call("tidy")])
        assert ended == ["tidy"] and clock.now() - begun <= 2.5
        assert await texts(turn, call("work", secs=1)) == ["done"]  # the turn itself goes on


async def test_B7_a_sync_function_is_told_and_its_call_answered_at_once(clock: VirtualClock) -> None:
    told = threading.Event()
    began = threading.Event()

    @keephold.tool
    def loop(call: Call) -> str:
        began.set()
        while not call.cancelled:
            threading.Event().wait(0.001)
        told.set()
        return "ended by itself"

    async with opened(clock, [loop]) as (_, turn):
        with clock.real():
            batch = asyncio.create_task(turn.run([call("loop")]))
            await asyncio.to_thread(began.wait, 10)
            turn.cancel()
            (response,) = await batch
            assert response.result == CANCELLED
            assert await asyncio.to_thread(told.wait, 10)


async def test_A8_await_ends_with_cancelled_and_leaves_the_handles_to_the_turns_end(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def kept() -> str:
        await asyncio.sleep(600)
        return "kept"

    async with Runtime([work, kept], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("work", "w"), spawn("kept", "k"))
            took, (response,) = await cancelled_after(clock, turn, 1, [wait_all("w", "k")])
            assert response.result == CANCELLED and took <= 0.05
            assert [info.state for info in await rt.handles()] == ["running", "running"]
        assert {info.id: (info.state, info.ended_by) for info in await rt.handles()} == {
            "w": ("stopped", "cancel"),
            "k": ("running", None),
        }


async def test_T5_a_cancelled_turn_waits_for_nobody(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="await")
    async def awaited() -> str:
        await asyncio.sleep(60)
        return "done"

    async with Runtime([awaited, work], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("awaited", "a"), spawn("work", "w"))
            begun = clock.now()
            turn.cancel()
        assert clock.now() == begun
        assert [info.ended_by for info in await rt.handles()] == ["cancel", "cancel"]


async def test_R9_an_exception_in_the_block_aborts_what_a_crash_would_end(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="await")
    async def awaited() -> str:
        await asyncio.sleep(60)
        return "done"

    async with Runtime([awaited], clock=clock) as rt:
        with pytest.raises(ZeroDivisionError):
            async with rt.turn("main") as turn:
                await replies(turn, spawn("awaited", "a"))
                raise ZeroDivisionError
        assert (await rt.handle("a", conversation="main")).ended_by == "turn_end"
        async with rt.turn("main"):
            pass


async def test_R9_cancelling_the_wait_at_a_turns_end_aborts_what_a_crash_would_end(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL, on_turn_end="await")
    async def awaited() -> str:
        await asyncio.sleep(60)
        return "done"

    async with Runtime([awaited], clock=clock) as rt:
        async with rt.turn("main") as turn:
            await replies(turn, spawn("awaited", "a"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await turn.end()
            await clock.advance(1)
            info = await rt.handle("a", conversation="main")
            assert (info.ended_by, rt.live()) == ("turn_end", [])
        assert turn.ending is not None  # the program caught the timeout, and left the block in order


async def test_B7_a_spawn_that_settles_is_answered_and_ends_with_the_turn(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def slow(call: Call) -> str:
        await asyncio.sleep(600)
        return "never"

    async with Runtime([slow], clock=clock) as rt:
        async with rt.turn("main") as turn:
            took, responses = await cancelled_after(clock, turn, 0.3, [spawn("slow", "s"), fetch("slow", "s")])
            assert took == 0.05 and [response.result for response in responses] == [CANCELLED] * 2
        assert (await rt.handle("s", conversation="main")).ended_by == "cancel"
