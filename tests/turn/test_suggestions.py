"""Errors of wrong calls end with a call that would have worked: it is sent back as it is, and works (C9)."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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


@keephold.tool(actions=STATEFUL)
async def suite(name: str) -> str:
    return name


TOOLS = [build, listen, sure, choose, plain, suite]


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
    """A conversation with a running, a reading, two asking handles, two that have stopped, and a wait handle."""
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
    await turn.run([call("suite", spawn="done", name="fast"), call("await", all=["done"])])


WRONG: Sequence[tuple[ToolCall, str, dict[str, Any]]] = [
    # missing, mistyped, unknown and misspelt arguments
    (call("plain"), "plain", {"path": "<path>"}),
    (call("plain", path=5, depth="deep"), "plain", {"path": "5"}),
    (call("plain", path=["a"], depth="2", more=1), "plain", {"path": "a", "depth": 2}),
    (call("build", target="app", flags=5), "build", {"target": "app", "flags": ["5"]}),
    (call("plain", path="a", dept=4), "plain", {"path": "a", "depth": 4}),
    (call("plain", path="a" * 5000, depth="x", more=1), "plain", {"path": "<path>"}),
    (ToolCall("1", "plain", "{path"), "plain", {"path": "<path>"}),
    (ToolCall("1", "plain", "[]"), "plain", {"path": "<path>"}),
    (call("build", target="apps"), "build", {"target": "app"}),
    (call("build", spawn="n", target="doc", flags="x"), "build", {"spawn": "n", "target": "docs", "flags": ["x"]}),
    (call("build", action="spawn", target="app"), "build", {"action": "spawn", "id": "build", "target": "app"}),
    (call("build", action="spwan", id="n", target="app"), "build", {"action": "spawn", "id": "n", "target": "app"}),
    (call("build", spawn=True, target="app"), "build", {"spawn": "build", "target": "app"}),
    (call("execute_workflow_async", name="n"), "execute_workflow_async",
     {"name": "n", "workflowId": "<workflowId>", "steps": [{"id": "pause", "type": "delay", "config": {"ms": 1000}}]}),
    # units of time
    (call("sleep", seconds=1), "sleep", {"durationMs": 1000}),
    (call("await", all=["done"], timeoutMs=2500), "await", {"all": ["done"], "timeout_secs": 2.5}),
    (call("wait_for", handleId="done", timeout_secs=2), "wait_for", {"handleId": "done", "timeoutMs": 2000}),
    # ids under other names
    (call("wait_for", id="done"), "wait_for", {"handleId": "done"}),
    (call("wait_for", handle_ids=["done"]), "wait_for", {"handleId": "done"}),
    (call("wait_for_multiple", id="done", mode="all"), "wait_for_multiple", {"handleIds": ["done"], "mode": "all"}),
    (call("handle_fetch", handleId="over"), "handle_fetch", {"id": "over"}),
    (call("handle_fetch", id=["over"]), "handle_fetch", {"id": "over"}),
    (call("build", action="fetch", handle="over"), "build", {"action": "fetch", "id": "over"}),
    (call("await", ids=["done"]), "await", {"all": ["done"]}),
    (call("await", handle_id="done", extra=1), "await", {"all": ["done"]}),
    (call("read_output", handleId="done"), "read_output", {"id": "done"}),
    # other words for actions
    (call("suite", action="start", id="n", name="a"), "suite", {"action": "spawn", "id": "n", "name": "a"}),
    (call("suite", action="status", id="done"), "suite", {"action": "fetch", "id": "done"}),
    (call("suite", action="kill", id="done"), "suite", {"action": "abort", "id": "done"}),
    (call("suite", action="apply", id="done", input="x"), "suite", {"action": "fetch", "id": "done"}),
    (call("suite", action="apply", id="never", input="x"), "suite", {"action": "fetch", "id": "done"}),
    (call("build", spawn="two words", target="app"), "build", {"spawn": "two-words", "target": "app"}),
    # names
    (call("plane", path="a"), "plain", {"path": "a"}),
    (call("functions.plain", pth="a"), "plain", {"path": "a"}),
    (call("handle_get", id="b"), "handle_fetch", {"id": "b"}),
    (call("keephold__await", all=["done"]), "await", {"all": ["done"]}),
    (call("functions.await", all=["done"]), "await", {"all": ["done"]}),
    (call("mcp__keephold__handle_fetch", id="b"), "handle_fetch", {"id": "b"}),
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


async def test_C9_a_call_that_wanted_something_else_starts_no_work_with_invented_texts(clock: VirtualClock) -> None:
    async with Runtime([suite], clock=clock) as rt, rt.turn("main") as turn:
        for wrong in (call("suite", action="apply", id="u", input="x"), call("handle_fetch", id="u"), call("await")):
            (refused,) = await turn.run([wrong])
            assert refused.is_error and suggested(refused) is None, refused.model


async def test_C9_a_stopped_handle_of_an_earlier_process_is_looked_at(tmp_path: Path) -> None:
    async with Runtime([suite], store=f"sqlite:///{tmp_path}/s.db") as rt, rt.turn("main") as turn:
        await turn.run([call("suite", spawn="u", name="fast"), call("await", all=["u"])])
    async with Runtime([suite], store=f"sqlite:///{tmp_path}/s.db") as rt, rt.turn("main") as turn:
        (refused,) = await turn.run([call("suite", action="apply", id="u", input="x")])
        right = suggested(refused)
        assert right is not None and right.arguments == {"action": "fetch", "id": "u"}
        (shown,) = await turn.run([right])
        assert not failed(shown)


async def test_C9_messages_show_json_and_the_tools_for_handles(clock: VirtualClock) -> None:
    async with Runtime([suite], clock=clock) as rt, rt.turn("main") as turn:
        wrong = [
            call("handle_fetch", id=["u"]),
            call("suite", spawn=True, name="a"),
            call("suite", action=["x"], id="u"),
            call("zzz"),
        ]
        said = [(await turn.run([each]))[0].result for each in wrong]
        assert said[0] == 'Handle `["u"]` not found'
        assert said[1].startswith("true is not a handle id; ")
        assert said[2].startswith('tool `suite` has no action ["x"]; ')
        assert said[3].endswith(", `handle_fetch`, `handle_abort`")  # no tool has `apply`


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
