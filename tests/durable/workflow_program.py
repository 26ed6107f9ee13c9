"""A program with a tool that runs workflows, for tests that kill it: `python -m … STORE DIRECTORY KILL_AT`.

It spawns the workflow `flow` the first time, or finds it in the store; it ends when the workflow has, and prints how.
Its tool `note` leaves a line in a file. At the line of that number in a life (0: never) the process kills itself,
before the step is recorded.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.turn.calls import STATEFUL
from tests.unit.workflow.world import inline

import keephold
from keephold import Call, Runtime, ToolCall, ToolError
from keephold.tools.function import FunctionTool
from keephold.tools.workflow import read_workflow, run_workflow

Note = Callable[[dict[str, Any]], Any]


class Around:
    """Surroundings with one tool."""

    def __init__(self, call: Call, note: Note) -> None:
        self._call = call
        self._note = note

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any:
        if name != "note":
            raise ToolError(f"no tool `{name}`")
        return self._note(arguments)

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        raise ToolError(f"no agent `{agent_id}`")

    async def wait(self, ids: Sequence[str], mode: str) -> Any:
        raise ToolError("no handles")

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._call.progress(done, total, message)


def flow_tool(note: Note, now: Callable[[], float], **options: Any) -> FunctionTool:
    """A tool that runs the workflow it is given."""

    @keephold.tool(name="flow", actions=STATEFUL, on_crash="replay", **options)
    async def flow(call: Call, workflow: dict[str, Any]) -> Any:
        """Run a workflow."""
        expressions = inline()
        read = await read_workflow(workflow, expressions)
        return await run_workflow(read, call.durable(), Around(call, note), expressions=expressions, now=now)

    return flow


def _note(path: Path, kill_at: int) -> Note:
    noted = 0

    def note(arguments: dict[str, Any]) -> Any:
        nonlocal noted
        noted += 1
        with path.open("a") as file:
            file.write(f"{arguments['line']}\n")
        if noted == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return arguments["line"]

    return note


def notes(prefix: str) -> list[dict[str, Any]]:
    """Two steps that leave a line each, with the item of the loop around them."""
    return [
        {
            "id": f"{prefix}{n}",
            "type": "tool",
            "config": {"name": "note", "arguments": {"line": {"cel": f"'{prefix}{n}.' + string(item)"}}},
        }
        for n in (1, 2)
    ]


def loop(prefix: str, concurrency: int) -> dict[str, Any]:
    config = {"items": [1, 2, 3], "concurrency": concurrency, "steps": notes(prefix)}
    return {"id": prefix, "type": "loop", "config": config}


AGAIN = {"id": "again", "type": "transform", "config": {"expression": "data"}}
WORKFLOW: dict[str, Any] = {
    "workflowId": "w",
    "name": "W",
    "steps": [
        loop("a", 1),
        {"id": "p", "type": "parallel", "config": {"branches": [[loop("b", 2)], [loop("c", 1)]]}},
        {"id": "n", "type": "set_variable", "config": {"name": "n", "value": 0}},
        {"id": "count", "type": "set_variable", "config": {"name": "n", "value": {"cel": "vars.n + 1"}}},
        {**AGAIN, "condition": "data < 3", "onSuccess": "count"},
        {"id": "end", "type": "transform", "config": {"expression": "[vars.n, size(steps)]"}},
    ],
}  # fmt: skip
LINES = sorted(f"{list_}{n}.{item}" for list_ in "abc" for n in (1, 2) for item in (1, 2, 3))


async def main(store: str, directory: Path, kill_at: int) -> None:
    tool = flow_tool(_note(directory / "lines", kill_at), time.time)
    async with Runtime([tool], store=store) as rt:
        if not await rt.handles(conversation="main"):
            turn = await rt.turn("main").__aenter__()
            spawned = {"action": "spawn", "id": "w", "workflow": WORKFLOW}
            await turn.run([ToolCall("1", "flow", spawned)])
        await rt.wait(all=["w"], timeout=30, conversation="main")
        info = await rt.handle("w", conversation="main")
        assert isinstance(info.outcome, keephold.outcomes.Ok), info
        print(json.dumps(info.outcome.value), flush=True)
        await rt.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
