"""What an agent has under way while a person looks: started over MCP, as an agent's client does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.client import Client
from tests.browser.workshop import STEPS
from tests.mcp.clients import connected, read, texts
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served


class Agent:
    """An MCP client with the calls of an agent."""

    def __init__(self, client: Client, server: Served) -> None:
        self._client = client
        self._server = server
        self._waiting: list[asyncio.Task[Any]] = []

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The reply to a call, which must be right."""
        async with asyncio.timeout(PATIENCE):
            answered = await self._client.call_tool(tool, arguments)
        assert not answered.is_error, texts(answered)
        said: dict[str, Any] = read(answered)
        return said

    async def spawn(self, tool: str, id: str, **arguments: Any) -> str:
        """Its uid."""
        await self.call(tool, action="spawn", id=id, **arguments)
        return await self.uid(id)

    def spawning(self, tool: str, id: str, **arguments: Any) -> "asyncio.Task[dict[str, Any]]":
        """The same, where somebody must allow it first."""
        task = asyncio.create_task(self.call(tool, action="spawn", id=id, **arguments))
        self._waiting.append(task)
        return task

    async def result(self, id: str) -> Any:
        """What became of a handle, when it has stopped."""
        waited = await self.call("await", all=[id])
        (ended,) = waited["completed"]
        return ended.get("result", ended)

    async def uid(self, id: str) -> str:
        async with self._server.client() as http:
            found = (await http.get("/api/handles", params={"search": id})).json()["handles"]
        (uid,) = (handle["uid"] for handle in found if handle["id"] == id)
        return str(uid)

    async def close(self) -> None:
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)


@asynccontextmanager
async def agent(server: Served) -> AsyncIterator[Agent]:
    """Somebody's agent, connected with the token."""
    async with connected(server.mcp, token=TOKEN) as client:
        agent = Agent(client, server)
        try:
            yield agent
        finally:
            await agent.close()


async def busy(agent: Agent, server: Served) -> dict[str, str]:
    """Two builds, a terminal, a release that is replayed, a workflow, a wait, a failure, and two questions; by id."""
    uids = {
        "app": await agent.spawn("build", "app", target="app"),
        "docs": await agent.spawn("build", "docs", target="docs"),
        "shell": await agent.spawn("shell", "shell"),
        "v1": await agent.spawn("release", "v1", gate=server.path("released")),
        "said": await agent.spawn("shout", "said", text="<b>hello</b>\x1b[31m, world\x1b[0m"),
        "publish": await agent.spawn("publish", "publish", version="1.0"),
        "name": await agent.spawn("name_release", "name"),
    }
    await agent.call("create_wait_handle", handleId="approval", type="hook", metadata={"of": "the release"})
    workflow = {"workflowId": "checks", "name": "Checks", "steps": STEPS, "input": {"gate": server.path("checked")}}
    started = await agent.call("execute_workflow_async", **workflow)
    uids["checks"] = await agent.uid(started["handleId"])
    await agent.call("shell", action="apply", id="shell", input="printf '\\033[32mready\\033[0m\\n'\n")
    return uids
