"""Who answers a tool's question while nobody but the caller is there (Q1–Q4)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from tests.turn.calls import STATEFUL, TALKING, apply, call, opened, replies, reply, settings, spawn, texts, wait_all

import keephold
from keephold import Call, Question, Tool, ToolError
from keephold.testing import VirtualClock
from keephold.tools.base import QuestionPolicy

SURE = Question(id="sure", text="Are you sure?", answer_type="Boolean", default=True)


@keephold.tool(actions=TALKING)
async def asks(call: Call) -> str:
    try:
        return f"answer {await call.ask(SURE)}"
    except ToolError as error:
        return f"{error.code}: {error.message}"


def with_policy(tool: Tool, **policy: Any) -> Tool:
    return replace(tool, questions={"sure": QuestionPolicy(**policy)})


def test_Q1_a_question_is_checked_when_it_is_made() -> None:
    selects: list[Any] = [{}, {"options": []}, {"options": [1]}, {"options": "ab"}, ["a"]]
    wrong: list[Any] = [
        "Yes",
        int,
        Literal[1, 2],
        {},
        {"select": {"options": ["a"]}},
        *({"Select": select} for select in selects),
    ]
    for answer_type in wrong:
        with pytest.raises(ValueError, match="answer_type"):
            Question(id="q", text="?", answer_type=answer_type)
    with pytest.raises(ValueError, match="id"):
        Question(id="", text="?", answer_type="Text")


@pytest.mark.parametrize(
    ("given", "recorded"),
    [(bool, "Boolean"), (str, "Text"), (Literal["a", "b"], {"Select": {"options": ["a", "b"]}})],
)
def test_Q1_a_question_takes_python_types_and_keeps_the_recorded_form(given: Any, recorded: Any) -> None:
    question = Question("q", "Which?", given)
    assert question == Question(id="q", text="Which?", answer_type=recorded)
    assert question.answer_type == recorded
    assert msgspec.json.decode(msgspec.json.encode(question), type=Question) == question


def test_Q1_a_question_needs_no_names_for_its_id_and_text() -> None:
    assert Question("q", "Which?") == Question(id="q", text="Which?", answer_type="Text")


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        (Question(id="q", text="?", answer_type="Text"), {"answer_type": "Text"}),
        (
            Question(id="q", text="?", answer_type="Boolean", default=False),
            {"answer_type": "Boolean", "default": False},
        ),
        (
            Question(id="q", text="?", answer_type={"Select": {"options": ["a", "b"]}}, pre_amble="Look:"),
            {"answer_type": {"Select": {"options": ["a", "b"]}}, "pre_amble": "Look:"},
        ),
        (Question(id="q", text="caf\udce9?", answer_type="Text"), {"text": "caf�?", "answer_type": "Text"}),
    ],
)
async def test_Q1_a_question_is_shown_with_its_answer_type_and_without_what_it_has_not(
    clock: VirtualClock, question: Question, shown: dict[str, Any]
) -> None:
    @keephold.tool(actions=TALKING)
    async def asks_that(call: Call) -> str:
        return str(await call.ask(question))

    async with opened(clock, [asks_that]) as (_, turn):
        answer, waited = await replies(turn, spawn("asks_that", "a"), wait_all("a"))
        assert answer["question"] == {"id": "q", "text": "?"} | shown
        assert waited["pending"][0]["question"] == answer["question"]


@pytest.mark.parametrize("fixed", [True, False])
async def test_Q2_Q3_a_fixed_answer_is_given_on_every_path(clock: VirtualClock, fixed: bool) -> None:
    async with opened(clock, [with_policy(asks, answered=True, answer=fixed)]) as (_, turn):
        one_shot, _, waited = await texts(turn, call("asks"), spawn("asks", "a"), wait_all("a"))
        assert one_shot == f"answer {fixed}" and f"answer {fixed}" in waited


async def test_Q2_a_fixed_answer_answers_an_exclusive_question(clock: VirtualClock) -> None:
    async with opened(clock, [with_policy(asks, answered=True, answer=True, exclusive=True)]) as (_, turn):
        assert await texts(turn, call("asks")) == ["answer True"]


async def test_Q2_a_fixed_answer_that_does_not_fit_is_told_to_the_tool(clock: VirtualClock) -> None:
    async with opened(clock, [with_policy(asks, answered=True, answer="maybe")]) as (_, turn):
        (result,) = await texts(turn, call("asks"))
        assert result.startswith("bad_answer") and "'maybe'" in result and "true or false" in result


async def test_Q2_detached_deny_is_the_default_and_gives_the_tool_a_clear_error(clock: VirtualClock) -> None:
    async with opened(clock, [asks]) as (_, turn):
        (result,) = await texts(turn, call("asks"))
        assert result.startswith("question_unanswered")
        assert "Are you sure?" in result and "[conversation.tools.asks.questions.sure]" in result


async def test_Q2_an_error_the_tool_does_not_catch_ends_the_call(clock: VirtualClock) -> None:
    @keephold.tool
    async def trusts(call: Call) -> str:
        return str(await call.ask(SURE))

    async with opened(clock, [trusts]) as (_, turn):
        (response,) = await turn.run([call("trusts")])
        assert response.is_error and "Are you sure?" in response.result


async def test_Q2_detached_defaults_answers_with_the_default(clock: VirtualClock, tmp_path: Path) -> None:
    @keephold.tool
    async def no_default(call: Call) -> str:
        return str(await call.ask(Question(id="q", text="?", answer_type="Text")))

    @keephold.tool
    async def wrong_default(call: Call) -> str:
        return str(await call.ask(Question(id="q", text="?", answer_type="Boolean", default="yes")))

    config = settings(tmp_path, '[conversation]\ndetached = "defaults"\n')
    async with opened(clock, [asks, no_default, wrong_default], config=config) as (_, turn):
        answered, without, wrong = await turn.run([call("asks"), call("no_default"), call("wrong_default")])
        assert answered.result == "answer True"
        assert without.is_error and "nobody" in without.result
        assert wrong.is_error and "default" in wrong.result


async def test_Q3_a_spawned_handles_question_is_open_to_the_caller(clock: VirtualClock, tmp_path: Path) -> None:
    # `detached` applies only if nobody may answer; the caller may.
    config = settings(tmp_path, '[conversation]\ndetached = "defaults"\n')
    async with opened(clock, [asks], config=config) as (_, turn):
        assert (await reply(turn, spawn("asks", "a")))["state"] == "waiting"
        await clock.advance(3600)
        assert (await reply(turn, apply("asks", "a", False)))["result"] == "answer False"


async def test_Q3_without_apply_nobody_may_answer_and_detached_decides(clock: VirtualClock) -> None:
    async with opened(clock, [replace(asks, actions=STATEFUL)]) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a"))
        assert waited["completed"][0]["result"].startswith("question_unanswered")


async def test_Q3_a_question_answered_at_once_passes_through_waiting_without_being_seen(clock: VirtualClock) -> None:
    async with opened(clock, [with_policy(asks, answered=True, answer=True)]) as (_, turn):
        assert (await reply(turn, spawn("asks", "a"))) == {"id": "a", "state": "stopped", "result": "answer True"}


async def test_Q4_an_exclusive_question_is_never_the_callers(clock: VirtualClock, tmp_path: Path) -> None:
    async with opened(clock, [with_policy(asks, exclusive=True)]) as (_, turn):
        _, waited = await replies(turn, spawn("asks", "a"), wait_all("a"))
        result = waited["completed"][0]["result"]
        assert result.startswith("question_unanswered") and "person" in result
        assert "`apply`" not in result  # which would not help
        (late,) = await turn.run([apply("asks", "a", True)])
        assert late.is_error


async def test_Q5_one_question_of_a_handle_is_open_at_a_time(clock: VirtualClock) -> None:
    @keephold.tool(actions=TALKING)
    async def several(call: Call) -> str:
        async def one(name: str) -> str:
            return f"{name}={await call.ask(Question(id=name, text=name, answer_type='Text'))}"

        return " ".join(await asyncio.gather(one("a"), one("b")))

    async with opened(clock, [several]) as (_, turn):
        first, second, stopped = await replies(
            turn, spawn("several", "s"), apply("several", "s", "1"), apply("several", "s", "2")
        )
        assert [first["question"]["id"], second["question"]["id"]] == ["a", "b"]
        assert stopped["result"] == "a=1 b=2"
