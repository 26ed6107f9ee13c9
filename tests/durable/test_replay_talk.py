"""Replay of what the world said to the call (E8, E10): answers, input, its key, its process events."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import Story, in_state, power_cut, stopped, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, TALKING, apply, reply, spawn

import keephold
from keephold import Call, Question, Runtime, Turn
from keephold.outcomes import Ok


@pytest.fixture
def story() -> Story:
    return Story()


async def test_E10_an_answer_is_given_again(tmp_path: Path) -> None:
    store, asked = stored_in(tmp_path), list[str]()
    reached, dies = asyncio.Event(), [True]

    @keephold.tool(actions=TALKING, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        answers = []
        for id in ("name", "sure", "name"):
            kind: Any = "Boolean" if id == "sure" else "Text"
            answers.append(await call.ask(Question(id=id, text=f"{id}?", answer_type=kind)))
        if dies[0]:
            reached.set()
            await asyncio.Event().wait()
        asked.append("again")
        return [*answers, await call.ask(Question(id="sure", text="Really?", answer_type="Boolean"))]

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        assert (await reply(turn, spawn("work", "w")))["state"] == "waiting"
        for answer in ("Ann", True, "Bob"):
            await reply(turn, apply("work", "w", answer))
        await reached.wait()
        cut = power_cut(store)
    dies[0] = False
    async with Runtime([work], store=cut) as rt, rt.turn("main") as turn:
        await until(lambda: asked == ["again"])
        await until(lambda: in_state(rt, "w", "waiting"))
        info = await rt.handle("w", conversation="main")
        assert info.state == "waiting" and info.question is not None and info.question.text == "Really?"
        await reply(turn, apply("work", "w", False))
        assert (await stopped(rt, "w")).outcome == Ok(["Ann", True, "Bob", False])


async def test_E10_a_question_that_was_open_is_asked_again(tmp_path: Path) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=TALKING, on_crash="replay")
    async def work(call: Call) -> Any:
        return await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean"))

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        assert (await reply(turn, spawn("work", "w")))["state"] == "waiting"
        cut = power_cut(store)
    async with Runtime([work], store=cut) as rt, rt.turn("main") as turn:
        await until(lambda: in_state(rt, "w", "waiting"))
        assert (await rt.handle("w", conversation="main")).state == "waiting"
        await reply(turn, apply("work", "w", True))
        assert (await stopped(rt, "w")).outcome == Ok(True)


async def talk(turn: Turn, *lines: Any) -> None:
    for line in lines:
        await reply(turn, apply("work", "w", line))


async def test_E10_the_lines_already_taken_and_those_not_yet_read_come_again(tmp_path: Path, story: Story) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=TALKING, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        lines = [await call.input() for _ in range(2)]
        await story.cut_here()
        try:
            while True:
                lines.append(await call.input())
        except EOFError:
            return lines

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await talk(turn, "one", {"two": 2})
        await story.reached.wait()
        await talk(turn, "three")  # acknowledged, and not read
        cut = power_cut(store)
    story.dies = False
    async with Runtime([work], store=cut) as rt, rt.turn("main") as turn:
        await asyncio.sleep(0.05)
        await talk(turn, "four")
        await reply(turn, apply("work", "w", None))
        assert (await stopped(rt, "w")).outcome == Ok(["one", {"two": 2}, "three", "four"])


async def test_E10_an_input_that_was_closed_stays_closed(tmp_path: Path, story: Story) -> None:
    store = stored_in(tmp_path)

    @keephold.tool(actions=TALKING, on_crash="replay")
    async def work(call: Call) -> list[Any]:
        lines = [await call.input()]
        with pytest.raises(EOFError):
            await call.input()
        await story.cut_here()
        return lines

    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await talk(turn, "one", None)
        await story.reached.wait()
        cut = power_cut(store)
    story.dies = False
    async with Runtime([work], store=cut) as rt:
        assert (await stopped(rt, "w")).outcome == Ok(["one"])


async def test_E8_E10_sleeps_and_process_events_are_numbered_and_appended_once(tmp_path: Path, story: Story) -> None:
    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: Call) -> str:
        fx = call.durable()
        await fx.emit_process_event("opened", {"attempt": call.attempt})
        await fx.sleep(0)
        await fx.emit_process_event("opened", {"attempt": call.attempt})
        await call.process_events().emit("at.least.once", call.attempt)
        await story.cut_here()
        await fx.emit_process_event("closed")
        return call.process_id or ""

    store = stored_in(tmp_path)
    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("work", "w"))
        await story.reached.wait()
        cut = power_cut(store)
    story.dies = False
    async with Runtime([work], store=cut) as rt:
        info = await stopped(rt, "w")
        assert info.outcome == Ok(info.uid)
        events = [(event.sequence, event.type, event.payload) for event in await rt.process_events(info.uid)]
        assert events == [
            (1, "opened", {"attempt": 1}),
            (2, "opened", {"attempt": 1}),
            (3, "at.least.once", 1),
            (4, "at.least.once", 2),
            (5, "closed", None),
        ]
