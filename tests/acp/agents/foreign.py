"""An agent made with the Python ACP SDK: somebody else's idea of the protocol."""

import asyncio
from typing import Any

from acp.contrib.tool_calls import ToolCallTracker
from acp.core import run_agent
from acp.helpers import update_agent_message_text
from acp.meta import PROTOCOL_VERSION
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
)


class Foreign:
    """Says some words for each prompt, runs one tool call and asks for permission if the prompt says `may I`."""

    def on_connect(self, conn: Any) -> None:
        self.conn = conn
        self.sessions = 0
        self.cancelled: dict[str, asyncio.Event] = {}

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(),
            agent_info=Implementation(name="foreign", version="1"),
        )

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        self.sessions += 1
        self.cancelled[str(self.sessions)] = asyncio.Event()
        return NewSessionResponse(session_id=str(self.sessions))

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> PromptResponse:
        text = prompt[0].text
        self.cancelled[session_id].clear()
        tools = ToolCallTracker()
        await self.conn.session_update(session_id, tools.start("t", title="Work", status="pending"))
        if "may I" in text:
            options = [
                PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
                PermissionOption(option_id="no", name="No", kind="reject_once"),
            ]
            answer = await self.conn.request_permission(session_id, tools.tool_call_model("t"), options)
            await self.say(session_id, answer.outcome.outcome)
            if answer.outcome.outcome == "cancelled":
                return PromptResponse(stop_reason="cancelled")
            if answer.outcome.option_id == "no":
                await self.conn.session_update(session_id, tools.progress("t", status="failed"))
                return PromptResponse(stop_reason="end_turn")
        await self.conn.session_update(session_id, tools.progress("t", status="in_progress"))
        if "slowly" in text:
            await self.cancelled[session_id].wait()
            await self.conn.session_update(session_id, tools.progress("t", status="failed"))
            return PromptResponse(stop_reason="cancelled")
        for word in text.split():
            await self.say(session_id, word)
        await self.conn.session_update(session_id, tools.progress("t", status="completed"))
        return PromptResponse(stop_reason="end_turn")

    async def say(self, session_id: str, text: str) -> None:
        await self.conn.session_update(session_id, update_agent_message_text(text))

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.cancelled[session_id].set()


agent: Any = Foreign()
asyncio.run(run_agent(agent))
