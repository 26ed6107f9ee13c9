"""A prompt that an exception ends is interrupted, not cancelled (R9): its conversation resumes it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent.scripted import Script, called, spawned
from tests.agent.talk import Talk, talking
from tests.agent.test_loop import TOOLS, running
from tests.durable.lives import approval, ok, parked

from keephold import Key
from keephold.agent.events import TurnAnswer
from keephold.testing import VirtualClock


async def _resume(talk: Talk) -> TurnAnswer:
    return await talk.resume()


async def _prompt(talk: Talk) -> TurnAnswer:
    return await talk.prompt("And?")


@pytest.mark.parametrize("how", [_resume, _prompt])
async def test_R9_a_timeout_around_a_prompt_leaves_the_batch_to_the_next(
    how: Callable[[Talk], asyncio.Future[TurnAnswer]], clock: VirtualClock
) -> None:
    keys: list[Key] = []
    script = Script([called("c1", "approve"), called("c2", "work"), spawned("c3", "work", "w")], "Approved.")
    async with talking(script, *TOOLS, approval(keys), clock=clock) as talk:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await talk.prompt()
        assert talk.conversation.interrupted
        going = asyncio.ensure_future(how(talk))
        await clock.advance(1)
        assert str(await talk.rt.resolve(keys[0], ok("yes"))) == "accepted"
        answer = await going
        assert (answer.stop_reason, answer.text) == ("end_turn", "Approved.")
    approved, worked, _ = script.results()
    assert (approved, worked) == ("yes", "Aborted: the turn was interrupted.")


async def test_R9_a_cancelled_prompt_is_found_by_the_next_process(tmp_path: Path) -> None:
    keys: list[Key] = []
    script = Script([called("c1", "approve")], "Approved.", by_history=True)
    store = f"sqlite:///{tmp_path}/work.db"
    async with talking(script, *TOOLS, approval(keys), store=store) as talk:
        task = await running(talk)
        await parked(talk.rt)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with talking(script, *TOOLS, approval(keys), store=store) as talk:
        await talk.conversation.open()
        assert talk.conversation.interrupted
        await talk.rt.resolve(keys[0], ok("yes"))
        assert (await talk.resume()).text == "Approved."
    assert script.results() == ["yes"]
