"""What the providers refuse, in their words: histories, schemas, names, keys (G3). Asked by plain HTTP, as no library
would send most of this."""

import json
from typing import Any

import httpx2
import pytest
from tests.agent.providers.base import KEY, Provider
from tests.agent.providers.formats import FORMATS
from tests.agent.providers.script import Reply
from tests.agent.servers import provider
from tests.patience import PATIENCE

Body = dict[str, Any]

ASKED: Body = {"role": "user", "content": "?"}
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
CLOSED = {**PLACE, "additionalProperties": False}
HEADERS = {"authorization": f"Bearer {KEY}", "x-goog-api-key": KEY, "anthropic-version": "2023-06-01"}


async def post(server: Provider, body: Body, headers: dict[str, str] = HEADERS) -> httpx2.Response:
    wire = server.wire
    path = wire.path.format(version="v1beta", model=body.get("model", ""), method="generateContent")
    root = server.url.removesuffix(wire.prefix)
    sent = {key: value for key, value in body.items() if wire.format != "gemini" or key != "model"}
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(root + path, json=sent, headers=headers)


def message_of(response: httpx2.Response) -> str:
    return str(response.json()["error"]["message"])


async def refusal(format: str, body: Body) -> str:
    """Why the request is refused; a request that is taken fails the test."""
    async with provider(format) as server:
        response = await post(server, body)
    assert response.status_code == 400, response.text
    assert server.refusals == [message_of(response)]
    return message_of(response)


# Requests that are taken, from which those that are not differ in one thing


def chat(*messages: Body, tools: Any = None, **more: Any) -> Body:
    offered = [{"type": "function", "function": tool} for tool in tools or [{"name": "weather", "parameters": PLACE}]]
    return {"model": "gpt-5.5", "messages": list(messages) or [ASKED], "tools": offered, **more}


def called(*ids: str) -> Body:
    calls = [{"id": id, "type": "function", "function": {"name": "weather", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool(id: str) -> Body:
    return {"role": "tool", "tool_call_id": id, "content": "rain"}


def responses(*items: Body, tools: Any = None, **more: Any) -> Body:
    offered = [{"type": "function", "strict": False, **tool} for tool in tools or [{"name": "a", "parameters": PLACE}]]
    return {"model": "gpt-5.5", "input": list(items) or [ASKED], "tools": offered, **more}


def item(id: str) -> Body:
    return {"type": "function_call", "call_id": id, "name": "weather", "arguments": "{}"}


def output(id: str) -> Body:
    return {"type": "function_call_output", "call_id": id, "output": "rain"}


def messages(*said: Body, tools: Any = None, **more: Any) -> Body:
    offered = tools or [{"name": "weather", "input_schema": PLACE}]
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": list(said) or [ASKED], "tools": offered}
    return {**body, **more}


def uses(*ids: str) -> Body:
    blocks = [{"type": "tool_use", "id": id, "name": "weather", "input": {}} for id in ids]
    return {"role": "assistant", "content": blocks}


def answers(*ids: str, first: str = "") -> Body:
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": "rain"} for id in ids]
    return {"role": "user", "content": [{"type": "text", "text": first}, *blocks] if first else blocks}


def contents(*turns: Body, tools: Any = None, **more: Any) -> Body:
    declared = tools or [{"name": "weather", "parameters": PLACE}]
    body = {"model": "gemini-2.5-pro", "contents": list(turns) or [SAID]}
    return {**body, "tools": [{"functionDeclarations": declared}], **more}


def calls(count: int) -> Body:
    return {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {}}}] * count}


def returns(count: int) -> Body:
    return {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"result": 1}}}] * count}


SAID: Body = {"role": "user", "parts": [{"text": "?"}]}

TAKEN = [
    ("openai-chat", chat(ASKED, called("a", "b"), tool("b"), tool("a"), ASKED)),
    ("openai-responses", responses(ASKED, item("a"), item("b"), output("b"), output("a"))),
    ("anthropic", messages(ASKED, ASKED, uses("a", "b"), answers("a"), answers("b"), ASKED)),
    ("gemini", contents(SAID, calls(2), returns(2), calls(1), returns(1), SAID)),
]


