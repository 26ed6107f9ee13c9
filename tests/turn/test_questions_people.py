"""Who answers a tool's question when somebody is there (Q2–Q4, A6): a person, a model, the caller, or nobody."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, fetch, replies, reply, settings, spawn, wait_all
from tests.turn.people import Model, Person, attended, few

import keephold
from keephold import Call, Question, Tool, ToolError
from keephold.policies import QuestionPolicy
from keephold.testing import VirtualClock
from keephold.turn.prompts import Answer, AskQuestion, Dismissed

SURE = Question(id="sure", text="Are you sure?", answer_type="Boolean", default=False)


@keephold.tool(actions=TALKING)
async def asks(call: Call) -> str:
    try:
        return f"answer {await call.ask(SURE)}"
    except ToolError as error:
        return f"{error.code}: {error.message}"


def with_policy(tool: Tool, **policy: Any) -> Tool:
    return replace(tool, questions={"sure": QuestionPolicy(**policy)})


def detached(directory: Path, policy: str) -> Path:
    return settings(directory, f'[conversation]\ndetached = "{policy}"\n')


# One-shot calls (Q2)


async def test_Q2_a_person_who_is_there_is_asked(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks")]))
        prompt = await person.says(Answer(True))
        assert msgspec.structs.replace(prompt, uid=None, request="") == AskQuestion(
            tool="asks", id=None, question=SURE, conversation="main", may_remember=True, problem=None
        )
        assert (await batch)[0].result == "answer True"


FIXED: dict[str, Any] = {"answered": True, "answer": True}
PATHS: Mapping[str, tuple[dict[str, Any], bool, bool, str, str]] = {
    # policy, a person is there, a model is there, `detached`, who answers
    "fixed": (FIXED, True, True, "auto", "nobody is asked"),
    "fixed, for the assistant": ({**FIXED, "target": "assistant"}, True, True, "auto", "nobody is asked"),
    "fixed, exclusive": ({**FIXED, "exclusive": True}, False, True, "auto", "nobody is asked"),
    "the user is there": ({}, True, True, "auto", "person"),
    "the user is there, no model": ({}, True, False, "deny", "person"),
    "the assistant's": ({"target": "assistant"}, True, True, "deny", "model"),
    "the assistant's, nobody else there": ({"target": "assistant"}, False, True, "deny", "model"),
    "exclusive": ({"exclusive": True}, True, True, "auto", "person"),
    "exclusive and the assistant's": ({"exclusive": True, "target": "assistant"}, True, True, "auto", "person"),
    "denied": ({}, False, True, "deny", "error"),
    "denied, no model either": ({}, False, False, "auto", "error"),
    "the assistant's, no model": ({"target": "assistant"}, False, False, "deny", "error"),
    "exclusive and nobody there": ({"exclusive": True}, False, True, "auto", "error"),
    "exclusive, the assistant's, nobody": ({"exclusive": True, "target": "assistant"}, False, True, "auto", "error"),
    "the default": ({}, False, True, "defaults", "default"),
    "the default of an exclusive one": ({"exclusive": True}, False, True, "defaults", "default"),
    "auto": ({}, False, True, "auto", "model"),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_Q2_the_order_of_those_who_answer_a_one_shot_call(clock: VirtualClock, tmp_path: Path, path: str) -> None:
    policy, person_there, model_there, policy_detached, who = PATHS[path]
    person, model = Person(Answer(True)), Model(True)
    async with attended(
        clock,
        [with_policy(asks, **policy)],
        person=person if person_there else None,
        model=model if model_there else None,
        config=detached(tmp_path, policy_detached),
    ) as (_, turn):
        (response,) = await turn.run([call("asks")])
    assert (len(person.seen), len(model.seen)) == (int(who == "person"), int(who == "model"))
    if who == "error":
        assert response.result.startswith("question_unanswered") and "Are you sure?" in response.result
    else:
        assert response.result == f"answer {who != 'default'}"


async def test_Q2_a_remembered_answer_comes_before_a_fixed_one(clock: VirtualClock) -> None:
    """A question of one tool that a person answered for the turn, in a configuration that also fixes it."""
    async with attended(clock, [with_policy(asks, answered=True, answer=True)], person=Person()) as (rt, turn):
        rt.approvals.give("main", "asks", False, by="the user", question="sure")
        assert (await turn.run([call("asks")]))[0].result == "answer False"


# Spawned handles (Q3)


async def test_Q3_a_question_is_open_to_the_person_and_the_caller(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        waiting = await reply(turn, spawn("asks", "a"))
        assert waiting["state"] == "waiting" and waiting["question"]["id"] == "sure"
        assert (await person.says(Answer(True))).id == "a"
        assert await reply(turn, wait_all("a")) == {
            "completed": [{"id": "a", "state": "stopped", "result": "answer True"}],
            "pending": [],
        }


async def test_Q3_the_callers_answer_withdraws_the_prompt(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        prompt = await person.sees()
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "answer True"
        await person.sees_nothing()
        assert person.withdrawn == [prompt] and len(person.seen) == 1


async def test_Q3_the_persons_answer_withdraws_the_inquiry(clock: VirtualClock, tmp_path: Path) -> None:
    """Both are asked only if the person is not the one it is meant for, and no model is: so here by `rt.send`."""
    model = Model()
    async with attended(clock, [with_policy(asks, target="assistant")], model=model) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        awaiting = asyncio.create_task(turn.run([wait_all("a")]))
        inquiry = await model.sees()
        assert (await rt.send("a", "yes", conversation="main"))["result"] == "answer True"
        assert '"answer True"' in (await awaiting)[0].result
        await model.sees_nothing()
        assert model.withdrawn == [inquiry]


async def test_Q3_the_callers_answer_withdraws_the_inquiry(clock: VirtualClock) -> None:
    model = Model()
    async with attended(clock, [asks], model=model) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        await reply(turn, wait_all("a", timeout_secs=5))
        inquiry = await model.sees()
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "answer True"
        await model.sees_nothing()
        assert model.withdrawn == [inquiry]


async def test_C6_a_bad_answer_of_the_caller_leaves_prompt_and_question_open(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        await person.sees()
        (refused,) = await turn.run([apply("asks", "a", "yes")])
        assert refused.code == "bad_answer" and not person.withdrawn
        assert (await rt.handle("a", conversation="main")).state == "waiting"
        await person.says(Answer(False))
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "answer False"


async def test_A6_an_await_goes_on_while_a_person_can_answer(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a", timeout_secs=3600))
        assert waited == {"completed": [], "pending": [{"id": "a", "state": "waiting"}], "timed_out": True}
        await person.says(Answer(True))
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "answer True"


@pytest.mark.parametrize("when", ["before", "with", "after"])
async def test_A6_Q3_an_await_that_watches_makes_the_model_answer(clock: VirtualClock, when: str) -> None:
    """Whether the question opens before the await begins, or while it watches."""
    model = Model()

    @keephold.tool(actions=TALKING)
    async def later(call: Call) -> str:
        await asyncio.sleep(0 if when == "before" else 10)
        return f"answer {await call.ask(SURE)}"

    async with attended(clock, [later], model=model) as (_, turn):
        if when == "with":
            batch = asyncio.create_task(replies(turn, wait_all("a"), spawn("later", "a")))
        else:
            await reply(turn, spawn("later", "a"))
            assert not model.seen  # it is the caller's, until the caller waits for it
            batch = asyncio.create_task(replies(turn, wait_all("a")))
        await model.says(True)
        waited = (await batch)[0]
        assert waited["completed"][0]["result"] == "answer True" and "needs_input" not in waited


async def test_Q3_python_that_waits_is_an_await_too(clock: VirtualClock) -> None:
    model = Model(True)
    async with attended(clock, [asks], model=model) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        waited = await rt.wait(all=["a"], conversation="main")
        assert waited["completed"][0]["result"] == "answer True"


async def test_A6_without_a_model_the_await_says_that_the_caller_must_answer(clock: VirtualClock) -> None:
    async with attended(clock, [asks]) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a"))
        assert waited["needs_input"] and waited["pending"][0]["question"]["id"] == "sure"


async def test_Q3_an_await_that_is_over_at_once_asks_no_model(clock: VirtualClock) -> None:
    """`any` of one that has stopped and one that asks: nobody watches the other."""
    model = Model()

    @keephold.tool(actions=STATEFUL)
    async def quick() -> str:
        return "quick"

    async with attended(clock, [asks, quick], model=model) as (_, turn):
        await replies(turn, spawn("asks", "a"), spawn("quick", "q"), wait_all("q"))
        waited = await reply(turn, call("await", any=["q", "a"]))
        assert waited["completed"][0]["id"] == "q"
        await few()
        assert model.seen == []


async def test_Q3_a_question_for_the_assistant_is_the_callers_not_the_persons(clock: VirtualClock) -> None:
    """To the user if targeted: without a model the caller is the only one, and an await must not hang on a person."""
    person = Person()
    async with attended(clock, [with_policy(asks, target="assistant")], person=person) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a", timeout_secs=60))
        assert person.seen == [] and waited.get("needs_input") is True
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "answer True"


NO_APPLY: Mapping[str, tuple[dict[str, Any], bool, bool, str, str]] = {
    "the user": ({}, True, True, "deny", "person"),
    "the assistant": ({"target": "assistant"}, True, True, "deny", "model"),
    "the assistant alone": ({"target": "assistant"}, False, True, "deny", "model"),
    "auto": ({}, False, True, "auto", "model"),
    "deny": ({}, False, False, "deny", "error"),
    "defaults": ({}, False, False, "defaults", "default"),
    "exclusive, auto": ({"exclusive": True}, False, True, "auto", "error"),
}


@pytest.mark.parametrize("path", NO_APPLY)
async def test_Q3_without_apply_who_answers_a_spawned_handle(clock: VirtualClock, tmp_path: Path, path: str) -> None:
    policy, person_there, model_there, policy_detached, who = NO_APPLY[path]
    person, model = Person(Answer(True)), Model(True)
    async with attended(
        clock,
        [replace(with_policy(asks, **policy), actions=STATEFUL)],
        person=person if person_there else None,
        model=model if model_there else None,
        config=detached(tmp_path, policy_detached),
    ) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a"))
    result = waited["completed"][0]["result"]
    assert (len(person.seen), len(model.seen)) == (int(who == "person"), int(who == "model"))
    assert result.startswith("question_unanswered") if who == "error" else result == f"answer {who != 'default'}"


@pytest.mark.parametrize("policy", ["deny", "defaults", "auto"])
async def test_Q3_detached_does_not_matter_while_the_caller_may_answer(
    clock: VirtualClock, tmp_path: Path, policy: str
) -> None:
    async with attended(clock, [asks], model=Model(), config=detached(tmp_path, policy)) as (_, turn):
        assert (await reply(turn, spawn("asks", "a")))["state"] == "waiting"
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "answer True"


# Exclusive (Q4)


@pytest.mark.parametrize("target", ["user", "assistant"])
async def test_Q4_a_models_apply_is_refused_and_the_question_stays_open(clock: VirtualClock, target: Any) -> None:
    person, model = Person(), Model()
    tool = with_policy(asks, exclusive=True, target=target)
    async with attended(clock, [tool], person=person, model=model) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        prompt = await person.sees()
        for answer in (True, "nonsense"):
            (refused,) = await turn.run([apply("asks", "a", answer)])
            assert refused.code == "question_exclusive"
            assert "person" in refused.result and "`sure`" in refused.result and "stays open" in refused.result
        assert (await rt.handle("a", conversation="main")).state == "waiting"
        assert person.open == [prompt] and not model.seen
        waited = await reply(turn, wait_all("a", timeout_secs=30))
        assert waited["timed_out"] and not model.seen  # not even an await makes it a model's
        await person.says(Answer(True))
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "answer True"


async def test_Q4_a_person_answers_an_exclusive_question_also_by_send(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [with_policy(asks, exclusive=True)], person=person) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        prompt = await person.sees()
        assert (await rt.send("a", "yes", conversation="main"))["result"] == "answer True"
        await person.sees_nothing()
        assert person.withdrawn == [prompt]


async def test_Q4_an_exclusive_question_that_the_person_cancels_ends_the_handle(clock: VirtualClock) -> None:
    model = Model()
    tool = with_policy(asks, exclusive=True)
    async with attended(clock, [tool], person=Person(Dismissed()), model=model) as (_, turn):
        (response,) = await turn.run([call("asks")])
        assert response.code == "input_cancelled" and "`sure`" in response.result
        assert model.seen == []


# The question's end without an answer (P5's last sentence, Q7)


@pytest.mark.parametrize("end", ["abort", "cancel", "turn end", "close", "timeout of the tool's own"])
async def test_Q3_a_question_that_nobody_needs_any_more_is_withdrawn(clock: VirtualClock, end: str) -> None:
    person = Person()

    @keephold.tool(actions=TALKING)
    async def patient(call: Call) -> str:
        try:
            async with asyncio.timeout(PATIENCE):
                return str(await call.ask(SURE))
        except TimeoutError:
            return "nobody said anything"

    async with attended(clock, [patient], person=person) as (rt, turn):
        await reply(turn, spawn("patient", "a"))
        prompt = await person.sees()
        if end == "abort":
            assert (await reply(turn, abort("patient", "a")))["ended_by"] == "abort"
        elif end == "cancel":
            turn.cancel()
            await turn.end()
        elif end == "turn end":
            await turn.end()
        elif end == "close":
            await rt.close()
        else:
            waited = await reply(turn, wait_all("a"))
            assert waited["completed"][0]["result"] == "nobody said anything"
        await person.sees_nothing()
        assert person.withdrawn == [prompt]
        assert (await rt.handle("a", conversation="main")).state == "stopped"


async def test_B7_a_cancelled_turn_withdraws_the_question_of_a_one_shot_call(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks")]))
        prompt = await person.sees()
        begun = clock.now()
        turn.cancel()
        (response,) = await batch
        assert response.code == "cancelled" and clock.now() - begun < 0.5
        await person.sees_nothing()
        assert person.withdrawn == [prompt]


async def test_Q3_a_call_that_is_parked_asks_nobody_any_more(clock: VirtualClock) -> None:
    """A tool that asks in a task of its own, and returns `Pending` meanwhile."""
    person = Person()
    tasks: list[asyncio.Task[Any]] = []

    @keephold.tool(actions=STATEFUL)
    async def parks(call: Call) -> keephold.Pending:
        tasks.append(asyncio.create_task(call.ask(SURE)))
        await call.completion_key()
        return keephold.Pending()

    async with attended(clock, [parks, asks], person=person) as (_, turn):
        try:
            await reply(turn, spawn("parks", "p"))
            await clock.advance(1)
            assert (await reply(turn, fetch("parks", "p")))["state"] == "running"
            assert person.open == []
        finally:
            tasks[0].cancel()
            await asyncio.wait(tasks)
