"""The five patterns of "Wait Tools - Async Operations Management", as its examples write them (W)."""

import asyncio
import json
from typing import Any

from tests.scenarios.assistant import call, text
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, Runtime, Turn
from keephold.prompts import AgentRequest
from keephold.testing import VirtualClock


async def ask(turn: Turn, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One call, and its reply."""
    (response,) = await turn.run([call(name, arguments)])
    reply: dict[str, Any] = json.loads(response.result)
    return reply


def with_agents(rt: Runtime, **secs: float) -> None:
    """Agents that take so long; those that take no time at all fail."""

    def register(name: str, takes: float) -> None:
        @rt.agent(name.replace("_", "-"))
        async def agent(call: Call, request: AgentRequest) -> str:
            await asyncio.sleep(takes)
            if not takes:
                raise keephold.ToolError(f"{name} gives up")
            return f"{name}: {request.prompt}"

    for name, takes in secs.items():
        register(name, takes)


async def started(turn: Turn, agents: list[str], prompt: str) -> list[str]:
    calls = [call("execute_agent_async", {"agentId": agent, "prompt": prompt}) for agent in agents]
    return [json.loads(response.result)["handleId"] for response in await turn.run(calls)]


async def test_pattern_1_parallel_agents_and_any_success(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    with_agents(rt, agent_1=30, agent_2=0, agent_3=10)
    async with rt, rt.turn("main") as turn:
        handles = await started(turn, ["agent-1", "agent-2", "agent-3"], "Solve this problem")
        result = await ask(turn, "wait_for_multiple", {"handleIds": handles, "mode": "any", "timeoutMs": 60_000})
        assert (result["status"], result["completedCount"], result["failedCount"]) == ("completed", 1, 1)
        assert result["results"][handles[2]]["result"]["response"] == "agent_3: Solve this problem"
        assert result["waitedMs"] == 10_000
        await ask(turn, "cancel_wait_handle", {"handleId": handles[0]})


async def test_pattern_2_a_workflow_with_checkpoints(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt, rt.turn("main") as turn:
        steps = [
            {"id": "fetch", "type": "delay", "config": {"ms": 60_000}},
            {"id": "sum", "type": "transform", "config": {"expression": "input.rows.size()"}},
        ]
        workflow = await ask(
            turn,
            "execute_workflow_async",
            {
                "workflowId": "multi-stage",
                "name": "Multi-stage",
                "steps": steps,
                "input": {"rows": [1, 2, 3]},
                "timeoutMs": 600_000,
            },
        )
        assert (workflow["async"], workflow["status"], workflow["stepCount"]) == (True, "pending", 2)
        result = await ask(turn, "wait_for", {"handleId": workflow["handleId"], "pollIntervalMs": 1000})
        assert (result["status"], result["result"]["finalOutput"], result["waitedMs"]) == ("completed", 3, 60_000)


async def test_pattern_3_rate_limited_calls(clock: VirtualClock) -> None:
    times: list[float] = []

    @keephold.tool
    async def process_item(item: int) -> str:
        times.append(clock.now())
        return "ok"

    async with with_wait_tools([process_item], clock=clock) as rt, rt.turn("main") as turn:
        for item in range(3):
            assert await text(turn, "process_item", {"item": item}) == "ok"
            slept = await ask(turn, "sleep", {"durationMs": 1000, "label": "rate-limit"})
            assert (slept["label"], slept["actualDurationMs"]) == ("rate-limit", 1000)
    assert [later - times[0] for later in times] == [0, 1, 2]


async def test_pattern_4_an_external_webhook(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt, rt.turn("main") as turn, asyncio.TaskGroup() as group:
        handle = await ask(
            turn,
            "create_wait_handle",
            {"handleId": "webhook-callback-123", "type": "hook", "timeoutMs": 300_000},
        )
        waiting = group.create_task(ask(turn, "wait_for", {"handleId": "webhook-callback-123"}))
        await clock.advance(60)
        # The external system has nothing but the key; a model would have used complete_wait_handle.
        outcome = await rt.resolve(handle["key"], {"status": "ok", "payload": {"recordsUpdated": 42}})
        assert str(outcome) == "accepted"
        result = await waiting
        assert (result["status"], result["result"]) == ("completed", {"recordsUpdated": 42})


async def test_pattern_4_by_the_tool_of_another_client(clock: VirtualClock) -> None:
    async with with_wait_tools(clock=clock) as rt, rt.turn("main") as turn, asyncio.TaskGroup() as group:
        await ask(turn, "create_wait_handle", {"handleId": "w", "type": "hook"})
        waiting = group.create_task(ask(turn, "wait_for", {"handleId": "w"}))
        await clock.advance(60)
        done = await rt.call_queue("main").call(
            call("complete_wait_handle", {"handleId": "w", "error": "External timeout"})
        )
        assert not done.is_error
        result = await waiting
        assert (result["status"], result["error"], result["isError"]) == ("failed", "External timeout", True)


async def test_pattern_5_a_team_and_all_complete(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    with_agents(rt, researcher=20, analyzer=40, writer=10)
    async with rt, rt.turn("main") as turn:
        team = await started(turn, ["researcher", "analyzer", "writer"], "your part")
        results = await ask(turn, "wait_for_multiple", {"handleIds": team, "mode": "all", "timeoutMs": 180_000})
        assert (results["status"], results["completedCount"], results["waitedTime"]) == ("completed", 3, "40s")
        synthesis = [entry["result"]["response"] for entry in results["results"].values()]
        assert synthesis == ["researcher: your part", "analyzer: your part", "writer: your part"]
        assert (await turn.notifications()) == (), "what was shown is no news"
