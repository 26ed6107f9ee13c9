"""A run of pydantic-ai's agent is a turn: it begins with the news, ends by T, and is cancelled with the run."""

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import Hooks
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import ToolDefinition
from tests.adapters.scripted import Script, spawn
from tests.turn.assistant import Assistant
from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, KeepholdError, Runtime
from keephold.adapters.pydantic_ai import KeepholdToolset
from keephold.testing import VirtualClock


@keephold.tool(actions=STATEFUL)
async def work(secs: float = 60) -> str:
    """Take its time."""
    await asyncio.sleep(secs)
    return "done"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def serve(secs: float = 60) -> str:
    """Take its time, beyond the turn."""
    await asyncio.sleep(secs)
    return "served"


@keephold.tool
async def fail() -> str:
    """Fail."""
    raise keephold.ToolError("no disk")


class Stuck:
    """A tool that returns when it is released or cancelled, and a model that never answers."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = 0
        self.model = FunctionModel(self._answer)

    def tool(self) -> keephold.Tool:
        @keephold.tool
        async def stick(call: Call) -> str:
            """Never return by itself."""
            self.begun.set()
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return ""

        return stick

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


def agent_of(script: Script, source: Any) -> Agent[None, str]:
    return Agent(script.model, toolsets=[KeepholdToolset(source)])


# News


async def test_N4_a_run_begins_with_the_news() -> None:
    script = Script("done")
    async with Runtime([work]) as rt:
        await rt.notify("disk.full", "warning", "The disk is full.", conversation="main")
        await agent_of(script, rt).run("go", conversation_id="main")
    asked, news = script.told()
    assert asked == "go"
    assert news.splitlines() == [
        "[Automatic notifications. They are not from the user and come once.]",
        "- warning: The disk is full.",
    ]


async def test_N4_news_comes_behind_the_results_and_once(clock: VirtualClock) -> None:
    script = Script(
        [spawn("1", "work", "w", secs=1), spawn("2", "work", "slow", secs=5)],
        [("3", "work", {"secs": 2}), ("4", "work", {"secs": 1})],
        [("5", "await", {"all": ["slow"]})],
        "done",
    )
    async with Runtime([work], clock=clock) as rt:
        await agent_of(script, rt).run("go", conversation_id="main")
    assert script.told(1) == []
    assert script.results(2) == [("3", "done"), ("4", "done")]
    (news,) = script.told(2)
    assert "`w` (work) stopped" in news
    assert script.told(3) == []


async def test_N4_a_failed_call_carries_news_too() -> None:
    script = Script([("1", "fail", {}), ("2", "fail", {})], "done")
    async with Runtime([fail]) as rt:
        agent = agent_of(script, rt)

        @agent.instructions
        async def meanwhile(ctx: RunContext[None]) -> str:
            if ctx.run_step == 1:
                await rt.notify("disk.full", "warning", "The disk is full.", conversation="main")
            return ""

        await agent.run("go", conversation_id="main")
    first, second = script.results()
    assert "no disk" in first[1]
    assert first[1].endswith("- warning: The disk is full.")
    assert "Automatic" not in second[1]


# The end of a run


async def test_T2_the_model_is_asked_at_the_end_of_a_run_and_hears_the_rest_in_the_next(clock: VirtualClock) -> None:
    script = Script([spawn("1", "work", "w", secs=20)], "done", "again")
    assistant = Assistant("wait")
    async with Runtime([work], clock=clock, inquiry=assistant) as rt:
        agent = agent_of(script, rt)
        result = await agent.run("go")
        assert [handle["id"] for handle in assistant.asked[0].handles] == ["w"]
        assert not rt.live()
        await agent.run("and?", message_history=result.all_messages())
    asked, news = script.told()
    assert asked == "and?"
    assert "`w` (work) stopped: done" in news


async def test_T2_in_a_turn_of_ones_own_the_model_speaks_again(clock: VirtualClock) -> None:
    script = Script([spawn("1", "work", "w", secs=20)], "done", "now it is")
    async with Runtime([work], clock=clock, inquiry=Assistant("wait")) as rt, rt.turn("main") as turn:
        agent = agent_of(script, turn)
        result = await agent.run("go")
        assert len(rt.live()) == 1
        while (ending := await turn.end()).again:
            result = await agent.run(ending.message, message_history=result.all_messages())
        assert result.output == "now it is"
    (message,) = script.told()
    assert json.loads(message[message.index("{") :]) == {
        "completed": [{"id": "w", "state": "stopped", "result": "done"}],
        "pending": [],
    }


async def test_T4_nothing_runs_on_unless_it_is_kept(clock: VirtualClock) -> None:
    script = Script(
        [spawn("1", "work", "w"), spawn("2", "serve", "s", secs=5)], "done", [("3", "await", {"all": ["s"]})], "bye"
    )
    async with Runtime([work, serve], clock=clock) as rt:
        agent = agent_of(script, rt)
        result = await agent.run("go")
        assert [handle.id for handle in rt.live()] == ["s"]
        await agent.run("and?", message_history=result.all_messages())
    assert json.loads(script.results()[0][1])["completed"] == [{"id": "s", "state": "stopped", "result": "served"}]


async def test_B1_one_run_of_a_conversation_at_a_time() -> None:
    stuck = Stuck()
    async with Runtime([work]) as rt:
        agent = Agent(stuck.model, toolsets=[KeepholdToolset(rt)])
        first = asyncio.create_task(agent.run("go", conversation_id="main"))
        await stuck.begun.wait()
        with pytest.raises(KeepholdError, match="open turn"):
            await agent.run("go", conversation_id="main")
        with agent.override(model=Script("done").model):
            await agent.run("go", conversation_id="other")
        first.cancel()
        await asyncio.wait([first])


# Cancelled runs


async def test_B7_a_cancelled_run_cancels_its_batch() -> None:
    stuck, assistant = Stuck(), Assistant("wait")
    script = Script([spawn("1", "work", "w"), ("2", "stick", {}), ("3", "stick", {})], "never")
    async with Runtime([work, stuck.tool()], inquiry=assistant) as rt:
        running = asyncio.create_task(agent_of(script, rt).run("go", conversation_id="main"))
        await stuck.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert stuck.cancelled == 2
        assert not rt.live()
        assert (await rt.handle("w", conversation="main")).ended_by == "turn_end"
        async with rt.turn("main") as turn:
            assert turn.unfinished is None
    assert not assistant.asked


async def test_T5_a_run_cancelled_between_batches_asks_nobody() -> None:
    stuck, assistant = Stuck(), Assistant("wait")
    script = Script([spawn("1", "work", "w")])
    async with Runtime([work], inquiry=assistant) as rt:

        async def first_calls_then_hangs(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if len(messages) == 1:
                return await script._respond(messages, info)
            return await stuck._answer(messages, info)

        agent = Agent(FunctionModel(first_calls_then_hangs), toolsets=[KeepholdToolset(rt)])
        running = asyncio.create_task(agent.run("go"))
        await stuck.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not rt.live()
    assert not assistant.asked


async def test_T5_a_run_that_fails_asks_nobody() -> None:
    """What its user was handling when it began is no failure of the run."""
    assistant = Assistant("abort")
    async with Runtime([work], inquiry=assistant) as rt:
        with pytest.raises(IndexError):
            await agent_of(Script([spawn("1", "work", "w")]), rt).run("go")
        assert not rt.live()
        assert not assistant.asked
        try:
            raise ValueError
        except ValueError:
            await agent_of(Script([spawn("1", "work", "w")], "done"), rt).run("go")
        assert len(assistant.asked) == 1


async def test_B7_a_failing_tool_of_others_takes_the_batch_with_it() -> None:
    stuck = Stuck()
    script = Script([("1", "stick", {}), ("2", "plain", {})], "never")
    async with Runtime([stuck.tool()]) as rt:
        agent = agent_of(script, rt)

        @agent.tool_plain
        async def plain() -> str:
            await stuck.begun.wait()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await agent.run("go")
        assert stuck.cancelled == 1
        assert not rt.live()


async def test_B7_a_run_that_cancels_itself() -> None:
    stuck = Stuck()
    script = Script([("1", "stick", {}), ("2", "stop", {})], "never")
    async with Runtime([stuck.tool()]) as rt:
        agent = agent_of(script, rt)

        @agent.tool
        async def stop(ctx: RunContext[None]) -> str:
            await stuck.begun.wait()
            ctx.cancel()
            return "stopped"

        with pytest.raises(RunCancelled):
            await agent.run("go")
        assert stuck.cancelled == 1
        assert not rt.live()


async def test_B7_a_run_that_is_cancelled_in_a_turn_of_ones_own_leaves_no_batch() -> None:
    """The turn goes on: it is not the run's to end."""
    stuck = Stuck()
    script = Script([spawn("1", "work", "w"), ("2", "stick", {})], [("3", "work", {"secs": 0})], "done")
    async with Runtime([work, stuck.tool()]) as rt, rt.turn("main") as turn:
        agent = agent_of(script, turn)
        running = asyncio.create_task(agent.run("go"))
        await stuck.begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert stuck.cancelled == 1
        assert [handle.id for handle in rt.live()] == ["w"]
        await agent.run("go on")
        assert script.results() == [("3", "done")]


