"""An agent that a step of a workflow runs is a call of its own (G2, W11)."""

import asyncio
from typing import Any

from tests.unit.waiting.calls import Caller
from tests.unit.waiting.test_workflows import run, step
from tests.wait_tools import with_wait_tools

from keephold import Call
from keephold.prompts import AgentRequest
from keephold.testing import VirtualClock


async def test_E3_an_agent_of_two_steps_has_two_journals(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)

    @rt.agent("counts", on_crash="replay")
    async def counts(call: Call, request: AgentRequest) -> str:
        async def work(given: Any) -> Any:
            return given

        return str(await call.durable().run_json("work", request.prompt, work))

    async with rt:
        ask = Caller(rt)
        steps = [step(each, "agent", agentId="counts", prompt=each) for each in ("one", "two")]
        ended = await ask("wait_for", handleId=(await run(ask, *steps))["handleId"])
        assert [each["result"]["response"] for each in ended["result"]["steps"]] == ["one", "two"]


async def test_W11_steps_queue_for_their_agent_like_anybody_else(clock: VirtualClock) -> None:
    rt, running, most = with_wait_tools(clock=clock), 0, 0

    @rt.agent("alone", max_running=1)
    async def alone(call: Call, request: AgentRequest) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return "done"

    async with rt:
        ask = Caller(rt)
        branches = [[step(f"s{at}", "agent", agentId="alone", prompt="x")] for at in range(4)]
        id = (await run(ask, step("all", "parallel", branches=branches)))["handleId"]
        ended = await ask("wait_for", handleId=id)
        assert ended["status"] == "completed" and most == 1
