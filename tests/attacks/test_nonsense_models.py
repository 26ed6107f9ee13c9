"""A model that sends nonsense names, ids, JSON and texts, to providers that refuse a history with any of it (G1): the
conversation never dies, and the model is told what was wrong."""

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.agent.providers.cutting import cutting
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import Reply, Usage
from tests.agent.servers import model_of
from tests.agent.talk import written
from tests.soak import tries

import keephold
from keephold import Runtime
from keephold.agent import requests

every = pytest.mark.parametrize("format", FORMATS)
NAMES = [
    "", " ", "functions.measure", "default_api:measure", "measure ", 'measure" />', "m" * 80, "m" * 300, "7zip", "-",
    "é", "\n", "\x00", "../measure", "Measure", "INVALID", "nothing", "measure",
]  # fmt: skip
IDS = [
    "", " ", "same", "same", "x" * 41, "x" * 300, "a|b", "a|c", "an id", "é", "functions.measure:0", "call\n1", "\x00",
    "k00000001", "k00000002", "pyd_ai_1",
]  # fmt: skip
ARGUMENTS = [
    "", " ", "{", "}", "[]", "null", "7", '"x"', '{"what": NaN}', '{"what": -Infinity}', '{"what": 1e999}',
    '{"what": "\\ud800"}', '{"what": "a"}{"what": "b"}', "[" * 1000, '{"a":' * 300 + "1" + "}" * 300, "what=a",
    '{"what": "\ud83d"}', '{"\\u0000": "\\u0000"}', '{"": 1}', '{"what": ' + "9" * 500 + "}", '{"what": "Infinity"}',
    '{"what": "a"}', "'", "\ufeff{}",
]  # fmt: skip
TEXTS = ["", "", " ", "\n\n", "Well.", "\ud800", "\x00", " so ", "\u200b"]
PROMPTS = ["Go on.", "Go on.", " ", "\n", "\u200b", "\x00"]


class Nonsense:
    """Says anything; when it is asked whether it is well, it says so."""

    def __init__(self, seed: str) -> None:
        self.rng = Random(seed)
        self.calls = 0

    def say(self, asked: Asked) -> Reply:
        return msgspec.structs.replace(self._say(asked), usage=Usage(input_tokens=len(str(asked.messages)) // 4))

    def _say(self, asked: Asked) -> Reply:
        rng, told = self.rng, asked.messages[-1]
        if not asked.tools:
            return Reply(text="They have tried to measure something.")  # a summary
        if told.text.endswith("Are you well?"):
            return Reply(text="Quite.")
        finish: Any = rng.choice(["stop"] * 20 + ["length", "filter", "none"])
        text, thinking = rng.choice(TEXTS), rng.choice(["", "", "Hm.", " "])
        if rng.random() < 0.4:
            return Reply(text=text, thinking=thinking, finish=finish, piece=500)
        count = rng.randint(1, 4)
        self.calls += count
        calls: list[Any] = [(rng.choice(NAMES), rng.choice(ARGUMENTS)) for _ in range(count)]
        ids = rng.choices(IDS, k=count)
        return Reply(text=text, thinking=thinking, calls=calls, ids=ids, finish=finish, piece=500)


@every
@pytest.mark.timeout(7200)
async def test_G1_nonsense_never_ends_a_conversation(
    format: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thousand turns in a soak. The history is summarised now and then, as it must be."""
    config = written(tmp_path, "[conversation]\ncontext_tokens = 2000\n")
    monkeypatch.setattr(requests, "BASE_DELAY_SECS", 0.0)
    nonsense, measured = Nonsense(f"1:{format}"), list[str]()

    @keephold.tool
    async def measure(what: str) -> str:
        """Measure something."""
        measured.append(what)
        return ""

    tools = Runtime([measure], config=config)
    async with cutting(format, nonsense.say) as server, model_of(server) as model, tools as rt:
        conversation = rt.conversation("main", model=model)
        for turn in range(tries(15, soak=1000)):
            answer = await conversation.prompt(nonsense.rng.choice(PROMPTS))
            assert server.refusals == server.malformed == [], (turn, answer.error)
            server.requests.clear()
            server.bodies.clear()
            if turn % 5 == 4:
                answer = await conversation.prompt("Are you well?")
                assert (answer.stop_reason, answer.text) == ("end_turn", "Quite."), (turn, answer.error)
    assert server.refusals == server.malformed == []
    assert set(measured) <= {"a", "Infinity", "\x00", "�"}
    assert nonsense.calls > 20


@every
async def test_G1_a_bad_name_is_mended_in_the_history_and_the_model_is_told(format: str) -> None:
    calls: list[Any] = [(name, {"what": "a"}) for name in ("", "functions.measure", "m" * 80, "measure", "measure")]
    first = Reply(calls=calls, ids=["same"] * 4)
    second = Reply(calls=[("measure", {"what": "b"})], ids=["same"])

    @keephold.tool
    async def measure(what: str) -> str:
        """Measure something."""
        return f"measured {what}"

    script = [first, second, Reply(text="Done.")]
    async with cutting(format, script) as server, model_of(server) as model, Runtime([measure]) as rt:
        conversation = rt.conversation(model=model)
        assert (await conversation.prompt("Measure.")).text == "Done."
        lines = await conversation.lines()
    assert b'"tool_name":"functions.measure"' in lines[1].body, "the transcript is as the model sent it"
    asked = server.requests[-1]
    names = ["unnamed", "functions_measure", "m" * 63, "measure", "measure", "measure"]
    assert [call.name for call in asked.calls] == names
    ids = [call.id for call in asked.calls]
    assert len(set(ids)) == 6 and ids[0] == "same"
    assert [result.id for result in asked.results] == ids
    told = [result.text for result in asked.results]
    assert "the call names no tool; known tools: `measure`" in told[0]
    assert "unknown tool `functions.measure`; did you mean `measure`?" in told[1]
    assert f"unknown tool `{calls[2][0]}`; " in told[2]
    assert told[3:] == ["measured a", "measured a", "measured b"]
    assert server.refusals == []


@every
async def test_G1_a_blank_result_is_sent_as_it_is_or_said_to_be_blank(format: str) -> None:
    given = iter(["", " \n", "done"])

    @keephold.tool
    async def measure() -> str:
        """Measure something."""
        return next(given)

    script = [Reply(calls=[("measure", {})] * 3), Reply(text="Done.")]
    async with cutting(format, script) as server, model_of(server) as model, Runtime([measure]) as rt:
        assert (await rt.conversation(model=model).prompt(" ")).text == "Done."
    told = ["", " \n", "done"] if format == "gemini" else ["(no output)", "(only whitespace)", "done"]
    assert [result.text for result in server.requests[-1].results] == told
    assert server.requests[-1].messages[0].text == "(only whitespace)"
    assert server.refusals == []
