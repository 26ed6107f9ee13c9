"""What OpenAI refuses, the same over chat completions and responses: keys, models, names and schemas.

Rules about schemas hold for tools and for structured output; the strict ones only where `strict` is set.

No live call was made. Found in public reports: the words for a union at the root, for calls and outputs that do not
match, for a `tool_call_id` twice, for names in the history. The others are written from memory; those for nesting, for
arguments in the history and for a second output of one call (responses) are ours.
"""

import re
from collections.abc import Mapping
from typing import Any

from tests.agent.providers.base import KEY, Refusal, strict_json

Schema = dict[str, Any]
Path = tuple[str, ...]

MAX_TOOLS = 128
MAX_DEPTH = 10
_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_ROOT = ("oneOf", "anyOf", "allOf", "enum", "const", "not")
_NOT_STRICT = (
    "oneOf", "allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "default",
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "uniqueItems", "contains",
    "minLength", "maxLength", "unevaluatedProperties",
)  # fmt: skip
_FAILURES = {
    429: "Rate limit reached for requests. Please try again later.",
    500: "The server had an error while processing your request. Sorry about that!",
    503: "The engine is currently overloaded, please try again later.",
}


def authorise(headers: Mapping[str, str]) -> None:
    given = headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not given:
        raise Refusal(
            401,
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
            "auth (i.e. Authorization: Bearer YOUR_KEY).",
        )
    if given != KEY:
        raise Refusal(401, f"Incorrect API key provided: {given}.", code="invalid_api_key")


def unknown(model: str) -> Refusal:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return Refusal(404, message, code="model_not_found")


def error(refusal: Refusal) -> dict[str, Any]:
    kinds = {401: "invalid_request_error", 429: "requests", 500: "server_error", 503: "server_error"}
    return {
        "error": {
            "message": refusal.message,
            "type": kinds.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error"),
            "param": refusal.param,
            "code": "rate_limit_exceeded" if refusal.status == 429 else refusal.code,
        }
    }


def failure(status: int) -> str:
    return _FAILURES.get(status, "An error occurred while processing your request.")


def check_count(tools: list[Any]) -> None:
    if len(tools) > MAX_TOOLS:
        raise Refusal(
            400,
            f"Invalid 'tools': array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array "
            f"with length {len(tools)} instead.",
            code="array_above_max_length",
            param="tools",
        )


def check_name(name: str, where: str) -> None:
    if not _NAME.match(name):
        raise Refusal(
            400,
            f"Invalid '{where}': string does not match pattern. Expected a string that matches the pattern "
            "'^[a-zA-Z0-9_-]+$'.",
            code="invalid_value",
            param=where,
        )
    check_length(name, where, 64)


def check_arguments(text: str, where: str) -> None:
    """OpenAI takes any text; servers that speak its format read it as an object to fill in their templates."""
    try:
        read = strict_json(text.encode())
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise Refusal(400, f"Invalid '{where}': expected a JSON object.", code="invalid_value", param=where)


def check_length(text: str, where: str, most: int) -> None:
    if not text:
        message = f"Invalid '{where}': empty string. Expected a string with minimum length 1."
        raise Refusal(400, message, code="empty_string", param=where)
    if len(text) > most:
        raise Refusal(
            400,
            f"Invalid '{where}': string too long. Expected a string with maximum length {most}, but got a string with "
            f"length {len(text)} instead.",
            code="string_above_max_length",
            param=where,
        )


def check_parameters(name: str, schema: Schema, *, strict: bool, where: str) -> None:
    """Raise the refusal of a tool's schema."""
    _check_schema(f"Invalid schema for function '{name}'", "invalid_function_parameters", schema, strict, where)


def check_output(name: str, schema: Schema, *, strict: bool, where: str) -> None:
    """Raise the refusal of the schema of structured output."""
    _check_schema(f"Invalid schema for response_format '{name}'", "invalid_json_schema", schema, strict, where)


def _check_schema(about: str, code: str, schema: Schema, strict: bool, where: str) -> None:
    def refuse(what: str) -> Refusal:
        return Refusal(400, f"{about}: {what}", code=code, param=where)

    if any(word in schema for word in _ROOT):
        raise refuse(
            "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'const'/'not' at the top level."
        )
    if schema.get("type") != "object":
        raise refuse(f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'.")
    problem = _problem(schema, (), 1, strict)
    if problem is not None:
        raise refuse(problem)


def _problem(schema: Any, path: Path, depth: int, strict: bool) -> str | None:
    """The first thing in the schema, or in what is inside it, that is refused."""
    if not isinstance(schema, dict):
        return None
    own = (_strict_problem(schema, depth) if strict else None) or _loose_problem(schema)
    if own is not None:
        return f"In context={path!r}, {own}"
    for inner_path, inner, deeper in _inside(schema):
        problem = _problem(inner, (*path, *inner_path), depth + deeper, strict)
        if problem is not None:
            return problem
    return None


def _inside(schema: Schema) -> list[tuple[Path, Any, int]]:
    is_object = int("properties" in schema)
    return [
        *((("properties", name), own, 1) for name, own in schema.get("properties", {}).items()),
        *((("$defs", name), own, 0) for name, own in schema.get("$defs", {}).items()),
        *(((word,), schema[word], is_object) for word in ("items", "additionalProperties") if word in schema),
        *(
            ((word, str(at)), form, 0)
            for word in ("anyOf", "oneOf", "allOf")
            for at, form in enumerate(schema.get(word, []))
        ),
    ]


def _loose_problem(schema: Schema) -> str | None:
    if schema.get("type") == "array" and "items" not in schema:
        return "array schema missing items."
    if schema.get("type") == "object" and "properties" not in schema and "additionalProperties" not in schema:
        return "object schema missing properties."
    return None


def _strict_problem(schema: Schema, depth: int) -> str | None:
    if depth > MAX_DEPTH + 1:
        return f"schema exceeds the maximum nesting depth of {MAX_DEPTH}."
    for word in _NOT_STRICT:
        if word in schema:
            return f"'{word}' is not permitted."
    if "$ref" in schema:
        beside = sorted(schema.keys() - {"$ref"})
        return f"$ref cannot have keywords {set(beside)!r}." if beside else None
    if not schema.keys() & {"type", "anyOf", "enum", "const"}:
        return "schema must have a 'type' key."
    if schema.get("type") == "object":
        return _strict_object_problem(schema)
    return None


def _strict_object_problem(schema: Schema) -> str | None:
    if schema.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    missing = [name for name in schema.get("properties", {}) if name not in schema.get("required", [])]
    if missing:
        return (
            "'required' is required to be supplied and to be an array including every key in properties. "
            f"Missing '{missing[0]}'."
        )
    return None
