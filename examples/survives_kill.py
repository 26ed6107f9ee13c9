"""A workflow that survives `kill -9`. Run it: `python examples/survives_kill.py`.

First `pip install '.[serve]'` in a clone.

A model has passed four steps to `execute_workflow_async`. The process that runs them is killed during the third.
Another process opens the same store, gets no work of its own, and finishes the workflow. Recorded steps do not
run again. The step that was running when the process died does.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keephold

STORE = "sqlite:///workflow.db"
STEPS: list[dict[str, Any]] = [
    {"id": "tag", "type": "tool", "config": {"name": "work", "arguments": {"what": "tag v1"}}},
    {"id": "build", "type": "tool", "config": {"name": "work", "arguments": {"what": "build v1"}}},
    {"id": "publish", "type": "tool", "config": {"name": "work", "arguments": {"what": "publish v1", "seconds": 0.5}}},
    {"id": "sum", "type": "transform", "config": {"expression": "steps.tag + ', ' + steps.build + ', ' + data"}},
]
WORKFLOW = {"workflowId": "release", "name": "Release", "steps": STEPS}


def say(text: str) -> None:
    print(text, flush=True)


@keephold.tool(on_crash="replay")
async def work(call: keephold.Call, what: str, seconds: float = 0) -> str:
    """Do one piece of work."""
    say(f"{what}, attempt {call.attempt}")
    await asyncio.sleep(seconds)
    return f"{what}: done"


# The two processes


async def first() -> None:
    """Start the workflow, as a model's call does, and run it until this process is killed."""
    runtime = keephold.Runtime([work], store=STORE, builtins=["execute_workflow_async"])
    async with runtime as rt, rt.turn("main") as turn:
        await turn.run([keephold.ToolCall("1", "execute_workflow_async", WORKFLOW)])
        [handle] = await turn.handles()
        await turn.wait(all=[handle.id])


async def second() -> None:
    """Open the store with the same tools, which resumes the workflow."""
    async with keephold.Runtime([work], store=STORE) as rt:
        [handle] = await rt.handles(conversation="main")
        say(f"finds the workflow {handle.state}, attempt {handle.attempt}")
        await rt.wait(all=[handle.id], conversation="main")
        outcome = (await rt.handle(handle.id, conversation="main")).outcome
        assert isinstance(outcome, keephold.outcomes.Ok)
        say(f"{outcome.value['status']}: {outcome.value['finalOutput']}")


# The demonstration


@contextmanager
def started(role: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a process of that role, and kill it when the block is left."""
    command = [sys.executable, str(Path(__file__).resolve()), role]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # SIGKILL: it cannot prepare for that


def follow(name: str, process: "subprocess.Popen[str]", until: str | None = None) -> None:
    """Print the output of a process, up to a line or to its end."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"  {name}: {line}", end="", flush=True)
        if line.rstrip() == until:
            return
    if process.wait() != 0:
        raise SystemExit(f"the {name} failed")


def main() -> None:
    print("A workflow whose process is killed:")
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        with started("first") as process:
            follow("first process", process, until="publish v1, attempt 1")
        print("  (kill -9)")
        with started("second") as process:
            follow("second process", process)
        os.chdir("/")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        asyncio.run({"first": first, "second": second}[sys.argv[1]]())
