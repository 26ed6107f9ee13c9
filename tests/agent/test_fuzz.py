"""Conversations whose model says anything, and that somebody meddles with at any time (G1, T, N4, R6).

Each play is drawn from a seed: `KEEPHOLD_SEED=…` tries others, `KEEPHOLD_FUZZ=…` multiplies how many there are. A
failure names its seed.
"""

import asyncio
import math
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage
from tests.agent.rambling import AGENT, KEPT, TOOLS, Rambler
from tests.agent.scripted import put
from tests.soak import tries

from keephold import KeepholdError, Runtime
from keephold.agent.conversation import Conversation
from keephold.agent.events import Answered, Called, Event, TurnAnswer, TurnFinished, TurnStarted
from keephold.agent.transcript import Transcript
from keephold.ids import parent_of
from keephold.testing import VirtualClock
from keephold.testing.clock import where

SEED = int(os.environ.get("KEEPHOLD_SEED", "20260101"))
TIMES = int(os.environ.get("KEEPHOLD_FUZZ", "1"))
PLAYS, REOPENED = tries(35, soak=60), tries(3, soak=4)
"""In virtual time; in real time, with a store that is closed and opened again."""
SOON = 60.0
"""Seconds, virtual for the most part, after which a turn that was cancelled is over: tools have a few to end."""
_STEPS = TypeAdapter(list[ModelMessage])


class Play:
    """One conversation and everything that is done to it. `unit` is what a tick is worth, in seconds."""

    def __init__(self, seed: str, *, unit: float, quick: bool = False) -> None:
        self.rng = Random(seed)
        self.script, self.helper = Rambler(self.rng, quick=quick), Rambler(self.rng, quick=quick)
        put(helper=self.helper)
        self.unit = unit
        self.events: list[Event] = []
        self.cancelled = math.inf
        """When the turn was cancelled."""
        self.done: list[str] = []
        """What happened, for whoever reads a failure."""

    async def turn(self, rt: Runtime, conversation: Conversation, *, closing: bool) -> bool:
        """One turn with meddling; whether the runtime was closed in it."""
        self.script.left, self.helper.left = 14, 8
        self.events, self.cancelled = [], math.inf
        resuming = conversation.interrupted and self.rng.random() < 0.5
        self.done.append("resume" if resuming else "prompt")
        talk = conversation.resume(listener=self.events.append) if resuming else None
        running = asyncio.create_task(talk or conversation.prompt("Go.", listener=self.events.append))
        meddling = asyncio.create_task(self._meddle(rt, conversation, running, closing=closing))
        answer: TurnAnswer | None = None
        try:
            async with asyncio.timeout(1e6 if self.unit >= 1 else SOON):
                answer = await running
            self.done.append(f"{answer.stop_reason} {answer.error or ''}")
        except KeepholdError as error:
            self.done.append(f"raised {error.code}: {error.message}")
            assert rt.closing, f"it raised {error!r}"
        except asyncio.CancelledError:
            assert "task cancelled" in self.done, "cancelled by nobody"
        finally:
            meddling.cancel()
            with suppress(asyncio.CancelledError):
                await meddling
        assert not conversation.busy
        since = asyncio.get_running_loop().time() - self.cancelled
        assert since < SOON, f"cancelled {since} s ago"
        self._heard(answer)
        if not rt.closing:
            await self._compare(rt, conversation, answer)
            if not conversation.interrupted:  # then calls that a crash does not end are left for the next turn (R9)
                left = [each for each in rt.live() if each.tool not in KEPT or parent_of(each.conversation)]
                assert not left, f"the turn has ended and these have not: {left}"
        return rt.closing

    async def _meddle(
        self, rt: Runtime, conversation: Conversation, running: "asyncio.Task[TurnAnswer]", *, closing: bool
    ) -> None:
        """At random times, until the turn is over."""
        rng = self.rng
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            if rng.random() < 0.3:
                for _ in range(rng.randint(0, 30)):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(rng.choice([0, 0.01, 0.1, 1, 1, 10, 40]) * self.unit)
            if running.done():
                return
            action = rng.choice(["cancel", "say", "say", "critical", "info", "task cancelled", "prompt", "close"])
            if action == "close" and not closing:
                continue
            self.done.append(action)
            if action == "cancel":
                conversation.cancel()
                self.cancelled = min(self.cancelled, asyncio.get_running_loop().time())
            elif action == "say" and conversation.busy:
                conversation.say("And more.")
            elif action in ("critical", "info"):
                level: Any = action
                await rt.notify("test.news", level, "It burns.", conversation=conversation.id)
            elif action == "task cancelled" and not running.cancelling():  # a second time waits for nothing
                running.cancel()
            elif action == "prompt" and conversation.busy:
                with pytest.raises(KeepholdError):
                    await conversation.prompt("Too early.")
            elif action == "close":
                await rt.close()

    def _heard(self, answer: TurnAnswer | None) -> None:
        """A turn begins once and ends once; what was called in between was answered."""
        kinds = [type(event) for event in self.events]
        assert kinds.count(TurnStarted) <= 1 and (not kinds or kinds[0] is TurnStarted)
        assert kinds.count(TurnFinished) == (answer is not None), kinds
        assert answer is None or kinds[-1] is TurnFinished
        open_calls: list[str] | None = None
        for event in self.events:
            if isinstance(event, Called):
                assert open_calls is None, "called while calls are open"
                open_calls = [call.id for call in event.calls]
            elif isinstance(event, Answered):
                assert [response.id for response in event.responses] == open_calls
                open_calls = None
        assert open_calls is None or answer is None, f"never answered: {open_calls}"

    async def _compare(self, rt: Runtime, conversation: Conversation, answer: TurnAnswer | None) -> None:
        """What is in the store is what is in memory."""
        memory, stored = conversation.transcript, Transcript(rt.registry, conversation.id)
        await stored.load()
        if answer is None:
            await memory.refresh()  # a line may have been written when its turn was cancelled; a turn begins with this
        assert _plain(stored.messages) == _plain(memory.messages)
        for name in ("_numbers", "turn", "taken", "batch"):
            assert getattr(stored, name) == getattr(memory, name), name

    def check(self) -> None:
        assert self.script.invalid == self.helper.invalid == []


