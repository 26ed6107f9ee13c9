"""Whole turns over the providers' wire formats, with their own SDKs and with pydantic-ai: the servers take it all.

The servers refuse what the providers refuse: schemas, calls without a result, results twice or out of place.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, AgentRunResultEvent
from tests.agent.providers.base import KEY, Provider
from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import Reply
from tests.agent.servers import model_of, provider

import keephold
from keephold import Runtime, Turn
from keephold.adapters import anthropic, openai
from keephold.adapters.pydantic_ai import KeepholdToolset

SCRIPT = [
    Reply(
        text="Let me see.",
        calls=[
            ("await", {"all": ["a"]}),
            ("build", {"action": "spawn", "id": "a", "target": "app"}),
            ("build", {"action": "fetch", "id": "nobody"}),
        ],
    ),
    Reply(calls=[("build", {"action": "spawn", "id": "b", "target": "b"}), ("await", {"all": ["b"]})]),
    Reply(text="All is built."),
]
Loop = Callable[[Provider, Runtime, Turn, bool], Awaitable[str]]


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def build(target: str, fast: bool = False) -> str:
    """Build a target."""
    return f"{target} built"


async def chat(server: Provider, rt: Runtime, turn: Turn, strict: bool) -> str:
    messages: list[Any] = [{"role": "user", "content": "Build it."}]
    async with AsyncOpenAI(base_url=server.url, api_key=KEY) as client:
        while True:
            completion = await client.chat.completions.create(
                model=server.wire.models[0], messages=messages, tools=openai.tools(rt, strict=strict)
            )
            messages.append(completion.choices[0].message)
            calls = openai.calls(completion)
            if not calls:
                return completion.choices[0].message.content or ""
            messages += openai.results(await turn.run(calls))


async def responses(server: Provider, rt: Runtime, turn: Turn, strict: bool) -> str:
    items: list[Any] = [{"role": "user", "content": "Build it."}]
    async with AsyncOpenAI(base_url=server.url, api_key=KEY) as client:
        while True:
            response = await client.responses.create(
                model=server.wire.models[0], input=items, tools=openai.tools(rt, "responses", strict=strict)
            )
            items += response.output
            calls = openai.calls(response)
            if not calls:
                return response.output_text
            items += openai.results(await turn.run(calls), "responses")


async def messages(server: Provider, rt: Runtime, turn: Turn, strict: bool) -> str:
    said: list[Any] = [{"role": "user", "content": "Build it."}]
    async with AsyncAnthropic(base_url=server.url, api_key=KEY) as client:
        while True:
            message = await client.messages.create(
                model=server.wire.models[0], max_tokens=1000, messages=said, tools=anthropic.tools(rt)
            )
            said.append({"role": "assistant", "content": message.content})
            calls = anthropic.calls(message)
            if not calls:
                return message.content[0].text if message.content[0].type == "text" else ""
            said += anthropic.results(await turn.run(calls))


LOOPS: list[tuple[str, Loop, bool]] = [
    ("openai-chat", chat, False),
    ("openai-chat", chat, True),
    ("openai-responses", responses, False),
    ("openai-responses", responses, True),
    ("anthropic", messages, False),
]


@pytest.mark.parametrize(("format", "loop", "strict"), LOOPS)
async def test_G4_a_turn_with_the_sdk(format: str, loop: Loop, strict: bool) -> None:
    async with provider(format, SCRIPT) as server, Runtime([build]) as rt, rt.turn("main") as turn:
        await rt.notify("disk.full", "warning", "The disk is full.", conversation="main")
        assert await loop(server, rt, turn, strict) == "All is built."
    check(server.requests)
    assert {tool.strict for tool in server.requests[0].tools} == {strict}
    assert "The disk is full." in server.requests[1].messages[-1].text
    assert all("The disk is full." not in request.messages[-1].text for request in server.requests[2:])


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_G4_a_run_of_pydantic_ai(format: str, streamed: bool) -> None:
    async with provider(format, SCRIPT) as server, Runtime([build]) as rt, model_of(server) as model:
        agent = Agent(model, toolsets=[KeepholdToolset(rt)])
        if streamed:
            async with agent.run_stream_events("Build it.") as events:
                result = [event async for event in events][-1]
            assert isinstance(result, AgentRunResultEvent)
            assert result.result.output == "All is built."
        else:
            assert (await agent.run("Build it.")).output == "All is built."
    check(server.requests)
    assert not any(tool.strict for tool in server.requests[0].tools)


def check(requests: list[Asked]) -> None:
    """What the provider has been told of the script's calls."""
    assert [request.refused for request in requests] == [None] * 3
    told = requests[-1]
    assert [result.id for result in told.results] == [call.id for call in told.calls]
    awaited, spawned, fetched, _, again = (result.text for result in told.results)
    assert json.loads(awaited)["completed"] == [{"id": "a", "state": "stopped", "result": "app built"}]
    assert json.loads(spawned)["id"] == "a"
    assert "`nobody` not found" in fetched
    assert told.results[2].is_error in (True, None)
    assert not told.results[0].is_error
    assert json.loads(again)["completed"][0]["result"] == "b built"
