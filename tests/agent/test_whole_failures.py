"""A conversation over each provider's wire when that fails: requests are made again, tools never run again (G1)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.agent.providers.base import Provider
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.script import Break, Fail, Hang, Reply, Step
from tests.agent.servers import model_of, provider
from tests.patience import until
from tests.turn.people import few

import keephold
from keephold import Runtime
from keephold.agent import requests
from keephold.agent.conversation import Conversation
from keephold.agent.events import Event, Restarted, Retrying, Text

every = pytest.mark.parametrize("format", FORMATS)
PIECES = {"openai-chat": 5, "openai-responses": 2, "anthropic": 3, "gemini": 6}
"""Of text, among the first six events of a stream."""
FIRST_CALL = {"openai-chat": 4, "openai-responses": 12, "anthropic": 9, "gemini": 2}
"""After how many events of `COUNT` its first call is complete."""
COUNT = Reply(text="I count.", calls=[("count", {}), ("count", {})])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long between two requests."""
    monkeypatch.setattr(requests, "BASE_DELAY_SECS", 0.001)


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def tool(self) -> keephold.Tool:
        @keephold.tool
        async def count() -> str:
            """Count."""
            self.calls += 1
            return str(self.calls)

        return count


@asynccontextmanager
async def talking(format: str, counter: Counter, *turns: Step) -> AsyncIterator[tuple[Provider, Conversation]]:
    async with (
        provider(format, list(turns)) as server,
        model_of(server) as model,
        Runtime([counter.tool()]) as rt,
    ):
        yield server, rt.conversation("main", model=model)


@pytest.mark.parametrize(
    "failure",
    [Fail(429, retry_after=0.001), Fail(500), Break(after=0), Break(after=6), Reply()],
    ids=["too many", "error", "breaks at once", "breaks", "empty"],
)
@every
async def test_G1_a_request_that_fails_is_made_again_and_no_tool_is_run_again(format: str, failure: Step) -> None:
    counter, events = Counter(), list[Event]()
    async with talking(format, counter, COUNT, failure, failure, Reply(text="Two.")) as (server, conversation):
        answer = await conversation.prompt("Count.", listener=events.append)
    assert (answer.stop_reason, answer.text, answer.error) == ("end_turn", "Two.", None)
    assert counter.calls == 2
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [1, 2]
    bodies = [asked.body for asked in server.requests[1:]]
    assert len(bodies) == 3
    assert all(body == bodies[0] for body in bodies)
    assert [result.text for result in server.requests[-1].results] == ["1", "2"]


@every
async def test_G1_what_has_streamed_of_an_answer_that_broke_is_void(format: str) -> None:
    events = list[Event]()
    broken = Break(after=8, reply=Reply(text="Nothing of this counts, not a single word of it.", piece=4))
    async with talking(format, Counter(), broken, Reply(text="This does.")) as (_, conversation):
        answer = await conversation.prompt("Go.", listener=events.append)
        again = [event for event in events if isinstance(event, Restarted)]
        assert answer.text == "This does."
        assert len(again) == 1
        at = events.index(again[0])
        assert any(isinstance(event, Text) for event in events[:at])
        assert "".join(event.text for event in events[at:] if isinstance(event, Text)) == "This does."
        assert [line.kind for line in await conversation.lines()] == ["request", "response"]


@every
async def test_G1_a_refusal_of_the_provider_ends_the_turn_and_says_why(format: str) -> None:
    async with talking(format, Counter(), Fail(400, "You cannot have that.")) as (server, conversation):
        answer = await conversation.prompt("Go.")
    assert answer.stop_reason == "error"
    assert "You cannot have that." in (answer.error or "")
    assert len(server.requests) == 1


@every
async def test_G1_a_conversation_goes_on_after_a_turn_that_failed(format: str) -> None:
    counter = Counter()
    async with talking(format, counter, COUNT, Fail(400, "No."), Reply(text="Two.")) as (server, conversation):
        failed = await conversation.prompt("Count.")
        answer = await conversation.prompt("Well?")
    assert (failed.stop_reason, answer.text) == ("error", "Two.")
    assert counter.calls == 2
    assert server.refusals == ["No."]
    last = server.requests[-1]
    assert [result.id for result in last.results] == [call.id for call in last.calls]
    assert last.messages[-1].text.endswith("Well?")


@every
async def test_B7_a_turn_that_is_cancelled_leaves_the_stream_and_the_conversation_goes_on(format: str) -> None:
    hang = Hang(after=6, reply=Reply(text="I begin to say something long.", piece=4))
    heard, shown = asyncio.Event(), ""

    def listener(event: Event) -> None:
        nonlocal shown
        shown += event.text if isinstance(event, Text) else ""
        if len(shown) == 4 * PIECES[format]:
            heard.set()

    async with talking(format, Counter(), hang, Reply(text="Yes?")) as (server, conversation):
        turn = asyncio.create_task(conversation.prompt("Go.", listener=listener))
        await heard.wait()
        # All has come, and the client goes on to wait for more. Cancelled between two reads, Google's leaves the stream
        # open until the garbage is collected.
        await few()
        conversation.cancel()
        cancelled = await turn
        await until(lambda: server.requests[0].abandoned)
        answer = await conversation.prompt("Still there?")
    assert (cancelled.stop_reason, answer.text) == ("cancelled", "Yes?")
    assert server.refusals == []


@every
async def test_B7_calls_of_an_answer_that_was_not_complete_are_not_run(format: str) -> None:
    counter, heard = Counter(), asyncio.Event()

    def listener(event: Event) -> None:
        if isinstance(event, Text):
            heard.set()

    async with talking(format, counter, Hang(after=FIRST_CALL[format], reply=COUNT)) as (_, conversation):
        turn = asyncio.create_task(conversation.prompt("Go.", listener=listener))
        await heard.wait()
        await few()
        conversation.cancel()
        assert (await turn).stop_reason == "cancelled"
    assert counter.calls == 0


@every
async def test_G1_calls_of_an_answer_that_broke_are_run_once_it_is_complete(format: str) -> None:
    counter = Counter()
    broken = Break(after=FIRST_CALL[format], reply=COUNT)
    async with talking(format, counter, broken, COUNT, Reply(text="Two.")) as (server, conversation):
        answer = await conversation.prompt("Go.")
    assert (answer.text, counter.calls) == ("Two.", 2)
    assert len(server.requests[-1].calls) == len(server.requests[-1].results) == 2
