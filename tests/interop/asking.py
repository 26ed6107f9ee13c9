"""Tools and a prompt of the fixture server that ask their client something, in the ways of both eras.

At 2025-11-25 the server sends a request of its own; at 2026-07-28 it answers that input is required, and is called
again. Names, keys and schemas are those that the conformance suite asks for; a docstring is what a client is shown.
"""
# ruff: noqa: N815

import json
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel, Field

Asked = str | InputRequiredResult


class Response(BaseModel):
    """What test_elicitation asks for."""

    response: str = Field(description="User's response")


class Defaults(BaseModel):
    """A field of every primitive type, each with a default (SEP-1034)."""

    name: str = Field(default="John Doe", description="User name")
    age: int = Field(default=30, description="User age")
    score: float = Field(default=95.5, description="User score")
    status: str = Field(
        default="active", description="User status", json_schema_extra={"enum": ["active", "inactive", "pending"]}
    )
    verified: bool = Field(default=True, description="Verification status")


def _choices(**titles: str) -> list[Any]:
    return [{"const": value, "title": title} for value, title in titles.items()]


class Choices(BaseModel):
    """Every way to write a choice (SEP-1330), with the values that the suite answers."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["option1", "option2", "option3"]})
    titledSingle: str = Field(json_schema_extra={"oneOf": _choices(value1="First", value2="Second", value3="Third")})
    untitledMulti: list[str] = Field(
        json_schema_extra={"items": {"type": "string", "enum": ["option1", "option2", "option3"]}}
    )
    titledMulti: list[str] = Field(
        json_schema_extra={"items": {"anyOf": _choices(value1="First", value2="Second", value3="Third")}}
    )
    legacyEnum: str = Field(
        json_schema_extra={"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    )


async def test_sampling(prompt: str, ctx: Context) -> str:
    """Asks the client's model."""
    messages = [SamplingMessage(role="user", content=TextContent(type="text", text=prompt))]
    # Without related_request_id it would go to the standing stream and be lost if that is not open yet.
    result = await ctx.session.create_message(messages=messages, max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {result.content.text if isinstance(result.content, TextContent) else 'No response'}"


async def _elicit(ctx: Context, message: str, schema: type[BaseModel]) -> str:
    result = await ctx.elicit(message=message, schema=schema)
    content = result.data.model_dump_json() if result.action == "accept" else "{}"
    return f"action={result.action}, content={content}"


async def test_elicitation(message: str, ctx: Context) -> str:
    """Asks the person."""
    return f"User response: {await _elicit(ctx, message, Response)}"


async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Asks the person, with a default for everything."""
    return f"Elicitation result: {await _elicit(ctx, 'Please provide user information', Defaults)}"


async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Asks the person to choose."""
    return f"Elicitation completed: {await _elicit(ctx, 'Please select values', Choices)}"


def _form(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema: dict[str, Any] = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> CreateMessageRequest:
    messages = [SamplingMessage(role="user", content=TextContent(type="text", text=text))]
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=100))


def _entered(ctx: Context, key: str, field: str) -> Any:
    """What the person entered under this key, None if nothing came or nothing that is a form."""
    answer = (ctx.input_responses or {}).get(key)
    return answer.content.get(field) if isinstance(answer, ElicitResult) and answer.content else None


async def test_input_required_result_elicitation(ctx: Context) -> Asked:
    """Asks for a name."""
    name = _entered(ctx, "user_name", "name")
    if name is None:
        return InputRequiredResult(input_requests={"user_name": _form("What is your name?", "name")})
    return f"Hello, {name}!"


async def test_input_required_result_sampling(ctx: Context) -> Asked:
    """Asks the client's model."""
    answer = (ctx.input_responses or {}).get("capital_question")
    if not isinstance(answer, CreateMessageResult):
        return InputRequiredResult(input_requests={"capital_question": _sample("What is the capital of France?")})
    return f"Model said: {answer.content.text if isinstance(answer.content, TextContent) else '?'}"


