"""A provider that dies after any byte of a streamed response (G1): no tool runs with arguments that the model did not
finish, nothing partial is taken for an answer, and the conversation continues."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle, repeat
from typing import Any

import pytest
from tests.agent.asking import said, user
from tests.agent.providers.cutting import HOWS, CuttingProvider, How, cutting
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import Reply
from tests.agent.servers import model_of
from tests.soak import SOAK

import keephold
from keephold import Question, Runtime
from keephold.agent import requests
from keephold.agent.conversation import Conversation
from keephold.agent.events import Event, Restarted, Text
from keephold.agent.requests import ATTEMPTS, INCOMPLETE_RETRIES, ModelCall, RequestFailed
from keephold.policies import QuestionPolicy

every = pytest.mark.parametrize("format", FORMATS)
CALLS = Reply(
    text="I tidy up.",
    thinking="Two places.",
    calls=[("wipe", {"path": "/tmp/a"}), ("wipe", {"path": "/tmp/b", "deep": True})],
    piece=12,
)
TEXT = Reply(text="It is done: both “places” are tidy now.", piece=12)
WIPED = ["/tmp/a False", "/tmp/b True"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BASE_DELAY_SECS", 0.0)


class House:
    """A tool whose default is fatal, and a model that calls it when it is told to tidy up."""

    def __init__(self, server: CuttingProvider, rt: Runtime, model: Any, wiped: list[str]) -> None:
        self.server = server
        self.wiped = wiped
        self._rt = rt
        self._model = model

    def talk(self) -> Conversation:
        self.wiped.clear()
        self.server.requests.clear()
        return self._rt.conversation(model=self._model)


@asynccontextmanager
async def house(format: str, calls: Reply = CALLS, text: Reply = TEXT) -> AsyncIterator[House]:
    wiped: list[str] = []

    @keephold.tool
    async def wipe(path: str = "/", deep: bool = False) -> str:
        """Delete a directory."""
        wiped.append(f"{path} {deep}")
        return f"wiped {path}"

    @keephold.tool(questions={"sure": QuestionPolicy(target="assistant")})
    async def ask(call: keephold.Call) -> str:
        """Ask the assistant."""
        return f"sure: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"

    def say(asked: Asked) -> Reply:
        if asked.wanted is not None:
            return Reply(answer={"answer": True})
        told = asked.messages[-1]
        if told.text == "Ask.":
            return Reply(calls=[("ask", {})])
        return calls if told.text.endswith("Tidy up.") and not told.results else text

    async with cutting(format, say) as server, model_of(server) as model, Runtime([wipe, ask]) as rt:
        yield House(server, rt, model, wiped)
    assert server.refusals == server.malformed == []


def places(body: bytes) -> list[int]:
    """Where to cut conversations: in and at the end of the first event of each kind."""
    found, kinds, at = {0, len(body) - 1}, set[bytes](), 0
    for event in body.split(b"\n\n"):
        end = at + len(event)
        kind = re.sub(rb'(?<=: )"[^"]*"|[0-9]', b"", event)
        if kind not in kinds:
            found |= {at + len(event) // 2, end - len(kinds) % 2, end + 2}
        kinds.add(kind)
        at = end + 2
    return sorted(each for each in found if 0 <= each < len(body))


async def body_of(house: House, prompt: str) -> bytes:
    """The first response to a prompt."""
    house.server.bodies.clear()
    await house.talk().prompt(prompt)
    return house.server.bodies[0]


def ways(way: Iterator[How], before: bytes) -> tuple[How, ...]:
    """In how many ways to cut; between two events in one that HTTP takes for a proper end, which is the hard case."""
    how = next(way)
    return HOWS if SOAK else ("closed" if before.endswith(b"\n\n") else how,)


def shown(events: list[Event]) -> list[str]:
    """The texts of the responses, without those that became void."""
    texts = [""]
    for event in events:
        match event:
            case Restarted():
                texts[-1] = ""
            case Text(text):
                texts[-1] += text
            case _ if texts[-1]:
                texts.append("")
    return [text for text in texts if text]


@every
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.timeout(7200)
async def test_G1_only_a_whole_response_counts_after_any_byte(
    format: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request, cut after every byte in a soak; the tests below cut requests of conversations."""
    monkeypatch.setattr(requests, "ATTEMPTS", 1)
    async with house(format) as home:
        talk, failed = home.talk(), 0
        for prompt in ("Tidy up.", "Speak."):

            async def ask(prompt: str = prompt) -> Any:
                tell = (lambda _: None) if stream else None
                return said(await ModelCall(talk.assistant, [user(prompt)], talk.parameters(), tell).answer())

            whole, body = await ask(), home.server.bodies[-1]
            for at in range(0, len(body), 1 if SOAK else 499):
                for how in HOWS if SOAK else HOWS[at % 4 :][:1]:
                    home.server.cuts = [(at, how)]
                    home.server.bodies.clear()
                    home.server.requests.clear()
                    try:
                        assert await ask() == whole, f"{how} {at}: {body[max(0, at - 60) : at]!r}"
                    except RequestFailed:
                        failed += 1
        assert failed > 1


@every
@pytest.mark.timeout(3600)
async def test_G1_calls_that_are_cut_after_any_byte_do_not_run(format: str) -> None:
    way, retried = cycle(HOWS), 0
    async with house(format) as home:
        body = await body_of(home, "Tidy up.")
        assert home.wiped == WIPED
        for at in places(body):
            for how in ways(way, body[:at]):
                events: list[Event] = []
                talk = home.talk()
                home.server.cuts = [(at, how)]
                answer = await talk.prompt("Tidy up.", listener=events.append)
                what = f"{how} {at}: {body[max(0, at - 60) : at]!r}"
                assert (answer.stop_reason, answer.text, answer.error) == ("end_turn", TEXT.text, None), what
                assert home.wiped == WIPED, what
                assert shown(events) == [CALLS.text, TEXT.text], what
                assert len(home.server.requests) in (2, 3), what
                retried += len(home.server.requests) == 3
    assert retried > 8


