"""An agent program that raises in the middle of a batch, and is started again: `python -m tests.durable.raising STORE
DIRECTORY`.

Its first life ends with a `ConnectionError` that nobody catches. A later one answers the batch that is open, and prints
the results. The tools write their keys to files of DIRECTORY.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import keephold
from keephold import Call, Pending, Runtime, ToolCall, Turn


async def main(store: str, directory: Path) -> None:
    @keephold.tool
    async def approve(call: Call) -> Pending:
        """Waits for an approval, for a week if need be."""
        (directory / "approve").write_text(await call.completion_key())
        return Pending(deadline=7 * 86_400)

    @keephold.tool(on_crash="replay")
    async def build(call: Call) -> Any:
        """Builds once, then waits for the tests."""
        fx = call.durable()

        async def compile(given: Any) -> str:
            with (directory / "compiled").open("a") as log:
                log.write("once\n")
            return "compiled"

        made = await fx.run_json("compile", {}, compile)
        key = await fx.external_event_key("tested")
        (directory / "build").write_text(key)
        return [made, await fx.await_event_json(key)]

    @keephold.tool
    async def look(call: Call) -> str:
        """Takes longer than its program lives."""
        await asyncio.sleep(3600)
        return "never"

    @keephold.tool(scheduling="serial")
    async def publish(call: Call) -> str:
        """Runs when the others have returned."""
        return "published"

    async with Runtime([approve, build, look, publish], store=store) as rt, rt.turn("main", resume=True) as turn:
        if turn.unfinished is None:
            await raise_in(turn, directory)
        else:
            for response in await turn.resume():
                print(response.id, response.result, flush=True)


async def raise_in(turn: Turn, directory: Path) -> None:
    """Run a batch beside a stream, which breaks."""
    async with asyncio.TaskGroup() as group:
        group.create_task(turn.run([ToolCall(name, name) for name in ("approve", "build", "look", "publish")]))
        while not all((directory / name).exists() for name in ("approve", "build")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        raise ConnectionError("the stream broke")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
