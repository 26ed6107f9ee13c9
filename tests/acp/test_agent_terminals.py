"""Terminals of the client: asked for what lasts, given back, and what is printed meanwhile is told (X1)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.acp.editor import shown
from tests.acp.within import Within, within

from keephold.acp.agent import calls
from keephold.acp.wire import REQUEST_CANCELLED, RpcError

ECHO = '[conversation.tools.echo]\nsource = "local"\nrun = "unattended"\ncommand = ["sh", "-c", "echo hello"]\n'


def build(directory: Path, id: str = "b") -> list[Any]:
    return [id, "build", {"action": "spawn", "id": id, "file": str(directory / f"flag-{id}")}]


async def asked(agent: Within, count: int = 1) -> Any:
    """The id of that request for a terminal."""
    await agent.until(lambda: len(agent.requests("terminal/create")) >= count)
    return agent.requests("terminal/create")[count - 1][0]


async def test_X1_what_is_over_at_once_gets_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "INTERVAL_SECS", 1000.0)
    async with within(tmp_path, ECHO, terminal=True) as agent:
        session = await agent.new()
        await agent.prompt(session, {"calls": [["1", "echo", {}]]})
        assert "hello" in shown(agent.updates("1")[-1])
        assert agent.requests("terminal/create") == []


async def test_X2_what_was_printed_is_told_before_the_turn_ends_also_if_the_terminal_is_not_there_yet(
    tmp_path: Path,
) -> None:
    async with within(tmp_path, terminal=True) as agent:
        session = await agent.new()
        waits = ["2", "waits", {"file": str(tmp_path / "asked")}]
        turn = asyncio.ensure_future(agent.prompt(session, {"calls": [build(tmp_path), waits]}))
        id = await asked(agent)
        (tmp_path / "asked").touch()
        assert await turn == "end_turn"
        named = [named if named != "session/update" else str(params) for _, named, params, _ in agent.heard.messages]
        end = named.index("_keephold/turn_complete")
        assert any("begun" in each for each in named[:end])
        agent.peer.respond(id, {"terminalId": "t"})
        await agent.until(lambda: "terminalId" in str(agent.updates("b")[-1]))


@pytest.mark.parametrize(("number", "again"), [(REQUEST_CANCELLED, True), (-32603, False)])
async def test_X1_a_client_that_cancels_a_terminal_is_asked_for_the_next_one(
    tmp_path: Path, number: int, again: bool
) -> None:
    async with within(tmp_path, terminal=True) as agent:
        session = await agent.new()
        await agent.prompt(session, {"calls": [build(tmp_path)]})
        agent.peer.respond(await asked(agent), error=RpcError(number, "no"))
        await agent.until(lambda: "begun" in str(agent.updates("b")[-1]))
        await agent.prompt(session, {"calls": [build(tmp_path, "c")]})
        if again:
            await asked(agent, 2)
        else:
            await agent.until(lambda: "begun" in str(agent.updates("c")))
            assert len(agent.requests("terminal/create")) == 1


@pytest.mark.parametrize("late", [False, True])
async def test_X1_terminals_are_given_back_when_their_session_is_closed(tmp_path: Path, late: bool) -> None:
    async with within(tmp_path, terminal=True) as agent:
        session = await agent.new()
        await agent.prompt(session, {"calls": [build(tmp_path)]})
        id = await asked(agent)
        if late:
            await agent.ask("session/close", session)
            agent.peer.respond(id, {"terminalId": "t"})
        else:
            agent.peer.respond(id, {"terminalId": "t"})
            await agent.until(lambda: "terminalId" in str(agent.updates("b")[-1]))
            await agent.ask("session/close", session)
        await agent.until(lambda: agent.requests("terminal/release"))
        ((_, released),) = agent.requests("terminal/release")
        assert released == {"sessionId": session, "terminalId": "t"}
        assert agent.requests("terminal/wait_for_exit") == []
