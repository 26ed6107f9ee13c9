"""`execute_agent_async` (W11, W12)."""

import asyncio
from typing import Any

import pytest
from tests.unit.waiting.calls import Caller, calling
from tests.wait_tools import with_wait_tools

import keephold
from keephold import Call, ConfigError, Runtime, ToolError
from keephold.prompts import AgentRequest
from keephold.testing import VirtualClock


def with_echo(rt: Runtime, **options: Any) -> list[AgentRequest]:
    """An agent that takes a second for each word."""
    asked: list[AgentRequest] = []

    @rt.agent("echo", **options)
    async def echo(call: Call, request: AgentRequest) -> str:
        asked.append(request)
        words = request.prompt.split()
        for done, _ in enumerate(words, 1):
            await asyncio.sleep(1)
            call.progress(done, len(words))
        return request.prompt.upper()

    return asked


async def test_W12_an_agent_runs_beside_the_conversation(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    asked = with_echo(rt)
    async with rt:
        ask = Caller(rt)
        started = await ask(
            "execute_agent_async",
            agentId="echo",
            prompt="hello world",
            model="m-1",
            maxTokens=9,
            context=[{"role": "user", "content": "before"}],
            documents=[{"id": "d", "content": "text", "name": "n"}],
            timeoutMs=60_000,
        )
        assert started == {
            "async": True,
            "handleId": "agent_echo_1767225600000",
            "agentId": "echo",
            "status": "pending",
            "message": started["message"],
            "startTime": "2026-01-01T00:00:00.000Z",
            "timeout": 60_000,
        }
        assert "wait_for" in started["message"]
        await clock.advance(1.5)
        info = await rt.handle(started["handleId"], conversation="main")
        assert (info.kind, info.metadata) == ("agent", {"agentId": "echo", "model": "m-1", "prompt": "hello world"})
        assert info.progress is not None and (info.progress.done, info.progress.total) == (1, 2)
        waited = await ask.wait_for(started["handleId"])
        assert waited["result"] == {
            "agentId": "echo",
            "response": "HELLO WORLD",
            "model": "m-1",
            "usage": None,
            "finishReason": "stop",
            "timestamp": "2026-01-01T00:00:02.000Z",
        }
        assert (asked[0].max_tokens, asked[0].context[0].content, asked[0].documents[0].name) == (9, "before", "n")


async def test_an_agent_may_say_more_than_its_response(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)

    @rt.agent("full")
    async def full(call: Call, request: AgentRequest) -> dict[str, Any]:
        return {"response": {"a": 1}, "model": "m-2", "usage": {"tokens": 3}, "finishReason": "length"}

    async with rt:
        ask = Caller(rt)
        id = (await ask("execute_agent_async", agentId="full", prompt="x"))["handleId"]
        result = (await ask.wait_for(id))["result"]
        assert [result[key] for key in ("response", "model", "usage", "finishReason")] == [
            {"a": 1},
            "m-2",
            {"tokens": 3},
            "length",
        ]


async def test_W12_ids_of_the_same_millisecond_are_numbered_and_bad_characters_replaced(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)

    @rt.agent("my agent")
    async def mine(call: Call, request: AgentRequest) -> str:
        return request.prompt

    async with rt:
        ask = Caller(rt)
        ids = [(await ask("execute_agent_async", agentId="my agent", prompt="x"))["handleId"] for _ in range(3)]
        assert ids == [f"agent_my-agent_1767225600000{more}" for more in ("", "_2", "_3")]
        assert (await ask.wait_for_multiple("all", *ids))["completedCount"] == 3


async def test_an_unknown_agent_is_an_error_that_lists_those_known(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    with_echo(rt)
    async with rt:
        refused = await Caller(rt).error("execute_agent_async", agentId="ehco", prompt="x")
        assert refused["error"] == "Agent ehco not found; known agents: echo"
        assert (await Caller(rt)("list_wait_handles"))["stats"]["total"] == 0
    async with calling(clock) as ask:
        assert "@rt.agent" in (await ask.error("execute_agent_async", agentId="a", prompt="x"))["error"]


async def test_W5_its_timeout_stops_it(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    asked = with_echo(rt, max_running=1)
    async with rt:
        ask = Caller(rt)
        runs = await ask("execute_agent_async", agentId="echo", prompt="a b c d e", timeoutMs=2500)
        queued = await ask("execute_agent_async", agentId="echo", prompt="never begun", timeoutMs=2000)
        waited = await ask.wait_for(queued["handleId"])
        assert (waited["status"], waited["error"]) == ("timeout", "Operation timed out after 2000ms")
        assert (waited["operationElapsedMs"], len(asked)) == (2000, 1)
        waited = await ask.wait_for(runs["handleId"])
        assert (waited["error"], waited["operationElapsedMs"]) == ("Operation timed out after 2500ms", 2500)


async def test_W11_those_that_queue_start_by_priority(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    asked = with_echo(rt, max_running=1)
    async with rt:
        ask = Caller(rt)
        ids = []
        for prompt, priority in (("first", 0), ("low", -1), ("equal", 0), ("high", 5), ("raised", 0)):
            made = await ask("execute_agent_async", agentId="echo", prompt=prompt, priority=priority)
            ids.append(made["handleId"])
        await ask("update_wait_handle", handleId=ids[-1], priority=9)
        await ask.wait_for_multiple("all", *ids)
        assert [request.prompt for request in asked] == ["first", "raised", "high", "equal", "low"]


async def test_R5_a_transient_failure_is_tried_again(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    attempts: list[int] = []

    @rt.agent("flaky")
    async def flaky(call: Call, request: AgentRequest) -> str:
        attempts.append(call.attempt)
        if request.prompt == "never" or call.attempt < 3:
            raise ToolError("busy", transient=True)
        return "at last"

    async with rt:
        ask = Caller(rt)
        retry = {"maxAttempts": 3, "baseDelayMs": 1000, "maxDelayMs": 1500}
        once = await ask("execute_agent_async", agentId="flaky", prompt="x")
        again = await ask("execute_agent_async", agentId="flaky", prompt="x", retry=retry)
        assert (await ask.wait_for(once["handleId"]))["error"] == "busy"
        assert (await ask.wait_for(again["handleId"]))["result"]["response"] == "at last"
        assert attempts == [1, 1, 2, 3]
        never = await ask("execute_agent_async", agentId="flaky", prompt="never", retry=retry, timeoutMs=900)
        waited = await ask.wait_for(never["handleId"])
        assert (waited["status"], waited["operationElapsedMs"]) == ("timeout", 900), "also between two attempts"


async def test_cancelling_an_agent(clock: VirtualClock) -> None:
    rt = with_wait_tools(clock=clock)
    with_echo(rt)
    async with rt:
        ask = Caller(rt)
        id = (await ask("execute_agent_async", agentId="echo", prompt="a b c"))["handleId"]
        await clock.advance(1.5)
        ended = await ask("cancel_wait_handle", handleId=id, reason="not needed")
        assert (ended["status"], ended["error"]) == ("failed", "Cancelled by the assistant: not needed")
        assert ended["elapsedMs"] == 1500
        waited = await ask.wait_for(id)
        assert (waited["status"], waited["endedBy"]) == ("failed", "abort")
        refused = await ask.error("complete_wait_handle", handleId=id, result=1)
        assert "cancel_wait_handle" in refused["error"]


@pytest.mark.parametrize(
    ("id", "options", "says"),
    [
        ("", {}, "not empty"),
        ("echo", {}, "registered already"),
        ("a", {"on_crash": "external"}, '"replay" or "fail"'),
        ("b", {"max_running": 0}, "1 or more"),
    ],
)
def test_what_cannot_be_an_agent(id: str, options: dict[str, Any], says: str) -> None:
    rt = with_wait_tools()
    with_echo(rt)

    async def function(call: Call, request: AgentRequest) -> str:
        return ""

    with pytest.raises(ConfigError, match=says):
        rt.agent(id, **options)(function)
    with pytest.raises(ConfigError, match="not async"):
        rt.agent("sync")(lambda call, request: "x")  # type: ignore[arg-type, return-value]
    assert keephold.prompts.AgentRequest is AgentRequest
