"""Inquiries by a model (Q2, Q6, Q7, T2): asked beside the conversation, of which they never become a part."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelRateLimitError, ModelServerError
from pydantic_ai.messages import ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.profiles import ModelProfile
from tests.agent.scripted import Reply, Script, at_end, called, put, spawned
from tests.agent.talk import talking, written

import keephold
from keephold import Call, Question
from keephold.policies import QuestionPolicy
from keephold.testing import VirtualClock

STATEFUL: Any = ("spawn", "fetch", "abort")
TO_ASSISTANT = QuestionPolicy(target="assistant")


@keephold.tool(questions={"sure": TO_ASSISTANT, "which": TO_ASSISTANT})
async def asks(call: Call, which: bool = False) -> str:
    """Asks the assistant."""
    if which:
        kind: Any = {"Select": {"options": ["red", "blue"]}}
        return f"which: {await call.ask(Question(id='which', text='Which?', answer_type=kind))}"
    return f"sure: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


@keephold.tool(questions={"sure": QuestionPolicy(target="assistant", assistant={"temperature": 0.1})})
async def asks_coldly(call: Call) -> str:
    """Asks the assistant, with settings of its own."""
    return f"sure: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"


@keephold.tool(actions=STATEFUL)
async def work(call: Call, secs: float = 60) -> str:
    """Takes its time."""
    await asyncio.sleep(secs)
    return "worked"


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


TOOLS = (asks, asks_coldly, work, note)


async def test_Q2_the_model_answers_by_the_form(clock: VirtualClock) -> None:
    script = Script(
        [called("c1", "asks"), called("c2", "asks", which=True)], "Done.", answers=[{"answer": True}, {"answer": "red"}]
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
        assert await talk.kinds() == ["request", "response", "request", "response"]
        rows = await talk.rt.registry.store.inquiries("main")
    assert sorted(script.results()) == ["sure: True", "which: red"]
    by, first = script.asked_by[0], script.asked[0]
    (tool,) = by.output_tools
    assert by.function_tools == [] and not by.allow_text_output
    assert tool.parameters_json_schema["properties"] == {"answer": {"type": "boolean"}}
    question = first[-1].parts[-1]
    assert isinstance(question, UserPromptPart) and "Sure?" in str(question.content)
    assert [row.id for row in rows] == ["c1.sure.1", "c2.which.1"]
    assert all("Sure?" not in str(message) for message in script.read[-1])


async def test_Q6_in_a_batch_the_history_has_no_open_calls(clock: VirtualClock) -> None:
    """Providers refuse calls without results. `Script.invalid` checks it for every inquiry."""
    script = Script(
        Reply("Let me see.", [called("c1", "asks"), called("c2", "note", text="a")]),
        [called("c3", "asks")],
        "Done.",
        answers=[{"answer": True}] * 2,
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt("Ask.")
    first, second = script.asked
    for asked in (first, second):
        assert "You have called these tools" in str(asked[-1]) and "asks" in str(asked[-1])
    assert "Ask." in str(first[0])
    assert isinstance(first[1], ModelResponse) and first[1].tool_calls == []
    assert isinstance(second[1], ModelResponse) and [call.tool_name for call in second[1].tool_calls] == [
        "asks",
        "note",
    ]


async def test_T2_at_the_end_of_a_turn(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "work", "w")], "Soon.", "Now.", answers=at_end("wait"))
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    ((*history, question),) = script.asked
    assert isinstance(history[-1], ModelResponse) and "Soon." in str(history[-1])
    text = str(question.parts[-1].content)  # type: ignore[union-attr]
    (listed,) = json.loads(text[text.index('{"handles"') :])["handles"]
    assert (listed["id"], listed["tool"], listed["state"]) == ("w", "work", "running")
    assert "whether to wait" not in str(script.read[-1])


async def test_Q7_an_answer_outside_the_type_is_asked_for_again(clock: VirtualClock) -> None:
    script = Script([called("c1", "asks")], "Done.", answers=[{"answer": "perhaps"}, {"answer": False}])
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    assert script.results() == ["sure: False"]
    assert "Your last answer was not" in str(script.asked[1][-1])


@pytest.mark.parametrize(
    "answer",
    [{"answer": 1}, "What?", ModelServerError("scripted", "down"), ""],
    ids=["wrong", "words", "down", "empty"],
)
async def test_Q7_no_answer_ends_the_call(clock: VirtualClock, answer: Any, caplog: Any) -> None:
    script = Script([called("c1", "asks"), called("c2", "note", text="a")], "Done.", answers=lambda _: answer)
    with caplog.at_level("CRITICAL", "keephold.turn"):
        async with talking(script, *TOOLS, clock=clock) as talk:
            assert (await talk.prompt()).text == "Done."
    failed, noted = script.results()
    assert "`sure`" in failed and "model" in failed
    assert noted == "noted a"


@pytest.mark.parametrize("way", ["question", "end"])
async def test_Q7_an_inquiry_is_made_again_like_any_request(clock: VirtualClock, way: str) -> None:
    """One provider that is busy for a moment ends no handle."""
    failures = [ModelRateLimitError("scripted", "busy", retry_after=7.0), ModelServerError("scripted", "down")]

    def answer(text: str) -> Any:
        if failures:
            return failures.pop(0)
        return {"answer": True} if way == "question" else at_end("wait")(text)

    first = called("c1", "asks") if way == "question" else spawned("c1", "work", "w")
    script = Script([first], "Soon.", "Now.", answers=answer)
    began = clock.now()
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    assert failures == [] and len(script.asked) == 3
    assert clock.now() >= began + 7
    assert script.results() == ["sure: True"] if way == "question" else "worked" in script.told()[0]


async def test_Q2_the_model_is_asked_as_it_was_instructed(clock: VirtualClock) -> None:
    script = Script([called("c1", "asks")], "Done.", answers=[{"answer": True}])
    async with keephold.Runtime(TOOLS, clock=clock) as rt:
        await rt.conversation("main", model=script.model, instructions="Say no to everything.").prompt("Go.")
    parts = script.asked_by[0].model_request_parameters.instruction_parts or []
    assert "Say no to everything." in "".join(part.content for part in parts)


@pytest.mark.parametrize("text", ['{"answer": true}', '```json\n{"answer": true}\n```', '```\n{"answer": true}```'])
async def test_Q2_models_that_answer_in_words(clock: VirtualClock, text: str) -> None:
    script = Script([called("c1", "asks")], "Done.", answers=[text])
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    assert script.results() == ["sure: True"]


async def test_Q2_native_output_where_the_model_has_it(clock: VirtualClock) -> None:
    profile = ModelProfile(supports_json_schema_output=True, default_structured_output_mode="native")
    script = Script([called("c1", "asks")], "Done.", answers=[{"answer": True}], profile=profile)
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    assert script.results() == ["sure: True"]
    parameters = script.asked_by[0].model_request_parameters
    assert parameters.output_mode == "native" and parameters.output_tools == []
    assert parameters.output_object is not None
    assert parameters.output_object.json_schema["required"] == ["answer"]


async def test_Q2_a_cheaper_model_for_all_inquiries(clock: VirtualClock, tmp_path: Path) -> None:
    cheap = Script(answers=lambda text: at_end("wait")(text) if "handles" in text else {"answer": True})
    names = put(cheap=cheap)
    file = written(tmp_path, f'[conversation.inquiry]\nassistant = {{ model = "{names["cheap"]}", max_tokens = 99 }}')
    script = Script([called("c1", "asks"), spawned("c2", "work", "w")], "Soon.", "Now.")
    async with talking(script, *TOOLS, clock=clock, config=file) as talk:
        answer = await talk.prompt("Ask.")
    assert script.results(1)[0] == "sure: True"
    assert script.asked == []
    assert len(cheap.asked) == 2 and cheap.invalid == []
    assert "Ask." in str(cheap.asked[0])  # it knows the conversation
    settings = cheap.asked_by[0].model_settings
    assert settings is not None and settings.get("max_tokens") == 99
    assert answer.usage.requests == 5


async def test_Q2_settings_of_one_question(clock: VirtualClock, tmp_path: Path) -> None:
    main = Script([called("c1", "asks_coldly"), called("c2", "asks")], "Done.", answers=[{"answer": True}] * 2)
    names = put(main=main)
    file = written(tmp_path, f'[conversation.assistant]\nmodel = "{names["main"]}"\ntemperature = 0.9')
    async with keephold.Runtime(TOOLS, clock=clock, config=file) as rt:
        await rt.conversation("main").prompt("Go.")
    warmth = [by.model_settings.get("temperature") for by in main.asked_by if by.model_settings is not None]
    assert sorted(map(str, warmth)) == ["0.1", "0.9"]


async def test_Q2_an_inquiry_without_a_conversation(clock: VirtualClock, tmp_path: Path) -> None:
    """`keephold turn`, MCP: a model is configured, and nobody talks with it."""
    main = Script(answers=[{"answer": True}])
    names = put(main=main)
    file = written(tmp_path, f'[conversation.assistant]\nmodel = "{names["main"]}"')
    async with keephold.Runtime(TOOLS, clock=clock, config=file) as rt, rt.turn("other") as turn:
        (response,) = await turn.run([keephold.ToolCall("c1", "asks", {})])
    assert response.result == "sure: True"
    assert len(main.asked[0]) == 1 and main.invalid == []


async def test_Q6_an_answer_is_no_call_of_the_conversation(clock: VirtualClock) -> None:
    script = Script([called("c1", "asks")], "Done.", answers=[{"answer": True}])
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    made = [part for message in script.read[-1] for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.tool_name for part in made] == ["asks"]


async def test_T5_a_cancelled_turn_needs_no_answer(clock: VirtualClock) -> None:
    asked = asyncio.Event()
    script = Script([called("c1", "asks")], "Yes?")

    async def slowly(*_: Any) -> ModelResponse:
        asked.set()
        await asyncio.sleep(10_000)
        raise AssertionError("nobody waits for that")

    script.model.function = slowly
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = asyncio.create_task(talk.prompt())
        await asked.wait()
        began = clock.now()
        talk.conversation.cancel()
        assert (await task).stop_reason == "cancelled"
        assert clock.now() < began + 10
