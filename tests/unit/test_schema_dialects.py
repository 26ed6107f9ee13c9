"""What each provider is sent (G3): the whole of it as goldens, and rule by rule.

After a change that is meant, `KEEPHOLD_UPDATE_GOLDENS=1 pytest tests/unit/test_schema_dialects.py` writes the goldens
anew; the diff is the change as a provider will see it.
"""

import json
import os

import pytest
from tests.unit.schema_tools import AWAIT, EDITOR, GIT, GOLDEN, LOOSE, TOOLS, WIRE, Schema, tool
from tests.unit.test_schema_refusals import assert_taken_by_openai_strict, nodes

from keephold.schema.canonical import canonical
from keephold.schema.dialects import DIALECTS, Dialect, tool_list, wire_schema
from keephold.schema.shared import Presentation


@pytest.mark.parametrize("dialect", DIALECTS)
def test_G3_the_tool_list_is_the_golden_one(dialect: Dialect) -> None:
    path = GOLDEN / f"tools.{dialect}.json"
    shown: dict[Presentation, object] = {form: tool_list(TOOLS, dialect, form) for form in ("per_tool", "shared")}
    text = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("KEEPHOLD_UPDATE_GOLDENS"):
        path.write_text(text)
    assert text == path.read_text()


def test_G3_the_canonical_dialect_is_the_canonical_schema() -> None:
    assert [entry["parameters"] for entry in tool_list(TOOLS, "canonical")] == [canonical(one) for one in TOOLS]


def test_B8_a_summary_stands_in_for_the_description_and_order_is_kept() -> None:
    listed = tool_list(TOOLS, "generic", "per_tool")
    assert [entry["name"] for entry in listed] == ["git", "cargo_check", "search", "await", "editor"]
    assert listed[1]["description"] == "Type-check a package."
    assert listed[2]["description"] == "Search the map."


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
    action = git["properties"]["action"]
    said = {name: own["description"] for name, own in git["properties"].items()}
    for verb in (
        "spawn: start",
        "fetch: show",
        "apply: send",
        "abort: end",
        "Leave it out, or null, to run to the end",
    ):
        assert verb in said["action"]
    assert said["id"].startswith("spawn: a new id that you choose")
    assert "fetch, apply, abort: the id of a handle" in said["id"]
    assert said["command"] == "(spawn, required)"
    assert said["args"] == "(spawn) Further words of the command line."
    assert said["input"].startswith("(apply, required) ")
    if dialect == "openai-strict":
        assert action["anyOf"][1] == {"type": "null"}
    else:
        assert action["enum"] == ["spawn", "fetch", "apply", "abort"] and "required" not in git


def test_G3_input_is_untyped_where_that_can_be_said_and_else_a_string() -> None:
    shown = {dialect: wire_schema(canonical(GIT), dialect)["properties"]["input"] for dialect in WIRE}
    for dialect in LOOSE:
        assert shown[dialect].keys() == {"description"}
    assert shown["gemini"]["type"] == "string"
    assert shown["openai-strict"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert "an answer that is not text is its JSON" in shown["gemini"]["description"]


@pytest.mark.parametrize("dialect", WIRE)
def test_G3_what_fetch_and_apply_of_a_terminal_take_is_shown_with_its_action(dialect: Dialect) -> None:
    shown = wire_schema(canonical(EDITOR), dialect)["properties"]
    assert list(shown) == ["action", "id", "path", "view", "scrollback", "input", "keys", "size"]
    assert shown["view"]["description"].startswith("(fetch) Show `stream`")
    assert shown["keys"]["description"].startswith("(apply) Named keys pressed after the text")
    assert shown["size"]["description"].startswith("(apply) The new size of the terminal.")
    assert shown["input"]["description"].startswith("(apply) Input for the handle")
    assert shown["input"]["description"].endswith("Beside another property of apply, null leaves it out.")
    if dialect != "openai-strict":
        assert shown["view"]["enum"] == ["auto", "stream", "screen"]
        assert shown["keys"]["items"] == {"type": "string"}
        assert shown["size"]["required"] == ["rows", "cols"]
        assert shown["size"]["properties"]["cols"] == {"type": "integer", "minimum": 1, "maximum": 1000}


def test_G3_a_strict_dialect_lets_a_model_leave_out_what_apply_may_take() -> None:
    shown = wire_schema(canonical(EDITOR), "openai-strict")
    assert shown["required"] == list(shown["properties"])
    for name, kind in (("view", "string"), ("keys", "array"), ("size", "object"), ("input", "string")):
        first, null = shown["properties"][name]["anyOf"]
        assert (first["type"], null) == (kind, {"type": "null"})


@pytest.mark.parametrize("dialect", WIRE)
def test_A1_await_loses_its_anyOf_and_requires_neither_list(dialect: Dialect) -> None:
    shown = wire_schema(canonical(AWAIT), dialect)
    names = ["any", "all", "output", "ready", "timeout_secs"]
    assert list(shown["properties"]) == names
    assert shown.get("required", []) == ([] if dialect != "openai-strict" else names)


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
    labels = {name: part["description"].split(" ")[0] for name, part in shown["properties"].items()}
    assert labels == {"action": "spawn:", "id": "spawn:", "a": "(spawn)", "b": "(spawn)"}


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
