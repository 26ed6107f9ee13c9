"""How tests call the wait tools: by name, with what comes back read as JSON and checked against the tool's schema."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import jsonschema_rs
from tests.wait_tools import with_wait_tools

from keephold import Response, Runtime, Tool, ToolCall
from keephold.testing import VirtualClock

_labels = itertools.count(1)


class Caller:
    """A client without turns, as an MCP client is one."""

    def __init__(self, rt: Runtime, conversation: str = "main") -> None:
        self.rt = rt
        self.conversation = conversation

    async def response(self, tool: str, /, **arguments: Any) -> Response:
        call = ToolCall(f"w{next(_labels)}", tool, arguments)
        return await self.rt.call_queue(self.conversation).call(call)

    async def __call__(self, tool: str, /, **arguments: Any) -> Any:
        """The reply to a call that was right."""
        response = await self.response(tool, **arguments)
        reply = json.loads(response.result)
        found = self.rt.toolbox.find(tool)
        assert found.returns is not None
        assert response.is_error == bool(reply.get("isError")), reply
        jsonschema_rs.validate(dict(found.returns), reply)
        unknown = reply.keys() - found.returns["properties"].keys()
        assert not unknown, f"{tool} answers with {unknown}, which its schema does not know"
        return reply

    async def error(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The reply to a call that was wrong (W7)."""
        response = await self.response(tool, **arguments)
        assert response.is_error and response.code is not None
        reply: dict[str, Any] = json.loads(response.result)
        assert reply["isError"] is True and isinstance(reply["error"], str)
        return reply

    async def create(self, id: str, **arguments: Any) -> Any:
        return await self("create_wait_handle", handleId=id, **{"type": "custom", **arguments})

    async def complete(self, id: str, **arguments: Any) -> Any:
        return await self("complete_wait_handle", handleId=id, **arguments)

    async def wait_for(self, id: str, **arguments: Any) -> Any:
        return await self("wait_for", handleId=id, **arguments)

    async def wait_for_multiple(self, mode: str, *ids: str, **arguments: Any) -> Any:
        return await self("wait_for_multiple", handleIds=list(ids), mode=mode, **arguments)


@asynccontextmanager
async def calling(clock: VirtualClock, *tools: Tool, **options: Any) -> AsyncIterator[Caller]:
    """A runtime with nothing but built-ins and these tools, and a client of it."""
    async with with_wait_tools(tools, clock=clock, **options) as rt:
        yield Caller(rt)
