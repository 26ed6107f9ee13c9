"""One request to a model: made again where that can help, never so that a tool runs again (G1)."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from tests.agent import scripted
from tests.agent.scripted import Reply, Script, called
from tests.agent.talk import kinds, talking, written

import keephold
from keephold.agent.events import Compacted, Restarted, Retrying, Text
from keephold.agent.requests import ATTEMPTS
from keephold.testing import VirtualClock

_ran: list[str] = []


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    _ran.append(text)
    return f"noted {text}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    _ran.clear()


def failing(kind: type[ModelAPIError], **more: Any) -> ModelAPIError:
    return kind("scripted", "it went wrong", **more)


WORTH_ANOTHER = [
    failing(ModelRateLimitError),
    failing(ModelServerError),
    failing(ModelOverloadedError),
    failing(ModelConnectionError),
    failing(ModelTimeoutError),
    UnexpectedModelBehavior("it went wrong"),
]


@pytest.mark.parametrize("error", WORTH_ANOTHER, ids=lambda error: type(error).__name__)
async def test_G1_what_passes_is_tried_again(clock: VirtualClock, error: Exception) -> None:
    script = Script([called("c1", "note", text="a")], error, error, "Done.")
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt()
    assert (answer.text, answer.stop_reason, answer.error) == ("Done.", "end_turn", None)
    assert [event.attempt for event in talk.heard(Retrying)] == [1, 2]
    assert all("it went wrong" in event.why for event in talk.heard(Retrying))
    assert talk.heard(Restarted) == []
    assert _ran == ["a"]
    assert script.results(1) == script.results(2) == script.results(3) == ["noted a"]


@pytest.mark.parametrize("error", [failing(ModelAuthenticationError), failing(ModelQuotaExceededError)], ids=repr)
async def test_G1_what_does_not_pass_ends_the_turn(clock: VirtualClock, error: Exception) -> None:
    script = Script(error, "Fine.")
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt("First")
        assert (answer.text, answer.stop_reason) == ("", "error")
        assert "it went wrong" in (answer.error or "")
        assert talk.heard(Retrying) == []
        assert (await talk.prompt("Second")).text == "Fine."
    assert script.told() == ["First", "Second"]


async def test_G1_it_waits_as_long_as_it_is_asked_to(clock: VirtualClock) -> None:
    script = Script(failing(ModelRateLimitError, retry_after=77.0), "Done.")
    began = clock.now()
    async with talking(script, note, clock=clock) as talk:
        await talk.prompt()
    assert 77 <= clock.now() - began < 80
    assert talk.heard(Retrying)[0].delay_secs == 77


async def test_G1_it_does_not_wait_for_hours(clock: VirtualClock) -> None:
    script = Script(failing(ModelRateLimitError, retry_after=7200.0))
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt()
    assert answer.stop_reason == "error" and "7200 s" in (answer.error or "")


async def test_G1_it_gives_up(clock: VirtualClock) -> None:
    script = Script(*[failing(ModelServerError)] * 20)
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt()
    assert len(script.read) == ATTEMPTS
    assert answer.stop_reason == "error" and f"{ATTEMPTS} times" in (answer.error or "")
    delays = [event.delay_secs for event in talk.heard(Retrying)]
    assert len(delays) == ATTEMPTS - 1 and delays == sorted(delays) and delays[-1] > 10


async def test_G1_a_broken_stream_is_begun_again(clock: VirtualClock) -> None:
    script = Script(
        Reply(["Half ", "a "], [called("c1", "note", text="never")], breaks=failing(ModelConnectionError)),
        Reply("Whole.", [called("c1", "note", text="once")]),
        "Done.",
    )
    async with talking(script, note, clock=clock) as talk:
        await talk.prompt()
        assert await talk.kinds() == ["request", "response", "request", "response"]
    assert kinds(talk.events)[1:7] == ["Text", "Text", "Restarted", "Retrying", "Text", "Used"]
    assert talk.heard(Text)[2] == Text("Whole.")
    assert _ran == ["once"]
    assert "Half" not in str(script.read)


async def test_G1_a_stream_that_breaks_in_a_call_runs_nothing(clock: VirtualClock) -> None:
    class Breaking(Reply):
        pass

    async def pieces(reply: Reply) -> Any:
        if not isinstance(reply, Breaking):
            async for each in whole(reply):
                yield each
            return
        yield {1: DeltaToolCall(name="note", json_args='{"text": "ne', tool_call_id="c0")}
        raise failing(ModelConnectionError)

    whole = scripted._pieces
    script = Script(Breaking(), [called("c1", "note", text="once")], "Done.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "_pieces", pieces)
        async with talking(script, note, clock=clock) as talk:
            assert (await talk.prompt()).text == "Done."
    assert _ran == ["once"]


async def test_G1_an_empty_answer_is_asked_for_again(clock: VirtualClock) -> None:
    empty = Reply([{}])  # type: ignore[list-item]
    script = Script(empty, "Done.")
    async with talking(script, note, clock=clock) as talk:
        assert (await talk.prompt()).text == "Done."
    assert "empty" in talk.heard(Retrying)[0].why
    script = Script(*[empty] * 10)
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt()
    assert answer.stop_reason == "error" and "empty" in (answer.error or "")


async def test_G1_a_content_filter_is_a_refusal(clock: VirtualClock) -> None:
    script = Script(ContentFilterError("filtered"))
    async with talking(script, note, clock=clock) as talk:
        assert (await talk.prompt()).stop_reason == "refusal"
    assert talk.heard(Retrying) == []


@pytest.mark.parametrize("times", [2, ATTEMPTS])
async def test_G1_a_client_that_cancels_itself_is_a_failure_like_others(clock: VirtualClock, times: int) -> None:
    """A scope of its library may do that. Nobody here has cancelled anything: it is tried again, after a pause."""
    asked: list[float] = []

    async def answer(*_: Any) -> Any:
        asked.append(clock.now())
        if len(asked) <= times:
            raise asyncio.CancelledError
        yield "Done."

    model = FunctionModel(stream_function=answer)
    async with keephold.Runtime(clock=clock) as rt:
        answered = await rt.conversation("main", model=model).prompt("Go.")
    if times == ATTEMPTS:
        assert (answered.stop_reason, len(asked)) == ("error", ATTEMPTS)
        assert "cancelled" in (answered.error or "")
    else:
        assert (answered.text, len(asked)) == ("Done.", times + 1)
    assert all(later > earlier for earlier, later in pairwise(asked))


async def test_N4_critical_news_in_a_pause(clock: VirtualClock) -> None:
    script = Script(Reply("Void.", breaks=failing(ModelRateLimitError, retry_after=60.0)), "I see.")
    async with talking(script, note, clock=clock) as talk:
        task = asyncio.create_task(talk.prompt())
        await clock.advance(5)
        await talk.rt.notify("test.fire", "critical", "Fire!", conversation="main")
        began = clock.now()
        assert (await task).text == "I see."
        assert clock.now() < began + 1
        assert await talk.kinds() == ["request", "request", "response"]
    assert "Fire!" in script.told()[1]


async def test_G1_a_history_that_is_too_long_is_made_shorter(clock: VirtualClock, tmp_path: Path) -> None:
    too_long = ModelContextWindowExceededError("scripted", "too long")
    script = Script("One.", "Two.", too_long, "Three.", summaries=["They counted to two."])
    async with talking(script, note, clock=clock, config=written(tmp_path, "")) as talk:
        for text in ("First", "Second"):
            await talk.prompt(text)
        answer = await talk.prompt("Third")
    assert (answer.text, answer.stop_reason) == ("Three.", "end_turn")
    (compacted,) = talk.heard(Compacted)
    assert "They counted to two." in compacted.summary
    summary, third = script.told()
    assert "They counted to two." in summary and third == "Third"


async def test_G1_a_single_message_that_is_too_long_ends_the_turn(clock: VirtualClock) -> None:
    script = Script(ModelContextWindowExceededError("scripted", "too long"), "Better.")
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt("x" * 1000)
        assert answer.stop_reason == "error" and "too long" in (answer.error or "")


async def test_G1_still_too_long_after_a_summary_ends_the_turn(clock: VirtualClock) -> None:
    too_long = ModelContextWindowExceededError("scripted", "too long")
    script = Script("One.", *[too_long] * 5, summaries=["Short."] * 5)
    async with talking(script, note, clock=clock) as talk:
        await talk.prompt("First")
        answer = await talk.prompt("Second")
    assert answer.stop_reason == "error" and "too long" in (answer.error or "")
    assert len(script.read) == 3
