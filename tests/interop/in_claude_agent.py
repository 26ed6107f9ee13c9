"""A client of the Claude Agent SDK with keephold's tools. Its program is played: it sends what Claude Code would, and
prints what it got."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Transport
from tests.interop.toolbox import SCRIPT, TOOLS, deploy

import keephold
from keephold import Runtime
from keephold.adapters import claude_agent


class Program(Transport):  # type: ignore[misc]
    """Stands in for Claude Code: answers the SDK's requests, and sends MCP messages to its servers."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)

    async def connect(self) -> None:
        pass

    async def write(self, data: str) -> None:
        line = json.loads(data)
        if line["type"] == "control_request":
            reply = {"subtype": "success", "request_id": line["request_id"], "response": {}}
            self._lines.put_nowait({"type": "control_response", "response": reply})
        elif line["type"] == "control_response":
            reply = line["response"]
            self._answers.pop(reply["request_id"]).set_result(reply["response"]["mcp_response"])

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (line := await self._lines.get()) is not None:
            yield line

    async def close(self) -> None:
        self._lines.put_nowait(None)

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        pass

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request to the server, and return the result."""
        id = f"r{next(self._ids)}"
        answer = self._answers[id] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        request = {"subtype": "mcp_message", "server_name": "keephold", "message": message}
        self._lines.put_nowait({"type": "control_request", "request_id": id, "request": request})
        return (await answer)["result"]


async def permit(prompt: Any) -> Any:
    return keephold.prompts.Approved()


async def main() -> None:
    program = Program()
    async with Runtime([*TOOLS, deploy], prompter=permit) as rt:
        options = ClaudeAgentOptions(mcp_servers={"keephold": claude_agent.server(rt, "main")})
        async with ClaudeSDKClient(options, transport=program):
            who = {"name": "claude-code", "version": "2"}
            can: dict[str, Any] = {"roots": {}, "elicitation": {}}
            opened = {"protocolVersion": "2025-11-25", "capabilities": can, "clientInfo": who}
            await program.ask("initialize", opened)
            offered = {tool["name"] for tool in (await program.ask("tools/list", {}))["tools"]}
            read = []
            for id, name, given in [*itertools.chain(*SCRIPT), ("6", "deploy", {})]:
                result = await program.ask("tools/call", {"name": name, "arguments": given})
                read.append([id, result["content"][0]["text"], result.get("isError", False)])
        kept = [handle.id for handle in await rt.handles(conversation="main")]
    print(json.dumps({"read": read, "offered": sorted(offered), "kept": kept}))


asyncio.run(main())