@every
@pytest.mark.timeout(3600)
async def test_G1_a_text_that_is_cut_after_any_byte_is_no_answer(format: str) -> None:
    way, retried = cycle(HOWS), 0
    async with house(format) as home:
        body = await body_of(home, "Speak.")
        for at in places(body):
            for how in ways(way, body[:at]):
                events: list[Event] = []
                talk = home.talk()
                home.server.cuts = [(at, how)]
                answer = await talk.prompt("Speak.", listener=events.append)
                what = f"{how} {at}: {body[max(0, at - 60) : at]!r}"
                assert (answer.stop_reason, answer.text, answer.error) == ("end_turn", TEXT.text, None), what
                assert shown(events) == [TEXT.text], what
                assert await kinds(talk) == ["request", "response"], what
                retried += len(home.server.requests) == 2
    assert retried > 6


async def kinds(talk: Conversation) -> list[str]:
    return [line.kind for line in await talk.lines()]


@every
@pytest.mark.timeout(3600)
async def test_Q2_an_answer_to_an_inquiry_that_is_cut_after_any_byte_is_no_answer(format: str) -> None:
    way = cycle(HOWS)
    async with house(format) as home:
        await home.talk().prompt("Ask.")
        body = home.server.bodies[1]
        for at in range(0, len(body), len(body) // 6):
            for how in ways(way, body[:at]):
                talk = home.talk()
                home.server.cuts = [(1 << 30, "closed"), (at, how)]
                answer = await talk.prompt("Ask.")
                assert (answer.stop_reason, answer.text) == ("end_turn", TEXT.text), f"{how} {at}"
                assert [result.text for result in home.server.requests[-1].results] == ["sure: True"]
                complete = b'"stop_reason": "tool_use"' in body[:at]  # Anthropic's client streams this, too
                assert len(home.server.requests) == 4 or complete


@every
async def test_G1_a_provider_that_always_dies_ends_the_turn_and_not_the_conversation(format: str) -> None:
    async with house(format) as home:
        body = await body_of(home, "Tidy up.")
        middle = body.index(b"wipe") + 6
        for at, how in ((0, "closed"), (0, "reset"), (middle, "closed"), (middle, "chunked"), (middle, "broken")):
            talk = home.talk()
            home.server.cuts = [*repeat((at, how), ATTEMPTS)]  # type: ignore[list-item]
            answer = await talk.prompt("Tidy up.")
            asked = len(home.server.requests)
            assert answer.stop_reason == "error" and is_sentence(answer.error), answer.error
            assert f"(asked {asked} times)" in (answer.error or "")
            assert asked == ATTEMPTS - len(home.server.cuts) == 1 + INCOMPLETE_RETRIES
            assert (home.wiped, await kinds(talk)) == ([], ["request", "ended"])
            home.server.cuts = []
            assert (await talk.prompt("Tidy up.")).text == TEXT.text
            assert home.wiped == WIPED


def is_sentence(text: str | None) -> bool:
    """Whether it is neither empty nor how Python writes an object."""
    return bool(text) and not re.search(r"""['"]\w+['"]: |<\w+ |\w+Error\(|Traceback|status_code""", text or "")


@pytest.mark.parametrize("format", ["openai-chat", "anthropic"])
async def test_G1_a_server_that_omits_the_reason(format: str) -> None:
    """Its texts count, as their end is in the stream. Its calls do not: a call may be all that has come of three."""
    import msgspec

    calls, text = (msgspec.structs.replace(reply, finish="none") for reply in (CALLS, TEXT))
    async with house(format, calls, text) as home:
        body = await body_of(home, "Speak.")
        assert len(home.server.requests) == 1
        mark = b"[DONE]" if format == "openai-chat" else b"message_stop"
        for at in (body.index(mark), body.index(mark) + len(mark)):
            home.server.cuts = [(at, "closed")]
            assert (await home.talk().prompt("Speak.")).text == TEXT.text
            assert len(home.server.requests) == (2 if at == body.index(mark) else 1)
        answer = await home.talk().prompt("Tidy up.")
        assert (answer.stop_reason, home.wiped) == ("error", [])
        assert len(home.server.requests) == 1 + INCOMPLETE_RETRIES


@every
async def test_G1_calls_that_were_cut_off_at_the_limit_do_not_run(format: str) -> None:
    """The provider says `length`, and what has come of the arguments may be valid: nothing, or a whole object."""
    for given in ("", "{}", '{"path": "/tmp/a"'):
        cut = Reply(text="I tidy up.", calls=[("wipe", {"path": "/tmp/a"}), ("wipe", given)], finish="length")
        async with house(format, cut) as home:
            talk = home.talk()
            answer = await talk.prompt("Tidy up.")
            assert (answer.stop_reason, answer.text, home.wiped) == ("end_turn", TEXT.text, [])
            told = [result.text for result in home.server.requests[-1].results]
            assert len(told) == 2 and all("cut off" in text for text in told)
            assert (await talk.prompt("Speak.")).text == TEXT.text
        async with house(format, cut, cut) as home:
            answer = await home.talk().prompt("Tidy up.")
            assert (answer.stop_reason, len(home.server.requests), home.wiped) == ("max_tokens", 2, [])
