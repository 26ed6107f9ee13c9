"""Tools of a server that is stopped and started again; what they do is noted in a directory."""

import asyncio
from pathlib import Path
from typing import Any

from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, Pending


def note(directory: str, file: str, line: str) -> None:
    with (Path(directory) / file).open("a") as notes:
        notes.write(f"{line}\n")


@keephold.tool(actions=STATEFUL, on_crash="replay", on_turn_end="keep")
async def deploy(call: Call, directory: str) -> list[Any]:
    """Creates something once, then waits to be told to go on."""
    fx = call.durable()

    async def create(given: Any) -> str:
        note(directory, "created", f"attempt {call.attempt}")
        return "created"

    made = await fx.run_json("create", {}, create)
    key = await fx.external_event_key("go")
    note(directory, "deploy", str(key))
    return [made, await fx.await_event_json(key), call.attempt]


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def approve(call: Call, directory: str) -> Pending:
    """Its result comes from outside."""
    note(directory, "approve", str(await call.completion_key()))
    return Pending()


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def work(call: Call, directory: str) -> str:
    """Works for ever."""
    call.emit("working\n")
    note(directory, "work", "begun")
    await asyncio.sleep(3600)
    return "never"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def stubborn(call: Call, directory: str) -> str:
    """Does not end when it is told to."""
    note(directory, "stubborn", "begun")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note(directory, "cancelled", "yes")


CONFIG = "".join(
    f'[conversation.tools.{name}]\nsource = "python"\nfunction = "tests.serve.lasting:{name}"\nrun = "unattended"\n'
    for name in ("deploy", "approve", "work", "stubborn")
)
