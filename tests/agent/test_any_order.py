"""Turns that are disturbed in any order (G1): cancelled, talked into, told news, failing, too long, all at random.

Whatever happens: a turn ends, no handle is left that was not kept, the model is never sent a history that a provider
would refuse, and what is loaded again is what is in memory.
"""

import asyncio
import contextlib
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import (
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelServerError,
)
from pydantic_ai.messages import ModelMessage
from tests.agent.scripted import Line, Reply, Script, Sent, at_end, called, spawned
from tests.agent.talk import Talk, talking, written
from tests.agent.test_loop import TOOLS
from tests.agent.test_transcript import loaded, texts

from holdfast.testing import VirtualClock

CONFIG = "[conversation]\ncontext_tokens = 1000\nmax_requests = 12\n"
LIVES = 40


def a_call(chance: random.Random, id: str) -> Sent:
    handle = f"h{chance.randrange(4)}"
    return chance.choice(
        (
            called(id, "note", text="a"),
            called(id, "work", secs=chance.choice((0, 0.01, 5))),
            spawned(id, "work", handle, secs=chance.choice((0, 1, 5, 50))),
            spawned(id, "kept", handle, secs=chance.choice((1, 30))),
            called(id, "nobody"),
            (id, "note", "{"),
            called(id, "await", all=[handle], timeout_secs=3),
            (id, "work", {"action": "fetch", "id": handle}),
            (id, "work", {"action": "abort", "id": handle}),
        )
    )


def a_line(chance: random.Random, number: int) -> Line:
    pause, usage = chance.choice((0, 0.5, 2)), chance.choice(((10, 5), (1100, 5)))
    kind = chance.random()
    if kind < 0.35:
        calls = [
            a_call(chance, f"c{number if chance.random() < 0.9 else 0}-{at}") for at in range(chance.randint(1, 4))
        ]
        return Reply(("Let ", "me.") if chance.random() < 0.5 else (), calls, pause=pause, usage=usage)
    if kind < 0.7:
        finish = chance.choice((None, None, None, "length", "content_filter"))
        return Reply(("So ", "it ", "is."), pause=pause, finish=finish, usage=usage)  # type: ignore[arg-type]
    return chance.choice(
        (
            ModelServerError("scripted", "down"),
            Reply("Half.", breaks=ModelConnectionError("scripted", "gone")),
            ModelAuthenticationError("scripted", "no"),
            ModelContextWindowExceededError("scripted", "too long"),
        )
    )


def a_script(chance: random.Random) -> Script:
    count = iter(range(100_000))

    def line(_: list[ModelMessage]) -> Line:
        return a_line(chance, next(count))

    def answer(text: str) -> Any:
        return at_end(chance.choice(("wait", "abort")))(text) if chance.random() < 0.8 else ModelServerError("x", "y")

    summaries: tuple[Line, ...] = ("Short.", "Short.", ModelServerError("scripted", "down"), Reply("Slow.", pause=3))
    chosen = (chance.choice(summaries) for _ in range(1000))
    return Script(*[line] * 500, answers=answer, summaries=chosen)


async def disturb(chance: random.Random, talk: Talk, task: "asyncio.Task[Any]") -> None:
    for _ in range(chance.randrange(5)):
        await asyncio.sleep(chance.choice((0, 0.001, 0.3, 1, 4, 10)))
        if task.done():
            return
        match chance.choice(("cancel", "say", "info", "critical", "end")):
            case "cancel":
                talk.conversation.cancel()
            case "say" if talk.conversation.busy:
                talk.conversation.say("And?")
            case ("info" | "critical") as level:
                await talk.rt.notify("test.news", level, "News.", conversation="main")
            case "end" if chance.random() < 0.3:
                task.cancel()


async def live(seed: int, clock: VirtualClock, config: Path) -> None:
    chance = random.Random(seed)
    async with talking(a_script(chance), *TOOLS, clock=clock, config=config) as talk:
        for at in range(chance.randint(1, 6)):
            task = asyncio.create_task(talk.prompt(f"Prompt {at}"))
            disturbing = asyncio.create_task(disturb(chance, talk, task))
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await disturbing
            assert not talk.conversation.busy
            assert [info.id for info in talk.rt.live() if info.tool != "kept"] == []
            here, stored = talk.conversation.transcript, await loaded(talk.rt)
            assert texts(stored.messages) == texts(here.messages)
            assert (stored.turn, stored.batch) == (here.turn, here.batch)


def test_G1_whatever_happens_in_whatever_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    config = written(tmp_path, CONFIG)
    for seed in range(LIVES):
        clock = VirtualClock()
        try:
            clock.run(live(seed, clock, config))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
