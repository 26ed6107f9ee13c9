"""Time spent waiting for a person never counts against a tool's timeout (P4), and the deadline says so (S4)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.turn.calls import TALKING, apply, call, reply, spawn, texts, wait_all
from tests.turn.people import Model, Person, attended

import keephold
from keephold import Call, Question, Tool, ToolError
from keephold.handles.state import Ok, Outcome
from keephold.policies import QuestionPolicy
from keephold.testing import VirtualClock
from keephold.tools.base import Invocation, Sink
from keephold.tools.run_timers import PausableTimeout
from keephold.turn.prompts import Answer

SURE = Question(id="sure", text="Sure?", answer_type="Boolean")
HOUR = 3600.0


@keephold.tool(actions=TALKING, timeout_secs=10)
async def works(call: Call, before: float = 4, after: float = 5, times: int = 1) -> str:
    for _ in range(times):
        await asyncio.sleep(before)
        await call.ask(SURE)
    await asyncio.sleep(after)
    return "in time"


async def test_P4_waiting_for_a_person_does_not_count(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [works], person=person) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("works")))
        await person.sees()
        await clock.advance(HOUR)
        await person.says(Answer(True))
        assert await batch == ["in time"]


async def test_P4_all_other_time_does(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [works], person=person) as (_, turn):
        begun = clock.now()
        batch = asyncio.create_task(turn.run([call("works", after=7)]))
        await person.sees()
        await clock.advance(HOUR)
        await person.says(Answer(True))
        (response,) = await batch
        assert response.code == "timeout" and "10 s" in response.result
        assert clock.now() - begun == pytest.approx(HOUR + 10)


async def test_P4_however_often_it_asks(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [works], person=person) as (_, turn):
        begun = clock.now()
        batch = asyncio.create_task(turn.run([call("works", before=3, times=4)]))
        for _ in range(3):
            await person.sees()
            await clock.advance(HOUR)
            await person.says(Answer(True))
        (response,) = await batch  # it would ask a fourth time at 12 s
        assert response.code == "timeout" and clock.now() - begun == pytest.approx(3 * HOUR + 10)


async def test_P4_nor_does_waiting_for_ones_turn_at_the_prompt(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [works, replace(works, name="other", timeout_secs=None)], person=person) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("other", before=0), call("works")))
        await person.sees()
        await clock.advance(HOUR)
        await person.says(Answer(True))
        await clock.advance(HOUR)
        await person.says(Answer(True))
        assert await batch == ["in time", "in time"]


async def test_P4_a_question_that_only_the_caller_answers_is_the_tools_time(clock: VirtualClock) -> None:
    async with attended(clock, [works]) as (rt, turn):
        begun = clock.now()
        await reply(turn, spawn("works", "w", before=0))
        await clock.advance(HOUR)
        info = await rt.handle("w", conversation="main")
        assert info.ended_by == "timeout" and info.stopped == pytest.approx(begun + 10)


async def test_P4_it_goes_on_when_the_caller_was_quicker_than_the_person(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [works], person=person) as (rt, turn):
        await reply(turn, spawn("works", "w", before=0, after=60))
        await clock.advance(HOUR)
        answered = clock.now()
        await reply(turn, apply("works", "w", True))
        await reply(turn, wait_all("w"))
        info = await rt.handle("w", conversation="main")
        assert info.ended_by == "timeout" and info.stopped == pytest.approx(answered + 10)


async def test_P4_it_goes_on_when_the_tool_does_not_want_to_know_any_more(clock: VirtualClock) -> None:
    @keephold.tool(timeout_secs=10)
    async def impatient(call: Call) -> str:
        try:
            async with asyncio.timeout(HOUR):
                await call.ask(SURE)
        except TimeoutError:
            await asyncio.sleep(60)
        return "never"

    async with attended(clock, [impatient], person=Person()) as (_, turn):
        begun = clock.now()
        (response,) = await turn.run([call("impatient")])
        assert response.code == "timeout" and clock.now() - begun == pytest.approx(HOUR + 10)


async def test_P4_while_an_inquiry_runs_time_is_the_tools(clock: VirtualClock) -> None:
    tool = replace(works, questions={"sure": QuestionPolicy(target="assistant")})
    async with attended(clock, [tool], person=Person(), model=Model()) as (_, turn):
        begun = clock.now()
        assert (await turn.run([call("works")]))[0].code == "timeout"
        assert clock.now() - begun == pytest.approx(10)


# The deadline


async def test_S4_P4_the_deadline_is_none_while_a_person_is_waited_for_and_later_then(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [works], person=person) as (rt, turn):

        async def deadline() -> float | None:
            return (await rt.handle("w", conversation="main")).deadline

        begun = clock.now()
        await reply(turn, spawn("works", "w", after=60))
        assert await deadline() == pytest.approx(begun + 10)
        await person.sees()
        assert await deadline() is None
        await clock.advance(HOUR)
        assert await deadline() is None
        waited_since = begun + 4
        await person.says(Answer(True))
        await clock.advance(1)
        waited = clock.now() - 1 - waited_since
        assert await deadline() == pytest.approx(begun + 10 + waited)
        await reply(turn, wait_all("w"))
        info = await rt.handle("w", conversation="main")
        assert (info.ended_by, info.deadline) == ("timeout", None)
        assert info.stopped == pytest.approx(begun + 10 + waited)


async def test_S4_the_deadline_of_a_question_that_is_the_callers_stands(clock: VirtualClock) -> None:
    async with attended(clock, [works]) as (rt, turn):
        begun = clock.now()
        await reply(turn, spawn("works", "w", before=0))
        assert (await rt.handle("w", conversation="main")).deadline == pytest.approx(begun + 10)


async def test_S4_R5_the_deadline_is_that_of_the_attempt_that_runs(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING, timeout_secs=10, retry="safe")
    async def flaky(call: Call) -> str:
        if call.attempt == 1:
            await asyncio.sleep(5)
            raise ToolError("not yet", transient=True)
        await asyncio.sleep(9)
        return "at last"

    async with attended(clock, [flaky]) as (rt, turn):
        await reply(turn, spawn("flaky", "f"))
        await clock.advance(8)
        info = await rt.handle("f", conversation="main")
        assert info.attempt == 2 and info.deadline is not None
        assert info.deadline >= clock.now() + 5  # the second attempt began two seconds ago or so
        await reply(turn, wait_all("f"))
        assert (await rt.handle("f", conversation="main")).ok


# At the seams


class _AsksAtOnce:
    """A runtime that asks before its `start` returns."""

    def start(self, invocation: Invocation, sink: Sink) -> "_AsksAtOnce":
        self._sink = sink
        sink.ask(SURE, self._answered)
        return self

    def _answered(self, outcome: Outcome) -> None:
        asyncio.get_running_loop().call_later(5, self._end)

    def _end(self) -> None:
        self._sink.stop(Ok("in time"))
        self._sink.released()

    def write(self, data: Any) -> None: ...

    def end(self, grace: float) -> None:
        self._end()


async def test_P4_a_tool_that_asks_while_it_is_started(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [Tool(name="eager", runtime=_AsksAtOnce(), timeout_secs=10)], person=person) as (
        _,
        turn,
    ):
        batch = asyncio.create_task(texts(turn, call("eager")))
        await person.sees()
        await clock.advance(HOUR)
        assert person.open
        await person.says(Answer(True))
        assert await batch == ["in time"]


async def test_P4_R5_a_person_who_drives_is_waited_for_in_the_next_attempt_too(clock: VirtualClock) -> None:
    """What a person at a terminal does to its run, and a failure in between: their time is still not the tool's."""

    @keephold.tool(actions=TALKING, timeout_secs=10, retry="safe")
    async def flaky(call: Call) -> str:
        if call.attempt == 1:
            await asyncio.sleep(5)
            raise ToolError("not yet", transient=True)
        await asyncio.sleep(20)
        return "at last"

    async with attended(clock, [flaky]) as (rt, turn):
        await reply(turn, spawn("flaky", "f"))
        run = rt.registry.find("f", "main").run
        assert run is not None
        run.drive(True)
        await clock.advance(20)
        info = await rt.handle("f", conversation="main")
        assert info.attempt == 2 and info.deadline is None
        run.drive(False)
        handed_back = clock.now()
        await reply(turn, wait_all("f"))
        assert (await rt.handle("f", conversation="main")).ok and clock.now() - handed_back < 10


async def test_P4_patience_with_several_who_are_waited_for(clock: VirtualClock) -> None:
    over: list[float] = []
    patience = PausableTimeout(10, lambda: over.append(clock.now()))
    begun = clock.now()
    await clock.advance(4)
    patience.pause()
    await clock.advance(100)
    patience.pause()
    await clock.advance(100)
    patience.resume()
    still = patience.paused
    await clock.advance(100)
    patience.resume()
    assert (still, patience.paused) == (True, False) and patience.waited == pytest.approx(300)
    await clock.advance(5)
    assert over == []
    await clock.advance(5)
    assert over == [pytest.approx(begun + 310)]


@pytest.mark.parametrize("paused", [False, True])
async def test_P4_patience_that_is_cancelled_is_never_over(clock: VirtualClock, paused: bool) -> None:
    over: list[float] = []
    patience = PausableTimeout(10, lambda: over.append(clock.now()))
    if paused:
        patience.pause()
    patience.cancel()
    await clock.advance(HOUR)
    assert over == []
