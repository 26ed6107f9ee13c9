"""Sessions that the client library opens: given up, refused, answered badly, opened twice (X3)."""

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from keephold.acp import RpcError, connect
from keephold.errors import KeepholdError

COMMAND = [sys.executable, str(Path(__file__).parent / "agents" / "scripted.py")]


def text(update: dict[str, Any]) -> str:
    return str(update["content"]["text"])


async def test_a_session_that_is_given_up_leaves_nothing_waiting(tmp_path: Path) -> None:
    async with connect([*COMMAND, "--slow"]) as agent:
        opening = asyncio.ensure_future(agent.new_session(tmp_path))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        session = await agent.new_session(tmp_path)
        await session.prompt('{"updates": 1}').drained()
        assert session.id == "s2" and agent._early == [] and not agent._opening
        assert list(agent._sessions) == ["s2"]


async def test_an_answer_without_an_id_is_an_error(tmp_path: Path) -> None:
    async with connect([*COMMAND, "--nameless"]) as agent:
        with pytest.raises(KeepholdError, match="has no `sessionId`"):
            await agent.new_session(tmp_path)
        assert agent._sessions == {}


async def test_an_open_session_that_is_loaded_is_told_its_history(tmp_path: Path) -> None:
    async with connect(COMMAND) as agent:
        background: list[str] = []
        first = await agent.new_session(tmp_path, on_background=lambda update: background.append(text(update)))
        await first.prompt("{}").drained()
        before = len(background)
        history: list[str] = []
        again = await agent.load_session(first.id, tmp_path, on_update=lambda update: history.append(text(update)))
        assert history == ["then 0", "then 1", "then 2"] and len(background) == before
        assert again is not first and again.id == first.id
        assert (await again.prompt('{"updates": 1}')).stop_reason == "end_turn"


@pytest.mark.parametrize("how", ["load_session", "resume_session"])
async def test_a_session_stays_open_when_opening_it_again_is_refused(tmp_path: Path, how: str) -> None:
    async with connect([*COMMAND, "--no-more"]) as agent:
        session = await agent.new_session(tmp_path)
        with pytest.raises(RpcError):
            await getattr(agent, how)(session.id, tmp_path)
        assert (await session.prompt('{"updates": 1}')).stop_reason == "end_turn"
        with pytest.raises(RpcError):
            await getattr(agent, how)("other", tmp_path)
        assert list(agent._sessions) == [session.id]


async def test_a_session_whose_turn_runs_is_not_opened_again(tmp_path: Path) -> None:
    async with connect(COMMAND) as agent:
        session = await agent.new_session(tmp_path)
        turn = session.prompt('{"hang": true}')
        with pytest.raises(KeepholdError, match="is running") as refused:
            await agent.load_session(session.id, tmp_path)
        assert refused.value.code == "turn_open"
        turn.cancel()
        assert (await turn).stop_reason == "cancelled"


async def test_nothing_is_kept_of_turns_that_nobody_holds(tmp_path: Path) -> None:
    async with connect(COMMAND) as agent:
        session = await agent.new_session(tmp_path)
        turn = session.prompt("{}")
        assert await session.turn_complete(turn.id) == await session.turn_complete(str(turn.id)) == "end_turn"
        id = turn.id
        await turn.drained()
        del turn
        while session._signals:  # what the last await left behind goes with it
            await asyncio.sleep(0)
            gc.collect()
        with pytest.raises(KeepholdError, match=f"no turn of prompt {id}"):
            await session.turn_complete(id)
        assert len(session._signals) == 0
