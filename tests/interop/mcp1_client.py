"""Drives the fixture server with the client of mcp 1.x, whose tasks are those of SEP-1686: `python mcp1_client.py URL`.

It runs in a virtual environment of its own and prints one JSON object: what came of each call. The test beside it says
what should have come.
"""
# mypy: ignore-errors
# The type checker knows the mcp of the project, not this one.

import asyncio
import json
import sys
import warnings
from typing import Any

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, ElicitResult

warnings.simplefilter("ignore", DeprecationWarning)  # tasks are deprecated there, which is why they are tried

asked: list[str] = []


async def answer(context: Any, params: Any) -> ElicitResult:
    """The person: says yes to everything."""
    field = next(iter(params.requestedSchema["properties"]))
    asked.append(field)
    return ElicitResult(action="accept", content={field: True})


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if block.type == "text"]


async def task(session: ClientSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool as a task and follow it to its end, the way the client's documentation says."""
    tasks = session.experimental
    created = (await tasks.call_tool_as_task(name, arguments)).task
    seen = [created.status]
    async for now in tasks.poll_task(created.taskId):
        seen.append(now.status)
        if now.status == "input_required":  # the question comes beside the request for the result
            break
    report: dict[str, Any] = {"statuses": list(dict.fromkeys(seen)), "ttl": created.ttl}
    try:
        result = await tasks.get_task_result(created.taskId, CallToolResult)
        report |= {"texts": texts(result), "isError": result.isError, "meta": result.meta}
    except McpError as error:
        report |= {"code": error.error.code}
    report["taskId"], report["status"] = created.taskId, (await tasks.get_task(created.taskId)).status
    return report


async def cancelled(session: ClientSession) -> dict[str, Any]:
    tasks = session.experimental
    created = (await tasks.call_tool_as_task("slow_compute", {"seconds": 60})).task
    answered = await tasks.cancel_task(created.taskId)
    listed = [each.taskId for each in (await tasks.list_tasks()).tasks]
    return {"status": answered.status, "listed": created.taskId in listed}


async def waited(session: ClientSession) -> dict[str, Any]:
    """Two handles, completed while `wait_for` and `wait_for_multiple` wait for them."""
    for name in ("one", "two"):
        await session.call_tool("create_wait_handle", {"handleId": f"mcp1-{name}", "type": "custom"})
    both = ["mcp1-one", "mcp1-two"]
    waiting = asyncio.gather(
        session.call_tool("wait_for", {"handleId": "mcp1-one", "timeoutMs": 20000}),
        session.call_tool("wait_for_multiple", {"handleIds": both, "mode": "all", "timeoutMs": 20000}),
    )
    for name in ("two", "one"):
        await session.call_tool("complete_wait_handle", {"handleId": f"mcp1-{name}", "result": {"of": name}})
    one, multiple = await waiting
    late = await session.call_tool("complete_wait_handle", {"handleId": "mcp1-one", "result": {}})
    return {"one": texts(one), "multiple": texts(multiple), "late": texts(late), "late_is_error": late.isError}


async def unknown(session: ClientSession) -> int:
    try:
        await session.experimental.get_task("no-such-task")
    except McpError as error:
        return error.error.code
    return 0


async def main(url: str) -> None:
    async with (
        streamable_http_client(url) as (reading, writing, _),
        ClientSession(reading, writing, elicitation_callback=answer) as session,
    ):
        started = await session.initialize()
        tools = (await session.list_tools()).tools
        support = {tool.name: tool.execution.taskSupport for tool in tools if tool.execution is not None}
        report = {
            "protocol": started.protocolVersion,
            "capability": started.capabilities.tasks is not None,
            "support": support,
            "greet": texts(await session.call_tool("greet", {"name": "World"})),
            "slow_compute": await task(session, "slow_compute", {"seconds": 1}),
            "failing_job": await task(session, "failing_job", {}),
            "protocol_error_job": await task(session, "protocol_error_job", {}),
            "confirm_delete": await task(session, "confirm_delete", {"filename": "a.txt"}),
            "cancelled": await cancelled(session),
            "unknown": await unknown(session),
            "waited": await waited(session),
            "asked": asked,
        }
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
