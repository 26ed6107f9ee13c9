"""A `ScriptedModel` in place of the provider: loops that are written with the SDKs run against it, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

import keephold
from keephold import Runtime
from keephold.adapters import anthropic, openai
from keephold.testing import Says, ScriptedModel, VirtualClock

SYSTEM = "You build software."
Loop = Callable[[Runtime, ScriptedModel], Awaitable[str]]


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build(target: str, minutes: int = 5) -> str:
    """Build a target."""
    await asyncio.sleep(60 * minutes)
    return f"{target}: ok"


async def chat(rt: Runtime, model: ScriptedModel) -> str:
    client: AsyncOpenAI = model.openai()
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Build it."}]
    async with rt.turn("main") as turn:
        while True:
            completion = await client.chat.completions.create(model="m", messages=messages, tools=openai.tools(rt))
            messages.append(completion.choices[0].message)
            if calls := openai.calls(completion):
                messages += openai.results(await turn.run(calls))
                continue
            if not (ending := await turn.end()).again:
                return completion.choices[0].message.content or ""
            messages.append({"role": "developer", "content": ending.message})


async def responses(rt: Runtime, model: ScriptedModel) -> str:
    client = model.openai()
    items: list[Any] = [{"role": "developer", "content": SYSTEM}, {"role": "user", "content": "Build it."}]
    async with rt.turn("main") as turn:
        while True:
            response = await client.responses.create(model="m", input=items, tools=openai.tools(rt, "responses"))
            items += response.output
            if calls := openai.calls(response):
                items += openai.results(await turn.run(calls), "responses")
                continue
            if not (ending := await turn.end()).again:
                return response.output_text
            items.append({"role": "user", "content": ending.message})


async def messages(rt: Runtime, model: ScriptedModel) -> str:
    client: AsyncAnthropic = model.anthropic()
    said: list[Any] = [{"role": "user", "content": "Build it."}]
    async with rt.turn("main") as turn:
        while True:
            message = await client.messages.create(
                model="m", max_tokens=9, system=SYSTEM, messages=said, tools=anthropic.tools(rt)
            )
            said.append({"role": "assistant", "content": message.content})
            if calls := anthropic.calls(message):
                said += anthropic.results(await turn.run(calls))
                continue
            if not (ending := await turn.end()).again:
                return "".join(block.text for block in message.content if block.type == "text")
            said.append({"role": "user", "content": ending.message})


@pytest.mark.parametrize("loop", [chat, responses, messages])
def test_G4_a_loop_runs_with_a_scripted_model_as_with_a_provider(loop: Loop) -> None:
    clock = VirtualClock()
    spawn, docs = ("build", {"spawn": "app", "target": "app"}), ("build", {"target": "docs", "minutes": 1})
    model = ScriptedModel(
        [
            Says("I build it.", [spawn, ("await", {"all": ["app"], "timeout_secs": 60})], pace=1),
            lambda heard: Says(calls=[docs] if "timed_out" in heard.text else []),
            "It still runs.",
            lambda heard: "Both are built." if "app: ok" in heard.text else "It is not built.",
        ]
    )

    async def main() -> str:
        async with Runtime([build], clock=clock, inquiry=model.inquiry) as rt:
            await rt.notify("disk.full", "warning", "The disk is full.", conversation="main")
            return await loop(rt, model)

    said = clock.run(main())
    assert said == "Both are built.", model.seen
    assert [heard.role for heard in model.seen] == ["user", "tool", "tool", "user"]
    assert model.seen[0].text == "Build it."
    assert "docs: ok" in model.seen[2].text
    assert "The disk is full." in model.seen[1].text
    assert [call.id for said in model.said for call in said.calls] == ["call_1", "call_2", "call_3"]


async def test_a_history_without_a_result_is_refused_as_by_a_provider() -> None:
    model = ScriptedModel([Says(calls=[("build", {"target": "app"}), ("build", {"target": "docs"})])])
    client = model.openai()
    said: list[Any] = [{"role": "user", "content": "Build it."}]
    said.append((await client.chat.completions.create(model="m", messages=said)).choices[0].message)
    said.append({"role": "tool", "tool_call_id": "call_1", "content": "ok"})
    with pytest.raises(AssertionError, match="no result for call_2"):
        await client.chat.completions.create(model="m", messages=said)
    said.append({"role": "tool", "tool_call_id": "call_2", "content": "ok"})
    with pytest.raises(AssertionError, match="the script has no more lines"):
        await client.chat.completions.create(model="m", messages=said)
    with pytest.raises(AssertionError, match="does not stream"):
        await client.chat.completions.create(model="m", messages=said, stream=True)
    with pytest.raises(AssertionError, match="does not answer /embeddings"):
        await client.embeddings.create(model="m", input="x")
