"""Whoever waits when a runtime closes or dies, and who waits for what another runtime runs (A6, B9, D10, R6)."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import (
    Story,
    approval,
    in_state,
    journaled,
    ok,
    only,
    parked,
    parsed,
    power_cut,
    stopped,
    stored_in,
)
from tests.patience import PATIENCE, until
from tests.turn.calls import TALKING, abort, apply, call, fetch, reply, spawn, wait_all

import keephold
from keephold import Call, KeepholdError, Key, Question, Runtime, Tool, ToolCall
from keephold.outcomes import Ok


@keephold.tool(actions=TALKING, on_turn_end="keep")
async def asks(call: Call) -> Any:
    return await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))


@keephold.tool(actions=TALKING, on_turn_end="keep", on_crash="replay")
async def reads(call: Call) -> Any:
    return await call.input()


@pytest.fixture(params=["close", "crash"])
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_R6_whoever_waits_in_python_is_told_that_the_runtime_closes(tmp_path: Path) -> None:
    async with Runtime([approval([])], store=stored_in(tmp_path)) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        waiting = asyncio.create_task(rt.wait(all=["a"], conversation="main"))
        await asyncio.sleep(0.05)
    with pytest.raises(KeepholdError) as caught:
        await waiting
    assert caught.value.code == "runtime_closed"


async def test_B9_an_await_that_was_open_waits_again(tmp_path: Path, ending: str) -> None:
    keys: list[Key] = []
    store, tools = stored_in(tmp_path), [approval(keys)]
    async with Runtime(tools, store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([spawn("approve", "a"), wait_all("a"), wait_all("a", timeout_secs=0)]))
        await until(lambda: len(keys) == 1)
        await parked(rt)
        if ending == "crash":
            store = power_cut(store)
    await asyncio.wait([batch])
    batch.exception()
    async with Runtime(tools, store=store) as rt, rt.turn("main", resume=True) as turn:
        assert turn.unfinished is not None
        resuming = asyncio.create_task(turn.resume())
        await asyncio.sleep(0.05)
        assert not resuming.done()
        await rt.resolve(keys[0], ok("yes"))
        spawned, waited, timed_out = await resuming
        assert parsed(spawned)["id"] == "a"
        assert parsed(waited)["completed"] == [{"id": "a", "state": "stopped", "result": "yes"}]
        assert parsed(timed_out)["timed_out"] is True  # as recorded
    assert len(keys) == 1


async def test_B9_calls_about_handles_are_made_again_in_order(tmp_path: Path) -> None:
    """An `apply` that was acknowledged inside is not sent twice; an `abort` twice is harmless."""
    story, store = Story(), stored_in(tmp_path)

    @keephold.tool(actions=TALKING, on_crash="replay", on_turn_end="keep")
    async def collects(call: Call) -> list[Any]:
        lines: list[Any] = []
        while (line := await call.input()) != "end":
            lines.append(line)
        return lines

    @keephold.tool
    async def dies() -> None:
        await until(lambda: journaled(rt, "c", 2))
        await until(lambda: in_state(rt, "q", "stopped"))
        await story.cut_here()

    tools: list[Tool] = [collects, dies, asks]
    async with Runtime(tools, store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("collects", "c"), spawn("asks", "q")])
        calls = [apply("collects", "c", "one"), apply("collects", "c", "two"), abort("asks", "q"), call("dies")]
        batch = asyncio.create_task(turn.run(calls))
        await story.reached.wait()
        store = power_cut(store)
    await asyncio.wait([batch])
    batch.exception()
    story.dies = False
    async with Runtime(tools, store=store) as rt, rt.turn("main", resume=True) as turn:
        responses = await turn.resume()
        assert [parsed(response)["state"] for response in responses[:3]] == ["running", "running", "stopped"]
        assert parsed(responses[2])["ended_by"] == "abort" and responses[3].code == "crashed"
        await reply(turn, apply("collects", "c", "end"))
        assert (await stopped(rt, "c")).outcome == Ok(["one", "two"])


async def test_D10_a_time_to_stop_waiting_that_comes_after_the_end_does_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys: list[Key] = []
    caplog.set_level(logging.DEBUG)
    async with Runtime([approval(keys)], store=stored_in(tmp_path)) as rt:
        turn = await rt.turn("main").__aenter__()
        batch = asyncio.create_task(turn.run([call("approve"), call("approve")], park_after=0.5))
        await until(lambda: len(keys) == 2)
        await parked(rt, 2)
    await asyncio.sleep(0.6)
    with pytest.raises(KeepholdError):
        await batch
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_A6_an_await_elsewhere_is_told_that_the_caller_must_answer(tmp_path: Path) -> None:
    store, tools = stored_in(tmp_path), [asks, reads]
    async with Runtime(tools, store=store) as one, Runtime(tools, store=store) as two:
        async with one.turn("main") as turn:
            await reply(turn, spawn("asks", "q"))
        async with two.turn("main") as turn:
            waited = parsed(await asyncio.wait_for(only(turn, wait_all("q")), PATIENCE))
            assert waited["needs_input"] is True
            assert waited["pending"][0]["question"]["text"] == "Sure?"
            await reply(turn, apply("asks", "q", True))
            assert (await stopped(two, "q")).outcome == Ok(True)


async def test_A6_a_question_that_is_asked_again_after_a_restart_needs_input(tmp_path: Path, ending: str) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=TALKING, on_turn_end="keep", on_crash="replay")
    async def asks(call: Call) -> Any:
        return await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))

    tools: list[Tool] = [asks, reads]
    async with Runtime(tools, store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([spawn("asks", "q"), spawn("reads", "r")])
        if ending == "crash":
            store = power_cut(store)
    async with Runtime(tools, store=store) as rt, rt.turn("main") as turn:
        waited = parsed(await asyncio.wait_for(only(turn, wait_all("q", "r")), PATIENCE))
        assert waited["needs_input"] is True
        assert [("question" in each, each.get("waiting_for_input")) for each in waited["pending"]] == [
            (True, None),
            (False, True),
        ]
        await turn.run([apply("asks", "q", False), apply("reads", "r", "line")])
        assert (await stopped(rt, "q")).outcome == Ok(False)
        assert (await stopped(rt, "r")).outcome == Ok("line")


async def test_B1_a_call_label_is_free_again_in_the_next_batch(tmp_path: Path, ending: str) -> None:
    """Labels are unique only in a batch: an open call of the same label from before a restart is another call."""
    keys: list[Key] = []
    store, tools = stored_in(tmp_path), [approval(keys)]
    async with Runtime(tools, store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([ToolCall("1", "approve")], park_after=0)
        batch = asyncio.create_task(turn.run([ToolCall("1", "approve")]))
        await until(lambda: len(keys) == 2)
        await parked(rt, 2)
        if ending == "crash":
            store = power_cut(store)
    await asyncio.wait([batch])
    batch.exception()
    async with Runtime(tools, store=store) as rt, rt.turn("main", resume=True) as turn:
        (response,) = await turn.resume(park_after=0)
        assert parsed(response)["id"] == "call:1_2"
        await rt.resolve(keys[0], ok("first"))
        await rt.resolve(keys[1], ok("second"))
        assert (await reply(turn, fetch("approve", "call:1")))["result"] == "first"
        assert (await reply(turn, fetch("approve", "call:1_2")))["result"] == "second"
