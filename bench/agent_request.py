"""Our part of a request to a model, with 50 tools and a history of 200 messages, on a SQLite store.

A turn of batches of one call, with a scripted model that answers at once. Ours is everything between the end of a
response's stream and the moment at which pydantic-ai is asked for the next one, without the batch itself: the response
is written, the calls are read from it, their results are written, and the next request is put together. Beside it: what
pydantic-ai takes to make a request of an OpenAI-compatible provider of the same history and tools, which is not in it.
"""

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import keephold
from bench.rounds import Plan, Row, seconds
from keephold.agent.conversation import Conversation
from keephold.agent.events import Answered, Called, Event
from keephold.tools.base import Tool

BAR = 0.0025
TOOLS, MESSAGES, REQUESTS = 50, 200, 100


def _tools() -> list[Tool]:
    async def work(path: str, count: int = 1, deep: bool = False) -> str:
        """Do something with a file."""
        return "done"

    return [keephold.tool(name=f"tool_{number}", actions=_actions(number))(work) for number in range(TOOLS)]


def _actions(number: int) -> Any:
    return ("spawn", "fetch", "abort") if number % 2 else ()


class _Watch:
    """Stamps what happens in the turn, and plays the model."""

    def __init__(self) -> None:
        self.asked = 0.0
        """When the model was asked last."""
        self.streamed = self.called = self.answered = 0.0
        self.ours: list[float] = []
        self.left = REQUESTS

    async def model(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if self.answered:
            self.ours.append(self.called - self.streamed + perf_counter() - self.answered)
        self.left -= 1
        if self.left:
            yield {0: DeltaToolCall("tool_0", '{"path": "a"}', tool_call_id=f"c{self.left}")}
        else:
            yield "done"
        self.streamed = perf_counter()

    def heard(self, event: Event) -> None:
        match event:
            case Called():
                self.called = perf_counter()
            case Answered():
                self.answered = perf_counter()


async def _turn(store: str) -> tuple[float, float]:
    watch = _Watch()
    async with keephold.Runtime(_tools(), store=store) as runtime:
        conversation = runtime.conversation("c", model=FunctionModel(stream_function=watch.model))
        await conversation.open()
        for number in range(MESSAGES // 2):
            await conversation.transcript.add(
                "t",
                ModelRequest([UserPromptPart(f"question {number} " + "x" * 200)]),
                ModelResponse([TextPart(f"answer {number} " + "y" * 200)]),
            )
        await conversation.prompt("go", listener=watch.heard)
        return statistics.median(watch.ours), await _mapping(conversation)


async def _mapping(conversation: Conversation) -> float:
    """Return the time of pydantic-ai and the provider's client until a request is about to be sent."""
    sent = []

    def sending(request: httpx2.Request) -> httpx2.Response:
        sent.append(perf_counter())
        return httpx2.Response(401, json={"error": {"message": "no"}})

    began = []
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(sending)) as client:
        model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key="none", http_client=client))
        for _ in range(20):
            began.append(perf_counter())
            with contextlib.suppress(ModelHTTPError):
                await model_request(
                    model,
                    conversation.transcript.messages,
                    model_settings={"max_retries": 0},
                    model_request_parameters=conversation.parameters(),
                )
    return statistics.median(end - start for start, end in zip(began, sent, strict=True))


def run(plan: Plan) -> list[Row]:
    """A turn in each round."""
    with tempfile.TemporaryDirectory() as directory:
        places = [f"sqlite:///{Path(directory) / str(number)}.db" for number in range(plan.rounds)]
        measured = [asyncio.run(_turn(place)) for place in places]
    ours = [each for each, _ in measured]
    middle = statistics.median(ours)
    return [
        Row(
            what=f"our part of a request with {TOOLS} tools and {MESSAGES} messages; beside it: pydantic-ai's own part",
            bare=seconds(statistics.median(each for _, each in measured)),
            ours=seconds(middle),
            result=f"{seconds(middle)} ({seconds(min(ours))}–{seconds(max(ours))})",
            bar=f"≤ {seconds(BAR)}",
            met=middle <= BAR,
        )
    ]
