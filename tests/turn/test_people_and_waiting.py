"""People where they meet waiting, lanes, resources and the end of a turn (A6, B4, B5, T2, T3)."""

import asyncio
from dataclasses import replace

import pytest
from tests.turn.calls import STATEFUL, TALKING, abort, call, fetch, replies, reply, spawn, wait_all
from tests.turn.people import Model, Person, attended, exactly, few

import keephold
from keephold import Call, Question, Tool, ToolError
from keephold.policies import QuestionPolicy
from keephold.testing import VirtualClock
from keephold.tools.base import SpawnPolicy
from keephold.turn.prompts import Answer, Approved, Denied

SURE = Question(id="sure", text="Sure?", answer_type="Boolean")


@keephold.tool(actions=TALKING)
async def asks(call: Call) -> str:
    return f"answer {await call.ask(SURE)}"


def for_person_only(tool: Tool) -> Tool:
    return replace(tool, questions={"sure": QuestionPolicy(exclusive=True)})


# Waiting (A6)


async def test_A6_an_await_returns_only_when_all_it_needs_wait_for_the_caller(clock: VirtualClock) -> None:
    """One waits for a person, one for the caller: the person may still answer, so it goes on until they have."""
    person = Person()
    callers = replace(asks, name="callers", questions={"sure": QuestionPolicy(target="assistant")})
    async with attended(clock, [for_person_only(asks), callers], person=person) as (_, turn):
        batch = asyncio.create_task(replies(turn, spawn("asks", "p"), spawn("callers", "c"), wait_all("p", "c")))
        await person.sees()
        await clock.advance(3600)
        assert not batch.done()
        await person.says(Answer(True))
        waited = (await batch)[2]
        assert [each["id"] for each in waited["completed"]] == ["p"]
        assert waited["needs_input"] and [each["id"] for each in waited["pending"]] == ["c"]


async def test_A6_B4_what_queues_behind_one_that_waits_for_a_person_is_not_blocked(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [replace(asks, scheduling="serial")], person=person) as (_, turn):
        await reply(turn, spawn("asks", "first"))
        batch = asyncio.create_task(replies(turn, spawn("asks", "second"), wait_all("second")))
        await person.sees()
        await clock.advance(60)
        assert not batch.done()
        await person.says(Answer(True))
        await person.says(Answer(False))
        assert (await batch)[1]["completed"][0]["result"] == "answer False"


async def test_A6_a_question_that_the_person_cannot_answer_any_more_does_not_hang(clock: VirtualClock) -> None:
    """The prompter fails: the handle ends, and whoever waits for it hears of it."""
    async with attended(clock, [for_person_only(asks)], person=Person(RuntimeError("gone"))) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a"))
        assert waited["completed"][0]["is_error"] and "gone" in waited["completed"][0]["result"]


# Resources (B5)


async def test_B5_a_call_that_was_permitted_errs_at_once_if_the_holder_stays(clock: VirtualClock) -> None:
    """It was free when the person was asked; an interactive session has taken it since."""
    person = Person()

    @keephold.tool(actions=TALKING, resources=("lock",))
    async def session(call: Call) -> str:
        return str(await call.input())

    @keephold.tool(run="ask", resources=("lock",))
    async def work() -> str:
        return "worked"

    async with attended(clock, [session, work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("work"), spawn("session", "s")]))
        await person.sees()
        await clock.advance(5)
        await person.says(Approved())
        response, _ = await batch
        assert response.code == "resource_held" and "`s`" in response.result
        await reply(turn, abort("session", "s"))


async def test_B5_a_call_behind_one_that_waits_for_a_person_queues(clock: VirtualClock) -> None:
    """The person will answer: the holder goes by itself. It is no reason to err."""
    person = Person()
    locked = replace(asks, actions=STATEFUL, resources=("lock",))
    fixed = {"sure": QuestionPolicy(answered=True, answer=True)}
    tools: list[Tool] = [locked, replace(locked, name="other", questions=fixed)]
    async with attended(clock, tools, person=person) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        batch = asyncio.create_task(turn.run([call("other")]))
        await clock.advance(60)
        assert not batch.done()
        await person.says(Answer(False))
        assert (await batch)[0].result == "answer True"


