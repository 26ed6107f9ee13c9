"""Our client and an agent made with the Python ACP SDK."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from keephold.acp import PermissionRequest, connect

COMMAND = [sys.executable, str(Path(__file__).parent / "agents" / "foreign.py")]


def seen(update: dict[str, Any]) -> str:
    return str(update.get("status") or update["content"]["text"])


async def test_X3_a_turn_with_somebody_elses_agent() -> None:
    handled: list[str] = []

    async def slowly(update: dict[str, Any]) -> None:
        for _ in range(7 - len(handled)):
            await asyncio.sleep(0.001)
        handled.append(seen(update))

    async with connect(COMMAND) as agent:
        assert agent.agent_info["name"] == "foreign" and not agent.offers_turn_complete
        session = await agent.new_session(".")
        turn = session.prompt("a b c d", on_update=slowly)
        assert (await turn).stop_reason == "end_turn"
        assert await turn.drained() == "response"
        assert handled == ["pending", "in_progress", "a", "b", "c", "d", "completed"]


async def test_X4_permission_and_cancel_with_somebody_elses_agent() -> None:
    async with connect(COMMAND, on_permission=lambda permission: permission.option("allow_once")) as agent:
        session = await agent.new_session(".")
        turn = session.prompt("may I")
        assert [seen(update) async for update in turn] == [
            "pending",
            "selected",
            "in_progress",
            "may",
            "I",
            "completed",
        ]
        turn = session.prompt("slowly")
        async for update in turn:
            if seen(update) == "in_progress":
                turn.cancel()
        assert (await turn).stop_reason == "cancelled"


async def test_X4_a_pending_permission_is_answered_cancelled() -> None:
    async def ponder(permission: PermissionRequest) -> str | None:
        turn.cancel()
        await asyncio.Event().wait()
        return None

    async with connect(COMMAND, on_permission=ponder) as agent:
        turn = (await agent.new_session(".")).prompt("may I")
        assert [seen(update) async for update in turn] == ["pending", "cancelled"]
        assert (await turn).stop_reason == "cancelled"
