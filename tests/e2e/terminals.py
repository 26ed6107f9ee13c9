"""Programs in terminals, driven as a model drives them: by `spawn`, `apply`, `fetch` and `await`, a call at a time.

What a program prints, and when, is not for a test to decide. So a test says what it is to see, and `reads`, `sees` and
`stops` call until that is there, within `PATIENCE`. Whatever a reply holds must be text without controls (K4).
"""

import asyncio
import difflib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

from keephold import Response, Runtime, Tool, ToolCall, Turn, terminal
from keephold.turn.prompts import Prompter

SCREENS = Path(__file__).with_name("screens")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Said = dict[str, Any]
"""A reply as a model reads it."""


class Assistant:
    """Makes calls in a turn, and keeps every answer as it was given."""

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self.runtime = runtime
        self.turn = turn
        self.heard: list[str] = []
        """All that it was told, as text."""

    async def batch(self, *calls: tuple[str, Said]) -> list[Response]:
        named = [ToolCall(str(at), tool, arguments) for at, (tool, arguments) in enumerate(calls)]
        responses = await self.turn.run(named)
        for response in responses:
            self.heard += (response.result, *(note.message for note in response.notifications))
        return responses

    async def call(self, tool: str, **arguments: Any) -> Said:
        """The answer of a call that was right."""
        (response,) = await self.batch((tool, arguments))
        assert not response.is_error, response.result
        said: Said = json.loads(response.result)
        assert_clean(said)
        return said

    async def refused(self, tool: str, **arguments: Any) -> Response:
        """The answer of a call that was wrong."""
        (response,) = await self.batch((tool, arguments))
        assert response.is_error, response.result
        return response

    async def spawn(self, tool: str, **arguments: Any) -> "Session":
        """A program of that tool; its handle is called like the tool."""
        session = Session(self, tool, arguments.pop("id", tool))
        await session.hears(action="spawn", **arguments)
        return session


class Session:
    """One program, from its spawn on."""

    def __init__(self, assistant: Assistant, tool: str, id: str) -> None:
        self.assistant = assistant
        self.tool = tool
        self.id = id
        self.said: Said = {}
        """The latest reply."""
        self.text = ""
        """All that it has printed, as far as it was shown as lines."""
        self._new_from = 0

    @property
    def new(self) -> str:
        """What it has printed since the last `apply`, or `begin`."""
        return self.text[self._new_from :]

    async def hears(self, **arguments: Any) -> Said:
        said = self.said = await self.assistant.call(self.tool, id=self.id, **arguments)
        if "screen" not in said:
            self.text += str(said.get("content", said.get("result", "")))
        return said

    def begin(self) -> None:
        """From here on it is new."""
        self._new_from = len(self.text)

    async def apply(self, *input: Any, **more: Any) -> Said:
        """Type, press keys, give it another size."""
        self.begin()
        return await self.hears(action="apply", **({"input": input[0]} if input else {}), **more)

    async def fetch(self, view: str | None = None) -> Said:
        return await self.hears(action="fetch", **({} if view is None else {"view": view}))

    async def abort(self) -> Said:
        return await self.hears(action="abort")

    async def reads(self, text: str) -> str:
        """Fetch until what it has printed since the last `apply` ends with this."""
        await self.until(lambda: self.new.endswith(text), lambda: f"{text!r} is not the end of {self.new!r}")
        return self.new

    async def waits(self) -> Said:
        """Fetch until it is known to wait for input."""
        await self.until(lambda: self.said.get("yielded_because") == "waiting_for_input", lambda: str(self.said))
        return self.said

    async def sees(self, condition: Callable[[Said], object]) -> Said:
        """Fetch the screen until the condition holds of the reply."""
        await self.until(lambda: "screen" in self.said and condition(self.said), lambda: picture(self.said), "screen")
        return self.said

    async def shows(self, name: str, as_seen: Callable[[Said], str] | None = None) -> Said:
        """Fetch the screen until it is that of the file; `as_seen` makes of it what is in the file.

        With KEEPHOLD_UPDATE_GOLDENS=1 the file is written: look at the difference before you keep it.
        """
        as_seen = as_seen or picture
        path = SCREENS / f"{name}.txt"
        if os.environ.get("KEEPHOLD_UPDATE_GOLDENS"):
            await asyncio.sleep(1.5)  # it may still be drawing, and there is nothing to compare with
            path.write_text(as_seen(await self.fetch("screen")))
        wanted = path.read_text()

        def difference() -> str:
            seen = as_seen(self.said) if "screen" in self.said else f"no screen: {self.said}"
            return "\n".join(difflib.ndiff(wanted.splitlines(), seen.splitlines()))

        await self.until(lambda: "screen" in self.said and as_seen(self.said) == wanted, difference, "screen")
        return self.said

    async def stops(self) -> Said:
        """Wait for the end; how that was told."""
        (waited,) = await self.assistant.batch(("await", {"all": [self.id], "timeout_secs": int(PATIENCE)}))
        answer = json.loads(waited.result)
        assert len(answer["completed"]) == 1, answer
        (said,) = answer["completed"]
        assert_clean(said)
        self.said = said
        self.text += said["result"]
        return self.said

    async def output(self, **which: Any) -> Said:
        """What is kept of all that it has printed."""
        return await self.assistant.call("read_output", id=self.id, **which)

    async def until(self, condition: Callable[[], object], what: Callable[[], str], view: str = "stream") -> None:
        """Fetch until the condition holds; `what` says what is wrong if it never does."""
        limit = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < limit, what()
            assert self.said.get("state") != "stopped", f"it has stopped: {self.said}; {what()}"
            await asyncio.sleep(0.01)
            await self.fetch(view)


