"""Errors of wrong calls end with a call that would have worked: it is sent back as it is, and works (C9)."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from tests.turn.calls import STATEFUL, TALKING, call
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Question, Response, Runtime, ToolCall, Turn
from keephold.testing import VirtualClock


@keephold.tool(actions=STATEFUL)
async def build(target: Literal["app", "docs"], jobs: int = 1, flags: list[str] | None = None) -> str:
    await asyncio.sleep(1000)
    return target


@keephold.tool(actions=TALKING)
async def listen(call: Call) -> str:
    return " ".join([str(await call.input()) for _ in range(100)])


@keephold.tool(actions=TALKING)
async def sure(call: Call) -> str:
    return f"{await call.ask(Question('sure', 'Sure?', bool))}"


@keephold.tool(actions=TALKING)
async def choose(call: Call) -> str:
    return f"{await call.ask(Question('which', 'Which?', Literal['red', 'green']))}"


@keephold.tool
async def plain(path: str, depth: int = 3) -> str:
    return path


TOOLS = [build, listen, sure, choose, plain]


def suggested(response: Response) -> ToolCall | None:
    """The call that the model's text ends with."""
    text = response.model
    if text.startswith("{"):
        text = f"Try: {json.loads(text).get('try', '')}"
    last = text.rpartition("\n")[2]
    if not last.startswith("Try: ") or last == "Try: ":
        return None
    name, _, arguments = last.removeprefix("Try: ").partition(" ")
    return call(name, **json.loads(arguments))


def failed(response: Response) -> bool:
    shown = json.loads(response.model) if response.model.startswith("{") else {}
    return response.is_error or bool(shown.get("is_error"))


async def begun(turn: Turn) -> None:
    """A conversation with a running, a reading, two asking handles, one that has stopped, and a wait handle."""
    await turn.run(
        [
            call("build", spawn="b", target="app"),
            call("listen", spawn="l"),
            call("sure", spawn="s"),
            call("choose", spawn="c"),
            call("build", spawn="over", target="app"),
            call("create_wait_handle", handleId="hook", type="hook"),
            call("handle_abort", id="over"),
        ]
    )


WRONG: Sequence[tuple[ToolCall, str, dict[str, Any]]] = [
    # missing, mistyped, unknown and misspelt arguments
    (call("plain"), "plain", {"path": "<path>"}),
    (call("plain", path=5, depth="deep"), "plain", {"path": "<path>"}),
    (call("plain", path="a", dept=4), "plain", {"path": "a", "depth": 4}),
    (call("plain", path="a" * 5000, depth="x", more=1), "plain", {"path": "<path>"}),
    (ToolCall("1", "plain", "{path"), "plain", {"path": "<path>"}),
    (ToolCall("1", "plain", "[]"), "plain", {"path": "<path>"}),
    (call("build", target="apps"), "build", {"target": "app"}),
    (call("build", spawn="n", target="doc", flags="x"), "build", {"spawn": "n", "target": "docs"}),
    (call("build", action="spawn", target="app"), "build", {"action": "spawn", "id": "build", "target": "app"}),
    (call("build", action="spwan", id="n", target="app"), "build", {"action": "spawn", "id": "n", "target": "app"}),
    (call("build", spawn="two words", target="app"), "build", {"spawn": "two-words", "target": "app"}),
    # names
    (call("plane", path="a"), "plain", {"path": "a"}),
    (call("functions.plain", pth="a"), "plain", {"path": "a"}),
    (call("handle_get", id="b"), "handle_fetch", {"id": "b"}),
    # ids that are taken
    (call("build", spawn="b", target="app"), "build", {"spawn": "b-2", "target": "app"}),
    (
        call("create_wait_handle", handleId="hook", type="hook"),
        "create_wait_handle",
        {"handleId": "hook-2", "type": "hook"},
    ),
    # handles that are not there, or not of that tool
    (call("handle_fetch", id="bb"), "handle_fetch", {"id": "b"}),
    (call("handle_abort", id="bb"), "handle_fetch", {"id": "b"}),
    (call("handle_apply", id="ll", input="x"), "handle_fetch", {"id": "l"}),
    (call("handle_fetch"), "handle_fetch", {"id": "b"}),
    (call("build", action="fetch", id="nowhere"), "build", {"action": "fetch", "id": "b"}),
    (call("build", action="fetch", id="l"), "listen", {"action": "fetch", "id": "l"}),
    (call("await", all=["b", "x"], timeout_secs=1), "await", {"all": ["b"], "timeout_secs": 1}),
    (call("await"), "await", {"all": ["b"], "timeout_secs": 60}),
    (call("await", any=[], timeout_secs=-1), "await", {"all": ["b"], "timeout_secs": 0}),
    (call("wait_for", handleId="hoook", timeoutMs=5), "wait_for", {"handleId": "hook", "timeoutMs": 5}),
    (
        call("wait_for_multiple", handleIds=[], mode="all", timeoutMs=1),
        "wait_for_multiple",
        {"handleIds": ["b"], "mode": "all", "timeoutMs": 1},
    ),
    (call("complete_wait_handle", handleId="x"), "list_wait_handles", {}),
    (call("complete_wait_handle", handleId="b", result=1), "await", {"all": ["b"], "timeout_secs": 0}),
    (call("read_output", id="b", call_id="1"), "read_output", {"id": "b"}),
    # input
    (call("handle_apply", id="over", input="x"), "handle_fetch", {"id": "over"}),
    (call("handle_apply", id="b", input="x"), "handle_fetch", {"id": "b"}),
    (call("handle_apply", id="l", keys=["ENTER"]), "handle_fetch", {"id": "l"}),
    (call("handle_apply", id="s", input="yes"), "handle_apply", {"id": "s", "input": True}),
    (call("handle_apply", id="s", input="?"), "handle_apply", {"id": "s", "input": False}),
    (call("choose", action="apply", id="c", input="gren"), "choose", {"action": "apply", "id": "c", "input": "green"}),
]  # fmt: skip