@pytest.mark.parametrize(("format", "body"), TAKEN, ids=FORMATS)
async def test_G1_a_history_in_order_is_taken(format: str, body: Body) -> None:
    async with provider(format, [Reply(text="So.")]) as server:
        response = await post(server, body)
    assert response.status_code == 200, response.text
    assert len(server.accepted[0].calls) == len(server.accepted[0].results) > 1


HISTORIES = [
    ("openai-chat", chat(ASKED, called("a", "b"), tool("a")), "did not have response messages: b"),
    ("openai-chat", chat(ASKED, called("a"), ASKED, tool("a")), "must be followed by tool messages"),
    ("openai-chat", chat(ASKED, called("a"), tool("a"), tool("a")), "of 'a', in messages[2] and messages[3]"),
    ("openai-chat", chat(ASKED, tool("a")), "must be a response to a preceeding message with 'tool_calls'"),
    ("openai-chat", chat({"role": "assistant", "content": None}), "expected a string, got null"),
    ("openai-chat", chat(ASKED, called("a" * 41), tool("a" * 41)), "maximum length 40"),
    ("openai-chat", chat({"role": "model", "content": "?"}), "Invalid value: 'model'"),
    ("openai-chat", {"model": "gpt-5.5", "messages": []}, "Invalid 'messages': empty array"),
    ("openai-chat", {"model": "gpt-5.5", "messages": [ASKED], "tool_choice": "auto"}, "only allowed when 'tools'"),
    ("openai-responses", responses(ASKED, item("a")), "No tool output found for function call a."),
    ("openai-responses", responses(ASKED, output("a")), "No tool call found for function call output with call_id a."),
    ("openai-responses", responses(ASKED, item("a"), output("a"), output("a")), "Duplicate function call output"),
    ("openai-responses", responses(ASKED, item("a"), item("a"), output("a")), "Duplicate function call with"),
    ("anthropic", messages(ASKED, uses("a", "b"), answers("a")), "without `tool_result` blocks immediately after: b."),
    ("anthropic", messages(ASKED, uses("a"), answers("a", first="So:")), "immediately after: a."),
    ("anthropic", messages(ASKED, uses("a"), answers("a", "a")), "each tool_use must have a single result."),
    ("anthropic", messages(ASKED, answers("a")), "unexpected `tool_use_id` found in `tool_result` blocks: a."),
    ("anthropic", messages(ASKED, uses("a"), answers("a"), uses("a"), answers("a")), "ids must be unique"),
    ("anthropic", messages(ASKED, uses("a.b"), answers("a.b")), "tool_use.id: String should match pattern"),
    ("anthropic", messages({"role": "assistant", "content": "!"}), 'first message must use the "user" role'),
    ("anthropic", messages({"role": "system", "content": "!"}), 'Unexpected role "system"'),
    ("anthropic", messages({"role": "user", "content": ""}), "all messages must have non-empty content"),
    ("anthropic", messages({"role": "user", "content": [{"type": "text", "text": ""}]}), "must be non-empty"),
    ("anthropic", messages(ASKED, {"role": "assistant", "content": "So "}), "cannot end with trailing whitespace"),
    ("anthropic", messages(system=[{"type": "text", "text": ""}]), "system: text content blocks must be non-empty"),
    ("gemini", contents(SAID, calls(2), returns(1)), "the number of function response parts is equal"),
    ("gemini", contents(SAID, calls(1), returns(2)), "the number of function response parts is equal"),
    ("gemini", contents(SAID, calls(1), SAID), "the number of function response parts is equal"),
    ("gemini", contents(SAID, returns(1)), "function response turn comes immediately after a function call turn"),
    ("gemini", contents(calls(1), returns(1)), "function call turn comes immediately after a user turn"),
    ("gemini", contents(SAID, calls(1)), "end with a user turn or a function response turn"),
    ("gemini", contents({"role": "user", "parts": []}), "contents.parts must not be empty"),
    ("gemini", contents({"role": "user", "parts": [{"text": ""}]}), "must have one initialized field"),
    ("gemini", contents({"role": "assistant", "parts": [{"text": "?"}]}), "Please use a valid role: user, model."),
]