async def test_B7_a_call_that_a_hook_gives_up_on_does_not_end_the_others() -> None:
    stuck = Stuck()
    hooks = Hooks[Any]()

    @hooks.on.tool_execute
    async def impatient(
        ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        if call.tool_name != "stick":
            return await handler(args)
        running = asyncio.ensure_future(handler(args))
        await stuck.begun.wait()
        running.cancel()
        await asyncio.wait([running])
        stuck.release.set()
        return "too slow"

    script = Script([("1", "stick", {}), ("2", "work", {"secs": 0})], "done")
    async with Runtime([work, stuck.tool()]) as rt:
        await Agent(script.model, toolsets=[KeepholdToolset(rt)], capabilities=[hooks]).run("go")
    assert script.results() == [("1", "too slow"), ("2", "done")]


async def test_B1_a_call_that_comes_late_waits_for_the_batch_before_it() -> None:
    stuck = Stuck()
    hooks = Hooks[Any]()

    @hooks.on.tool_execute
    async def late(
        ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        if call.tool_name == "stick":
            return await handler(args)
        await stuck.begun.wait()
        running = asyncio.ensure_future(handler(args))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not running.done()
        stuck.release.set()
        return await running

    script = Script([("1", "work", {"secs": 0}), ("2", "stick", {})], "done")
    async with Runtime([work, stuck.tool()]) as rt:
        await Agent(script.model, toolsets=[KeepholdToolset(rt)], capabilities=[hooks]).run("go")
    assert script.results() == [("1", "done"), ("2", "")]
