"""What was said (G1): lines in the store, and the history that a model is given of them."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from tests.agent.scripted import Reply, Script, called, problems
from tests.agent.talk import talking
from tests.patience import until

import keephold
from keephold import KeepholdError, Runtime, ToolCall
from keephold.agent.events import Answered, Event
from keephold.agent.transcript import INTERRUPTED, Transcript, request
from keephold.testing import VirtualClock


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


def user(text: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def calls(*ids: str) -> ModelResponse:
    return ModelResponse([TextPart("Well."), *(ToolCallPart("note", {"text": id}, id) for id in ids)])


def returns(*ids: str) -> ModelRequest:
    return ModelRequest([ToolReturnPart("note", f"noted {id}", id) for id in ids])


def texts(messages: Sequence[ModelMessage]) -> list[list[str]]:
    return [[f"{part.part_kind} {getattr(part, 'content', '')}" for part in message.parts] for message in messages]


async def loaded(rt: Runtime, conversation: str = "main") -> Transcript:
    fresh = Transcript(rt.registry, conversation)
    await fresh.load()
    return fresh


async def test_G1_what_is_loaded_is_what_was_added(clock: VirtualClock) -> None:
    async with Runtime(clock=clock) as rt:
        transcript = await loaded(rt)
        for messages in (
            [user("One")],
            [calls("a", "b")],
            [user("News")],  # whatever comes between calls and results
            [returns("a", "b"), user("More")],
            [ModelResponse([TextPart("Done.")])],
            [user("Two"), user("Three")],
        ):
            await transcript.add("t1", *messages)
            again = await loaded(rt)
            assert again.messages == transcript.messages
            assert again.turn == transcript.turn == "t1"
        assert [type(message) for message in transcript.messages] == [
            ModelRequest, ModelResponse, ModelRequest, ModelResponse, ModelRequest
        ]  # fmt: skip
        assert problems(transcript.messages) == []
        assert [line.number for line in await transcript.read()] == list(range(1, 9))


async def test_G1_results_come_first(clock: VirtualClock) -> None:
    async with Runtime(clock=clock) as rt:
        transcript = await loaded(rt)
        await transcript.add("t1", user("One"), calls("a", "b"))
        await transcript.add("t1", user("Meanwhile"), returns("a", "b"), user("Later"))
        (_, _, last) = transcript.messages
        assert texts([last])[0] == [
            "tool-return noted a", "tool-return noted b", "user-prompt Meanwhile", "user-prompt Later"
        ]  # fmt: skip


@pytest.mark.parametrize("kept", [1, 2])
async def test_G1_the_same_with_summaries(clock: VirtualClock, kept: int) -> None:
    async with Runtime(clock=clock) as rt:
        transcript = await loaded(rt)
        for at in range(5):
            said = [ModelResponse([TextPart("Yes.")])] if kept == 1 else []
            await transcript.add("t1", user(f"Say {at}"), calls(f"a{at}"), returns(f"a{at}"), *said, user("And?"))
            before = texts(transcript.messages[-kept:])
            await transcript.summarise("t1", kept, f"Summary {at}.")
            again = await loaded(rt)
            assert texts(again.messages) == texts(transcript.messages)
            assert texts(transcript.messages)[0][0] == f"user-prompt Summary {at}."
            flat = [part for message in texts(transcript.messages) for part in message]
            assert [part for part in flat if "Summary" not in part] == [part for each in before for part in each]
            assert problems(transcript.messages) == []
            await transcript.add("t1", ModelResponse([TextPart("Yes.")]))
            again = await loaded(rt)
            assert texts(again.messages) == texts(transcript.messages)
        assert [line.kind for line in await transcript.read()].count("summary") == 5


async def test_E10_what_was_taken_is_known_also_behind_a_summary(clock: VirtualClock) -> None:
    async with Runtime(clock=clock) as rt:
        transcript = await loaded(rt)
        await transcript.add("t1", request([UserPromptPart("Sent")], taken=3), ModelResponse([TextPart("Yes.")]))
        await transcript.add("t1", user("News"))
        await transcript.summarise("t1", 1, "Summary.")
        assert transcript.taken == 3
        assert (await loaded(rt)).taken == 3


async def test_G1_lines_that_are_not_for_the_model(clock: VirtualClock) -> None:
    async with Runtime(clock=clock) as rt:
        transcript = await loaded(rt)
        await transcript.add("t1", user("One"))
        await transcript.note("t1", "shown", {"diff": "x"})
        await transcript.add("t1", ModelResponse([TextPart("Done.")]))
        again = await loaded(rt)
        assert again.messages == transcript.messages and len(again.messages) == 2
        assert [line.kind for line in await again.read()] == ["request", "shown", "response"]
        await transcript.summarise("t1", 1, "Short.")
        assert texts((await loaded(rt)).messages) == texts(transcript.messages)


async def test_G1_long_transcripts_are_read_page_by_page(clock: VirtualClock) -> None:
    async with Runtime(clock=clock) as rt:
        transcript = await loaded(rt)
        pair = (user("Say."), ModelResponse([TextPart("Yes.")]))
        await transcript.add("t1", *pair * 10_001)
        again = await loaded(rt)
        assert len(again.messages) == 20_002


async def test_G1_pictures_and_files_are_kept(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'work.db'}"
    content: Any = ["Look:", BinaryContent(b"\x89PNG", media_type="image/png"), ImageUrl("https://example.org/a.png")]
    script = Script("I see.")
    async with talking(script, store=store) as talk:
        await talk.conversation.prompt(content)
    script = Script("I saw.")
    async with talking(script, store=store) as talk:
        await talk.prompt("And?")
    (said,) = script.read[0][0].parts
    assert isinstance(said, UserPromptPart)
    content = list(said.content)
    text, picture, link = content
    assert (text, picture.data, picture.media_type, link.url) == (
        "Look:", b"\x89PNG", "image/png", "https://example.org/a.png"
    )  # fmt: skip


async def test_G1_a_conversation_is_taken_up_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'work.db'}"
    script = Script(Reply("Well.", [called("c1", "note", text="a")], thinks="Hm."), "One.")
    async with talking(script, note, store=store) as talk:
        await talk.prompt("First")
        before = talk.conversation.transcript.messages
        await talk.conversation.describe(title="Notes")
    script = Script("Two.")
    async with talking(script, note, store=store) as talk:
        await talk.conversation.open()
        assert not talk.conversation.interrupted
        with pytest.raises(KeepholdError) as caught:
            await talk.resume()
        assert caught.value.code == "no_open_batch"
        await talk.prompt("Second")
        described = await talk.conversation.description()
    assert script.read[0][:4] == before
    assert described is not None and described.metadata == {"title": "Notes"}


async def test_G1_a_turn_without_the_assistant_in_between(tmp_path: Path) -> None:
    """`keephold turn` runs batches in the conversation, and writes no lines."""
    store = f"sqlite:///{tmp_path / 'work.db'}"
    async with talking(Script("One."), note, store=store) as talk:
        await talk.prompt("First")
    async with Runtime([note], store=store) as rt, rt.turn("main") as turn:
        await turn.run([ToolCall("c1", "note", {"text": "a"})])
    script = Script([called("c1", "note", text="b")], "Two.")
    async with talking(script, note, store=store) as talk:
        await talk.prompt("Second")
    assert script.results() == ["noted b"]


async def test_B9_an_open_batch_of_somebody_else_is_not_taken_for_ours(tmp_path: Path) -> None:
    ran = []

    @keephold.tool(on_crash="replay")
    async def slow(text: str) -> str:
        """Never ends in the first process."""
        ran.append(text)
        await asyncio.sleep(3600 if len(ran) == 1 else 0)
        return f"slow {text}"

    store = f"sqlite:///{tmp_path / 'work.db'}"
    async with talking(Script("One."), slow, store=store) as talk:
        await talk.prompt("First")
    rt = Runtime([slow], store=store)
    async with rt:
        turn = await rt.turn("main").__aenter__()
        running = asyncio.create_task(turn.run([ToolCall("c1", "slow", {"text": "a"})]))
        await until(lambda: ran)
    with pytest.raises(KeepholdError):
        await running
    script = Script([called("c1", "slow", text="b")], "Two.")
    async with talking(script, slow, store=store) as talk:
        await talk.conversation.open()
        assert not talk.conversation.interrupted
        await talk.prompt("Second")
    assert script.results() == ["slow b"]


async def test_G1_calls_that_nobody_answered(clock: VirtualClock) -> None:
    """Of a turn that is over: by whatever way, their results are gone."""
    script = Script("Fine.")
    async with talking(script, note, clock=clock) as talk:
        await talk.conversation.open()
        await talk.conversation.transcript.add("t-gone", user("First"), calls("a", "b"))
        assert (await talk.prompt("Second")).text == "Fine."
    assert script.results() == [INTERRUPTED, INTERRUPTED]
    assert script.told() == ["Second"]


async def test_R6_closed_in_a_stream_and_in_a_batch(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'work.db'}"
    ran = []

    @keephold.tool(on_crash="replay")
    async def slow(text: str) -> str:
        """Ends in the last process."""
        ran.append(text)
        await asyncio.sleep(3600 if len(ran) == 1 else 0)
        return f"slow {text}"

    script = Script(Reply("Never.", pause=3600))
    async with talking(script, slow, store=store) as talk:
        running = asyncio.create_task(talk.prompt("First"))
        await until(lambda: script.read)
    with pytest.raises(KeepholdError):
        await running
    script = Script([called("c1", "slow", text="a"), called("c2", "slow", text="b")])
    async with talking(script, slow, store=store) as talk:
        await talk.conversation.open()
        assert talk.conversation.interrupted
        running = asyncio.create_task(talk.resume())
        await until(lambda: len(ran) == 2)
    with pytest.raises(KeepholdError):
        await running
    script = Script("Done.")
    async with talking(script, slow, store=store) as talk:
        assert (await talk.prompt("And?")).text == "Done."
        lines = [json.loads(line.body) for line in await talk.conversation.lines()]
    assert script.results() == ["slow a", "slow b"]
    assert script.told() == ["And?"]
    assert [part["content"] for line in lines for part in line["parts"] if part["part_kind"] == "user-prompt"] == [
        "First", "And?"
    ]  # fmt: skip


async def test_G1_two_runtimes_take_turns(tmp_path: Path) -> None:
    """A conversation that is open in two processes: each sees what was said in the other."""
    store = f"sqlite:///{tmp_path / 'work.db'}"
    one, two = Script("One.", "Three."), Script("Two.")
    async with talking(one, store=store) as here, talking(two, store=store) as there:
        await here.prompt("First")
        await there.prompt("Second")
        await here.prompt("Third")
    assert len(two.read[0]) == 3
    assert len(one.read[1]) == 5


async def test_R6_closed_while_results_are_written(clock: VirtualClock) -> None:
    """No request is open then that could be given up: none is made any more."""
    script = Script([called("c1", "note", text="a")], "Not to be asked for.")
    async with talking(script, note, clock=clock) as talk:

        def leave(event: Event) -> None:
            if isinstance(event, Answered):
                talk.rt.agents.suspend()  # what closing does first

        with pytest.raises(KeepholdError) as caught:
            await talk.prompt(then=leave)
    assert caught.value.code == "runtime_closed"
    assert len(script.read) == 1


async def test_G1_a_summary_of_another_process_counts_nothing_twice(clock: VirtualClock) -> None:
    async with Runtime(clock=clock) as rt:
        here, there = await loaded(rt), await loaded(rt)
        await here.add("t1", user("One"), calls("a"), returns("a"), ModelResponse([TextPart("Done.")]))
        await there.refresh()
        assert len(there.spent) == 2
        await here.summarise("t1", 1, "Summary.")
        await here.add("t1", user("Two"))
        await there.refresh()
        assert len(there.spent) == 2
        assert texts(there.messages) == texts(here.messages)
        assert (there.turn, there.batch, there.taken) == (here.turn, here.batch, here.taken)