@pytest.mark.parametrize(("format", "body", "why"), HISTORIES)
async def test_B1_a_history_out_of_order_is_refused(format: str, body: Body, why: str) -> None:
    assert why in await refusal(format, body)


def nested(schema: Any) -> Body:
    return {"type": "object", "properties": {"place": schema}}


def offered(format: str, schema: Body, name: str = "weather", *, strict: bool = False) -> Body:
    """A request with one tool."""
    match format:
        case "openai-chat":
            return chat(tools=[{"name": name, "parameters": schema, "strict": strict}])
        case "openai-responses":
            return responses(tools=[{"name": name, "parameters": schema, "strict": strict}])
        case "anthropic":
            return messages(tools=[{"name": name, "input_schema": schema, "strict": strict}])
    return contents(tools=[{"name": name, "parameters": schema}])


ROOT = {
    "openai-chat": "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'const'/'not' at",
    "openai-responses": "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'const'/'not' at",
    "anthropic": "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
    "gemini": "",
}


@pytest.mark.parametrize("union", ["oneOf", "anyOf", "allOf"])
@pytest.mark.parametrize("format", FORMATS)
async def test_G3_a_union_at_the_root_is_refused(format: str, union: str) -> None:
    schema = {"type": "object", union: [PLACE]}
    assert ROOT[format] in await refusal(format, offered(format, schema))


@pytest.mark.parametrize("union", ["oneOf", "anyOf", "allOf"])
async def test_G3_a_union_at_the_root_is_refused_as_json_schema_too(union: str) -> None:
    schema = {"type": "object", union: [PLACE]}
    assert union in await refusal("gemini", contents(tools=[{"name": "a", "parametersJsonSchema": schema}]))


STRICT = [
    (PLACE, "In context=(), 'additionalProperties' is required to be supplied and to be false."),
    ({**CLOSED, "required": []}, "including every key in properties. Missing 'place'."),
    ({**CLOSED, "properties": {"place": {"type": "string", "default": ""}}}, "'default' is not permitted."),
    (
        {**CLOSED, "properties": {"place": {"oneOf": []}}},
        "In context=('properties', 'place'), 'oneOf' is not permitted.",
    ),
    ({**CLOSED, "properties": {"place": {}}}, "schema must have a 'type' key."),
    ({**CLOSED, "properties": {"place": {"$ref": "#", "description": ""}}}, "$ref cannot have keywords"),
    ({**CLOSED, "properties": {"place": nested({"type": "string"})}}, "'additionalProperties' is required"),
]


@pytest.mark.parametrize(("schema", "why"), STRICT)
@pytest.mark.parametrize("format", ["openai-chat", "openai-responses"])
async def test_G3_openai_refuses_what_is_not_strict(format: str, schema: Body, why: str) -> None:
    assert why in await refusal(format, offered(format, schema, strict=True))
    wanted = {"name": "answer", "schema": schema, "strict": True}
    if format == "openai-chat":
        body = chat(response_format={"type": "json_schema", "json_schema": wanted})
    else:
        body = responses(text={"format": {"type": "json_schema", **wanted}})
    assert why in await refusal(format, body)


async def test_G3_responses_are_strict_unless_they_say_otherwise() -> None:
    tool = {"type": "function", "name": "a", "parameters": PLACE}
    body = {"model": "gpt-5.5", "input": "?", "tools": [tool]}
    assert "'additionalProperties' is required" in await refusal("openai-responses", body)


GEMINI = [
    ({"const": "a"}, "Unknown name \"const\" at 'tools[0].function_declarations[0].parameters.properties[0].value'"),
    ({"type": ["string", "null"]}, "Proto field is not repeating, cannot start list."),
    ({"oneOf": [{"type": "string"}]}, 'Unknown name "oneOf"'),
    ({"$ref": "#"}, 'Unknown name "$ref"'),
    ({"type": "integer", "exclusiveMinimum": 1}, 'Unknown name "exclusiveMinimum"'),
    ({"type": "object", "additionalProperties": False}, 'Unknown name "additionalProperties"'),
    ({"type": "string", "enum": [1]}, "(TYPE_STRING), 1"),
    ({"type": "integer", "enum": ["1"]}, "enum: only allowed for STRING type"),
    ({"type": "object", "properties": {}}, "should be non-empty for OBJECT type"),
    ({"type": "array"}, "items: missing field."),
    ({"type": "string", "format": "uuid"}, "only 'date-time' and 'enum' are supported for STRING type"),
    ({"anyOf": [{"type": "string"}], "description": "a"}, "it must be the only field set"),
    ({"description": "anything"}, "type: must be specified"),
]


