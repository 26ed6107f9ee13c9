"""Tools, and the calls of a model that uses them, for agents of other frameworks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import keephold
from keephold import ToolError


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build(target: str, config: str = "debug") -> str:
    """Build a target. The name `config` means something to LangChain."""
    return f"{target} built for {config}"


@keephold.tool
async def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


hanging, let_go = asyncio.Event(), asyncio.Event()


@keephold.tool
async def hang() -> str:
    """Never return."""
    hanging.set()
    try:
        await asyncio.Event().wait()
    finally:
        let_go.set()
    return ""


@keephold.tool(run="ask")
async def deploy() -> str:
    """Deploy, if the user permits it."""
    return "deployed"


TOOLS = [build, fail, hang]
SCRIPT: list[list[tuple[str, str, dict[str, Any]]]] = [
    [
        ("1", "build", {"action": "spawn", "id": "app", "target": "app", "config": "release"}),
        ("2", "build", {"action": "spawn", "id": "docs", "target": "docs"}),
        ("3", "await", {"all": ["app", "docs"]}),
    ],
    [("4", "fail", {"why": "no space"}), ("5", "build", {"action": "spawn", "id": "x", "target": 5, "colour": "red"})],
]
"""Two answers of a model; a third has no call."""


async def cancel_one(call: Coroutine[Any, Any, Any]) -> bool:
    """Cancel a call of `hang` that runs, and return whether its tool was cancelled, too."""
    task = asyncio.create_task(call)
    await hanging.wait()
    task.cancel()
    await asyncio.wait([task])
    await let_go.wait()
    return task.cancelled()
