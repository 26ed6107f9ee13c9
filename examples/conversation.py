"""A conversation with a model: it starts two builds, waits for both, and reports the results.

Run it: `python examples/conversation.py`. It needs the `agent` extra, but neither an API key nor a network, because the
model is a function (pydantic-ai's `FunctionModel`). To use a provider, replace the function by a name such as
"anthropic:claude-sonnet-4-5".
"""

import asyncio
import json
from collections.abc import AsyncIterator

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

import keephold
from keephold.agent.events import Answered, Called, Event, Text


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build(call: keephold.Call, target: str, seconds: float) -> str:
    """Build a target."""
    call.emit(f"building {target}\n")
    await asyncio.sleep(seconds)
    return f"{target}: ok"


async def plays(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Play the model: first a batch of three calls, then a streamed answer."""
    if any(isinstance(message, ModelResponse) for message in messages):
        for word in ("The app ", "and the docs ", "are built."):
            yield word
        return
    calls = [
        ("build", {"action": "spawn", "id": "app", "target": "app", "seconds": 1}),
        ("build", {"action": "spawn", "id": "docs", "target": "docs", "seconds": 1}),
        ("await", {"all": ["app", "docs"], "timeout_secs": 60}),
    ]
    for at, (name, arguments) in enumerate(calls):
        yield {at: DeltaToolCall(name, json.dumps(arguments), tool_call_id=str(at))}


def show(event: Event) -> None:
    """Print the events that a user wants to see."""
    match event:
        case Text(text):
            print(text, end="", flush=True)
        case Called(calls):
            for call in calls:
                print(f"  {call.name} {call.arguments}")
        case Answered(responses):
            for response in responses:
                print(f"    → {response.model}")


async def main() -> None:
    async with keephold.Runtime([build]) as rt:
        conversation = rt.conversation(model=FunctionModel(stream_function=plays))
        print("user: Build everything.")
        answer = await conversation.prompt("Build everything.", listener=show)
        print(f"\n({answer.stop_reason} after {answer.usage.requests} requests)")


if __name__ == "__main__":
    asyncio.run(main())
