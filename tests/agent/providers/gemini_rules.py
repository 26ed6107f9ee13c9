"""What Gemini refuses: schemas that its OpenAPI form has no field for, and turns of functions that do not match.

`parameters` is a message of a protocol buffer: a field it does not have fails the whole request. `parametersJsonSchema`
takes JSON Schema; what it does with a union at the root is not known, so it is refused here, which is the safe side.
No live call was made. Found in public reports: the words for unknown fields, for lists as `type`, for names, and for
numbers of responses that differ. The others are written from memory; those about `parametersJsonSchema`, siblings of
`anyOf`, functions that are not declared and the last turn are ours.
"""

import re
from collections.abc import Iterator
from typing import Any

from tests.agent.providers.base import Refusal

Schema = dict[str, Any]

_FIELDS = {
    "type", "format", "title", "description", "nullable", "enum", "items", "maxItems", "minItems", "properties",
    "required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf",
    "propertyOrdering", "default", "minimum", "maximum",
}  # fmt: skip
_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}
_FORMATS = {
    "string": {"enum", "date-time"},
    "integer": {"int32", "int64"},
    "number": {"float", "double"},
}
_DATA = {"functionCall", "functionResponse", "inlineData", "fileData"}
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}\Z")


def invalid(message: str) -> Refusal:
    return Refusal(400, message, code="INVALID_ARGUMENT")


# Tools


def check_declarations(declarations: list[dict[str, Any]]) -> None:
    """Raise the refusal of functions: first all fields that are not there, then what the fields say."""
    unknown: list[str] = []
    wrong: list[str] = []
    for at, own in enumerate(declarations):
        place = f"tools[0].function_declarations[{at}]"
        _check_name(own["name"], f"{place}.name")
        json_schema = own.get("parametersJsonSchema", own.get("parameters_json_schema"))
        if "parameters" in own:
            if json_schema is not None:
                raise invalid(f"{place}: only one of parameters and parameters_json_schema may be set.")
            unknown += _unknown(own["parameters"], f"{place}.parameters")
            wrong += _wrong(own["parameters"], f"{place}.parameters", root=True)
        elif json_schema is not None:
            check_json_schema(json_schema, f"{place}.parameters_json_schema")
    if unknown:
        raise invalid("\n".join(unknown))
    if wrong:
        raise invalid("\n".join(f"* GenerateContentRequest.{problem}" for problem in wrong))
    names = [own["name"] for own in declarations]
    if twice := [name for name in names if names.count(name) > 1]:
        raise invalid(f"Duplicate function declaration found: {twice[0]}")


def _check_name(name: str, place: str) -> None:
    if not name:
        raise invalid(f"* GenerateContentRequest.{place}: Name cannot be empty.")
    if not _NAME.match(name):
        raise invalid(
            f"* GenerateContentRequest.{place}: Invalid function name. Must start with a letter or an underscore. Must "
            "be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a maximum "
            "length of 64."
        )


def check_json_schema(schema: Schema, place: str) -> None:
    if schema.get("type") != "object":
        raise invalid(f"* GenerateContentRequest.{place}: schema must be an object, type is {schema.get('type')}.")
    if union := next((word for word in ("oneOf", "anyOf", "allOf") if word in schema), None):
        raise invalid(f"* GenerateContentRequest.{place}: {union} is not supported at the top level.")


def _inside(schema: Schema, place: str) -> Iterator[tuple[Schema, str]]:
    for at, own in enumerate(schema.get("properties", {}).values()):
        yield own, f"{place}.properties[{at}].value"
    if isinstance(schema.get("items"), dict):
        yield schema["items"], f"{place}.items"
    for at, form in enumerate(schema.get("anyOf", [])):
        yield form, f"{place}.any_of[{at}]"


def _unknown(schema: Schema, place: str) -> list[str]:
    """What cannot be read as the message it should be."""
    begin = "Invalid JSON payload received. Unknown name"
    found = [f"{begin} \"{key}\" at '{place}': Cannot find field." for key in schema if key not in _FIELDS]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        found.append(f"{begin} \"type\" at '{place}': Proto field is not repeating, cannot start list.")
    elif kind.lower() not in _TYPES:
        found.append(f"Invalid value at '{place}.type' (type.googleapis.com/google.ai.Type), \"{kind}\"")
    for at, value in enumerate(schema.get("enum", [])):
        if not isinstance(value, str):
            found.append(f"Invalid value at '{place}.enum[{at}]' (TYPE_STRING), {value!r}")
    for own, inner in _inside(schema, place):
        found += _unknown(own, inner)
    return found


def _wrong(schema: Schema, place: str, *, root: bool = False) -> list[str]:
    """What can be read and is not taken."""
    found = []
    kind = str(schema.get("type", "")).lower()
    if "anyOf" in schema and len(schema) > 1:
        found.append(f"{place}.any_of: when using any_of, it must be the only field set")
    if not kind and "anyOf" not in schema:
        found.append(f"{place}.type: must be specified")
    if kind == "object" and not schema.get("properties") and not root:
        found.append(f"{place}.properties: should be non-empty for OBJECT type")
    if kind == "array" and "items" not in schema:
        found.append(f"{place}.items: missing field.")
    if schema.get("enum") and kind != "string":
        found.append(f"{place}.enum: only allowed for STRING type")
    if "format" in schema and schema["format"] not in _FORMATS.get(kind, {schema["format"]}):
        allowed = " and ".join(f"'{each}'" for each in sorted(_FORMATS[kind]))
        found.append(f"{place}.format: only {allowed} are supported for {kind.upper()} type")
    for at, name in enumerate(schema.get("required", [])):
        if name not in schema.get("properties", {}):
            found.append(f"{place}.required[{at}]: property is not defined")
    for own, inner in _inside(schema, place):
        found += _wrong(own, inner)
    return found


# The conversation


def check_contents(contents: list[dict[str, Any]]) -> None:
    if not contents:
        raise invalid("* GenerateContentRequest.contents: contents is not specified\n")
    for at, content in enumerate(contents):
        if content.get("role", "user") not in ("user", "model"):
            raise invalid("Please use a valid role: user, model.")
        if not content.get("parts"):
            raise invalid(f"* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty.\n")
        for place, part in enumerate(content["parts"]):
            for kind, field in (("functionCall", "function_call"), ("functionResponse", "function_response")):
                if kind in part:
                    _check_name(part[kind].get("name", ""), f"contents[{at}].parts[{place}].{field}.name")
            if not part.get("text") and not part.keys() & _DATA:
                raise invalid(
                    f"* GenerateContentRequest.contents[{at}].parts[{place}].data: required oneof field 'data' must "
                    "have one initialized field\n"
                )
    _check_turns(contents)


def _check_turns(contents: list[dict[str, Any]]) -> None:
    """Calls of a turn are answered in the next one, all of them, and nothing else is."""
    asked = 0
    before = "start"
    for content in contents:
        calls = sum("functionCall" in part for part in content["parts"])
        answers = sum("functionResponse" in part for part in content["parts"])
        if calls and before not in ("user", "response"):
            raise invalid(
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        if answers and before != "call":
            raise invalid("Please ensure that function response turn comes immediately after a function call turn.")
        if asked != answers:
            raise invalid(
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        asked = calls
        before = "call" if calls else "response" if answers else content.get("role", "user")
    if before in ("call", "model"):
        raise invalid("Please ensure that multiturn requests end with a user turn or a function response turn.")
