"""What each provider is sent (G3): the whole of it as goldens, and what it would refuse, looked for in any schema.

After a change that is meant, `HOLDFAST_UPDATE_GOLDENS=1 pytest tests/unit/test_schema_dialects.py` writes the goldens
anew; the diff is the change as a provider will see it.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ToolError
from holdfast.schema.arguments import ArgumentCheck
from holdfast.schema.canonical import canonical
from holdfast.schema.dialects import DIALECTS, Dialect, tool_list, wire_schema
from holdfast.tools.base import ACTIONS, Action, Invocation, Live, Sink, Tool

GOLDEN = Path(__file__).parent.parent / "golden"
WIRE = [dialect for dialect in DIALECTS if dialect != "canonical"]
LOOSE = [dialect for dialect in WIRE if dialect not in ("openai-strict", "gemini")]

Schema = dict[str, Any]


class NeverStarted:
    """These tools are described, not run."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise AssertionError("a schema was asked for, not a run")


def tool(name: str, parameters: Schema, *actions: Action, description: str = "", summary: str | None = None) -> Tool:
    return Tool(
        name=name,
        runtime=NeverStarted(),
        parameters=parameters,
        actions=actions,
        description=description,
        summary=summary,
    )


GIT = tool(
    "git",
    {
        "type": "object",
        "properties": {
            "command": {"enum": ["stage", "commit", "rebase"]},
            "args": {"type": "array", "items": {"type": "string"}, "description": "Further words of the command line."},
        },
        "required": ["command"],
    },
    *ACTIONS,
    description="Run git, interactively where it asks.",
)
CARGO_CHECK = tool(
    "cargo_check",
    {"type": "object", "properties": {"package": {"type": "string", "description": "Package to check."}}},
    "spawn",
    "fetch",
    "abort",
    description="Type-check a package. Long text about features, targets and profiles.",
    summary="Type-check a package.",
)
SEARCH = tool(
    "search",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/search",
        "type": "object",
        "title": "Search",
        "properties": {
            "query": {"type": "string", "minLength": 1, "title": "Query"},
            "near": {"$ref": "#/$defs/Place", "description": "Where to look first."},
            "kinds": {"type": "array", "items": {"enum": ["shop", "park"]}, "uniqueItems": True, "default": []},
            "stars": {"enum": [1, 2, 3], "default": 2},
            "radius": {"type": ["number", "null"], "exclusiveMinimum": 0},
            "mode": {"const": "fast"},
            "sort": {"oneOf": [{"const": "near"}, {"const": "new"}, {"type": "null"}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "extra": {"description": "Handed on as it is."},
            "span": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "maxItems": 2},
            "mail": {"type": "string", "format": "idn-email"},
        },
        "required": ["query"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "type": "object",
                "description": "A place on earth.",
                "properties": {
                    "lat": {"type": "number"},
                    "lon": {"type": "number"},
                    "inside": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
                },
                "required": ["lat", "lon"],
            }
        },
    },
    description="Search the map.",
)
IDS = {"type": "array", "items": {"type": "string"}}
AWAIT = tool(
    "await",
    {
        "type": "object",
        "properties": {
            "any": {
                **IDS,
                "description": "Handle IDs. Returns when at least one of these handles reaches 'stopped'.",
            },
            "all": {
                **IDS,
                "description": "Handle IDs. Returns when every one of these handles reaches 'stopped'.",
            },
            "timeout_secs": {
                "type": "integer",
                "description": "Maximum seconds to wait. If exceeded, returns with current handle states. "
                "Omit for no timeout.",
            },
        },
        "anyOf": [{"required": ["any"]}, {"required": ["all"]}],
    },
    description="Block until stateful tool handles reach completion. Use `any` to wait for the first handle to finish, "
    "`all` to wait for every handle to finish, or both to combine conditions.",
)
TOOLS = [GIT, CARGO_CHECK, SEARCH, AWAIT]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_G3_the_tool_list_is_the_golden_one(dialect: Dialect) -> None:
    path = GOLDEN / f"tools.{dialect}.json"
    text = json.dumps(tool_list(TOOLS, dialect), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("HOLDFAST_UPDATE_GOLDENS"):
        path.write_text(text)
    assert text == path.read_text()


def test_G3_the_canonical_dialect_is_the_canonical_schema() -> None:
    assert [entry["parameters"] for entry in tool_list(TOOLS, "canonical")] == [canonical(one) for one in TOOLS]


def test_B8_a_summary_stands_in_for_the_description_and_order_is_kept() -> None:
    listed = tool_list(TOOLS, "generic")
    assert [entry["name"] for entry in listed] == ["git", "cargo_check", "search", "await"]
    assert listed[1]["description"] == "Type-check a package."
    assert listed[2]["description"] == "Search the map."


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


# Single rules


def only(own: Schema, dialect: Dialect, **defs: Schema) -> Schema:
    """How a dialect shows one required property."""
    whole = {"type": "object", "properties": {"p": own}, "required": ["p"], "$defs": defs}
    shown: Schema = wire_schema(whole, dialect)["properties"]["p"]
    return shown


@pytest.mark.parametrize("dialect", WIRE)
def test_G3_a_stateful_tool_is_one_object_that_labels_its_properties(dialect: Dialect) -> None:
    git = wire_schema(canonical(GIT), dialect)
    assert list(git["properties"]) == ["action", "id", "command", "args", "input"]
    assert git["properties"]["action"] == {
        "type": "string",
        "enum": ["spawn", "fetch", "apply", "abort"],
        "description": "What to do with the handle.",
    }
    said = {name: own["description"] for name, own in git["properties"].items()}
    assert said["id"].startswith("(spawn, fetch, apply, abort) Handle ID for this tool instance.")
    assert said["command"] == "(spawn)"
    assert said["args"] == "(spawn) Further words of the command line."
    assert said["input"].startswith("(apply) ")
    if dialect != "openai-strict":
        assert git["required"] == ["action"]


def test_G3_input_is_untyped_where_that_can_be_said_and_else_a_string() -> None:
    shown = {dialect: wire_schema(canonical(GIT), dialect)["properties"]["input"] for dialect in WIRE}
    for dialect in LOOSE:
        assert shown[dialect].keys() == {"description"}
    assert shown["gemini"]["type"] == "string"
    assert shown["openai-strict"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert "an answer that is not text is its JSON" in shown["gemini"]["description"]


@pytest.mark.parametrize("dialect", WIRE)
def test_A1_await_loses_its_anyOf_and_requires_neither_list(dialect: Dialect) -> None:
    shown = wire_schema(canonical(AWAIT), dialect)
    assert list(shown["properties"]) == ["any", "all", "timeout_secs"]
    assert shown.get("required", []) == ([] if dialect != "openai-strict" else ["any", "all", "timeout_secs"])


@pytest.mark.parametrize("dialect", WIRE)
def test_G3_a_tool_without_parameters_is_an_object_without_properties(dialect: Dialect) -> None:
    shown = wire_schema({"type": "object"}, dialect)
    assert shown["type"] == "object"
    assert shown["properties"] == {}


def test_G3_a_root_union_becomes_its_properties_and_what_all_branches_require() -> None:
    shown = wire_schema(
        {
            "type": "object",
            "properties": {"who": {"type": "string"}},
            "required": ["who"],
            "oneOf": [
                {"properties": {"by": {"const": "mail"}, "to": {"type": "string"}}, "required": ["by", "to"]},
                {"properties": {"by": {"const": "post"}, "to": {"type": "integer"}}, "required": ["by"]},
            ],
        },
        "anthropic",
    )
    assert shown == {
        "type": "object",
        "properties": {
            "who": {"type": "string"},
            "by": {"type": "string", "enum": ["mail", "post"]},
            "to": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        },
        "required": ["who", "by"],
    }


def test_G3_a_stateful_tools_own_root_union_is_flattened_too() -> None:
    own = {"type": "object", "anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}]}
    shown = wire_schema(canonical(tool("t", own, "spawn", "fetch")), "generic")
    assert {name: part["description"].split(")")[0] for name, part in shown["properties"].items()} == {
        "action": "What to do with the handle.",
        "id": "(spawn, fetch",
        "a": "(spawn",
        "b": "(spawn",
    }


def test_G3_null_is_a_type_or_a_keyword() -> None:
    for own in ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}):
        assert only(own, "openai") == {"anyOf": [{"type": "string"}, {"type": "null"}]}
        assert only(own, "openai-strict") == {"anyOf": [{"type": "string"}, {"type": "null"}]}
        assert only(own, "gemini") == {"type": "string", "nullable": True}


def test_G3_gemini_unions_stand_alone_and_carry_the_description_inside() -> None:
    own = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "Name or number."}
    assert only(own, "gemini") == {
        "anyOf": [
            {"type": "string", "description": "Name or number.", "nullable": True},
            {"type": "integer", "description": "Name or number.", "nullable": True},
        ]
    }


