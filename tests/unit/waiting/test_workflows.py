"""`execute_workflow_async` as a handle (W10, W12); what its steps do is tested in tests/unit/workflow."""

import asyncio
from typing import Any

import pytest
from tests.unit.waiting.calls import Caller, calling
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, ToolError
from keephold.config.model import Config, WorkflowSettings
from keephold.prompts import AgentRequest
from keephold.testing import VirtualClock


def step(id: str, type: str, **config: Any) -> dict[str, Any]:
    return {"id": id, "type": type, "config": config}


@keephold.tool
async def double(n: int) -> int:
    return 2 * n


@keephold.tool
async def broken() -> None:
    raise ToolError("out of order", transient=True)


async def run(ask: Caller, *steps: dict[str, Any], **more: Any) -> Any:
    return await ask("execute_workflow_async", workflowId="data-pipeline-1", name="Data", steps=list(steps), **more)


async def test_W12_a_workflow_is_a_handle(clock: VirtualClock) -> None:
    async with calling(clock, double) as ask:
        started = await run(
            ask,
            step("wait", "delay", ms=5000),
            step("twice", "tool", name="double", arguments={"n": {"cel": "input.n"}}),
            input={"n": 21},
            timeoutMs=300_000,
        )
        assert {key: started[key] for key in ("async", "handleId", "status", "stepCount", "timeout")} == {
            "async": True,
            "handleId": "workflow_data-pipeline-1_1767225600000",
            "status": "pending",
            "stepCount": 2,
            "timeout": 300_000,
        }
        info = await ask.rt.handle(started["handleId"], conversation="main")
        assert (info.kind, info.metadata["stepCount"]) == ("workflow", 2)
        waited = await ask.wait_for(started["handleId"])
        assert (waited["result"]["status"], waited["result"]["finalOutput"]) == ("completed", 42)
        assert waited["waitedMs"] == 5000


