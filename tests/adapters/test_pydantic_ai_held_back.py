"""What pydantic-ai holds back is not run ahead of it: calls that need approval, and calls that hooks skip or change."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, ToolDenied
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls, Hooks
from pydantic_ai.exceptions import SkipToolExecution
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import WrapperToolset
from tests.adapters.scripted import Script

import keephold
from keephold import Runtime
from keephold.adapters.pydantic_ai import KeepholdToolset

Mode = Literal["parallel", "sequential"]
MODES = pytest.mark.parametrize("mode", ["parallel", "sequential"])
TWO: Any = [("1", "note", {"text": "harmless"}), ("2", "launch", {"target": "moon"})]


class World:
    """Two tools, and what they have done."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tools(self) -> list[keephold.Tool]:
        @keephold.tool
        async def note(text: str) -> str:
            """Harmless."""
            self.done.append(text)
            return text

        @keephold.tool
        async def launch(target: str) -> str:
            """Not harmless."""
            self.done.append(target)
            return f"on the way to the {target}"

        return [note, launch]


@MODES
async def test_a_call_that_needs_approval_waits_for_it(mode: Mode) -> None:
    world, script = World(), Script(TWO, "done")
    async with Runtime(world.tools()) as rt:
        careful = KeepholdToolset(rt).approval_required(lambda ctx, tool, args: tool.name == "launch")
        agent = Agent(script.model, toolsets=[careful], output_type=[str, DeferredToolRequests])
        with ToolManager.parallel_execution_mode(mode):
            first = await agent.run("go")
            assert isinstance(first.output, DeferredToolRequests)
            assert [call.tool_call_id for call in first.output.approvals] == ["2"]
            assert world.done == ["harmless"]
            approved = DeferredToolResults(approvals={"2": True})
            second = await agent.run(message_history=first.all_messages(), deferred_tool_results=approved)
    assert second.output == "done"
    assert world.done == ["harmless", "moon"]
    assert script.results() == [("1", "harmless"), ("2", "on the way to the moon")]


async def launches_need_approval(ctx: RunContext[Any], tools: list[ToolDefinition]) -> list[ToolDefinition]:
    return [replace(tool, kind="unapproved") if tool.name == "launch" else tool for tool in tools]


@MODES
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_tool_that_needs_approval_leaves_the_others_as_they_are(mode: Mode, at_once: bool) -> None:
    """What ran before the approval is not run again with it, be it in the same run or in the next."""
    world, script = World(), Script([*TWO, ("3", "note", {"text": "too"})], "done")
    approving = HandleDeferredToolCalls[Any](lambda ctx, requests: DeferredToolResults(approvals={"2": True}))
    async with Runtime(world.tools()) as rt:
        careful = KeepholdToolset(rt).prepared(launches_need_approval)
        output: Any = [str, DeferredToolRequests]
        agent = Agent(script.model, toolsets=[careful], output_type=output, capabilities=[approving] if at_once else [])
        with ToolManager.parallel_execution_mode(mode):
            result = await agent.run("go")
            if not at_once:
                approved = DeferredToolResults(approvals={"2": True})
                await agent.run(message_history=result.all_messages(), deferred_tool_results=approved)
    assert world.done == ["harmless", "too", "moon"]


@MODES
async def test_a_denied_call_is_never_run(mode: Mode) -> None:
    world, script = World(), Script([*TWO, ("3", "launch", {"target": "sun"})], "done")
    async with Runtime(world.tools()) as rt:
        careful = KeepholdToolset(rt).approval_required(lambda ctx, tool, args: tool.name == "launch")
        agent = Agent(script.model, toolsets=[careful], output_type=[str, DeferredToolRequests])
        with ToolManager.parallel_execution_mode(mode):
            first = await agent.run("go")
            said = DeferredToolResults(approvals={"2": ToolDenied("no"), "3": True})
            await agent.run(message_history=first.all_messages(), deferred_tool_results=said)
    assert world.done == ["harmless", "sun"]


@MODES
async def test_hooks_may_skip_and_change_calls(mode: Mode) -> None:
    world, script = World(), Script([*TWO, ("3", "launch", {"target": "sun"})], "done")
    hooks = Hooks[Any]()

    @hooks.on.before_tool_execute
    async def before(
        ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        if args.get("target") == "moon":
            raise SkipToolExecution("not today")
        return {"target": "mars"} if tool_def.name == "launch" else args

    async with Runtime(world.tools()) as rt:
        agent = Agent(script.model, toolsets=[KeepholdToolset(rt)], capabilities=[hooks])
        with ToolManager.parallel_execution_mode(mode):
            await agent.run("go")
    assert world.done == ["harmless", "mars"]
    assert script.results() == [("1", "harmless"), ("2", "not today"), ("3", "on the way to the mars")]


class Doorman(WrapperToolset[Any]):
    """Lets no launch pass."""

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        return "closed" if name == "launch" else await super().call_tool(name, tool_args, ctx, tool)


@MODES
async def test_a_toolset_around_it_may_keep_calls_to_itself(mode: Mode) -> None:
    world, script = World(), Script(TWO, "done")
    async with Runtime(world.tools()) as rt:
        agent = Agent(script.model, toolsets=[Doorman(KeepholdToolset(rt))])
        with ToolManager.parallel_execution_mode(mode):
            await agent.run("go")
    assert world.done == ["harmless"]
    assert script.results()[1] == ("2", "closed")


class Twice(AbstractCapability[Any]):
    """Has each call done again."""

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        await handler(args)
        return await handler(args)


@MODES
async def test_a_hook_that_calls_again_is_obeyed(mode: Mode) -> None:
    world, script = World(), Script(TWO, "done")
    async with Runtime(world.tools()) as rt:
        agent = Agent(script.model, toolsets=[KeepholdToolset(rt)], capabilities=[Twice()])
        with ToolManager.parallel_execution_mode(mode):
            await agent.run("go")
    assert sorted(world.done) == ["harmless", "harmless", "moon", "moon"]
