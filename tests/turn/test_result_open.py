"""While a person decides about a result: who sees what, who waits, and what ends it (P5, B3, B5, B7)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.turn.calls import (
    STATEFUL,
    TALKING,
    abort,
    apply,
    call,
    fetch,
    reply,
    spawn,
    wait_all,
)
from tests.turn.people import Person, attended, few

import keephold
from keephold import Call, Question, Runtime, ToolError
from keephold.outcomes import Ok
from keephold.testing import VirtualClock
from keephold.turn.prompts import Approved, Denied


@keephold.tool(actions=STATEFUL, result="ask")
async def work(call: Call, fail: bool = False, secs: int = 0) -> Any:
    call.emit("printed secret\n")
    await asyncio.sleep(secs)
    if fail:
        raise ToolError("a secret went wrong", code="mine")
    return "a secret"


# It acts once, when the handle stops, before that is visible (P5)


async def test_P5_the_end_is_not_visible_until_the_person_has_said(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (rt, turn):
        await reply(turn, spawn("work", "w"))
        await person.sees()
        assert (await reply(turn, wait_all("w", timeout_secs=3600)))["pending"] == [{"id": "w", "state": "running"}]
        assert (await rt.handle("w", conversation="main")).outcome is None
        assert [news.kind for news in await rt.registry.store.notifications("main")] == []
        record = await rt.registry.store.handle((await rt.handle("w", conversation="main")).uid)
        assert "a secret" not in str(record)
        await person.says(Approved())
        assert (await reply(turn, wait_all("w")))["completed"][0]["result"] == "a secret"
        assert len(person.seen) == 1


async def test_P5_while_the_person_decides_nothing_of_the_result_is_shown(clock: VirtualClock) -> None:
    """A tool that has ended: what it printed is what the person is asked about."""
    person = Person()

    @keephold.tool(actions=STATEFUL, result="ask")
    async def prints(call: Call) -> str:
        await asyncio.sleep(5)
        call.emit("printed secret\n")
        return "a secret"

    async with attended(clock, [prints], person=person) as (_, turn):
        await reply(turn, spawn("prints", "p"))
        await person.sees()
        fetched, read = await turn.run([fetch("prints", "p"), call("read_output", id="p")])
        assert "secret" not in fetched.result and "secret" not in read.result


async def test_P5_a_retry_comes_before_the_question(clock: VirtualClock) -> None:
    attempts: list[int] = []

    @keephold.tool(result="ask", retry="safe")
    async def flaky(call: Call) -> str:
        attempts.append(call.attempt)
        if call.attempt < 3:
            raise ToolError("not yet", transient=True)
        return "at last"

    person = Person(Approved())
    async with attended(clock, [flaky], person=person) as (_, turn):
        assert (await turn.run([call("flaky")]))[0].result == "at last"
        assert attempts == [1, 2, 3] and len(person.seen) == 1


async def test_P4_the_timeout_is_over_when_the_tool_is(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [replace(work, timeout_secs=10)], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("work")]))
        await person.sees()
        await clock.advance(3600)
        await person.says(Approved())
        assert (await batch)[0].result == "a secret"


async def test_B5_a_resource_is_held_until_the_person_has_said(clock: VirtualClock) -> None:
    """The handle has not stopped."""
    person, ran = Person(), list[str]()

    @keephold.tool(actions=STATEFUL, resources=("lock",))
    async def locked() -> str:
        ran.append("locked")
        return "locked"

    async with attended(clock, [replace(work, resources=("lock",)), locked], person=person) as (_, turn):
        await reply(turn, spawn("work", "w"))
        await person.sees()
        assert await reply(turn, spawn("locked", "l")) == {"id": "l", "state": "pending"}
        await clock.advance(60)
        assert ran == []
        await person.says(Denied())
        await reply(turn, wait_all("w", "l"))
        assert ran == ["locked"]


async def test_B3_the_next_serial_call_waits_for_the_persons_word(clock: VirtualClock) -> None:
    person, ran = Person(), list[str]()

    @keephold.tool(scheduling="serial")
    async def later() -> str:
        ran.append("later")
        return "later"

    async with attended(clock, [replace(work, scheduling="serial"), later], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("work"), call("later")]))
        await person.sees()
        await clock.advance(60)
        assert ran == []
        await person.says(Approved())
        assert [response.result for response in await batch] == ["a secret", "later"]


# Ended meanwhile


@pytest.mark.parametrize("end", ["abort", "cancel", "turn end", "close"])
async def test_P5_a_handle_that_is_ended_meanwhile_shows_nothing_of_its_result(clock: VirtualClock, end: str) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (rt, turn):
        await reply(turn, spawn("work", "w"))
        prompt = await person.sees()
        if end == "abort":
            aborted = await reply(turn, abort("work", "w"))
            assert aborted == {
                "id": "w",
                "state": "stopped",
                "result": "Aborted by the assistant.",
                "ended_by": "abort",
            }
        elif end == "cancel":
            turn.cancel()
            await turn.end()
        elif end == "turn end":
            await turn.end()
        else:
            await rt.close()
        await person.sees_nothing()
        assert person.withdrawn == [prompt]
        info = await rt.handle("w", conversation="main")
        assert info.state == "stopped" and "secret" not in str(info.outcome) and info.output_bytes == 0
        assert rt.live() == []


async def test_B7_a_one_shot_call_that_is_cancelled_meanwhile(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [work], person=person) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("work")]))
        prompt = await person.sees()
        turn.cancel()
        (response,) = await batch
        assert (response.result, response.code) == ("Tool execution cancelled.", "cancelled")
        await person.sees_nothing()
        assert person.withdrawn == [prompt] and rt.live() == []


async def test_P5_a_late_word_of_the_person_changes_nothing(clock: VirtualClock) -> None:
    """The prompter swallows its cancellation and says yes after all."""

    async def prompter(prompt: Any) -> Approved:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return Approved()

    async with Runtime([work], clock=clock, prompter=prompter) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("work", "w"))
        await few()
        assert (await reply(turn, abort("work", "w")))["ended_by"] == "abort"
        await clock.advance(10)
        assert (await rt.handle("w", conversation="main")).ended_by == "abort"


# Talking to a tool that has returned


async def test_C6_a_tool_that_has_returned_takes_no_input_while_the_person_decides(clock: VirtualClock) -> None:
    person = Person()

    @keephold.tool(actions=TALKING, result="ask")
    async def quick(call: Call) -> str:
        return "done"

    async with attended(clock, [quick], person=person) as (_, turn):
        await reply(turn, spawn("quick", "q"))
        await person.sees()
        (sent,) = await turn.run([apply("quick", "q", "hello?")])
        assert sent.code == "not_running"


async def test_Q3_a_tool_that_has_returned_asks_nobody_any_more(clock: VirtualClock) -> None:
    """A task of the tool's own that outlives it asks while the person decides about the result."""
    person, tasks = Person(), list[asyncio.Task[Any]]()

    @keephold.tool(actions=STATEFUL, result="ask")
    async def hasty(call: Call) -> str:
        async def later() -> Any:
            await asyncio.sleep(1)
            return await call.ask(Question(id="q", text="?", answer_type="Text"))

        tasks.append(asyncio.create_task(later()))
        return "done"

    async with attended(clock, [hasty], person=person) as (rt, turn):
        try:
            await reply(turn, spawn("hasty", "h"))
            await person.sees()
            await clock.advance(5)
            await person.says(Approved())
            await clock.advance(5)
            assert (await rt.handle("h", conversation="main")).outcome == Ok("done")
            assert person.open == [] and len(person.seen) == 1
        finally:
            tasks[0].cancel()
            await asyncio.wait(tasks)
