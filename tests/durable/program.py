"""A program with durable tools, to be killed: `python -m tests.durable.program STORE DIRECTORY HOW [TOOL…]`.

It opens a turn of conversation `main` and spawns each tool named under its own name; with HOW `kept` it ends the turn,
with `run` it makes one-shot calls of them instead, in one batch, and with `asked` it waits for the permission of a
person who never decides. It says `ready` when all have come where they wait,
and waits to be killed. The tools leave traces in DIRECTORY.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.turn.calls import STATEFUL, TALKING

import keephold
from keephold import Call, Pending, Question, Runtime, Tool, ToolCall
from keephold.handles.handle import Handle
from keephold.turn.prompts import Decision, Prompt


def tools(directory: Path) -> list[Tool]:
    """The tools, which note in the directory what they do."""

    def note(file: str, line: str) -> None:
        with (directory / file).open("a") as traces:
            traces.write(f"{line}\n")

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def deploy(call: Call) -> list[Any]:
        """Creates something once, then waits to be told to go on."""
        fx = call.durable()

        async def create(given: Any) -> str:
            note("created", f"attempt {call.attempt}")
            return "created"

        made = await fx.run_json("create", {}, create)
        note("deploy", await fx.external_event_key("go"))
        return [made, await fx.await_event_json(await fx.external_event_key("go")), call.attempt]

    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call) -> Pending:
        """Waits for an approval from outside."""
        note("approve", await call.completion_key())
        return Pending()

    @keephold.tool(actions=STATEFUL)
    async def work(call: Call) -> str:
        """Works for ever."""
        note("work", f"attempt {call.attempt}")
        call.emit("working\n")
        await asyncio.sleep(3600)
        return "never"

    @keephold.tool(actions=TALKING, on_turn_end="keep")
    async def session(call: Call) -> str:
        """Talks."""
        note("session", "open")
        call.emit("hello\n")
        while (line := await call.input()) != "bye":
            call.emit(f"you said {line}\n")
        return "bye"

    @keephold.tool(actions=TALKING, on_turn_end="keep", scheduling="serial")
    async def alone(call: Call) -> str:
        """Talks, and is the only one of its conversation that does."""
        note("alone", call.uid)
        return str(await call.input())

    @keephold.tool(actions=TALKING, on_turn_end="keep")
    async def asks(call: Call) -> str:
        """Asks its caller."""
        note("asks", "asked")
        return f"sure: {await call.ask(Question(id='sure', text='Sure?', answer_type='Boolean'))}"

    @keephold.tool(actions=STATEFUL, on_turn_end="keep", run="ask")
    async def careful(call: Call) -> str:
        """Runs if a person permits it."""
        return "permitted"

    screen = keephold.terminal(["cat"], name="screen", on_turn_end="keep")
    return [deploy, approve, work, session, alone, asks, careful, screen]


def _waits(handle: Handle) -> bool:
    """Whether a call has come where it waits; a parked one is not live any more."""
    return handle.tool.name not in ("approve", "deploy") or (handle.run is not None and handle.run.waits_in_effects)


async def main(store: str, directory: Path, how: str, *names: str) -> None:
    async def nobody(prompt: Prompt) -> Decision:
        (directory / "careful").touch()
        await asyncio.Event().wait()
        raise AssertionError

    asked = how == "asked"
    async with Runtime(tools(directory), store=store, prompter=nobody if asked else None) as rt:
        turn = await rt.turn("main").__aenter__()
        spawns = [ToolCall(name, name, {"action": "spawn", "id": name}) for name in names]
        batch = None
        if how in ("run", "asked"):
            calls = spawns if asked else [ToolCall(name, name) for name in names]
            batch = asyncio.create_task(turn.run(calls))
        else:
            await turn.run(spawns)
            (directory / "screen").touch()
        while asked and not await rt.registry.store.posts("prompt"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while not all((directory / name).exists() for name in names):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while not all(map(_waits, rt.registry.live())):  # noqa: ASYNC110 (the traces are left just before)
            await asyncio.sleep(0.01)
        if how == "kept":
            await turn.end()
        print("ready", flush=True)
        await asyncio.sleep(3600)
        if batch is not None:
            await batch


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