def test_G3_gemini_enums_are_strings_and_other_values_are_told() -> None:
    assert only({"enum": [1, 2]}, "gemini") == {"type": "integer", "description": "One of: 1, 2."}
    assert only({"const": True}, "gemini") == {"type": "boolean", "description": "One of: true."}
    assert only({"enum": [1, 2]}, "mistral") == {"type": "integer", "enum": [1, 2]}
    assert only({"enum": ["x", None]}, "gemini") == {"type": "string", "enum": ["x"], "nullable": True}


@pytest.mark.parametrize("dialect", WIRE)
def test_G3_a_union_of_constants_is_an_enum(dialect: Dialect) -> None:
    own = {
        "oneOf": [{"const": "a", "description": "First."}, {"const": "b", "description": "Second."}],
        "description": "Which.",
    }
    assert only(own, dialect) == {
        "type": "string",
        "enum": ["a", "b"],
        "description": 'Which. "a": First. "b": Second.',
    }


def test_G3_gemini_bounds_are_inclusive() -> None:
    between = {"exclusiveMinimum": 0, "exclusiveMaximum": 9.5}
    assert only({"type": "integer", **between}, "gemini") == {"type": "integer", "minimum": 1, "maximum": 9}
    assert only({"type": "number", **between}, "gemini") == {
        "type": "number",
        "minimum": 0,
        "maximum": 9.5,
        "description": "Greater than 0. Less than 9.5.",
    }


