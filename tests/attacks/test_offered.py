"""Models, agents, workflow steps and MCP clients may call only the tools that their conversation is offered (K10)."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.scripted import Script, called, put
from tests.agent.talk import talking, written
from tests.mcp.clients import ERAS, connected, texts
from tests.mcp.serving import serving

import keephold
from keephold import Runtime, ToolCall
from keephold.ids import conversation_of
from keephold.testing import VirtualClock
from keephold.tools.toolbox import Selection
from keephold.tools.waiting import NAMES
from keephold.tools.waiting.execute import STEP

ran: list[str] = []
"""The texts that reached `secret`, which no one here may call."""


@keephold.tool
async def secret(text: str = "") -> str:
    """Must not run."""
    ran.append(text)
    return "secret"


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


def tool_step(name: Any, **arguments: Any) -> dict[str, Any]:
    return {"id": "s", "type": "tool", "config": {"name": name, "arguments": arguments}}


def agent_step(id: Any) -> dict[str, Any]:
    return {"id": "s", "type": "agent", "config": {"agentId": id, "prompt": "Go."}}


def workflow(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"workflowId": "w", "name": "w", "steps": list(steps)}


def loop(step: dict[str, Any]) -> dict[str, Any]:
    return {"id": "l", "type": "loop", "config": {"items": [1], "steps": [step]}}


def computed(name: str) -> dict[str, str]:
    """A name that is known only when the step runs."""
    return {"cel": f"'{name[:2]}' + '{name[2:]}'"}


async def test_K10_built_ins_that_are_not_offered_are_unknown() -> None:
    """In the words for a tool that does not exist; also the one with which keephold itself runs agents."""
    async with Runtime([note]) as rt, rt.turn("main") as turn:
        for name in (*NAMES, STEP, "handle_steal"):
            (refused,) = await turn.run([ToolCall("1", name, {})])
            assert refused.code == "unknown_tool", name
            assert refused.result.replace(name, "X") == "unknown tool `X`; known tools: `note`, `read_output`"
        (waited, read) = await turn.run([ToolCall("1", "await", {"all": ["x"]}), ToolCall("2", "read_output", {})])
        assert "unknown tool" not in waited.result + read.result


async def ended(turn: keephold.Turn, *steps: dict[str, Any]) -> str:
    """What a workflow of these steps was answered, or ended with."""
    (begun,) = await turn.run([ToolCall("1", "execute_workflow_async", workflow(*steps))])
    if begun.is_error:
        return str(json.loads(begun.result)["error"])
    (over,) = await turn.run([ToolCall("2", "wait_for", {"handleId": json.loads(begun.result)["handleId"]})])
    return over.result


REFUSED = (
    (tool_step("secret"), "step `s`: there is no tool `secret`"),
    (loop(tool_step("secret")), "step `s`: there is no tool `secret`"),
    (tool_step(computed("secret")), "unknown tool `secret`; known tools: "),
    (loop(tool_step(computed("secret"))), "unknown tool `secret`; known tools: "),
    (tool_step(STEP, agentId="spy", prompt="Go."), f"step `s`: there is no tool `{STEP}`"),
    (tool_step(computed(STEP), agentId="spy", prompt="Go."), f"unknown tool `{STEP}`; known tools: "),
    (agent_step("spy"), "step `s`: there is no agent `spy`"),
    (agent_step(computed("spy")), "Agent spy not found; known agents: none"),
)


async def test_K10_a_workflow_of_a_turn_with_some_tools(clock: VirtualClock) -> None:
    """Also after the turn has ended: the workflow outlives it."""
    runtime = Runtime([secret, note], clock=clock, builtins=["execute_workflow_async", "wait_for"])

    @runtime.agent("spy")
    async def spy(call: keephold.Call, request: Any) -> str:
        ran.append("spy")
        return "spied"

    async with runtime as rt:
        some = Selection(rt.toolbox, ["note", "execute_workflow_async", "wait_for"])
        async with rt.turn("main", tools=some) as turn:
            for step, why in REFUSED:
                assert why in await ended(turn, step)
            assert "noted x" in await ended(turn, tool_step(computed("note"), text="x"))
            later = {"id": "later", "type": "delay", "config": {"ms": 60_000}}
            kept = workflow(later, tool_step(computed("secret")))
            (begun,) = await turn.run([ToolCall("3", "execute_workflow_async", kept)])
        found = await rt.wait(all=[json.loads(begun.result)["handleId"]], conversation="main")
        assert "unknown tool `secret`" in str(found)
        assert rt.offers.now("main") is some  # until a turn ends without live handles
        async with rt.turn("main"):
            pass
        assert rt.offers.now("main") is rt.toolbox


def helper_file(directory: Path, tools: Sequence[str], **agents: Script) -> Path:
    """An agent `helper` with these tools, and `spy`, which it is not offered."""
    tables = [
        f'[conversation.tools.{name}]\nsource = "builtin"'
        for name in ("execute_agent_async", "execute_workflow_async", "wait_for")
    ]
    for name, model in put(**agents).items():
        tables.append(f'[agents.{name}]\nmodel = "{model}"\nrun = "unattended"')
        if name == "helper":
            tables[-1] += f"\ntools = {json.dumps(list(tools))}"
    return written(directory, "\n".join(tables))


async def test_K10_an_agent_runs_nothing_through_workflows_and_agents(clock: VirtualClock, tmp_path: Path) -> None:
    """A workflow ran a tool that its agent was refused, and so did an agent that another may not start."""
    calls = [called(f"h{at}", "execute_workflow_async", **workflow(step)) for at, (step, _) in enumerate(REFUSED)]
    calls.append(called("h9", "execute_agent_async", agentId="spy", prompt="Go."))

    begun: list[str] = []

    def waits(_: Any) -> Any:
        begun.extend(helper.results())
        ids = [each["handleId"] for each in map(json.loads, begun) if "handleId" in each]
        return [called(f"w{at}", "wait_for", handleId=id) for at, id in enumerate(ids)]

    helper, spy = Script(calls, waits, "Helped."), Script([called("s1", "secret")], "Spied.")
    main = Script([called("c1", "helper", prompt="Go.")], "Done.")
    offered = ["note", "execute_workflow_async", "execute_agent_async"]
    file = helper_file(tmp_path, offered, helper=helper, spy=spy)
    async with talking(main, secret, note, clock=clock, config=file) as talk:
        await talk.prompt()
    said = "\n".join(begun + helper.results(2))
    assert spy.read == []
    for _, why in REFUSED:
        assert why in said, why
    assert "Agent spy not found; known agents: none" in begun[-1]


async def test_K10_what_an_agent_was_offered_is_known_after_a_restart(tmp_path: Path) -> None:
    """By its conversation's name and its handle: its workflow may run again before it does, or in another process."""
    helper = Script("Helped.")
    main = Script([called("c1", "execute_agent_async", agentId="helper", prompt="Go.", tools=["no*"])], "Done.")
    file = helper_file(tmp_path, ["note", "secret"], helper=helper)
    store = f"sqlite:///{tmp_path}/store.db"
    async with talking(main, secret, note, config=file, store=store) as talk:
        await talk.prompt()
        (info,) = await talk.rt.handles(conversation="main")
    async with Runtime([secret, note], config=file, store=store) as rt:
        agent = await rt.offers.of(conversation_of("main", "helper", info.uid))
        assert [tool.name for tool in agent if tool.source != "builtin"] == ["note"]
        gone = await rt.offers.of(conversation_of("main", "gone", info.uid))
        assert [tool.name for tool in gone if tool.source != "builtin"] == []
        assert await rt.offers.of("main") is rt.toolbox


@pytest.mark.parametrize("era", ERAS)
async def test_K10_an_mcp_client_calls_what_is_listed(era: str) -> None:
    async with serving(tools=[note]) as server, connected(server.url, era) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {"note", "execute_workflow_async", "sleep"} <= listed and STEP not in listed
        for name in (STEP, "handle_steal"):
            refused = await client.call_tool(name, {"agentId": "x", "prompt": "Go."})
            (said,) = texts(refused)
            assert refused.is_error and said.startswith(f"unknown tool `{name}`; known tools: `note`, ")
        begun = await client.call_tool("execute_workflow_async", workflow(tool_step(computed("sleep"), durationMs=1)))
        (first,) = texts(begun)
        over = await client.call_tool("wait_for", {"handleId": json.loads(first)["handleId"]})
        assert '"status":"completed"' in texts(over)[0]
