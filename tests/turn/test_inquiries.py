"""The assistant asked beside the conversation: what it is asked, what is an answer, what is recorded (Q2, Q6, Q7)."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import STATEFUL, TALKING, abort, apply, call, reply, settings, spawn, texts, wait_all
from tests.turn.people import Model, Person, attended, exactly, few

import keephold
from keephold import Call, KeepholdError, Question, Runtime, Tool, ToolCall
from keephold.errors import CODES
from keephold.policies import QuestionPolicy
from keephold.store.base import InquiryRow
from keephold.store.memory import MemoryStore
from keephold.testing import VirtualClock
from keephold.turn.inquiry import Inquiry
from keephold.turn.prompts import Answer

CHOICES = {"Select": {"options": ["red", "green"]}}
SETTINGS = {"model": "small", "temperature": 0}


@keephold.tool(actions=TALKING, questions={"q": QuestionPolicy(target="assistant")})
async def asks(call: Call, kind: str = "Boolean", times: int = 1) -> str:
    answer_type: Any = CHOICES if kind == "Select" else kind
    asked = Question(id="q", text="Well?", answer_type=answer_type, pre_amble="Look:", default=None)
    return " ".join([str(await call.ask(asked)) for _ in range(times)])


def asked_by(tool: Tool, **policy: Any) -> Tool:
    return replace(tool, questions={"q": QuestionPolicy(target="assistant", **policy)})


async def recorded(rt: Runtime) -> list[InquiryRow]:
    await rt.registry.write(())
    return await rt.registry.store.inquiries("main")


# What it is asked


@pytest.mark.parametrize(
    ("kind", "schema", "answer"),
    [
        ("Boolean", {"type": "boolean"}, True),
        ("Text", {"type": "string"}, "words"),
        ("Select", {"type": "string", "enum": ["red", "green"]}, "green"),
    ],
)
async def test_Q2_Q6_an_inquiry_says_all_that_a_model_needs(
    clock: VirtualClock, kind: str, schema: dict[str, Any], answer: Any
) -> None:
    model = Model(answer)
    async with attended(clock, [asks], model=model) as (_, turn):
        (response,) = await turn.run([ToolCall("c1", "asks", {"kind": kind})])
        assert response.result == str(answer)
        (inquiry,) = model.seen
        assert inquiry == Inquiry(
            id="c1.q.1",
            purpose="question",
            conversation="main",
            turn=turn.id,
            text=inquiry.text,
            schema={
                "type": "object",
                "properties": {"answer": schema},
                "required": ["answer"],
                "additionalProperties": False,
            },
            tool="asks",
        )
        assert "Well?" in inquiry.text and "Look:" in inquiry.text and "`asks`" in inquiry.text


async def test_Q2_the_settings_of_the_question_go_over_those_of_all_inquiries(
    clock: VirtualClock, tmp_path: Path
) -> None:
    config = settings(tmp_path, '[conversation.inquiry]\nassistant = { model = "small", temperature = 0 }\n')
    model = Model(True, True)
    tools = [asked_by(asks, assistant={"model": "large", "top_p": 1}), replace(asks, name="plain")]
    async with attended(clock, tools, model=model, config=config) as (_, turn):
        await turn.run([call("asks"), call("plain")])
        assert [dict(inquiry.assistant) for inquiry in model.seen] == [
            {"model": "large", "temperature": 0, "top_p": 1},
            SETTINGS,
        ]


async def test_Q2_a_table_of_settings_is_a_target(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        """
        [conversation.tools.tell]
        source = "local"
        run = "unattended"
        command = [
            "sh", "-c",
            'case "$KEEPHOLD_CALL" in *\\"answers\\":{}*) echo "$1"; exit; esac; echo "$KEEPHOLD_CALL"',
            "sh", '{"type":"waiting","question":{"id":"q","text":"Well?","answer_type":"Text"}}',
        ]
        [conversation.tools.tell.questions.q]
        target = { model = "other" }
        """,
    )
    model = Model("words")
    async with attended(None, [], model=model, config=config) as (_, turn):
        (response,) = await turn.run([call("tell")])
        assert '"answers":{"q":"words"}' in response.result
        assert dict(model.seen[0].assistant) == {"model": "other"}


# What counts as an answer (Q7)


WRONG: list[Any] = [
    exactly({"answer": "yes"}),
    exactly({"answer": None}),
    exactly({"answer": 1}),
    exactly({}),
    exactly({"answer": True, "why": "because"}),
    exactly(True),
    exactly(None),
    exactly([{"answer": True}]),
    exactly("true"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=[str(each.what) for each in WRONG])
async def test_Q7_an_answer_outside_the_type_is_asked_once_more(clock: VirtualClock, wrong: exactly) -> None:
    model = Model(wrong, True)
    async with attended(clock, [asks], model=model) as (rt, turn):
        (response,) = await turn.run([ToolCall("c1", "asks")])
        assert response.result == "True"
        assert [inquiry.id for inquiry in model.seen] == ["c1.q.1", "c1.q.2"]
        assert "true or false" in model.seen[1].text and "Well?" in model.seen[1].text
        assert "true or false" not in model.seen[0].text
        rows = await recorded(rt)
        assert [(row.id, row.answer, row.error) for row in rows] == [
            ("c1.q.1", wrong.what, None),
            ("c1.q.2", {"answer": True}, None),
        ]


def failure(response: keephold.Response) -> str:
    """What a call whose inquiry failed is answered with; it names the question (Q7)."""
    assert response.is_error and response.code == "inquiry_failed" and response.code in CODES
    assert "`q`" in response.result and "Well?" in response.result
    return response.result


async def test_Q7_after_two_such_answers_the_handle_ends(clock: VirtualClock) -> None:
    model = Model("yes", "no", True)
    async with attended(clock, [asks], model=model) as (_, turn):
        (response,) = await turn.run([call("asks")])
        assert "true or false" in failure(response)
        assert len(model.seen) == 2


async def test_Q7_a_failure_is_not_asked_again_and_says_why(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(RuntimeError("no credit"), True)
    with caplog.at_level(logging.CRITICAL):
        async with attended(clock, [asks], model=model) as (rt, turn):
            (response,) = await turn.run([ToolCall("c1", "asks")])
            assert "RuntimeError: no credit" in failure(response)
            (row,) = await recorded(rt)
            assert (row.id, row.answer, row.error) == ("c1.q.1", None, "RuntimeError: no credit")
            assert len(model.seen) == 1


async def test_Q7_an_answer_that_is_not_json_is_a_failure(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        async with attended(clock, [asks], model=Model(exactly({"answer": object()}))) as (_, turn):
            failure((await turn.run([call("asks")]))[0])


async def test_Q7_an_inquiry_times_out_after_two_minutes(clock: VirtualClock) -> None:
    model = Model()
    async with attended(clock, [asks], model=model) as (rt, turn):
        begun = clock.now()
        (response,) = await turn.run([call("asks")])
        assert "120 s" in failure(response) and clock.now() - begun == pytest.approx(120)
        assert len(model.withdrawn) == 1 and not model.open
        (row,) = await recorded(rt)
        assert row.answer is None and row.error is not None and "120 s" in row.error


async def test_Q7_how_long_an_inquiry_may_take_is_a_setting(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(tmp_path, "[conversation.inquiry]\ntimeout_secs = 7\n")
    async with attended(clock, [asks], model=Model(), config=config) as (_, turn):
        begun = clock.now()
        failure((await turn.run([call("asks")]))[0])
        assert clock.now() - begun == pytest.approx(7)


async def test_Q7_an_inquiry_that_is_cancelled_from_elsewhere_has_failed(clock: VirtualClock) -> None:
    """A client whose own task was cancelled: nobody of us cancelled it, and the call must not wait for ever."""

    async def inquiry(_: Inquiry) -> Any:
        raise asyncio.CancelledError

    async with Runtime([asks], clock=clock, inquiry=inquiry) as rt, rt.turn("main") as turn:
        batch = asyncio.create_task(turn.run([call("asks")]))
        await clock.advance(600)
        if not batch.done():
            turn.cancel()
        (response,) = await batch
        failure(response)


async def test_Q7_a_store_that_cannot_be_read_fails_the_inquiry_and_not_the_loop(clock: VirtualClock) -> None:
    class Unreadable(MemoryStore):
        async def inquiries(
            self, conversation: str, turn: str | None = None, limit: int = 1000, *, newest: bool = False
        ) -> list[InquiryRow]:
            raise KeepholdError("the disk is gone", code="store_unavailable")

    async with attended(clock, [asks], model=Model(True), store=Unreadable()) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks")]))
        await clock.advance(600)
        if not batch.done():
            turn.cancel()
        (response,) = await batch
        assert response.result == "True" or "the disk is gone" in failure(response)


async def test_Q7_the_failure_ends_a_spawned_handle_and_its_function(clock: VirtualClock) -> None:
    noticed: list[str] = []

    @keephold.tool(actions=STATEFUL, questions={"q": QuestionPolicy(target="assistant")})
    async def stubborn(call: Call) -> str:
        try:
            return str(await call.ask(Question(id="q", text="Well?", answer_type="Boolean")))
        except BaseException as error:
            noticed.append(type(error).__name__)
            return "its own result"

    async with attended(clock, [stubborn], model=Model("x", "y")) as (rt, turn):
        await reply(turn, spawn("stubborn", "s"))
        waited = await reply(turn, wait_all("s"))
        assert waited["completed"][0]["is_error"]
        info = await rt.handle("s", conversation="main")
        assert isinstance(info.outcome, keephold.outcomes.Failure)
        assert (info.outcome.code, info.ended_by) == ("inquiry_failed", "self")
        assert noticed == ["CancelledError"]


# Nobody needs the answer any more


@pytest.mark.parametrize("end", ["abort", "cancel", "turn end", "close", "apply"])
async def test_Q3_an_inquiry_is_cancelled_when_nobody_needs_its_answer(clock: VirtualClock, end: str) -> None:
    model = Model()
    async with attended(clock, [asks], model=model) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        await reply(turn, wait_all("a", timeout_secs=1))
        inquiry = await model.sees()
        if end == "abort":
            await reply(turn, abort("asks", "a"))
        elif end == "cancel":
            turn.cancel()
            await turn.end()
        elif end == "turn end":
            model.ready.append(exactly({"handles": []}))  # T2 asks it, too
            await turn.end()
        elif end == "close":
            await rt.close()
        else:
            await reply(turn, apply("asks", "a", True))
        await few()
        assert model.withdrawn == [inquiry]


async def test_Q3_a_second_await_asks_no_second_time(clock: VirtualClock) -> None:
    model = Model()
    async with attended(clock, [asks], model=model) as (_, turn):
        await reply(turn, spawn("asks", "a"))
        for _ in range(3):
            await reply(turn, wait_all("a", timeout_secs=1))
        await model.says(True)
        await reply(turn, wait_all("a"))
        assert len(model.seen) == 1


async def test_Q3_a_late_answer_is_not_given_to_the_next_question(clock: VirtualClock) -> None:
    """An inquiry function that swallows its cancellation and answers all the same: its question is closed."""

    async def inquiry(_: Inquiry) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return {"answer": True}

    async with Runtime([asks], clock=clock, inquiry=inquiry) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("asks", "a", times=2))
        await reply(turn, wait_all("a", timeout_secs=1))
        assert (await reply(turn, apply("asks", "a", False)))["state"] == "waiting"  # the second question
        await clock.advance(10)
        assert (await rt.handle("a", conversation="main")).state == "waiting"
        assert (await reply(turn, apply("asks", "a", False)))["result"] == "False False"


async def test_R6_closing_waits_for_an_inquiry_that_tidies_up(clock: VirtualClock) -> None:
    tidied: list[str] = []

    async def inquiry(_: Inquiry) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            tidied.append("closed the connection")

    try:
        async with Runtime([asks], clock=clock, inquiry=inquiry) as rt, rt.turn("main") as turn:
            batch = asyncio.create_task(turn.run([call("asks")]))
            await clock.advance(1)
            await rt.close()
        assert tidied
    finally:
        await clock.advance(5)
        await asyncio.wait([batch])
        batch.exception()


async def test_R6_closing_waits_also_for_one_that_tidies_up_after_its_timeout(clock: VirtualClock) -> None:
    tidied: list[str] = []

    async def inquiry(_: Inquiry) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.5)
            tidied.append("closed the connection")

    try:
        async with Runtime([asks], clock=clock, inquiry=inquiry) as rt, rt.turn("main") as turn:
            failure((await turn.run([call("asks")]))[0])
        assert tidied
    finally:
        await clock.advance(5)


# What is recorded (Q6)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_Q6_request_and_answer_are_recorded(tmp_path: Path, store: str) -> None:
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/work.db"
    model = Model("maybe", True)
    async with attended(None, [asked_by(asks, assistant=SETTINGS)], model=model, store=url) as (rt, turn):
        (response,) = await turn.run([ToolCall("c1", "asks")])
        assert response.result == "True"
        rows = await recorded(rt)
        assert [row.id for row in rows] == ["c1.q.1", "c1.q.2"]
        assert [row.answer for row in rows] == [{"answer": "maybe"}, {"answer": True}]
        handle = await rt.registry.find_call("c1", "main")
        for row, inquiry in zip(rows, model.seen, strict=True):
            assert (row.conversation, row.turn, row.uid, row.error) == ("main", turn.id, handle.uid, None)
            assert row.request["text"] == inquiry.text and row.request["schema"] == inquiry.schema
            assert row.request["assistant"] == SETTINGS


async def test_Q6_an_inquiry_is_no_part_of_the_conversation(clock: VirtualClock) -> None:
    """What the provider is sent are the responses: neither the request nor the answer is in one."""
    model = Model("green")
    async with attended(clock, [asks], model=model) as (_, turn):
        await reply(turn, spawn("asks", "a", kind="Select"))
        (waited,) = await turn.run([wait_all("a")])
        assert waited.result.count("green") == 1  # the tool's result, which says it itself
        assert "Well?" not in waited.result and waited.notifications == ()


async def test_Q6_a_question_that_is_asked_again_has_inquiries_of_its_own(clock: VirtualClock) -> None:
    """One call may ask the same thing in a loop: ids that name two inquiries name none."""
    model = Model(True, "wrong", False)
    async with attended(clock, [asks], model=model) as (rt, turn):
        (response,) = await turn.run([ToolCall("c1", "asks", {"times": 2})])
        assert response.result == "True False"
        assert [row.id for row in await recorded(rt)] == ["c1.q.1", "c1.q.2", "c1.q.3"]


async def test_Q6_a_label_that_comes_again_in_the_turn_has_inquiries_of_its_own(clock: VirtualClock) -> None:
    """B1: a label is unique only in its batch."""
    model = Model(True, False)
    async with attended(clock, [asks], model=model) as (rt, turn):
        for _ in range(2):
            await turn.run([ToolCall("c1", "asks")])
        assert len({row.id for row in await recorded(rt)}) == 2


async def test_Q6_an_inquiry_that_was_cancelled_is_recorded_too(clock: VirtualClock) -> None:
    """It was sent, and paid for."""
    model = Model()
    async with attended(clock, [asks], model=model) as (rt, turn):
        await reply(turn, spawn("asks", "a"))
        await reply(turn, wait_all("a", timeout_secs=1))
        await model.sees()
        await reply(turn, apply("asks", "a", True))
        await few()
        (row,) = await recorded(rt)
        assert row.answer is None and row.error is not None and "cancelled" in row.error


# Beside everything else


async def test_Q5_inquiries_do_not_wait_for_each_other_nor_for_prompts(clock: VirtualClock) -> None:
    person, model = Person(), Model()
    for_user = replace(asks, name="for_user", questions={})
    async with attended(clock, [asks, for_user], person=person, model=model) as (_, turn):
        batch = asyncio.create_task(texts(turn, call("for_user"), call("asks"), call("asks")))
        await person.sees()
        await few()
        assert len(model.open) == 2
        await model.says(True)
        await model.says(False)
        await person.says(Answer(True))
        assert sorted(await batch) == ["False", "True", "True"]


async def test_K6_open_questions_to_a_model_count_too(clock: VirtualClock, tmp_path: Path) -> None:
    config = settings(tmp_path, "[limits]\nopen_questions = 2\n")
    model = Model()
    async with attended(clock, [asks], model=model, config=config) as (_, turn):
        batch = asyncio.create_task(turn.run([call("asks"), call("asks"), call("asks")]))
        await model.says(True)
        await model.says(True)
        first, second, third = await batch
        assert (first.result, second.result) == ("True", "True")
        assert third.is_error and "[limits] open_questions" in third.result


async def test_P4_the_time_of_an_inquiry_is_the_tools_time(clock: VirtualClock) -> None:
    """Only a person's time does not count."""
    async with attended(clock, [replace(asks, timeout_secs=30)], model=Model()) as (_, turn):
        begun = clock.now()
        (response,) = await turn.run([call("asks")])
        assert response.code == "timeout" and clock.now() - begun == pytest.approx(30)