@pytest.mark.parametrize("dialect", ["openai", "openai-strict", "anthropic", "bedrock", "mistral", "generic"])
def test_G3_a_yes_or_no_exclusive_bound_becomes_its_number(dialect: Dialect) -> None:
    own = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 5, "exclusiveMaximum": False}
    assert only(own, dialect) == {"type": "number", "maximum": 5, "exclusiveMinimum": 0}


@pytest.mark.parametrize("dialect", ["openai-strict", "gemini"])
def test_G3_a_free_object_is_asked_for_as_text_where_it_cannot_be_said(dialect: Dialect) -> None:
    text = {"type": "string", "description": "Labels. JSON text of an object."}
    assert only({"type": "object", "description": "Labels."}, dialect) == text
    assert only({"type": "object", "patternProperties": {"^x": {}}, "description": "Labels."}, dialect) == text


def test_G3_a_free_object_says_that_it_is_free() -> None:
    assert only({"type": "object"}, "generic") == {"type": "object", "properties": {}, "additionalProperties": True}
    closed_but_for_patterns = {"patternProperties": {"^x": {}}, "additionalProperties": False}
    assert only({"type": "object", **closed_but_for_patterns}, "generic")["additionalProperties"] is True


def test_G3_a_default_is_said_where_it_has_no_keyword() -> None:
    own = {"type": "integer", "description": "How many.", "default": 3}
    assert only(own, "openai") == own
    for dialect in ("openai-strict", "gemini"):
        assert only(own, dialect) == {"type": "integer", "description": "How many. Default: 3."}


def test_G3_strict_objects_end_at_the_tenth_level() -> None:
    deep: Schema = {"type": "string"}
    for _ in range(12):
        deep = {"type": "object", "properties": {"in": deep}, "required": ["in"]}
    assert_taken_by_openai_strict(wire_schema(deep, "openai-strict"))
    assert len(list(nodes(wire_schema(deep, "openai-strict")))) == 11
    assert len(list(nodes(wire_schema(deep, "openai")))) == 13


def test_G3_a_recursive_reference_ends_as_a_free_object() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
    shown = only({"$ref": "#/$defs/Tree"}, "openai", Tree=tree)
    assert shown["properties"]["kids"]["items"] == {"type": "object", "properties": {}, "additionalProperties": True}
    strict = only({"$ref": "#/$defs/Tree"}, "openai-strict", Tree=tree)
    assert strict["properties"]["kids"]["anyOf"][0]["items"]["type"] == "string"
    value = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/Value"}}]}
    assert only({"$ref": "#/$defs/Value"}, "openai", Value=value)["anyOf"][1] == {"type": "array", "items": {}}


def test_G3_an_intersection_is_one_object_and_the_nearest_description_counts() -> None:
    own = {
        "description": "Mine.",
        "allOf": [
            {"$ref": "#/$defs/Base"},
            {"properties": {"b": {"type": "integer"}, "gone": False}, "required": ["b"]},
        ],
    }
    base = {"type": "object", "description": "Theirs.", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    shown = only(own, "anthropic", Base=base)
    assert shown["description"] == "Mine."
    assert shown["properties"] == {"b": {"type": "integer"}, "a": {"type": "string"}}
    assert sorted(shown["required"]) == ["a", "b"]


@pytest.mark.parametrize("dialect", WIRE)
def test_G3_only_properties_that_are_shown_are_required(dialect: Dialect) -> None:
    own = {"type": "object", "properties": {"a": {"type": "string"}, "no": False}, "required": ["a", "no", "hidden"]}
    assert only(own, dialect)["required"] == ["a"]


def test_G3_a_tuple_is_an_array_that_tells_its_order() -> None:
    own = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2}
    assert only(own, "openai") == {
        "type": "array",
        "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "minItems": 2,
        "maxItems": 2,
        "description": "In order: integer, string.",
    }
    assert only({"type": "array", "prefixItems": [{"type": "integer"}]}, "openai")["items"] == {}
