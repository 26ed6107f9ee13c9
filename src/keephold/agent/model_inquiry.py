"""Answer inquiries with a model: a structured question beside the conversation (Q2, T2).

The model gets the conversation, then the question. The asking code checks the answer. Neither becomes part of the
conversation.
"""

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from keephold.agent.requests import TEACHING, ModelCall
from keephold.agent.spending import usage_of
from keephold.agent.transcript import response_text
from keephold.text import to_json
from keephold.turn.inquiry import Inquiry

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation
    from keephold.agent.models import Assistant

_TOOL = "answer"
_ASKED = "[Automatic question. It is not from the user; answer it by the form that is asked for.]\n"


async def inquire(assistant: "Assistant", conversation: "Conversation | None", inquiry: Inquiry) -> Any:
    """Return the model's answer, decoded. An exception counts as a failed inquiry."""
    messages = [] if conversation is None else _before(conversation.transcript.messages)
    messages = _with_question(messages, inquiry)
    forms, profile = [_by_tool(inquiry)], assistant.model.profile
    if profile.get("default_structured_output_mode") == "native":
        forms = [_native(inquiry)]
    elif profile.get("supports_json_schema_output"):
        forms.append(_native(inquiry))  # some reasoning models cannot be forced to call a tool, and answer in text
    for form in forms:
        if conversation is not None:
            form = replace(form, instruction_parts=conversation.parameters().instruction_parts)
        response = await ModelCall(assistant, messages, form, None).answer()
        if conversation is not None and conversation.spending is not None:
            conversation.spending.count(usage_of(response))
        with contextlib.suppress(ValueError):
            return _answer(response)
    raise ValueError("the model did not answer in the form that was asked for")


def _before(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the history without calls that have no results yet, which providers refuse."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse) or not last.tool_calls:
        return list(messages)
    said = [part for part in last.parts if isinstance(part, TextPart)]
    calls = "\n".join(f"{part.tool_name} {to_json(part.args).decode()}" for part in last.tool_calls)
    running = UserPromptPart(f"[Automatic message.] You have called these tools, which are running:\n{calls}")
    kept: list[ModelMessage] = list(messages[:-1])
    return [*kept, ModelResponse(said), ModelRequest([running])] if said else [*kept, ModelRequest([running])]


def _with_question(messages: list[ModelMessage], inquiry: Inquiry) -> list[ModelMessage]:
    question = UserPromptPart(_ASKED + inquiry.text)
    last = messages[-1] if messages else None
    if isinstance(last, ModelRequest):
        return [*messages[:-1], ModelRequest([*last.parts, question])]
    return [*messages, ModelRequest([question])]


def _by_tool(inquiry: Inquiry) -> ModelRequestParameters:
    tool = ToolDefinition(
        name=_TOOL, parameters_json_schema=inquiry.schema, description="Answer the question.", kind="output"
    )
    return ModelRequestParameters(
        output_mode="tool",
        output_tools=[tool],
        allow_text_output=False,
        instruction_parts=[InstructionPart(content=TEACHING)],
    )


def _native(inquiry: Inquiry) -> ModelRequestParameters:
    return ModelRequestParameters(
        output_mode="native",
        output_object=OutputObjectDefinition(json_schema=inquiry.schema, name=_TOOL),
        instruction_parts=[InstructionPart(content=TEACHING)],
    )


def _answer(response: ModelResponse) -> Any:
    for part in response.parts:
        if isinstance(part, ToolCallPart) and part.tool_name == _TOOL:
            return part.args_as_dict()
    text = response_text(response).strip()
    if text.startswith("```"):
        text = text.strip("`").removeprefix("json").strip()
    if not text:
        raise ValueError("the model did not answer")
    return msgspec.json.decode(text)