@pytest.mark.parametrize("wrong, name, arguments", WRONG, ids=[f"{w.name} {w.arguments}"[:60] for w, _, _ in WRONG])
async def test_C9_an_error_ends_with_a_call_that_works(
    clock: VirtualClock, wrong: ToolCall, name: str, arguments: dict[str, Any]
) -> None:
    async with with_wait_tools(TOOLS, clock=clock) as rt, rt.turn("main") as turn:
        await begun(turn)
        (refused,) = await turn.run([wrong])
        right = suggested(refused)
        assert failed(refused) and right is not None, refused.model
        assert (right.name, right.arguments) == (name, arguments)
        assert "Try: " not in refused.result  # programs get the error alone
        running = asyncio.ensure_future(turn.run([right], park_after=1))
        await asyncio.wait([running], timeout=5000)
        assert running.done() and not failed(running.result()[0]), running.result()


async def test_C9_where_nothing_was_started_the_error_shows_how_if_that_changes_nothing(clock: VirtualClock) -> None:
    """An obedient model that asks for a handle that has expired must not deploy to the first environment there is."""
    for made in (build, replace(build, hints={"readOnlyHint": True})):
        async with Runtime([made, plain], clock=clock) as rt, rt.turn("main") as turn:
            for wrong in (
                call("handle_fetch", id="x"),
                call("await", all=["x"]),
                call("build", action="fetch", id="x"),
            ):
                (refused,) = await turn.run([wrong])
                right = suggested(refused)
                assert (right is not None) == bool(made.hints) and failed(refused), refused.model
                assert right is None or right.name == "build"


async def test_C9_of_a_rejected_batch_only_the_wrong_call_gets_a_suggestion(clock: VirtualClock) -> None:
    async with Runtime([build], clock=clock) as rt, rt.turn("main") as turn:
        batch = [call("build", spawn="x", target="app"), call("build", spawn="x", target="docs")]
        first, second = map(suggested, await turn.run(batch))
        assert first is None and second is not None
        assert second.arguments == {"spawn": "x-2", "target": "docs"}


async def test_C9_too_many_live_handles_suggest_a_wait(clock: VirtualClock, tmp_path: Any) -> None:
    config = tmp_path / "keephold.toml"
    config.write_text("[limits]\nlive_handles = 1\n")
    async with Runtime([build], clock=clock, config=config) as rt, rt.turn("main") as turn:
        await turn.run([call("build", spawn="x", target="app")])
        (refused,) = await turn.run([call("build", spawn="y", target="app")])
        right = suggested(refused)
        assert right is not None and (right.name, right.arguments) == ("await", {"any": ["x"], "timeout_secs": 60})


async def test_C9_a_suggestion_says_nothing_of_tools_that_are_not_offered(clock: VirtualClock) -> None:
    async with Runtime([plain], clock=clock) as rt, rt.turn("main") as turn:
        for wrong in (call("wait_fo", handleId="x"), call("execute_agent", agentId="x"), call("nothing_like_it")):
            (refused,) = await turn.run([wrong])
            assert refused.is_error and suggested(refused) is None


async def test_C9_a_suggestion_repeats_no_default_and_no_answer_of_another(clock: VirtualClock) -> None:
    """It holds what the model sent and examples, not what keephold filled in (K)."""
    async with Runtime([plain], clock=clock) as rt, rt.turn("main") as turn:
        (refused,) = await turn.run([call("plain", paht="a")])
        right = suggested(refused)
        assert right is not None and right.arguments == {"path": "a"}
