"""A turn that is cancelled (B7, T5): in the stream, in a batch, in its end, between attempts; by whoever.

`prompt` returns soon, with what was said so far; what the model is sent afterwards is whole.
"""

import asyncio
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ModelServerError
from pydantic_ai.messages import ModelResponse
from tests.agent.scripted import Reply, Script, at_end, called, spawned
from tests.agent.talk import Talk, kinds, talking
from tests.agent.test_loop import TOOLS, running
from tests.patience import until

import keephold
from keephold.agent.events import Event
from keephold.testing import VirtualClock


async def test_T5_cancelled_in_the_stream(clock: VirtualClock) -> None:
    script = Script(Reply(["Half ", "a word."], pause=10), "Yes?")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(15)
        talk.conversation.cancel()
        answer = await task
        assert (answer.stop_reason, answer.text, answer.error) == ("cancelled", "Half ", None)
        assert clock.now() < 1_767_225_600 + 16
        assert await talk.kinds() == ["request", "response"]
        assert (await talk.prompt("Still there?")).text == "Yes?"
    assert isinstance(script.read[1][1], ModelResponse) and script.read[1][1].state == "interrupted"


async def test_T5_cancelled_before_the_first_word(clock: VirtualClock) -> None:
    script = Script(Reply("Never.", pause=100), "Yes?")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(1)
        talk.conversation.cancel()
        assert (await task).stop_reason == "cancelled"
        await talk.prompt("Still there?")
    assert script.told() == ["Go.", "Still there?"]


async def test_B7_cancelled_in_a_batch(clock: VirtualClock) -> None:
    script = Script([called("c1", "note", text="a"), called("c2", "work"), spawned("c3", "work", "w")], "Yes?")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(5)
        talk.conversation.cancel()
        assert (await task).stop_reason == "cancelled"
        assert talk.rt.live() == []
        await talk.prompt("Still there?")
    noted, cancelled, _ = script.results()
    assert (noted, cancelled) == ("noted a", "Tool execution cancelled.")
    assert script.told()[-1] == "Still there?"


async def test_T5_cancelled_in_the_end(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "work", "w")], "Done.", "Yes?", answers=at_end("wait"))
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(5)
        assert script.asked
        talk.conversation.cancel()
        answer = await task
        assert (answer.stop_reason, answer.text) == ("cancelled", "Done.")
        assert talk.rt.live() == []
        assert (await talk.prompt("Still there?")).text == "Yes?"


async def test_T5_cancelled_in_a_pause_between_attempts(clock: VirtualClock) -> None:
    script = Script(Reply(["Void ", "words"], breaks=ModelServerError("scripted", "down")), "Yes?")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await until(lambda: "Retrying" in kinds(talk.events))
        talk.conversation.cancel()
        answer = await task
        assert (answer.stop_reason, answer.text) == ("cancelled", "")
        assert await talk.kinds() == ["request"]
        await talk.prompt("Still there?")
    assert len(script.read) == 2


async def test_T5_cancelled_by_its_own_listener(clock: VirtualClock) -> None:
    for moment in ("TurnStarted", "Text", "Used", "Called", "Answered"):
        script = Script(Reply("Words.", [called("c1", "note", text="a")]), "Yes?", "Yes?")
        async with talking(script, *TOOLS, clock=clock) as talk:

            def then(event: Event, talk: Talk = talk, moment: str = moment) -> None:
                if type(event).__name__ == moment:
                    talk.conversation.cancel()

            assert (await talk.prompt(then=then)).stop_reason == "cancelled"
            assert (await talk.prompt("Still there?")).text == "Yes?"


async def test_T5_a_cancelled_task_leaves_no_open_turn(clock: VirtualClock) -> None:
    script = Script(Reply("Never.", pause=100), "Yes?")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not talk.conversation.busy
        assert (await talk.prompt("Still there?")).text == "Yes?"


async def test_G1_cancel_without_a_turn_is_harmless(clock: VirtualClock) -> None:
    async with talking(Script("Hello."), clock=clock) as talk:
        talk.conversation.cancel()
        assert (await talk.prompt()).stop_reason == "end_turn"
        talk.conversation.cancel()


async def test_T5_what_was_said_is_kept_also_if_it_is_cancelled_at_once(clock: VirtualClock) -> None:
    """The person has said it and sees it: the model is to know of it."""
    script = Script("One.", "Three.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt("First")
        task = await running(talk, "Second")
        talk.conversation.cancel()
        assert (await task).stop_reason == "cancelled"
        assert len(script.read) == 1
        await talk.prompt("Third")
    assert script.told() == ["Second", "Third"]


@pytest.mark.parametrize("when", ["at once", "in the batch"])
async def test_B9_what_was_said_is_kept_if_the_turn_that_it_takes_up_is_cancelled(tmp_path: Path, when: str) -> None:
    """A prompt that goes on with a turn whose process died, in the middle of a batch."""
    store, began = f"sqlite:///{tmp_path / 'work.db'}", asyncio.Event()

    @keephold.tool(on_crash="replay")
    async def hang() -> str:
        """Never ends."""
        began.set()
        await asyncio.sleep(3600)
        return ""

    script = Script([called("c1", "hang")], "Done.")
    async with talking(script, hang, store=store) as talk:
        task = await running(talk, "First")
        await began.wait()
    with pytest.raises(keephold.KeepholdError):
        await task
    began.clear()
    async with talking(script, hang, store=store) as talk:
        task = await running(talk, "Second")
        if when == "in the batch":
            await until(lambda: "Called" in kinds(talk.events))
            await began.wait()
        talk.conversation.cancel()
        assert (await task).stop_reason == "cancelled"
        assert (await talk.prompt("Third")).text == "Done."
    assert script.told()[-2:] == ["Second", "Third"]
