"""A model for pydantic-ai's agents that says what it was told to say, and what its agent gave it to read."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

Sent = tuple[str, str, dict[str, Any] | str]
"""Id, name and arguments of a call."""
Said = str | list[Sent]


class Script:
    """Says one thing after the other; `read` is what it was sent with each request, `model` plays it."""

    def __init__(self, *said: Said) -> None:
        self._said = list(said)
        self.read: list[list[ModelMessage]] = []
        self.offered: list[AgentInfo] = []
        self.model = FunctionModel(self._respond, stream_function=self._stream)

    def _next(self, messages: Sequence[ModelMessage], info: AgentInfo) -> Said:
        self.read.append(list(messages))
        self.offered.append(info)
        return self._said.pop(0)

    async def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = self._next(messages, info)
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        return ModelResponse(parts=[ToolCallPart(name, arguments, id) for id, name, arguments in said])

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        said = self._next(messages, info)
        if isinstance(said, str):
            yield said
            return
        for at, (id, name, arguments) in enumerate(said):
            text = arguments if isinstance(arguments, str) else _json(arguments)
            yield {at: DeltaToolCall(name=name, json_args=text[:3], tool_call_id=id)}
            yield {at: DeltaToolCall(json_args=text[3:])}

    def returns(self, request: int = -1) -> list[ToolReturnPart]:
        """The results in the newest message it was sent with a request."""
        return [part for part in self.newest(request).parts if isinstance(part, ToolReturnPart)]

    def results(self, request: int = -1) -> list[tuple[str, str]]:
        """The same as ids and texts."""
        return [(part.tool_call_id, str(part.content)) for part in self.returns(request)]

    def told(self, request: int = -1) -> list[str]:
        """What the newest message says besides."""
        parts = self.newest(request).parts
        return [str(part.content) for part in parts if part.part_kind == "user-prompt"]

    def newest(self, request: int = -1) -> ModelRequest:
        """The newest message it was sent with a request."""
        newest = self.read[request][-1]
        assert isinstance(newest, ModelRequest)
        return newest


def spawn(id: str, tool: str, handle: str, **arguments: Any) -> Sent:
    return id, tool, {"action": "spawn", "id": handle, **arguments}


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
