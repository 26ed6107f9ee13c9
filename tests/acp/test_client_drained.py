"""`drained()` returns after the last handler of the turn, in order; a naive client provably misses some (X3)."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from keephold.acp import connect
from keephold.acp.client.process import AgentProcess
from keephold.acp.wire import Params, Peer

AGENT = str(Path(__file__).parent / "agents" / "scripted.py")
THOUSAND = [str(number) for number in range(1000)]


def agent(*options: str) -> list[str]:
    return [sys.executable, AGENT, *options]


def text(update: dict[str, Any]) -> str:
    found: str = update["content"]["text"]
    return found


class Slow:
    """A handler that takes as long as it likes: some updates no time, some several turns of the loop, some more.

    With `behind`, the first one is not through before that is set, and those of every fifty take longer than it.
    """

    def __init__(self, behind: asyncio.Event | None = None) -> None:
        self.seen: list[str] = []
        self._behind = behind

    async def __call__(self, update: dict[str, Any]) -> None:
        number = int(text(update))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        if number % 50 == 0:
            if self._behind is not None:
                await self._behind.wait()
            await asyncio.sleep(0.0005 * (20 - number // 50))
        self.seen.append(text(update))


async def naive(order: dict[str, Any]) -> list[str]:
    """The same wire, a task for each update, and the turn is taken for over at its response."""
    answered = asyncio.Event()
    slow = Slow(answered)
    tasks: list[asyncio.Task[None]] = []

    def update(method: str, params: Params) -> None:
        if method == "session/update" and text(params["update"]).isdigit():
            tasks.append(asyncio.create_task(slow(params["update"])))

    process = AgentProcess(agent(), cwd=None, env=None, exited=lambda: None)
    peer = Peer(process.reading, process.writing, on_notification=update)
    peer.start()
    await peer.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    session = (await peer.request("session/new", {"cwd": "/", "mcpServers": []}))["sessionId"]
    blocks = [{"type": "text", "text": json.dumps(order)}]
    await peer.request("session/prompt", {"sessionId": session, "prompt": blocks})
    at_the_response = list(slow.seen)
    answered.set()
    await asyncio.gather(*tasks)
    await peer.close()
    await process.end()
    return at_the_response


@pytest.mark.parametrize(
    ("offer", "barrier"), [("extension", "turn_complete"), ("update", "turn_complete"), ("no", "response")]
)
async def test_X3_drained_returns_after_the_last_of_1000_slow_handlers(offer: str, barrier: str) -> None:
    answered = asyncio.Event()
    slow = Slow(answered)
    async with connect(agent("--offer", offer)) as connection:
        session = await connection.new_session("/")
        turn = session.prompt(json.dumps({"updates": 1000}), on_update=slow)
        assert (await turn).stop_reason == "end_turn"
        assert slow.seen == [], "the answer was read while the first handler was at work"
        answered.set()
        assert await turn.drained() == barrier
        assert slow.seen == THOUSAND
    handled = await naive({"updates": 1000})
    assert len(handled) < 1000, "the naive client misses some"
    assert handled != THOUSAND[: len(handled)], "and those that it has handled are out of order"


async def test_X3_a_signal_behind_the_answer_is_waited_for() -> None:
    seen: list[str] = []
    async with connect(agent()) as connection:
        session = await connection.new_session("/")
        order = {"updates": 2, "signal": "late", "late": 3}
        turn = session.prompt(json.dumps(order), on_update=lambda update: seen.append(text(update)))
        assert await turn.drained() == "turn_complete"
        assert seen == ["0", "1", "late 0", "late 1", "late 2"]


async def test_X3_a_signal_that_never_comes_does_not_hang_anybody() -> None:
    async with connect(agent()) as connection:
        session = await connection.new_session("/")
        turn = session.prompt(json.dumps({"updates": 3, "signal": False}))
        assert await turn.drained() == "response"
        with pytest.raises(Exception, match=f"answered prompt {turn.id} and sent no turn_complete"):
            await session.turn_complete(turn.id)


async def test_X3_turn_complete_can_be_awaited_by_the_id_of_the_prompt() -> None:
    slow = Slow()
    async with connect(agent()) as connection:
        session = await connection.new_session("/")
        turn = session.prompt(json.dumps({"updates": 100, "reason": "refusal"}), on_update=slow)
        assert await session.turn_complete(str(turn.id)) == "refusal"
        assert len(slow.seen) == 100
        assert await session.turn_complete(turn.id) == "refusal"


async def test_X3_turn_complete_of_an_agent_without_it_is_an_error() -> None:
    async with connect(agent("--offer", "no")) as connection:
        session = await connection.new_session("/")
        with pytest.raises(Exception, match="does not offer turn_complete"):
            await session.turn_complete(1)


async def test_X3_two_sessions_and_two_prompts_do_not_mix() -> None:
    async with connect(agent()) as connection:
        one, two = await connection.new_session("/"), await connection.new_session("/")
        slow = [Slow() for _ in range(4)]
        turns = [
            session.prompt(json.dumps({"updates": 50 + number}), on_update=slow[number])
            for number, session in enumerate((one, two, one, two))
        ]
        assert [await turn.drained() for turn in turns] == ["turn_complete"] * 4
        assert [each.seen for each in slow] == [THOUSAND[: 50 + number] for number in range(4)]
