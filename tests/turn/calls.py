"""Calls as a model writes them and answers as it reads them: the words in which the tests of the turn are written."""

import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from keephold import Runtime, Tool, ToolCall, Turn
from keephold.testing import VirtualClock
from keephold.tools.base import Action

STATEFUL: tuple[Action, ...] = ("spawn", "fetch", "abort")
TALKING: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")

_labels = itertools.count(1)


def call(tool: str, /, **arguments: Any) -> ToolCall:
    """A call with a label of its own."""
    return ToolCall(id=f"call-{next(_labels)}", name=tool, arguments=arguments)


SHARED = bool(os.environ.get("KEEPHOLD_SHARED"))
"""Write calls in the shared form (G5). Both forms mean the same; `make soak` runs these tests in this one, too."""


def spawn(tool: str, handle: str, /, **arguments: Any) -> ToolCall:
    if SHARED:
        return call(tool, spawn=handle, **arguments)
    return call(tool, action="spawn", id=handle, **arguments)


def fetch(tool: str, handle: str, /) -> ToolCall:
    return call("handle_fetch", id=handle) if SHARED else call(tool, action="fetch", id=handle)


def apply(tool: str, handle: str, value: Any, /) -> ToolCall:
    if SHARED:
        return call("handle_apply", id=handle, **({"eof": True} if value is None else {"input": value}))
    return call(tool, action="apply", id=handle, input=value)


def abort(tool: str, handle: str, /) -> ToolCall:
    return call("handle_abort", id=handle) if SHARED else call(tool, action="abort", id=handle)


def wait_all(*handles: str, timeout_secs: int | None = None) -> ToolCall:
    limit = {} if timeout_secs is None else {"timeout_secs": timeout_secs}
    return call("await", all=list(handles), **limit)


def wait_any(*handles: str, timeout_secs: int | None = None) -> ToolCall:
    limit = {} if timeout_secs is None else {"timeout_secs": timeout_secs}
    return call("await", any=list(handles), **limit)


async def texts(turn: Turn, *calls: ToolCall) -> list[str]:
    """The results of one batch, as they are."""
    return [response.result for response in await turn.run(calls)]


async def replies(turn: Turn, *calls: ToolCall) -> list[Any]:
    """The results of one batch, each read as the JSON it is."""
    return [json.loads(text) for text in await texts(turn, *calls)]


async def reply(turn: Turn, one: ToolCall) -> Any:
    """The result of a batch of one call, read as JSON."""
    return (await replies(turn, one))[0]


@asynccontextmanager
async def opened(
    clock: VirtualClock, tools: Sequence[Tool], *, config: Path | None = None, conversation: str = "main"
) -> AsyncIterator[tuple[Runtime, Turn]]:
    """A runtime with these tools, and a turn of it."""
    async with Runtime(tools, clock=clock, config=config) as rt, rt.turn(conversation) as turn:
        yield rt, turn


def settings(directory: Path, toml: str) -> Path:
    """A configuration file."""
    path = directory / "keephold.toml"
    path.write_text(toml)
    return path