@asynccontextmanager
async def at_work(*tools: Tool, store: str | None = None, prompter: Prompter | None = None) -> AsyncIterator[Assistant]:
    """An assistant with these tools, in a turn of its own."""
    async with Runtime(list(tools), store=store, prompter=prompter) as rt, rt.turn("main") as turn:
        yield Assistant(rt, turn)


def shell(name: str = "shell", **settings: Any) -> Tool:
    """A bash that knows nobody's settings."""
    env = {"PS1": "$ ", "INPUTRC": "/dev/null", "HISTFILE": "", **settings.pop("env", {})}
    return terminal(["bash", "--norc", "--noprofile"], name=name, env=env, **settings)


def python(script: str, name: str = "program", **settings: Any) -> Tool:
    """A program in Python."""
    return terminal([sys.executable, "-I", "-S", "-c", "import os, sys, time\n" + script], name=name, **settings)


def patient(tool: Tool) -> Tool:
    """The same, whose replies come when it is known to wait or has ended, however slow the machine is."""
    return replace(tool, spawn=replace(tool.spawn, settle_ms=60_000, settle_max_ms=60_000))


def quick(tool: Tool) -> Tool:
    """The same, whose replies do not wait for a program that says nothing, or does not stop to speak."""
    return replace(tool, spawn=replace(tool.spawn, settle_ms=20, settle_max_ms=50))


def picture(said: Said) -> str:
    """A screen as one may look at it in a file: what is known of it, and what it shows in a frame."""
    screen = said["screen"]
    rows, cols, cursor = screen["rows"], screen["cols"], screen["cursor"]
    facts = [f"{rows} rows, {cols} columns, cursor in row {cursor[0]}, column {cursor[1]}"]
    facts += ["the alternate screen"] if screen.get("alternate") else []
    facts += [f"title {screen['title']!r}"] if "title" in screen else []
    lines = said.get("content", "").split("\n")
    framed = (f"|{line:{cols}}|" for line in (*lines, *[""] * (rows - len(lines))))
    edge = f"+{'-' * cols}+"
    return "\n".join(("; ".join(facts), edge, *framed, edge, ""))


def assert_clean(said: Any) -> None:
    """Nothing in a reply controls anything but lines and tabs."""
    match said:
        case str():
            assert not _CONTROLS.search(said), repr(said)
        case dict():
            for value in said.values():
                assert_clean(value)
        case list():
            for value in said:
                assert_clean(value)
