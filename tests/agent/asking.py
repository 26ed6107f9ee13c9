"""What tests of providers ask for, in pydantic-ai's words."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from keephold.runtime import Runtime
from keephold.schema.dialects import Dialect

DIALECTS: dict[str, Dialect] = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
"""The dialect of each format's provider."""
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
CLOSED = {**PLACE, "additionalProperties": False}
WEATHER = ToolDefinition(name="weather", description="Look at the sky.", parameters_json_schema=PLACE, strict=False)


def user(text: str) -> ModelRequest:
    return ModelRequest([UserPromptPart(text)], instructions="Be brief.")


def results(response: ModelResponse, text: str) -> ModelRequest:
    """The answer to every call of a response."""
    parts = [
        ToolReturnPart(call.tool_name, f"{text} {at}", call.tool_call_id) for at, call in enumerate(response.tool_calls)
    ]
    return ModelRequest(parts, instructions="Be brief.")


def said(response: ModelResponse) -> tuple[str, str, list[tuple[str, Any]]]:
    """Thinking, text and calls."""
    thinking = "".join(part.content for part in response.parts if isinstance(part, ThinkingPart))
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return thinking, text, [(call.tool_name, call.args_as_dict()) for call in response.tool_calls]


def offering(*tools: ToolDefinition) -> ModelRequestParameters:
    return ModelRequestParameters(function_tools=list(tools))


def by_tool() -> ModelRequestParameters:
    """Structured output by a tool that must be called."""
    tool = ToolDefinition(name="answer", parameters_json_schema=CLOSED, kind="output")
    return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False)


def native() -> ModelRequestParameters:
    """Structured output by the provider's own means."""
    wanted = OutputObjectDefinition(json_schema=CLOSED, name="answer")
    return ModelRequestParameters(output_mode="native", output_object=wanted)


async def ask(
    model: Model[Any],
    messages: Sequence[ModelMessage],
    parameters: ModelRequestParameters | None = None,
    *,
    stream: bool = False,
) -> tuple[ModelResponse, int]:
    """The response, and in how many events it came."""
    settings: ModelSettings = {"max_retries": 0}  # every request that is made is one the test wants
    if not stream:
        return await model_request(model, messages, model_settings=settings, model_request_parameters=parameters), 1
    async with model_request_stream(
        model, messages, model_settings=settings, model_request_parameters=parameters
    ) as streamed:
        events = [event async for event in streamed]
    return streamed.get(), len(events)


def definitions(runtime: Runtime, dialect: Dialect) -> list[ToolDefinition]:
    """All tools of a runtime, as the agent offers them."""
    strict = dialect == "openai-strict"
    return [
        ToolDefinition(
            name=tool["name"],
            description=tool["description"],
            parameters_json_schema=tool["parameters"],
            strict=strict,
        )
        for tool in runtime.tools(dialect=dialect)
    ]
