"""The journeys of `docs/design.md`: the functions they name are called, in that order."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import pytest
from mcp.client import Client
from tests.docs.pages import ROOT
from tests.turn.calls import STATEFUL

import keephold
from keephold.control.webhooks import Completing
from keephold.mcp.server import Server

PAGE = ROOT / "docs" / "design.md"
SOURCE = "/src/keephold/"


Function = tuple[str, str]
"""A file below the package, and a function's qualified name."""


@contextmanager
def called() -> Iterator[list[Function]]:
    """The functions of keephold that are entered meanwhile, in order."""
    entered: list[Function] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        place = frame.f_code.co_filename.find(SOURCE)
        if event == "call" and place >= 0:
            name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
            entered.append((frame.f_code.co_filename[place + len(SOURCE) :], name))

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def journeys() -> dict[str, list[Function]]:
    """The functions that the page names, by the heading of their journey."""
    part = PAGE.read_text().partition("\n## Three journeys\n")[2].partition("\n## ")[0]
    titles = re.split(r"^### (.+)$", part, flags=re.M)[1:]
    return {
        title.replace("`", ""): re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", text, flags=re.M)
        for title, text in zip(titles[::2], titles[1::2], strict=True)
    }


async def a_batch_with_a_spawn_and_an_await() -> list[Function]:
    @keephold.tool(actions=STATEFUL)
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async with keephold.Runtime(tools=[work]) as rt, rt.turn("main") as turn:
        spawn = keephold.ToolCall("1", "work", {"action": "spawn", "id": "a"})
        with called() as entered:
            responses = await turn.run([spawn, keephold.ToolCall("2", "await", {"all": ["a"]})])
        assert "done" in responses[1].result
    return entered


async def a_webhook_wakes_a_tool() -> list[Function]:
    taken: asyncio.Queue[str] = asyncio.Queue()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def work(call: keephold.Call) -> str:
        effects = call.durable()
        key = await effects.external_event_key("approved")
        taken.put_nowait(key)
        return str(await effects.await_event_json(key))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"status": "ok", "payload": "yes"}'}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    async with keephold.Runtime(tools=[work]) as rt, rt.turn("main") as turn:
        await turn.run([keephold.ToolCall("1", "work", {"action": "spawn", "id": "a"})])
        path = f"/complete/{await taken.get()}"
        await asyncio.sleep(0)  # the tool waits
        with called() as entered:
            await Completing(rt)({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)
            await turn.wait(all=["a"])
    return entered


async def an_apply_to_a_terminal_over_mcp() -> list[Function]:
    cat = keephold.terminal(["cat"], name="cat", run="unattended")
    async with keephold.Runtime(tools=[cat]) as rt, serving(rt) as client:
        await client.call_tool("cat", {"action": "spawn", "id": "t"})
        with called() as entered:
            answer = await client.call_tool("cat", {"action": "apply", "id": "t", "input": "hello\n"})
        assert "hello" in str(answer)
        await client.call_tool("cat", {"action": "abort", "id": "t"})
    return entered


@asynccontextmanager
async def serving(rt: keephold.Runtime) -> AsyncIterator[Client]:
    server = Server(rt)
    async with Client(server) as client:
        yield client
    await server.close()


@pytest.mark.parametrize(
    ("title", "journey"),
    [
        ("A batch with a spawn and an await", a_batch_with_a_spawn_and_an_await),
        ("A webhook wakes a tool", a_webhook_wakes_a_tool),
        ("An apply to a terminal over MCP", an_apply_to_a_terminal_over_mcp),
    ],
)
async def test_the_functions_of_a_journey_are_called_in_order(
    title: str, journey: Callable[[], Awaitable[list[Function]]]
) -> None:
    wanted, entered = journeys()[title], await journey()
    assert wanted
    rest = iter(entered)
    missing = [function for function in wanted if function not in rest]
    assert missing == [], [each for each in wanted if each not in entered]