async def test_W10_a_bad_workflow_is_refused_before_anything_runs(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        bad = [step("a", "nonsense")]
        refused = await ask.error("execute_workflow_async", workflowId="w", name="W", steps=bad)
        assert "steps[0]" in refused["error"]
        inner = [step("b", "tool", name="nobodys"), step("d", "tool", name={"cel": "'unknown till then'"})]
        unknown = [step("a", "loop", items=[1], steps=inner), step("c", "agent", agentId="x", prompt="p")]
        refused = await ask.error("execute_workflow_async", workflowId="w", name="W", steps=unknown)
        assert refused["error"] == "step `b`: there is no tool `nobodys`; step `c`: there is no agent `x`"
        assert (await ask("list_wait_handles"))["stats"]["total"] == 0


async def test_W10_a_failure_keeps_what_was_done(clock: VirtualClock) -> None:
    async with calling(clock, double, broken) as ask:
        steps = [step("good", "tool", name="double", arguments={"n": 1}), step("bad", "tool", name="broken")]
        id = (await run(ask, *steps))["handleId"]
        waited = await ask.wait_for(id)
        assert waited["status"] == "failed" and "out of order" in waited["error"]
        partial = waited["partialResult"]
        assert (partial["status"], partial["steps"][0]["result"]) == ("failed", 2)
        read = await ask.response("read_output", id=id)
        assert '\\"stepId\\":\\"good\\"' in read.result
        several = await ask.wait_for_multiple("all", id)
        assert several["results"][id]["partialResult"]["steps"][0]["result"] == 2


async def test_W10_its_timeout_stops_it(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        id = (await run(ask, step("a", "transform", expression="1"), step("b", "delay", ms=60_000), timeoutMs=1000))[
            "handleId"
        ]
        waited = await ask.wait_for(id)
        assert (waited["status"], waited["operationElapsedMs"]) == ("timeout", 1000)
        assert waited["partialResult"]["steps"][0]["result"] == 1


async def test_W10_steps_run_agents_and_wait_for_handles(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)

    @rt.agent("echo")
    async def echo(call: Call, request: AgentRequest) -> str:
        return request.prompt.upper()

    async with rt, asyncio.TaskGroup() as group:
        ask = Caller(rt)
        await ask.create("h")
        steps = [
            step("said", "agent", agentId="echo", prompt="hi"),
            step("waited", "wait", handleId="h"),
            step("both", "transform", expression="[steps.said.response, steps.waited]"),
        ]
        id = (await run(ask, *steps))["handleId"]
        waiting = group.create_task(ask.wait_for(id))
        await clock.advance(10)
        await ask.complete("h", result={"n": 1})
        assert (await waiting)["result"]["finalOutput"] == ["HI", {"n": 1}]


async def test_R5_W10_a_workflow_is_tried_again_where_it_failed(clock: VirtualClock) -> None:
    did: list[str] = []

    @keephold.tool
    async def note(what: str) -> str:
        did.append(what)
        if what == "flaky" and did.count("flaky") < 3:
            raise ToolError("busy", transient=True)
        return what

    async with calling(clock, note) as ask:
        steps = [step(each, "tool", name="note", arguments={"what": each}) for each in ("once", "flaky")]
        id = (await run(ask, *steps, retry={"maxAttempts": 3, "baseDelayMs": 10}))["handleId"]
        assert (await ask.wait_for(id))["status"] == "completed"
        assert did == ["once", "flaky", "flaky", "flaky"]


async def test_R5_W10_a_parked_call_whose_step_timed_out_is_made_again(clock: VirtualClock) -> None:
    """It was ended for the workflow, so another attempt has another; what came from outside would count."""
    keys: list[keephold.Key] = []

    @keephold.tool
    async def approve(call: Call) -> keephold.Pending:
        keys.append(await call.completion_key())
        return keephold.Pending()

    async with calling(clock, approve) as ask:
        given = step("a", "tool", name="approve", timeoutMs=1000)
        id = (await run(ask, given, retry={"maxAttempts": 2, "baseDelayMs": 10}))["handleId"]
        await clock.advance(1.5)
        assert len(keys) == 2
        assert str(await ask.rt.resolve(keys[0], {"status": "ok", "payload": 1})) == "already_resolved"
        await ask.rt.resolve(keys[1], {"status": "ok", "payload": 2})
        assert (await ask.wait_for(id))["result"]["finalOutput"] == 2


async def test_K5_W10_what_a_workflow_waits_for_is_shown_without_its_key(clock: VirtualClock) -> None:
    async with calling(clock) as ask:
        id = (await run(ask, step("a", "wait", event="approved")))["handleId"]
        await clock.advance(1)
        ((name, key),) = (await ask.rt.keys(id, conversation="main")).items()
        assert name == "a:1:approved"
        info = await ask.rt.handle(id, conversation="main")
        (event,) = await ask.rt.process_events(info.uid)
        assert info.progress is not None and info.progress.message is not None
        assert key.key_id in info.progress.message and event.payload["key_id"] == key.key_id
        shown = (await ask.response("list_wait_handles")).result
        shown += (await ask.response("wait_for", handleId=id, timeoutMs=1)).result
        assert key.key_id in shown
        for text in (shown, info.progress.message, str(event.payload)):
            assert key not in text and "hf1." not in text
        await ask.rt.resolve(key, {"status": "ok", "payload": "yes"})
        assert (await ask.wait_for(id))["result"]["finalOutput"] == "yes"
        assert await ask.rt.keys(id, conversation="main") == {}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (WorkflowSettings(), 'add "127.0.0.1:9" to `api_hosts` in [workflows]'),
        (WorkflowSettings(api_hosts=["127.0.0.1:9"]), "[workflows] private_addresses = true"),
        (WorkflowSettings(api_hosts=["127.0.0.1:9"], private_addresses=True), "ConnectError"),  # nobody listens there
    ],
)
async def test_K_an_api_step_reaches_this_machine_only_if_the_configuration_says_so(
    settings: WorkflowSettings, error: str
) -> None:
    async with with_wait_tools(config=Config(workflows=settings)) as rt:
        ask = Caller(rt)
        ended = await ask.wait_for((await run(ask, step("a", "api", url="http://127.0.0.1:9/")))["handleId"])
    assert error in ended["error"]


async def test_cancelling_a_workflow_cancels_the_tool_it_is_in(clock: VirtualClock) -> None:
    ended: list[str] = []

    @keephold.tool
    async def long() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("long")
            raise

    async with calling(clock, long) as ask:
        id = (await run(ask, step("a", "tool", name="long")))["handleId"]
        await clock.advance(5)
        assert (await ask("cancel_wait_handle", handleId=id))["elapsedMs"] == 5000
        await clock.advance(1)
        assert ended == ["long"]
        assert ask.rt.live() == []
