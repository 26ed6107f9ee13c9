"""What is left of a session that was closed, deleted, or only opened (X1)."""

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from tests.acp.within import Within, within

from holdfast.acp import agent as served
from holdfast.acp.sessions import Session
from holdfast.agent.conversation import Conversation
from holdfast.store.base import ConversationRow
from holdfast.turn.people import People

AGENT = """
[agents.sub]
run = "unattended"
on_turn_end = "keep"
"""
INNER = json.dumps([{"calls": [["1", "job", {"action": "spawn", "id": "j"}]]}, {"text": ["said"], "hang": True}])


def left(*kinds: type) -> list[str]:
    """What there is of these kinds."""
    gc.collect()
    return [type(each).__name__ for each in gc.get_objects() if type(each) in kinds]


async def rows(agent: Within) -> list[ConversationRow]:
    return await agent.runtime.registry.store.conversations()


async def test_X1_nothing_is_held_of_a_session_that_was_closed(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        session = await agent.new()
        spawn = {"action": "spawn", "id": "w", "file": str(tmp_path / "flag")}
        calls = [["1", "waits", spawn], ["2", "look", {"path": "a"}], ["3", "asks", {"kind": "boolean"}]]
        turn = asyncio.ensure_future(agent.prompt(session, {"calls": calls}))
        await agent.until(lambda: agent.requests("session/request_permission"))
        ((id, _),) = agent.requests("session/request_permission")
        agent.peer.respond(id, {"outcome": {"outcome": "selected", "optionId": "yes"}})
        assert await turn == "end_turn"
        assert sorted(left(Session, Conversation)) == ["Conversation", "Session"]
        await agent.ask("session/close", session)
        assert left(Session, Conversation) == []
        (tmp_path / "flag").touch()  # it was kept, and is known again
        await agent.ask("session/load", session, cwd="/tmp", mcpServers=[])
        await agent.until(lambda: "it is there" in str(agent.updates("1")[-1]))
        await agent.ask("session/close", session)
        assert left(Session, Conversation) == []
        assert len(left(People)) == 1  # the runtime's own


async def test_X1_what_is_deleted_takes_what_it_kept_and_its_sub_agents_with_it(tmp_path: Path) -> None:
    async with within(tmp_path, AGENT) as agent:
        session, other = await agent.new(), await agent.new()
        spawn = {"action": "spawn", "id": "s", "prompt": INNER}
        calls = [["1", "sub", spawn], ["2", "job", {"action": "spawn", "id": "j"}]]
        await agent.prompt(session, {"calls": calls})
        await agent.prompt(other, {"calls": [["1", "sub", spawn]]})
        await agent.until(lambda: "said" in str(agent.updates("1")))
        assert len(await rows(agent)) == 4
        await agent.ask("session/delete", session)
        assert {row.id.partition("/")[0] for row in await rows(agent)} == {other}
        assert {handle.conversation.partition("/")[0] for handle in agent.runtime.live()} == {other}
        await agent.ask("session/delete", session)  # once more is harmless


async def test_X1_a_session_that_is_only_opened_leaves_no_trace(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        session = await agent.new()
        await agent.ask("session/load", session, cwd="/tmp", mcpServers=[])
        assert await rows(agent) == []
        await agent.prompt(session, {"text": ["hi"]})
        (row,) = await rows(agent)
        assert row.metadata["cwd"] == "/tmp"
        for method, cwd in (("load", "/tmp"), ("resume", "/elsewhere"), ("resume", "/tmp/")):
            await agent.ask(f"session/{method}", session, cwd=cwd, mcpServers=[])
        assert await rows(agent) == [row]
        await agent.ask("session/resume", session, cwd="/elsewhere", mcpServers=[])
        await agent.prompt(session, {"text": ["hi"]})
        (row,) = await rows(agent)
        assert row.metadata["cwd"] == "/elsewhere"


async def test_X1_a_session_that_brings_no_servers_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_CONNECT_SECS", 1000.0)
    hangs = '[mcp.servers.slow]\ncommand = ["sleep", "1000"]\n'
    async with within(tmp_path, hangs) as agent, asyncio.timeout(20):
        await agent.new()


def told(agent: Within) -> list[dict[str, Any]]:
    return [params for _, named, params, _ in agent.heard.messages if named == "_holdfast/turn_complete"]


async def test_X2_a_prompt_that_is_cancelled_before_its_turn_began_is_no_end_of_the_turn_before(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        session = await agent.new()
        await agent.prompt(session, {"text": ["hi"]})
        before = await agent.runtime.registry.store.transcript(session)
        assert [line.kind for line in before][-1] == "turn_complete"
        turn = asyncio.ensure_future(agent.prompt(session, {"text": ["no"]}))
        await asyncio.sleep(0)
        agent.peer.notify("session/cancel", {"sessionId": session})
        assert await turn == "cancelled" and [each["stopReason"] for each in told(agent)] == ["end_turn", "cancelled"]
        after = await agent.runtime.registry.store.transcript(session)
        ends = [line for line in after if line.kind == "turn_complete"]
        assert len({line.turn for line in ends}) == len(ends)