def _plain(messages: list[ModelMessage]) -> Any:
    """As they are sent. The time of a summary is that of when it was read."""
    left_out: Any = {"__all__": {"timestamp": True, "parts": {"__all__": {"timestamp"}}}}
    return _STEPS.dump_python(messages, mode="json", exclude_none=True, exclude=left_out)


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    assert not left, "\n".join(map(where, left))


async def virtual(seed: str, clock: VirtualClock, config: Path) -> list[str]:
    play = Play(seed, unit=1)
    async with no_task_left():
        async with Runtime(TOOLS, clock=clock, config=config) as rt:
            conversation = rt.conversation("main", model=play.script.model)
            for _ in range(play.rng.randint(1, 4)):
                if await play.turn(rt, conversation, closing=True):
                    break
                await asyncio.sleep(play.rng.choice([0, 1, 60]))
        play.check()
    return play.done


async def real(seed: str, store: str, config: Path) -> list[str]:
    """Each runtime takes up what the one before has left."""
    play = Play(seed, unit=0.005, quick=True)
    for _ in range(4):
        async with no_task_left():
            async with Runtime(TOOLS, store=store, config=config) as rt:
                conversation = rt.conversation("main", model=play.script.model)
                for _ in range(2):
                    await conversation.open()
                    if await play.turn(rt, conversation, closing=True):
                        break
                else:
                    if play.rng.random() < 0.5:
                        await rt.close()
            play.done.append("closed")
            play.check()
    return play.done


def written(directory: Path, rng: Random) -> Path:
    """Sometimes with limits."""
    file = directory / "keephold.toml"
    limits = rng.choice(["", "", "max_requests = 3\n", "max_tokens = 4000\n", "context_tokens = 2000\n"])
    file.write_text(f"[conversation]\n{limits}detached = 'auto'\n{AGENT}")
    return file


def seeds(kind: str, count: int) -> Sequence[str]:
    return [f"{SEED}:{kind}:{at}" for at in range(count * TIMES)]


def test_G1_whatever_the_model_says_and_whoever_meddles(tmp_path: Path) -> None:
    for seed in seeds("virtual", PLAYS):
        random.seed(seed)  # the pauses between requests
        clock = VirtualClock()
        try:
            clock.run(virtual(seed, clock, written(tmp_path, Random(seed))))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def test_R6_closed_and_opened_again_and_again(tmp_path: Path) -> None:
    for at, seed in enumerate(seeds("real", REOPENED)):
        random.seed(seed)
        try:
            await real(seed, f"sqlite:///{tmp_path}/{at}.db", written(tmp_path, Random(seed)))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
