"""The page of replies has every key that a reply can have, and no other: a turn in which all of them occur."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT, rows, sections

import keephold

CONFIG = """
[conversation.tools.failing]
source = "local"
command = ["echo", '{"type":"stopped","result":{"Err":{"message":"no","trace":["line 1"],"transient":true}}}']
run = "unattended"
wire = true
spawn.stateful = true
"""


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"), scheduling="serial")
async def asking(call: keephold.Call) -> str:
    """Says something, asks, then reads."""
    call.emit("hello\n")
    call.progress(1, 2)
    await call.ask(keephold.Question(id="sure", text="Sure?", answer_type="Boolean"))
    return str(await call.input())


@keephold.tool(
    actions=("spawn", "fetch", "abort"),
    ready=".",
    output=keephold.policies.OutputPolicy(model=keephold.policies.OutputView(limit=10), max_output=20),
)
async def flood(call: keephold.Call) -> str:
    """Prints more than is kept, then waits."""
    call.emit("0123456789\n" * 10)
    await asyncio.Event().wait()
    return ""


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def parked(call: keephold.Call) -> keephold.Pending:
    """Waits for somebody outside."""
    await call.completion_key()
    return keephold.Pending(deadline=3600)


def keys(section: str) -> set[str]:
    return set(rows(sections(ROOT / "docs" / "reference" / "replies.md")[section]))


async def test_C3_A3_O4_D9_every_key_of_a_reply_is_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "keephold.toml").write_text(CONFIG)
    handles: list[dict[str, Any]] = []
    waits: list[dict[str, Any]] = []
    reads: list[dict[str, Any]] = []
    async with (
        keephold.Runtime([asking, flood, parked], config=tmp_path / "keephold.toml") as rt,
        rt.turn("main") as turn,
    ):

        async def batch(*calls: tuple[str, dict[str, Any]]) -> None:
            numbered = [keephold.ToolCall(str(number), *call) for number, call in enumerate(calls)]
            for call, response in zip(numbered, await turn.run(numbered), strict=True):
                assert not response.is_error, response.result
                {"await": waits, "read_output": reads}.get(call.name, handles).append(json.loads(response.result))

        await batch(
            ("asking", {"action": "spawn", "id": "first"}),
            ("asking", {"action": "spawn", "id": "second"}),
            ("failing", {"action": "spawn", "id": "fails"}),
            ("flood", {"action": "spawn", "id": "flood"}),
            ("parked", {"action": "spawn", "id": "parked"}),
            ("await", {"all": ["first", "second", "fails"]}),
        )
        await batch(
            ("failing", {"action": "fetch", "id": "fails"}),
            ("asking", {"action": "apply", "id": "first", "input": True}),
        )
        await batch(("await", {"all": ["first", "second"]}), ("await", {"all": ["flood", "parked"], "timeout_secs": 0}))
        await batch(
            ("await", {"output": {"flood": "."}, "ready": ["flood"]}), ("flood", {"action": "fetch", "id": "flood"})
        )
        await batch(
            ("read_output", {"id": "flood"}),
            ("read_output", {"id": "flood", "offset": 10}),
            ("read_output", {"id": "flood", "pattern": "0123"}),
            ("flood", {"action": "abort", "id": "flood"}),
            ("parked", {"action": "fetch", "id": "parked"}),
        )
        await turn.run([keephold.ToolCall("once", "failing", {})])
        await batch(("read_output", {"call_id": "once"}))

    assert {key for reply in handles for key in reply} == keys("A handle")
    inside = {key for reply in waits for entry in reply["pending"] for key in entry} - {"id", "state"}
    assert {key for reply in waits for key in reply} | inside == keys("await")
    assert {key for reply in reads for key in reply} == keys("read_output")


DRAWING = ["sh", "-c", r"seq 50; read -r line; printf '\033[?1049h\033]0;a title\007hello'; read -r line"]


async def test_C3_every_key_of_a_terminals_reply_is_on_the_page() -> None:
    draw = keephold.terminal(DRAWING, name="draw")
    replies: list[dict[str, Any]] = []
    async with keephold.Runtime([draw]) as rt, rt.turn("main") as turn:

        async def reply(**arguments: Any) -> None:
            [response] = await turn.run([keephold.ToolCall("1", "draw", arguments)])
            replies.append(json.loads(response.result))

        await reply(action="spawn", id="d")
        await reply(action="fetch", id="d", scrollback=3)
        await reply(action="apply", id="d", keys=["ENTER"])
        run = rt.registry.find("d", "main").run
        assert run is not None
        run.drive(True)
        await reply(action="fetch", id="d", view="screen")
        run.drive(False)
        await reply(action="abort", id="d")

    assert {key for each in replies for key in each} - keys("A handle") == keys("A terminal")
    row = " ".join(rows(sections(ROOT / "docs" / "reference" / "replies.md")["A terminal"])["screen"])
    shown = {key for each in replies for key in each.get("screen", {})}
    assert {"rows", "cols", "cursor"} <= shown
    assert [key for key in shown if f"`{key}`" not in row] == []
