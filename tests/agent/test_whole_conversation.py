"""A whole conversation over each provider's wire, seen from the provider (G1, B, P, Q, N, T)."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.agent.providers.base import Provider
from tests.agent.providers.neutral import Asked
from tests.agent.servers import model_of, provider
from tests.agent.whole import QUESTION, THINKING, Yard

from keephold import Runtime
from keephold.agent.events import Answered, Event, NotificationsDelivered, Text, TurnAnswer

CASES = [
    ("openai-chat", "gpt-5.5", False),
    ("openai-chat", "gpt-5.5", True),
    ("openai-responses", "gpt-5.5", False),
    ("openai-responses", "gpt-5.5", True),
    ("anthropic", "claude-sonnet-4-6", False),
    ("anthropic", "claude-opus-5", False),  # whose tools pydantic-ai does not force
    ("gemini", "gemini-2.5-pro", False),
]
"""Format, model, and whether schemas are strict."""


@dataclass
class Seen:
    """What came of it."""

    server: Provider
    yard: Yard
    answers: list[TurnAnswer]
    events: list[Event]
    strict: bool

    @property
    def requests(self) -> list[Asked]:
        """Those of the conversation itself."""
        return [asked for asked in self.server.requests if asked.wanted is None]

    @property
    def inquiries(self) -> list[Asked]:
        return [asked for asked in self.server.requests if asked.wanted is not None]


async def talked(format: str, name: str, config: Path, strict: bool) -> Seen:
    """Both turns of the conversation."""
    yard = Yard()
    events: list[Event] = []
    async with (
        provider(format, yard.turns(), inquiries=yard.inquiries()) as server,
        model_of(server, name) as model,
        Runtime(yard.tools(), prompter=yard.person, config=config) as rt,
    ):
        yard.runtime = rt
        conversation = rt.conversation("main", model=model, instructions="You work in a yard.")
        first = await conversation.prompt("Ship it.", listener=events.append)
        yard.gates["south"].set()
        await yard.stopped("w2")
        second = await conversation.prompt("Thanks.", listener=events.append)
        assert server.script.left == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return Seen(server, yard, [first, second], events, strict)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[1]}{' strict' if case[2] else ''} {case[0]}")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The conversation, once for all tests."""
    format, name, strict = request.param
    config = tmp_path_factory.mktemp("whole") / "keephold.toml"
    config.write_text(f"[conversation.assistant]\nstrict = {str(strict).lower()}\n")
    return asyncio.run(talked(format, name, config, strict))


def test_G1_the_turns_end_as_they_should_and_nothing_is_refused(seen: Seen) -> None:
    assert seen.server.refusals == []
    assert [(answer.stop_reason, answer.text) for answer in seen.answers] == [
        ("end_turn", "All is done."),
        ("end_turn", "You are welcome."),
    ]
    assert len(seen.requests) == 6
    assert len(seen.inquiries) == 2
    assert all(asked.stream for asked in seen.requests)
    shown = "".join(event.text for event in seen.events if isinstance(event, Text))
    assert shown == "I build it.Nearly done.All is done.You are welcome."
    assert all("You work in a yard." in asked.system for asked in seen.requests)
    assert all(tool.strict == seen.strict for asked in seen.requests for tool in asked.tools)
    assert {tool.name for tool in seen.requests[0].tools} >= {"build", "migrate", "delete", "watch", "await"}


def test_B1_every_call_has_exactly_one_result(seen: Seen) -> None:
    for asked in seen.server.requests:
        called = Counter(call.id for call in asked.calls)
        answered = Counter(result.id for result in asked.results)
        assert called == answered
        assert set(called.values()) <= {1}
    last = seen.requests[-1]
    names = ["build", "await", "migrate", "delete", "watch", "watch", "measure"]
    assert [call.name for call in last.calls] == names
    assert [result.id for result in last.results] == [call.id for call in last.calls]
    assert len([event for event in seen.events if isinstance(event, Answered)]) == 3


def test_B2_spawn_and_await_in_one_batch(seen: Seen) -> None:
    spawned, awaited = (json.loads(result.text) for result in seen.requests[1].messages[-1].results)
    assert spawned["id"] == "b"
    assert awaited == {"completed": [{"id": "b", "state": "stopped", "result": "app is built"}], "pending": []}
    assert seen.requests[1].messages[1].text == "I build it."
    if seen.server.wire.format != "openai-chat":
        assert seen.requests[1].messages[1].thinking == THINKING


def test_Q2_a_question_of_a_tool_is_put_to_the_model_beside_the_conversation(seen: Seen) -> None:
    inquiry = seen.inquiries[0]
    assert inquiry.wanted is not None
    assert list(inquiry.wanted.schema["properties"]) == ["answer"]
    assert QUESTION in inquiry.messages[-1].text
    assert "Ship it." in inquiry.messages[0].text
    migrated = seen.requests[2].messages[-1].results[0]
    assert migrated.text == "main is migrated, old tables dropped"


def test_Q6_inquiries_are_not_in_what_the_provider_gets_later(seen: Seen) -> None:
    for asked in seen.requests:
        sent = json.dumps(asked.body, ensure_ascii=False)
        assert QUESTION not in sent
        assert "[Automatic question." not in sent
        assert "answer" not in {call.name for call in asked.calls}
    # nor is one in the other
    assert QUESTION not in json.dumps(seen.inquiries[1].body, ensure_ascii=False)


def test_P3_a_call_that_the_person_denies_is_answered_and_not_run(seen: Seen) -> None:
    assert [getattr(prompt, "tool", None) for prompt in seen.yard.prompts] == ["delete"]
    denied = seen.requests[2].messages[-1].results[1]
    assert denied.text == "Tool skipped by user: not today"
    assert not denied.is_error
    assert seen.yard.order == ["built app", "migrated main"]


def test_N4_news_comes_once_with_the_next_response_or_the_next_message(seen: Seen) -> None:
    texts = [asked.messages[-1].text for asked in seen.requests]
    assert [number for number, text in enumerate(texts) if "`w1` (watch) stopped:" in text] == [3]
    assert [number for number, text in enumerate(texts) if "`w2` (watch) stopped:" in text] == [5]
    assert texts[5].endswith("Thanks.")
    # later requests have it in the history, once
    said = [message.text for message in seen.requests[5].messages]
    assert sum("`w1` (watch) stopped:" in text for text in said) == 1
    assert len([event for event in seen.events if isinstance(event, NotificationsDelivered)]) == 3


def test_T2_what_runs_at_the_end_is_asked_about_and_its_result_reaches_the_model(seen: Seen) -> None:
    inquiry = seen.inquiries[1]
    text = inquiry.messages[-1].text
    asked = json.loads(text[text.index("{") :])
    (handle,) = asked["handles"]
    assert (handle["id"], handle["tool"], handle["state"]) == ("m", "measure", "running")
    assert inquiry.messages[-2].text == "Nearly done."
    told = seen.requests[4].messages[-1].text
    results = json.loads(told[told.index("{") : told.rindex("}") + 1])
    assert results["completed"] == [{"id": "m", "state": "stopped", "result": "the app: 42"}]
    assert seen.requests[4].messages[-2].text == "Nearly done."
    assert seen.requests[5].messages[-2].text == "All is done."


def test_G1_usage_is_that_of_all_requests(seen: Seen) -> None:
    first, second = (answer.usage for answer in seen.answers)
    # five requests and two inquiries; then one
    assert (first.input_tokens, first.output_tokens) == (100 + 6 * 10, 20 + 6 * 5)
    assert (second.input_tokens, second.output_tokens, second.requests) == (10, 5, 1)
