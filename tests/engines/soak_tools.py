"""The tool of the soak. Its steps note in a directory that they run, and which result they got."""

import asyncio
import os
import random
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from keephold import Call, Question, tool
from keephold.policies import QuestionPolicy
from keephold.tools.base import Action

PLACE = Path(os.environ.get("KEEPHOLD_SOAK_PLACE", "."))
ALL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")
STEPS = 6


def note(file: str, *words: object) -> None:
    """Append a line, at once and whole."""
    with (PLACE / file).open("ab", buffering=0) as notes:
        notes.write(" ".join(map(str, words)).encode() + b"\n")


@tool(actions=ALL, on_crash="replay", on_turn_end="keep", questions={"sure": QuestionPolicy(target="user")})
async def works(call: Call, number: int) -> list[Any]:
    """Do everything that a call can do, with a record between any two deaths."""
    fx, tokens = call.durable(), list[str]()

    async def step(name: str) -> str:
        token = secrets.token_hex(4)
        note("effects", number, name, call.attempt, token)
        await asyncio.sleep(random.random() * 0.3)
        return token

    async def do(name: str) -> None:
        tokens.append(await fx.run_json(name, name, step))
        note("acknowledged", number, name, call.attempt, tokens[-1])

    call.emit(f"begin {number}\n")
    await fx.run_json(f"attempt-{call.attempt}", None, lambda _: asyncio.sleep(0, "x"))
    await asyncio.gather(do("0"), do("1"))
    await do("2")
    await fx.sleep(0.3)
    key = await fx.external_event_key("go")
    (PLACE / f"key-{number}.{call.attempt}").write_text(key)
    (PLACE / f"key-{number}.{call.attempt}").rename(PLACE / f"key-{number}")
    got = await fx.await_event_json(key)
    note("acknowledged", number, "event", call.attempt, got)
    await fx.emit_process_event("got", number)
    sure = await call.ask(Question("sure", "Sure?", bool))
    read = await call.input()
    for name in ("3", "4", "5"):
        await do(name)
        call.emit(f"{name}\n")
    call.emit(f"end {number}\n")
    return [number, got, sure, read, *tokens]


async def _exists(name: str) -> None:
    while not (PLACE / name).exists():  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(0.1)


@tool(actions=ALL, on_crash="replay", on_turn_end="keep")
async def lingers(call: Call) -> str:
    """Record a step when it is told to, and end when it is told to."""
    note("begun", call.attempt)
    await _exists("go")
    call.emit(f"attempt {call.attempt} prints\n")
    await call.durable().run_json("step", None, lambda _: asyncio.sleep(0, "x"))
    note("recorded", call.attempt)
    await _exists("end")
    return f"attempt {call.attempt}"


@tool(actions=ALL, on_crash="replay", on_turn_end="keep")
async def moves(call: Call) -> str:
    """Say which attempt ran its steps."""

    async def step(_: Any) -> int:
        note("begun", call.attempt)
        await _exists("go")
        return call.attempt

    async def last(_: Any) -> int:
        return call.attempt

    fx = call.durable()
    return f"step {await fx.run_json('step', None, step)}, end {await fx.run_json('end', None, last)}"


@tool(actions=ALL, on_turn_end="keep")
async def stays(call: Call) -> str:
    """End when it is told to. It cannot continue elsewhere."""
    note("begun", call.attempt)
    await _exists("go")
    return f"end {call.attempt}"


@tool(actions=ALL, on_crash="replay", on_turn_end="keep")
async def dies(call: Call) -> str:
    """End the process of its worker."""
    note("died", call.attempt)
    os._exit(1)


@tool(actions=ALL, on_crash="replay", on_turn_end="keep")
async def swallows(call: Call) -> None:
    """Go on although it is cancelled."""
    note("begun", call.attempt)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
