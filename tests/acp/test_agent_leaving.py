"""What is left of a session that was closed, deleted, or only opened (X1)."""

import asyncio
import gc
import json
import warnings
from collections.abc import Callable, Container
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.acp.editor import statuses
from tests.acp.within import Within, within
from tests.patience import PATIENCE

from keephold.acp.agent import replay
from keephold.acp.agent import server as served
from keephold.acp.agent.session import AgentSession
from keephold.acp.wire import RpcError
from keephold.agent.conversation import Conversation
from keephold.store.base import ConversationRow, browsable
from keephold.turn.prompt_queue import PromptQueue

AGENT = """
[agents.sub]
run = "unattended"
on_turn_end = "keep"
"""
INNER = json.dumps([{"calls": [["1", "job", {"action": "spawn", "id": "j"}]]}, {"text": ["said"], "hang": True}])


def left(*kinds: type, before: Container[int] = ()) -> list[str]:
    """What there is of these kinds, except objects that other tests have left."""
    gc.collect()
    found = (each for each in gc.get_objects() if type(each) in kinds)
    return [type(each).__name__ for each in found if id(each) not in before]


async def rows(agent: Within) -> list[ConversationRow]:
    return await browsable(agent.runtime.registry.store).conversations()


async def test_X1_nothing_is_held_of_a_session_that_was_closed(tmp_path: Path) -> None:
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) in (AgentSession, Conversation, PromptQueue)]
    before = {id(each) for each in kept}  # `kept` holds them, so that no new object gets the id of one
    async with within(tmp_path) as agent:
        session = await agent.new()
        spawn = {"action": "spawn", "id": "w", "file": str(tmp_path / "flag")}
        calls = [["1", "waits", spawn], ["2", "look", {"path": "a"}], ["3", "asks", {"kind": "boolean"}]]
        turn = asyncio.ensure_future(agent.prompt(session, {"calls": calls}))
        await agent.until(lambda: agent.requests("session/request_permission"))
        ((request, _),) = agent.requests("session/request_permission")
        agent.peer.respond(request, {"outcome": {"outcome": "selected", "optionId": "yes"}})
        assert await turn == "end_turn"
        assert sorted(left(AgentSession, Conversation, before=before)) == ["AgentSession", "Conversation"]
        await agent.ask("session/close", session)
        assert left(AgentSession, Conversation, before=before) == []
        (tmp_path / "flag").touch()  # it was kept, and is known again
        await agent.ask("session/load", session, cwd="/tmp", mcpServers=[])
        await agent.until(lambda: "it is there" in str(agent.updates("1")[-1]))
        await agent.ask("session/close", session)
        assert left(AgentSession, Conversation, before=before) == []
        assert len(left(PromptQueue, before=before)) == 1  # the runtime's own


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
    async with within(tmp_path, hangs) as agent, asyncio.timeout(PATIENCE):
        await agent.new()


def told(agent: Within) -> list[dict[str, Any]]:
    return [params for _, named, params, _ in agent.heard.messages if named == "_keephold/turn_complete"]


async def test_X2_a_prompt_that_is_cancelled_at_once_was_said_and_its_end_is_its_own(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        session = await agent.new()
        await agent.prompt(session, {"text": ["hi"]})
        turn = asyncio.ensure_future(agent.prompt(session, {"text": ["no"]}))
        await asyncio.sleep(0)
        agent.peer.notify("session/cancel", {"sessionId": session})
        assert await turn == "cancelled" and [each["stopReason"] for each in told(agent)] == ["end_turn", "cancelled"]
        lines = await agent.runtime.registry.store.transcript(session)
        ends = [line for line in lines if line.kind == "turn_complete"]
        assert len({line.turn for line in ends}) == 2
        (said,) = (line for line in lines if b'\\"no\\"' in line.body)
        assert said.turn == ends[1].turn


async def test_X2_a_prompt_with_the_id_null_has_an_end(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        session = await agent.new()
        blocks = [{"type": "text", "text": "[{}]"}]
        params = {"sessionId": session, "prompt": blocks}
        agent.peer._send({"jsonrpc": "2.0", "id": None, "method": "session/prompt", "params": params})
        await agent.until(lambda: told(agent))
        assert [each["promptRequestId"] for each in told(agent)] == ["null"]


class Over(asyncio.Event):
    """Does something between the end of a turn and whoever waits for it."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        super().set()  # no turn runs yet
        self._then = then

    def set(self) -> None:
        asyncio.get_running_loop().call_soon(self._then)
        super().set()


@pytest.mark.parametrize("method", ["session/close", "session/delete"])
async def test_X1_a_session_that_is_being_closed_takes_no_prompt(tmp_path: Path, method: str) -> None:
    async with within(tmp_path) as agent:
        refused: list[str] = []
        session = await agent.new()

        def prompt() -> None:
            blocks = [{"type": "text", "text": "too late"}]
            with pytest.raises(RpcError) as error:
                agent.agent._on_request("session/prompt", {"sessionId": session, "prompt": blocks}, "late")
            refused.append(error.value.message)

        agent.agent._sessions[session]._over = Over(prompt)
        turn = asyncio.ensure_future(agent.prompt(session, {"text": ["so far"], "hang": True}))
        await agent.until(lambda: "so far" in str(agent.heard.messages))
        await agent.ask(method, session)
        assert await turn == "cancelled" and len(told(agent)) == 1
        assert len(refused) == 1 and "is not open" in refused[0]


async def test_X1_one_request_at_a_time_opens_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, readings = asyncio.Event(), count(1)
    read = replay.replay_session

    async def slowly(*given: Any) -> Any:
        if next(readings) == 2:
            await gate.wait()
        else:
            for _ in range(20):  # the other one comes as far as it can
                await asyncio.sleep(0)
        return await read(*given)

    monkeypatch.setattr(served, "replay_session", slowly)
    async with within(tmp_path) as agent:
        session = await agent.new()
        await agent.prompt(session, {"text": ["hi"]})
        params = {"sessionId": session, "cwd": "/tmp", "mcpServers": []}
        first, second = (agent.peer.request("session/load", params) for _ in range(2))
        await first
        calls = [["1", "waits", {"file": str(tmp_path / "flag")}]]
        turn = asyncio.ensure_future(agent.prompt(session, {"calls": calls}))
        begun = asyncio.ensure_future(agent.until(lambda: "waiting" in str(agent.updates("1"))))
        await asyncio.wait((turn, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        gate.set()
        (loaded,) = await asyncio.gather(second, return_exceptions=True)
        (tmp_path / "flag").touch()
        (ended,) = await asyncio.gather(turn, return_exceptions=True)
        if ended == "end_turn":  # the prompt came first: its turn is whole, and the session is not opened again in it
            assert isinstance(loaded, RpcError) and "is running" in loaded.message
            assert statuses(agent.updates("1")) == ["pending", "in_progress", "completed"]
        else:
            assert isinstance(ended, RpcError) and "is not open" in ended.message
            assert loaded == await first


async def test_X4_a_request_that_is_cancelled_at_once_leaves_nothing_unawaited(tmp_path: Path) -> None:
    async with within(tmp_path) as agent:
        asked = agent.peer.request("session/new", {"cwd": "/tmp", "mcpServers": []})
        agent.peer.notify("$/cancel_request", {"requestId": asked.id})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RpcError, match="cancelled"):
                await asked
            gc.collect()