@pytest.mark.parametrize(("schema", "why"), GEMINI)
async def test_G3_gemini_refuses_what_its_schema_has_no_words_for(schema: Body, why: str) -> None:
    assert why in await refusal("gemini", offered("gemini", nested(schema)))


NAMES = {
    "openai-chat": "'tools[0].function.name': string does not match pattern",
    "openai-responses": "'tools[0].name': string does not match pattern",
    "anthropic": "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    "gemini": "Invalid function name. Must start with a letter or an underscore.",
}


@pytest.mark.parametrize("format", FORMATS)
async def test_G3_a_name_that_is_not_one_is_refused(format: str) -> None:
    assert NAMES[format] in await refusal(format, offered(format, PLACE, "the weather"))


@pytest.mark.parametrize("format", ["openai-chat", "openai-responses"])
async def test_G3_openai_takes_128_tools(format: str) -> None:
    tools = [{"name": f"t{number}", "parameters": PLACE} for number in range(129)]
    many = {"openai-chat": chat, "openai-responses": responses}[format]
    assert "maximum length 128, but got an array with length 129" in await refusal(format, many(tools=tools))
    async with provider(format, [Reply(text="So.")]) as server:
        assert (await post(server, many(tools=tools[1:]))).status_code == 200


OTHER = [
    ("anthropic", {"model": "claude-sonnet-4-6", "messages": [ASKED]}, "max_tokens: Field required"),
    ("anthropic", messages(tool_choice={"type": "any"}, thinking={"type": "enabled"}), "Thinking may not be enabled"),
    ("anthropic", messages(tool_choice={"type": "tool", "name": "a"}), "Tool 'a' not found in provided tools"),
    ("anthropic", messages(tools=[{"name": "a", "input_schema": PLACE}] * 2), "Tool names must be unique."),
    ("anthropic", messages(model="claude-sonnet-5-5", tool_choice={"type": "any"}), "not supported by this model"),
    ("anthropic", offered("anthropic", PLACE, strict=True), "'additionalProperties' must be explicitly set to false"),
    ("gemini", contents(tools=[{"name": "a", "parameters": PLACE}] * 2), "Duplicate function declaration found: a"),
    ("gemini", contents(generationConfig={"responseMimeType": "application/json"}), "is unsupported"),
]


@pytest.mark.parametrize(("format", "body", "why"), OTHER)
async def test_G1_other_refusals(format: str, body: Body, why: str) -> None:
    assert why in await refusal(format, body)


KEYS = {
    "openai-chat": (401, "You didn't provide an API key.", 401, "Incorrect API key provided: wrong."),
    "openai-responses": (401, "You didn't provide an API key.", 401, "Incorrect API key provided: wrong."),
    "anthropic": (401, "x-api-key header is required", 401, "invalid x-api-key"),
    "gemini": (403, "Method doesn't allow unregistered callers", 400, "API key not valid."),
}


@pytest.mark.parametrize(("format", "body"), TAKEN, ids=FORMATS)
async def test_G1_a_key_is_needed(format: str, body: Body) -> None:
    missing, why, wrong, why_wrong = KEYS[format]
    async with provider(format) as server:
        without = await post(server, body, {"anthropic-version": "2023-06-01"})
        other = await post(server, body, json.loads(json.dumps(HEADERS).replace(KEY, "wrong")))
    assert (without.status_code, other.status_code) == (missing, wrong)
    assert why in message_of(without)
    assert why_wrong in message_of(other)


@pytest.mark.parametrize(("format", "body"), TAKEN, ids=FORMATS)
async def test_G1_a_model_that_nobody_has(format: str, body: Body) -> None:
    async with provider(format) as server:
        response = await post(server, {**body, "model": "nobody-9"})
    assert response.status_code == 404
    assert "nobody-9" in message_of(response)
