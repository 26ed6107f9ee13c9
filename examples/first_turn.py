"""A first turn: commands are started and awaited in one batch, then a tool asks for input.

An agent loop does this with the tool calls of a model response. Run it: `make demo`.
"""

import asyncio
import json
import time
from pathlib import Path

import keephold


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def greeter(call: keephold.Call, greeting: str) -> str:
    """Ask who is there, then greet."""
    call.emit("who is there?\n")
    name = await call.input()
    return f"{greeting}, {name}!"


def show(calls: list[keephold.ToolCall], responses: list[keephold.Response], seconds: float) -> None:
    for call, response in zip(calls, responses, strict=True):
        print(f"  {call.name}({json.dumps(call.arguments)})\n    → {response.result}")
    print(f"  ({seconds:.2f} s, one round)\n")


async def main() -> None:
    config = Path(__file__).parent / "keephold.toml"
    async with keephold.Runtime([greeter], config=config) as rt, rt.turn("example") as turn:

        async def batch(title: str, *calls: tuple[str, dict[str, object]]) -> None:
            print(title)
            numbered = [keephold.ToolCall(str(i), name, args) for i, (name, args) in enumerate(calls, 1)]
            began = time.perf_counter()
            show(numbered, await turn.run(numbered), time.perf_counter() - began)

        await batch(
            "Start two commands and wait for both, all in one batch:",
            ("compile", {"action": "spawn", "id": "compile", "path": "src"}),
            ("count_lines", {"action": "spawn", "id": "lines", "path": "src"}),
            ("await", {"all": ["compile", "lines"]}),
        )
        await batch(
            "Start a tool that wants to talk, and wait for it: the wait says whose move it is.",
            ("greeter", {"action": "spawn", "id": "door", "greeting": "Hello"}),
            ("await", {"all": ["door"]}),
        )
        await batch(
            "So answer it, and wait again:",
            ("greeter", {"action": "apply", "id": "door", "input": "the model"}),
            ("await", {"all": ["door"]}),
        )


if __name__ == "__main__":
    asyncio.run(main())
