"""`ask_user`: the assistant asks the person who is there (Q8)."""

from typing import Any

import pytest
from tests.turn.calls import call, texts
from tests.turn.people import Model, Person, attended

import keephold
from keephold.testing import VirtualClock
from keephold.turn.prompts import Answer, AskQuestion


@keephold.tool
async def idle() -> str:
    return "idle"


SELECT = {"Select": {"options": ["a", "b"]}}


@pytest.mark.parametrize(
    ("arguments", "answer_type", "default", "said", "result"),
    [
        ({}, "Text", None, "Ann", "Ann"),
        ({"answer_type": "text", "default": "Bob"}, "Text", "Bob", "Ann", "Ann"),
        ({"answer_type": "boolean", "default": True}, "Boolean", True, False, "false"),
        ({"answer_type": "select", "options": ["a", "b"], "default": "b"}, SELECT, "b", "a", "a"),
        ({"options": ["a", "b"]}, SELECT, None, "b", "b"),
    ],
)
async def test_Q8_ask_user_asks_the_person(
    clock: VirtualClock, arguments: dict[str, Any], answer_type: Any, default: Any, said: Any, result: str
) -> None:
    person = Person(Answer(said))
    async with attended(clock, [idle], person=person, model=Model()) as (rt, turn):
        assert "ask_user" in [tool["name"] for tool in rt.tools()]
        (response,) = await turn.run([call("ask_user", question="Who?", context="Because.", **arguments)])
        assert response.result == result
        (prompt,) = person.seen
        assert isinstance(prompt, AskQuestion) and not prompt.may_remember
        asked = prompt.question
        assert (asked.text, asked.pre_amble, asked.answer_type, asked.default) == (
            "Who?",
            "Because.",
            answer_type,
            default,
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"answer_type": "select"}, "`options`"),
        ({"answer_type": "boolean", "options": ["a"]}, "`options`"),
        ({"answer_type": "boolean", "default": "yes"}, "`default`"),
        ({"options": ["a"], "default": "b"}, "`default`"),
        ({"default": True}, "`default`"),
        ({"options": []}, "options"),
        ({"question": ""}, "question"),
        ({"answer_type": "number"}, "answer_type"),
    ],
)
async def test_Q8_a_wrong_question_is_refused_and_nobody_is_asked(
    clock: VirtualClock, arguments: dict[str, Any], named: str
) -> None:
    person = Person()
    async with attended(clock, [idle], person=person) as (_, turn):
        (response,) = await turn.run([call("ask_user", **{"question": "Who?", **arguments})])
        assert response.code == "invalid_arguments" and named in response.result
        assert person.seen == []


async def test_Q8_without_a_person_there_is_no_ask_user(clock: VirtualClock) -> None:
    async with attended(clock, [idle], model=Model()) as (rt, turn):
        assert "ask_user" not in [tool["name"] for tool in rt.tools()]
        assert (await turn.run([call("ask_user", question="Who?")]))[0].code == "unknown_tool"


async def test_Q8_every_question_of_ask_user_is_another_one(clock: VirtualClock) -> None:
    person = Person(Answer(True), Answer(False))
    async with attended(clock, [idle], person=person) as (_, turn):
        ask = {"answer_type": "boolean"}
        assert await texts(turn, call("ask_user", question="Red?", **ask)) == ["true"]
        assert await texts(turn, call("ask_user", question="Green?", **ask)) == ["false"]


async def test_Q8_nothing_is_remembered_of_ask_user_whatever_the_prompter_says(clock: VirtualClock) -> None:
    person = Person(Answer(True, remember=True), Answer(False))
    async with attended(clock, [idle], person=person) as (_, turn):
        ask = {"answer_type": "boolean"}
        assert await texts(turn, call("ask_user", question="Delete a?", **ask)) == ["true"]
        assert await texts(turn, call("ask_user", question="Delete b?", **ask)) == ["false"]
