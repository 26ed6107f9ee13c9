"""What a provider would refuse (G3), looked for in its whole tool list and in any schema a tool may have."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.schema_tools import LOOSE, TOOLS, WIRE, Schema, tool

from keephold.errors import ToolError
from keephold.schema.arguments import ArgumentCheck
from keephold.schema.canonical import canonical
from keephold.schema.dialects import Dialect, tool_list, wire_schema
from keephold.tools.base import ACTIONS

pytestmark = pytest.mark.slow

# What providers refuse


def nodes(schema: Schema, depth: int = 0) -> Iterator[tuple[Schema, int]]:
    """Every schema in the schema, with the number of objects around it. Names of properties are not keywords."""
    yield schema, depth
    inner = depth + ("properties" in schema)
    for own in schema.get("properties", {}).values():
        yield from nodes(own, inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], inner)
    for form in schema.get("anyOf", []):
        yield from nodes(form, depth)


NOWHERE = {"$ref", "$defs", "definitions", "$id", "$schema", "const", "oneOf", "allOf", "not", "if", "then", "else"}
STRICT = {"type", "description", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "pattern"}
STRICT |= {"format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}
GEMINI = {"type", "description", "properties", "required", "items", "anyOf", "enum", "nullable", "minimum", "maximum"}
GEMINI |= {"format", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}


def assert_taken_by_all(schema: Schema) -> None:
    assert schema["type"] == "object"
    assert schema.keys() <= {"type", "properties", "required", "additionalProperties"}
    for node, _ in nodes(schema):
        assert not node.keys() & NOWHERE
        assert isinstance(node.get("type", ""), str)
        assert ("properties" in node) == (node.get("type") == "object")
        assert ("items" in node) == (node.get("type") == "array")
        assert set(node.get("required", [])) <= set(node.get("properties", {}))
        assert "type" in node or "enum" not in node
        assert not isinstance(node.get("exclusiveMinimum"), bool)
        assert not isinstance(node.get("exclusiveMaximum"), bool)
        assert len(node.get("anyOf", [1, 2])) >= 2


def assert_taken_by_openai_strict(schema: Schema) -> None:
    for node, depth in nodes(schema):
        assert node.keys() <= STRICT
        assert ("type" in node) != ("anyOf" in node)
        if node.get("type") == "object":
            assert node["required"] == list(node["properties"])
            assert node["additionalProperties"] is False
            assert depth < 10


def assert_taken_by_gemini(schema: Schema) -> None:
    for node, depth in nodes(schema):
        assert node.keys() <= GEMINI
        assert node.keys() == {"anyOf"} if "anyOf" in node else node["type"] != "null"
        assert all(isinstance(value, str) for value in node.get("enum", []))
        assert "enum" not in node or node["type"] == "string"
        assert depth == 0 or node.get("type") != "object" or node["properties"]


ASSERT_TAKEN: dict[str, Callable[[Schema], None]] = {
    "openai-strict": assert_taken_by_openai_strict,
    "gemini": assert_taken_by_gemini,
}


def assert_taken(schema: Schema, dialect: Dialect) -> None:
    assert_taken_by_all(schema)
    ASSERT_TAKEN.get(dialect, assert_taken_by_all)(schema)


@pytest.mark.parametrize("dialect", WIRE)
def test_G3_no_provider_refuses_the_list(dialect: Dialect) -> None:
    for entry in tool_list(TOOLS, dialect):
        assert_taken(entry["parameters"], dialect)


# Any schema, with a value that fits it

Drawn = tuple[Schema, Any]
words = st.sampled_from(["a", "b", "{}", "[1]", "null"])
scalars = st.one_of(
    st.tuples(st.just({"type": "string", "minLength": 1, "format": "byte"}), words),
    st.tuples(st.sampled_from([{"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b", "c"]}]), st.just("a")),
    st.tuples(st.just({"enum": [1, "a", None, True]}), st.sampled_from([1, "a", None, True])),
    st.tuples(st.sampled_from([{"const": 3}, {"type": "integer", "exclusiveMinimum": 2}]), st.just(3)),
    st.tuples(st.just({"type": "number", "exclusiveMaximum": 1, "multipleOf": 0.5}), st.just(0.5)),
    st.tuples(st.just({"type": ["string", "null"], "maxLength": 1}), st.sampled_from(["a", None])),
    st.tuples(st.just({"type": ["integer", "boolean"], "default": 1}), st.sampled_from([1, True])),
    st.tuples(st.sampled_from([{}, {"description": "Anything."}]), st.sampled_from(["a", 1, False, None])),
    st.tuples(st.just({"type": "object", "additionalProperties": {"type": "integer"}}), st.just({"k": 1})),
    st.tuples(st.just({"type": "object", "minProperties": 1}), st.just({"k": [{}]})),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Drawn], defs: Schema) -> Drawn:
    """An object schema and a value of it. What may be null is always given: strict dialects cannot leave it out."""
    members = draw(st.dictionaries(st.sampled_from(["a", "b", "const", "$ref"]), inner, min_size=1, max_size=3))
    required = [name for name in members if draw(st.booleans())]
    value = {}
    for name, (own, member) in members.items():
        nullable = jsonschema_rs.is_valid({"$defs": defs, "allOf": [own]}, None)
        if name in required or nullable or draw(st.booleans()):
            value[name] = member
    schema: Schema = {
        "type": "object",
        "properties": {name: own for name, (own, _) in members.items()},
        "required": required,
    }
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    return schema, value


@st.composite
def wrapped(draw: st.DrawFn, inner: st.SearchStrategy[Drawn], defs: Schema) -> Drawn:
    """The ways a schema can be put around another."""
    own, value = draw(inner)
    match draw(st.sampled_from(["array", "tuple", "nullable", "oneOf", "allOf", "$ref"])):
        case "array":
            return {"type": "array", "items": own, "maxItems": 9}, [value]
        case "tuple":
            return {"type": "array", "prefixItems": [own, {"type": "integer"}], "maxItems": 2}, [value, 7]
        case "nullable":
            return {"anyOf": [own, {"type": "null"}], "description": "Or null."}, value
        case "oneOf":
            forms = [
                {"type": "object", "properties": {"tag": {"const": tag}, "of": of}, "required": ["tag"]}
                for tag, of in (("one", own), ("two", {"type": "integer"}))
            ]
            return {"oneOf": forms}, {"tag": "one", "of": value}
        case "allOf":
            return {"allOf": [own], "description": "As it is."}, value
    name = f"D{len(defs)}"
    defs[name] = own
    return {"$ref": f"#/$defs/{name}"}, value


@st.composite
def parameters(draw: st.DrawFn) -> Drawn:
    defs: Schema = {}

    def around(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
        return objects(inner, defs) | wrapped(inner, defs)

    schema, value = draw(objects(st.recursive(scalars, around, max_leaves=6), defs))
    return {**schema, "$defs": defs}, value


@given(parameters())
def test_G3_no_provider_refuses_a_schema_however_it_is_made(drawn: Drawn) -> None:
    own, _ = drawn
    for dialect in WIRE:
        assert_taken(wire_schema(own, dialect), dialect)
        assert_taken(wire_schema(canonical(tool("t", own, *ACTIONS)), dialect), dialect)


@given(parameters())
def test_G3_a_wire_schema_takes_what_the_tool_takes(drawn: Drawn) -> None:
    own, value = drawn
    assert jsonschema_rs.is_valid(own, value)
    for dialect in LOOSE:
        wire = wire_schema(own, dialect)
        assert jsonschema_rs.is_valid(wire, value)
        assert_closed_alike(own, wire, value)


def assert_closed_alike(own: Schema, wire: Schema, value: Any) -> None:
    extra = {**value, "unheard-of": 1}
    assert jsonschema_rs.is_valid(wire, extra) == jsonschema_rs.is_valid(own, extra)


def as_sent(value: Any, wire: Schema) -> Any:
    """The value as a model bound to a strict schema has to write it."""
    for form in wire.get("anyOf", []):
        sent = as_sent(value, form)
        if jsonschema_rs.is_valid(form, sent):
            return sent
    if isinstance(value, dict) and wire.get("type") == "string":
        return json.dumps(value)
    if isinstance(value, dict) and wire.get("type") == "object":
        return {name: as_sent(value.get(name), own) for name, own in wire["properties"].items()}
    if isinstance(value, list) and wire.get("type") == "array":
        return [as_sent(item, wire["items"]) for item in value]
    return value


@given(parameters())
def test_C10_what_a_strict_dialect_makes_a_model_send_is_read_as_meant(drawn: Drawn) -> None:
    own, value = drawn
    wire = wire_schema(own, "openai-strict")
    sent = as_sent(value, wire)
    assert jsonschema_rs.is_valid(wire, sent)
    check = ArgumentCheck(own, tool="t")
    assert check(sent) == check(value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | words,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "tag", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(parameters(), st.dictionaries(st.sampled_from(["a", "b", "const", "zz"]), anything, max_size=4))
def test_C9_arguments_fit_or_are_refused_in_a_few_words(drawn: Drawn, changes: dict[str, Any]) -> None:
    own, value = drawn
    check = ArgumentCheck(own, tool="t")
    closed = {**own, "additionalProperties": False}
    try:
        checked = check({**value, **changes})
    except ToolError as error:
        assert error.code == "invalid_arguments"
        assert len(error.message) < 1000
        assert "of the schema" not in error.message
        assert not jsonschema_rs.is_valid(closed, {**value, **changes})
    else:
        assert jsonschema_rs.is_valid(closed, checked)
