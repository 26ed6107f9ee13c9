"""A program with a tool that kills its process: `python -m tests.attacks.crash_loop_program STORE DIRECTORY [TOOL…]`.

It spawns each tool named, in conversation `main`; several of one tool as `TOOL*100`. Then it says `ready` and waits for
the end of its input. `bomb` kills the process once the file `armed` is there. Each line of the input names a tool to be
spawned, too.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.turn.calls import STATEFUL, call, spawn
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Runtime, Tool


def tools(directory: Path) -> list[Tool]:
    def note(file: str, line: str) -> None:
        with (directory / file).open("a") as notes:
            notes.write(f"{line}\n")

    async def armed() -> None:
        while not (directory / "armed").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
    async def bomb(call: Call) -> str:
        """Kills the process that runs it."""
        note("keys", call.idempotency_key)

        async def first(given: object) -> str:
            note("steps", "first")
            return "step"

        await call.durable().run_json("first", None, first)
        await armed()
        if not (directory / "disarmed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return "harmless"

    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
    async def sleeper(call: Call) -> str:
        """Waits for a long time in its effects."""
        await call.durable().sleep(3600)
        return "awake"

    @keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
    async def silent(call: Call) -> str:
        """Works until it is disarmed, and tells nobody."""
        while not (directory / "disarmed").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return "done"

    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def fresh_bomb(call: Call) -> str:
        """Kills its process, and is not resumed."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @keephold.tool(actions=STATEFUL, on_turn_end="keep")
    async def busy(call: Call) -> str:
        """Works, and is not resumed."""
        await asyncio.sleep(3600)
        return "never"

    @keephold.tool(on_crash="replay")
    async def step_bomb(call: Call) -> str:
        """Kills the process that runs it, as the step of a workflow."""
        await armed()
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    return [bomb, step_bomb, sleeper, silent, fresh_bomb, busy]


def wanted(names: list[str]) -> list[str]:
    """Return the tool of each call: `sleeper*3` stands for three."""
    return [tool for name in names for tool, _, count in [name.partition("*")] for _ in range(int(count or 1))]


async def main(store: str, directory: Path, *names: str) -> None:
    async with with_wait_tools(tools(directory), store=store) as rt:
        await rt.recovery.sweep()  # many calls are recovered in the background
        await make(rt, list(names))
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await make(rt, [line.strip()])
            print("made", flush=True)


async def make(rt: Runtime, names: list[str]) -> None:
    life = len(await rt.handles(conversation="main", limit=10_000))
    if names == ["workflow"]:  # without a turn, whose end would end its step
        steps = [{"id": "boom", "type": "tool", "config": {"name": "step_bomb"}}]
        await rt.call_queue("main").call(call("execute_workflow_async", workflowId="w", name="w", steps=steps))
    elif names:
        async with rt.turn("main") as turn:
            await turn.run([spawn(tool, f"{tool}-{life + at}") for at, tool in enumerate(wanted(names))])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
