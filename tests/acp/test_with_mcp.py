"""An ACP agent and an MCP server on one runtime: both hear of their own handles, and each asks its own user."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from tests.acp.within import Within, within
from tests.mcp.clients import MODERN, Person, text

from keephold import ToolCall
from keephold.handles.handle import Handle
from keephold.mcp.server import Server
from keephold.mcp.tasks import MARK

ASKED: list[Any] = [["1", "asked", {"word": "acp"}], ["2", "job", {"action": "spawn", "id": "j"}]]


def recovered(agent: Within, handle: Handle, metadata: dict[str, Any]) -> Any:
    """Who is asked about a call that a dead process has left."""
    handle.metadata = metadata
    return next(found for find in agent.runtime.prompt_queue.finders if (found := find(handle)) is not None)


@pytest.mark.parametrize("servers", [1, 2])
async def test_X1_M1_both_hear_of_handles_and_ask_their_own_user(tmp_path: Path, servers: int) -> None:
    person = Person({"approve": True})
    async with within(tmp_path) as agent:
        made = [Server(agent.runtime, conversation=f"mcp{number}") for number in range(servers)]
        async with Client(made[0], mode=MODERN, elicitation_callback=person) as client:
            session = await agent.new()
            turn = asyncio.ensure_future(agent.prompt(session, {"calls": ASKED}))
            await agent.until(lambda: agent.requests("session/request_permission"))
            assert text(await client.call_tool("asked", {"word": "mcp"})) == "ran mcp\n"
            assert len(person.asked) == 1
            ((id, _),) = agent.requests("session/request_permission")
            agent.peer.respond(id, {"outcome": {"outcome": "selected", "optionId": "allow_once"}})
            assert await turn == "end_turn"
            assert len(agent.requests("session/request_permission")) == 1
            assert "ran acp" in str(agent.updates("1")[-1]) and "working" in str(agent.updates("2"))


async def test_M2_the_client_of_a_task_is_asked_about_it_whichever_came_first(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        Server(agent.runtime)
        async with agent.runtime.turn("mcp") as turn:
            await turn.run([ToolCall("1", "job", {"action": "spawn", "id": "j"})])
            handle = agent.runtime.registry.find("j", "mcp")
            of_session, of_task = recovered(agent, handle, {}), recovered(agent, handle, {MARK: {"elicits": True}})
            assert of_task is not of_session and of_session is agent.agent._projects.home.persons.of("mcp")
            turn.cancel()