async def test_input_required_result_list_roots(ctx: Context) -> Asked:
    """Asks for the client's roots."""
    answer = (ctx.input_responses or {}).get("client_roots")
    if not isinstance(answer, ListRootsResult):
        return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
    return f"Client exposed {len(answer.roots)} root(s)."


async def test_input_required_result_request_state(ctx: Context) -> Asked:
    """Asks for a confirmation and gives the client a state to bring back."""
    if _entered(ctx, "confirm", "ok") is None or ctx.request_state != "request-state-nonce":
        confirm = _form("Please confirm", "ok", "boolean")
        return InputRequiredResult(input_requests={"confirm": confirm}, request_state="request-state-nonce")
    return "state-ok: confirmation received"


async def test_input_required_result_multiple_inputs(ctx: Context) -> Asked:
    """Asks for three things at once."""
    wanted: dict[str, InputRequest] = {
        "user_name": _form("What is your name?", "name"),
        "greeting": _sample("Generate a greeting"),
        "client_roots": ListRootsRequest(),
    }
    if not wanted.keys() <= (ctx.input_responses or {}).keys():
        return InputRequiredResult(input_requests=wanted, request_state="multiple-inputs")
    return "All inputs received."


async def test_input_required_result_multi_round(ctx: Context) -> Asked:
    """Asks twice, one after the other."""
    state = json.loads(ctx.request_state) if ctx.request_state else {"round": 0}
    name, color = _entered(ctx, "step1", "name"), _entered(ctx, "step2", "color")
    if state["round"] == 2 and color is not None:
        return f"{state['name']} likes {color}."
    if state["round"] == 1 and name is not None:
        asked, state = {"step2": _form("Step 2: What is your favorite color?", "color")}, {"round": 2, "name": name}
    else:  # the first round, or an answer is missing: begin again
        asked, state = {"step1": _form("Step 1: What is your name?", "name")}, {"round": 1}
    requests: dict[str, InputRequest] = {**asked}
    return InputRequiredResult(input_requests=requests, request_state=json.dumps(state))


async def test_input_required_result_tampered_state(ctx: Context) -> Asked:
    """Asks for a confirmation; a state that was changed on the way must not come back to it."""
    if ctx.request_state is None:
        confirm = _form("Please confirm", "ok", "boolean")
        return InputRequiredResult(input_requests={"confirm": confirm}, request_state="round-1")
    return f"state-ok: {ctx.request_state}"


async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
    """Asks only for what the client declared."""
    declared = ctx.client_capabilities
    requests: dict[str, InputRequest] = {}
    if declared is None or declared.sampling is not None:
        requests["sample"] = _sample("Say hello")
    if declared is None or declared.elicitation is not None:
        requests["ask"] = _form("What is your name?", "name")
    return InputRequiredResult(input_requests=requests, request_state="capability-gated")


async def test_input_required_result_prompt(ctx: Context) -> list[UserMessage] | InputRequiredResult:
    """A prompt that asks for its context first."""
    context = _entered(ctx, "user_context", "context")
    if context is None:
        form = _form("What context should the prompt use?", "context")
        return InputRequiredResult(input_requests={"user_context": form})
    return [UserMessage(content=TextContent(type="text", text=f"Use the following context: {context}"))]


TOOLS = (
    test_sampling, test_elicitation, test_elicitation_sep1034_defaults, test_elicitation_sep1330_enums,
    test_input_required_result_elicitation, test_input_required_result_sampling,
    test_input_required_result_list_roots, test_input_required_result_request_state,
    test_input_required_result_multiple_inputs, test_input_required_result_multi_round,
    test_input_required_result_tampered_state, test_input_required_result_capabilities,
)  # fmt: skip


def add_asking(server: MCPServer) -> None:
    """Give the server these tools and the prompt."""
    for tool in TOOLS:
        server.add_tool(tool)
    server.add_prompt(Prompt.from_function(test_input_required_result_prompt))