# The end of a turn (T)


async def test_T3_a_handle_that_waits_for_a_person_is_awaited(clock: VirtualClock) -> None:
    person = Person()
    tool = replace(asks, spawn=SpawnPolicy(on_turn_end="await", turn_end_timeout_secs=300))
    async with attended(clock, [tool], person=person) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        ending = asyncio.create_task(turn.end())
        await clock.advance(120)
        assert not ending.done() and not person.withdrawn
        await person.says(Answer(True))
        assert (await ending).results[0]["result"] == "answer True"


async def test_T3_but_not_longer_than_its_timeout(clock: VirtualClock) -> None:
    person = Person()
    tool = replace(asks, spawn=SpawnPolicy(on_turn_end="await", turn_end_timeout_secs=300))
    async with attended(clock, [tool], person=person) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        prompt = await person.sees()
        await turn.end()
        await person.sees_nothing()
        assert person.withdrawn == [prompt]
        assert (await rt.handle("a", conversation="main")).ended_by == "turn_end"


async def test_T2_the_assistant_may_wait_for_the_person(clock: VirtualClock) -> None:
    person, model = Person(), Model(exactly({"handles": [{"id": "a", "action": "wait"}]}))
    async with attended(clock, [for_person_only(asks)], person=person, model=model) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        ending = asyncio.create_task(turn.end())
        await clock.advance(60)
        await person.says(Answer(True))
        ended = await ending
        assert ended.results[0]["result"] == "answer True" and ended.again
        assert [inquiry.purpose for inquiry in model.seen] == ["turn_end"]
        await turn.end()


async def test_T2_a_result_that_nobody_has_decided_about_can_be_waited_for(clock: VirtualClock) -> None:
    person, model = Person(), Model(exactly({"handles": [{"id": "w", "action": "wait"}]}))

    @keephold.tool(actions=STATEFUL, result="ask")
    async def work() -> str:
        return "a secret"

    async with attended(clock, [work], person=person, model=model) as (_, turn):
        await reply(turn, spawn("work", "w"))
        await person.sees()
        ending = asyncio.create_task(turn.end())
        await few()
        assert "a secret" not in str(model.seen)  # nor is the assistant shown it when it is asked
        await person.says(Denied())
        assert (await ending).results[0]["result"] == "Result delivery skipped by user."
        await turn.end()


async def test_T4_a_kept_handle_keeps_its_prompt(clock: VirtualClock) -> None:
    person = Person()
    tool = replace(asks, spawn=SpawnPolicy(on_turn_end="keep"))
    async with attended(clock, [tool], person=person) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        await person.sees()
        await turn.end()
        assert not person.withdrawn
        await person.says(Answer(True))
        async with rt.turn("main") as next_turn:
            assert (await reply(next_turn, fetch("asks", "a")))["result"] == "answer True"


# Sent by a person


@pytest.mark.parametrize("what", ["pending", "stopped"])
async def test_C6_a_person_is_told_when_there_is_nothing_to_answer(clock: VirtualClock, what: str) -> None:
    person = Person()
    async with attended(clock, [replace(asks, run="ask")], person=person) as (rt, turn):
        batch = asyncio.create_task(turn.run([spawn("asks", "a")]))
        await person.sees()
        if what == "stopped":
            await person.says(Denied())
            await batch
        with pytest.raises(ToolError) as caught:
            await rt.send("a", "yes", conversation="main")
        assert caught.value.code == "not_running" and what in caught.value.message
        if what == "pending":
            await person.says(Denied())
            await batch


async def test_B7_the_inquiry_of_a_one_shot_call_is_cancelled_with_its_turn(clock: VirtualClock) -> None:
    model = Model()
    tool = replace(asks, questions={"sure": QuestionPolicy(target="assistant")})
    async with attended(clock, [tool], model=model) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks")]))
        inquiry = await model.sees()
        turn.cancel()
        assert (await batch)[0].code == "cancelled"
        await few()
        assert model.withdrawn == [inquiry]
