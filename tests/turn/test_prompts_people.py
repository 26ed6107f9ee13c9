"""Prompts: one at a time, first come first served; what is said to them, remembered, withdrawn, wrong (Q5, Q7)."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.turn.calls import TALKING, abort, apply, call, reply, spawn, texts, wait_all
from tests.turn.people import Model, Person, attended, few

import keephold
from keephold import Call, Question
from keephold.policies import QuestionPolicy
from keephold.testing import VirtualClock
from keephold.turn.prompt_queue import PromptQueue
from keephold.turn.prompts import Answer, Approved, AskQuestion, Denied, Dismissed, Edited, RunTool


@keephold.tool(actions=TALKING)
async def asks(call: Call, q: str = "q", kind: str = "Boolean", secret: bool = False) -> str:
    answer_type: Any = {"Select": {"options": kind.split("|")}} if "|" in kind else kind
    return f"{q}={await call.ask(Question(id=q, text=f'{q}?', answer_type=answer_type, secret=secret))}"


@keephold.tool(actions=TALKING)
async def other(call: Call, q: str = "q") -> str:
    return f"{q}={await call.ask(Question(id=q, text=f'{q}?', answer_type='Boolean'))}"


@keephold.tool
async def work() -> str:
    await asyncio.sleep(5)
    return "done"


@keephold.tool(run="ask")
async def guarded() -> str:
    return "ran"


def question(prompt: Any) -> str:
    """Of which question a prompt is."""
    assert isinstance(prompt, AskQuestion)
    return prompt.question.id


# One at a time, first come first served (Q5)


async def test_Q5_prompts_are_asked_one_at_a_time_in_the_order_they_came(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks, guarded], person=person) as (_, turn):
        batch = asyncio.create_task(
            turn.run([call("asks", q="a"), call("guarded"), call("asks", q="b"), call("asks", q="c")])
        )
        first = await person.sees()  # permission is asked before anything runs
        assert isinstance(first, RunTool)
        await clock.advance(60)
        assert person.seen == [first]
        await person.says(Approved())
        for answer in (True, False, True):
            await person.says(Answer(answer))
        assert [response.result for response in await batch] == ["a=True", "ran", "b=False", "c=True"]
        assert [question(prompt) for prompt in person.seen[1:]] == ["a", "b", "c"]
        assert person.at_once == 1


async def test_Q5_everything_else_keeps_running(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks, work], person=person) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        await person.sees()
        assert await texts(turn, call("work")) == ["done"]
        assert person.open and not person.withdrawn
        await person.says(Answer(True))
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "q=True"


async def test_Q5_two_conversations_share_the_person(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (rt, turn), rt.turn("other") as second:
        await reply(turn, spawn("asks", "a"))
        await reply(second, spawn("asks", "a"))
        for conversation in ("main", "other"):
            assert (await person.says(Answer(True))).conversation == conversation
        assert person.at_once == 1
        assert (await reply(second, wait_all("a")))["completed"][0]["result"] == "q=True"


async def test_Q5_a_prompt_withdrawn_while_it_waits_is_never_shown(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        for name in "abc":
            await reply(turn, spawn("asks", name, q=name))
        await person.sees()
        await reply(turn, abort("asks", "b"))
        assert person.withdrawn == []
        await person.says(Answer(True))
        await person.says(Answer(True))
        await reply(turn, wait_all("a", "c"))
        assert [question(prompt) for prompt in person.seen] == ["a", "c"]


async def test_Q5_a_prompt_withdrawn_while_it_is_shown_makes_room_for_the_next(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        for name in "ab":
            await reply(turn, spawn("asks", name, q=name))
        await person.sees()
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "a=True"
        assert question(await person.says(Answer(False))) == "b"
        assert [question(prompt) for prompt in person.withdrawn] == ["a"]
        assert (await reply(turn, wait_all("b")))["completed"][0]["result"] == "b=False"


async def test_Q5_the_next_prompt_waits_until_the_terminal_is_free_again(clock: VirtualClock) -> None:
    """A prompter that tidies up when its prompt is withdrawn: two are never shown at once, and what it says is late."""
    shown: list[str] = []

    async def prompter(prompt: Any) -> Answer:
        shown.append(f"{prompt.question.id} begins")
        try:
            await asyncio.sleep(3600 if prompt.question.id == "a" else 1)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        shown.append(f"{prompt.question.id} ends")
        return Answer(True)

    async with keephold.Runtime([asks], clock=clock, prompter=prompter) as rt, rt.turn("main") as turn:
        for name in "ab":
            await reply(turn, spawn("asks", name, q=name))
        await few()
        assert (await reply(turn, apply("asks", "a", False)))["result"] == "a=False"
        assert (await reply(turn, wait_all("b")))["completed"][0]["result"] == "b=True"
        assert shown == ["a begins", "a ends", "b begins", "b ends"]


async def test_Q5_a_prompt_is_withdrawn_before_the_prompter_has_seen_it(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks, work], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([spawn("asks", "a"), apply("asks", "a", True), spawn("asks", "b")]))
        await person.says(Answer(False))
        await batch
        assert person.at_once == 1
        assert (await reply(turn, wait_all("a", "b")))["completed"][0]["result"] == "q=True"


# What is said


@pytest.mark.parametrize(
    ("kind", "bad", "good", "problem"),
    [
        ("Boolean", ["yes", 1], True, "true or false"),
        ("Boolean", [None, []], True, "true or false"),
        ("Text", [True, 1], "words", "a string"),
        ("Text", [None, {"a": "b"}], "words", "a string"),
        ("red|green", ["blue", 1], "green", 'one of "red", "green"'),
        ("red|green", ["", None], "green", 'one of "red", "green"'),
    ],
)
async def test_Q5_an_answer_outside_the_type_is_asked_again_before_anything_else(
    clock: VirtualClock, kind: str, bad: list[Any], good: Any, problem: str
) -> None:
    person = Person(*(Answer(answer) for answer in bad), Answer(good), Answer(True))
    async with attended(clock, [asks], person=person) as (_, turn):
        first, second = await texts(turn, call("asks", q="a", kind=kind), call("asks", q="b"))
        assert (first, second) == (f"a={good}", "b=True")
        assert [question(prompt) for prompt in person.seen] == ["a"] * (len(bad) + 1) + ["b"]
        problems = [prompt.problem for prompt in person.seen if isinstance(prompt, AskQuestion)]
        assert problems == [None, *[f"the answer must be {problem}"] * len(bad), None]


async def test_Q7_a_prompter_that_is_asked_again_three_times_at_most(clock: VirtualClock) -> None:
    person = Person(*[Answer("maybe")] * 10)
    async with attended(clock, [asks], person=person) as (_, turn):
        (response,) = await turn.run([call("asks", q="a", kind="Boolean")])
        assert response.is_error and response.code == "input_cancelled"
        assert "4 answers were invalid; the answer must be true or false" in response.result
        assert len(person.seen) == 4


async def test_Q5_the_caller_may_answer_between_two_bad_answers_of_the_person(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        await person.says(Answer("maybe"))
        assert (await person.sees()).problem is not None
        assert (await reply(turn, apply("asks", "a", True)))["result"] == "q=True"
        await person.sees_nothing()
        assert len(person.withdrawn) == 1


@pytest.mark.parametrize("spawned", [False, True])
async def test_Q7_a_prompt_that_the_person_cancels_ends_the_handle(clock: VirtualClock, spawned: bool) -> None:
    noticed: list[str] = []

    @keephold.tool(actions=TALKING)
    async def watched(call: Call) -> str:
        try:
            return str(await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean")))
        except asyncio.CancelledError:
            noticed.append("cancelled")
            return "its own result"  # too late: the reason stands

    async with attended(clock, [watched], person=Person(Dismissed())) as (rt, turn):
        if spawned:
            await reply(turn, spawn("watched", "w"))
            waited = await reply(turn, wait_all("w"))
            assert waited["completed"][0]["is_error"]
            info = await rt.handle("w", conversation="main")
            assert isinstance(info.outcome, keephold.outcomes.Failure)
            result, code, ended_by = info.outcome.message, info.outcome.code, info.ended_by
            assert ended_by == "self"
        else:
            (response,) = await turn.run([call("watched")])
            assert response.is_error
            result, code = response.result, str(response.code)
    assert code == "input_cancelled" and "`sure`" in result and "cancelled the prompt" in result
    assert noticed == ["cancelled"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (RuntimeError("no terminal"), "RuntimeError: no terminal"),
        (Dismissed("the window is gone"), "the window is gone"),
        (True, "returned a bool"),
        (None, "returned a NoneType"),
        ("y", "returned a str"),
        ({"value": True}, "returned a dict"),
    ],
)
async def test_Q7_a_prompter_that_fails_ends_the_handle_and_says_why(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, said: Any, why: str
) -> None:
    person = Person(said, Answer(True))
    with caplog.at_level(logging.CRITICAL):
        async with attended(clock, [asks], person=person) as (_, turn):
            first, second = await turn.run([call("asks", q="a"), call("asks", q="b")])
            assert first.code == "input_cancelled" and why in first.result and "`a`" in first.result
            assert second.result == "b=True"  # the next prompt is shown all the same


@pytest.mark.parametrize("said", [Approved(), Denied("no"), Denied(), Edited({"value": True})])
async def test_Q7_a_decision_that_is_no_answer_is_not_called_what_it_was_not(clock: VirtualClock, said: Any) -> None:
    """A person who was asked a question and "denied" it has not cancelled it, nor has the prompt failed with `no`."""
    async with attended(clock, [asks], person=Person(said)) as (_, turn):
        (response,) = await turn.run([call("asks")])
        assert response.code == "input_cancelled" and "person cancelled" not in response.result
        assert type(said).__name__ in response.result


async def test_Q7_a_prompter_that_is_no_coroutine_function_is_a_failure_like_others(clock: VirtualClock) -> None:
    wrong: Any = lambda prompt: Answer(True)  # noqa: E731
    async with keephold.Runtime([asks], clock=clock, prompter=wrong) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([call("asks")])
        assert response.code == "input_cancelled" and "TypeError" in response.result


async def test_Q7_a_prompter_that_is_cancelled_from_elsewhere_counts_as_cancelled(clock: VirtualClock) -> None:
    async def prompter(prompt: Any) -> Answer:
        raise asyncio.CancelledError

    async with keephold.Runtime([asks], clock=clock, prompter=prompter) as rt, rt.turn("main") as turn:
        (response,) = await turn.run([call("asks")])
        assert response.code == "input_cancelled"


# Remembering (Q5)


@pytest.mark.parametrize("answer", [True, False])
async def test_Q5_what_is_remembered_is_given_until_the_turn_ends(clock: VirtualClock, answer: bool) -> None:
    person = Person(Answer(answer, remember=True))
    async with attended(clock, [asks, other], person=person) as (rt, turn):
        assert await texts(turn, call("asks")) == [f"q={answer}"]
        spawned = await reply(turn, spawn("asks", "a"))
        assert spawned["result"] == f"q={answer}"  # on every path
        assert await texts(turn, call("asks")) == [f"q={answer}"]
        assert len(person.seen) == 1
        person.ready.extend([Answer(not answer), Answer(not answer)])
        assert await texts(turn, call("other")) == [f"q={not answer}"]  # for each tool
        assert await texts(turn, call("asks", q="r")) == [f"r={not answer}"]  # and question
        await turn.end()
        async with rt.turn("main") as next_turn:
            person.ready.append(Answer(not answer))
            assert await texts(next_turn, call("asks")) == [f"q={not answer}"]
        assert len(person.seen) == 4


async def test_Q5_what_is_remembered_is_remembered_in_its_conversation(clock: VirtualClock) -> None:
    person = Person(Answer(True, remember=True), Answer(False))
    async with attended(clock, [asks], person=person) as (rt, turn), rt.turn("other") as second:
        assert await texts(turn, call("asks")) == ["q=True"]
        assert await texts(second, call("asks")) == ["q=False"]


async def test_Q5_a_remembered_answer_that_does_not_fit_another_question_of_that_id_is_asked(
    clock: VirtualClock,
) -> None:
    person = Person(Answer(True, remember=True), Answer("words"))
    async with attended(clock, [asks], person=person) as (_, turn):
        await turn.run([call("asks")])
        assert await texts(turn, call("asks", kind="Text")) == ["q=words"]


async def test_Q5_Q2_a_remembered_answer_is_given_to_those_who_wait_for_their_prompt(clock: VirtualClock) -> None:
    """Three ask the same and the person says: yes, from now on."""
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks"), call("asks"), call("asks")]))
        await person.says(Answer(True, remember=True))
        await clock.advance(1)
        assert len(person.seen) == 1 and batch.done()
        assert [response.result for response in await batch] == ["q=True"] * 3


async def test_Q5_only_a_boolean_is_remembered(clock: VirtualClock) -> None:
    """A prompter that remembers what it was told not to: `may_remember` was false."""
    person = Person(Answer("first", remember=True), Answer("second"))
    async with attended(clock, [asks], person=person) as (_, turn):
        assert await texts(turn, call("asks", kind="Text")) == ["q=first"]
        assert isinstance(person.seen[0], AskQuestion) and not person.seen[0].may_remember
        assert await texts(turn, call("asks", kind="Text")) == ["q=second"]


async def test_Q5_what_is_said_after_the_turn_is_not_remembered_for_the_next(clock: VirtualClock) -> None:
    """The question of a handle that is kept: its prompt is answered between two turns."""
    person = Person()
    kept = replace(asks, spawn=replace(asks.spawn, on_turn_end="keep"))
    async with attended(clock, [kept], person=person) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        await person.sees()
        await turn.end()
        await person.says(Answer(True, remember=True))
        await clock.advance(1)
        async with rt.turn("main") as next_turn:
            person.ready.append(Answer(False))
            assert await texts(next_turn, call("asks")) == ["q=False"]


# A secret: never remembered, never a model's


async def test_Q4_a_secret_is_asked_of_a_person_only_and_every_time(clock: VirtualClock) -> None:
    person, model = Person(Answer("hush", remember=True)), Model()
    policy = QuestionPolicy(target="assistant", answered=True, answer="fixed")
    tool = replace(asks, questions={"q": policy})
    async with attended(clock, [tool], person=person, model=model) as (_, turn):
        assert await texts(turn, call("asks", kind="Text", secret=True)) == ["q=hush"]
        await reply(turn, spawn("asks", "a", kind="Text", secret=True))
        (refused,) = await turn.run([apply("asks", "a", "hush")])
        assert refused.code == "question_exclusive"
        await person.says(Answer("hush2"))
        assert (await reply(turn, wait_all("a")))["completed"][0]["result"] == "q=hush2"
        assert model.seen == []
        assert all(isinstance(prompt, AskQuestion) and not prompt.may_remember for prompt in person.seen)


# How many (K6)


async def test_K6_64_open_questions_to_a_person(clock: VirtualClock) -> None:
    person = Person()
    async with attended(clock, [asks], person=person) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks", q=f"q{number}") for number in range(66)]))
        await person.sees()
        for _ in range(64):
            await person.says(Answer(True))
        responses = await batch
        assert [response.result for response in responses[:64]] == [f"q{number}=True" for number in range(64)]
        assert all(response.is_error and "[limits] open_questions" in response.result for response in responses[64:])
        person.ready.append(Answer(True))  # answered ones have made room
        assert await texts(turn, call("asks")) == ["q=True"]


async def test_any_number_of_parts_may_say_who_is_asked(clock: VirtualClock) -> None:
    """As a server that speaks two protocols does: the first that knows the handle decides."""

    @keephold.tool(actions=TALKING)
    async def curious(call: Call) -> str:
        return str(await call.ask(Question("q", "?")))

    runtimes, clients = Person(), {id: Person() for id in ("a", "b")}
    queues = {id: PromptQueue(client) for id, client in clients.items()}
    tool = replace(curious, questions={"q": QuestionPolicy(exclusive=True)})
    async with attended(clock, [tool], person=runtimes) as (rt, turn):
        rt.prompt_queue.finders.append(lambda handle: queues["a"] if handle.id == "a" else None)
        rt.prompt_queue.finders.append(lambda handle: queues["b"] if handle.id == "b" else None)
        await turn.run([spawn("curious", id) for id in ("a", "b", "c")])
        for id, person in (*clients.items(), ("c", runtimes)):
            prompt = await person.sees()
            assert prompt.id == id
            await person.says(Answer(f"for {id}"))
        waited = await turn.wait(all=["a", "b", "c"])
        assert [each["result"] for each in waited["completed"]] == ["for a", "for b", "for c"]
