"""Our agent in this process, and the bare other end of its wire: for what has to be looked at from inside."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acp.editor import config, script
from tests.acp.wires import Heard
from tests.patience import PATIENCE

from keephold import Runtime
from keephold.acp.agent.projects import Projects, SessionPrompts
from keephold.acp.agent.server import AgentServer
from keephold.acp.wire import Id, Peer


@dataclass
class Within:
    """An agent, its runtime, and a client by hand."""

    runtime: Runtime
    agent: AgentServer
    peer: Peer
    heard: Heard

    async def new(self, cwd: str = "/tmp") -> str:
        made = await self.peer.request("session/new", {"cwd": cwd, "mcpServers": []})
        return str(made["sessionId"])

    async def prompt(self, session: str, *steps: dict[str, Any]) -> str:
        blocks = [{"type": "text", "text": script(*steps)}]
        answer = await self.peer.request("session/prompt", {"sessionId": session, "prompt": blocks})
        return str(answer["stopReason"])

    async def ask(self, method: str, session: str, **params: Any) -> Any:
        return await self.peer.request(method, {"sessionId": session, **params})

    def requests(self, method: str) -> list[tuple[Id, dict[str, Any]]]:
        """What the agent has asked of the client."""
        return [(id, params) for kind, named, params, id in self.heard.messages if (kind, named) == ("request", method)]

    def updates(self, call: str) -> list[dict[str, Any]]:
        """What the client was told of a call, by the end of its id."""
        told = (params["update"] for _, named, params, _ in self.heard.messages if named == "session/update")
        return [update for update in told if update.get("toolCallId", "").endswith(f".{call}")]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.heard.more.clear()
                await self.heard.more.wait()


@asynccontextmanager
async def within(directory: Path, more: str = "", **capabilities: Any) -> AsyncIterator[Within]:
    """An agent that serves a client with these capabilities."""
    persons, heard = SessionPrompts(), Heard()
    runtime = Runtime(store=f"sqlite:///{directory}/store.db", config=config(directory, more), prompter=persons)
    read_a, write_b = os.pipe()
    read_b, write_a = os.pipe()
    async with runtime:
        agent = AgentServer(Projects(runtime, persons))
        serving = asyncio.create_task(agent.serve(read_a, write_a))
        peer = Peer(read_b, write_b, on_request=heard.request, on_notification=heard.notification)
        peer.start()
        try:
            await peer.request("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
            yield Within(runtime, agent, peer, heard)
        finally:
            await peer.close()
            os.close(write_b)
            await serving
            for fd in (read_a, read_b, write_a):
                os.close(fd)
