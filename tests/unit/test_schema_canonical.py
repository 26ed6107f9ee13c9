"""The canonical schema of a tool is the one its protocol describes, and parameters that would break it are refused."""

from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from keephold.errors import ConfigError
from keephold.schema.canonical import canonical, check_parameters, resolve, variant
from keephold.tools.base import ACTIONS, Action, Invocation, Live, Sink, Tool


class NeverStarted:
    """These tools are described, not run."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise AssertionError("a schema was asked for, not a run")


def tool(parameters: dict[str, Any], *actions: Action) -> Tool:
    return Tool(name="t", runtime=NeverStarted(), parameters=parameters, actions=actions)


GIT = {
    "type": "object",
    "properties": {
        "command": {"enum": ["stage", "commit", "rebase"]},
        "args": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["command"],
}
CARGO_CHECK = {"type": "object", "properties": {"package": {"type": "string"}}}
SPAWN: tuple[Action, ...] = ("spawn",)
NEW_ID = {"type": "string", "description": "Handle ID for this tool instance. Must be unique across active handles."}


def test_C1_git_has_one_variant_for_each_of_its_four_actions() -> None:
    assert canonical(tool(GIT, "spawn", "fetch", "apply", "abort")) == {
        "type": "object",
        "oneOf": [
            {
                "properties": {
                    "action": {"const": "spawn"},
                    "id": NEW_ID,
                    "command": {"enum": ["stage", "commit", "rebase"]},
                    "args": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["action", "id", "command"],
            },
            {"properties": {"action": {"const": "fetch"}, "id": {"type": "string"}}, "required": ["action", "id"]},
            {
                "properties": {"action": {"const": "apply"}, "id": {"type": "string"}, "input": {}},
                "required": ["action", "id", "input"],
            },
            {"properties": {"action": {"const": "abort"}, "id": {"type": "string"}}, "required": ["action", "id"]},
        ],
    }


def test_C1_cargo_check_takes_no_input_and_so_has_no_apply() -> None:
    assert canonical(tool(CARGO_CHECK, "spawn", "fetch", "abort")) == {
        "type": "object",
        "oneOf": [
            {
                "properties": {"action": {"const": "spawn"}, "id": NEW_ID, "package": {"type": "string"}},
                "required": ["action", "id"],
            },
            {"properties": {"action": {"const": "fetch"}, "id": {"type": "string"}}, "required": ["action", "id"]},
            {"properties": {"action": {"const": "abort"}, "id": {"type": "string"}}, "required": ["action", "id"]},
        ],
    }


FURTHER = {"fetch": {"view": {"type": "string"}}, "apply": {"keys": {"type": "array"}}}


def test_C1_fetch_and_apply_take_what_the_tool_adds_to_them_and_input_is_then_optional() -> None:
    own = replace(tool(CARGO_CHECK, *ACTIONS), action_parameters=FURTHER)
    assert variant(own, "fetch") == {
        "properties": {"action": {"const": "fetch"}, "id": {"type": "string"}, "view": {"type": "string"}},
        "required": ["action", "id"],
    }
    assert variant(own, "apply") == {
        "properties": {
            "action": {"const": "apply"},
            "id": {"type": "string"},
            "input": {},
            "keys": {"type": "array"},
        },
        "required": ["action", "id"],
    }
    plain = tool(CARGO_CHECK, *ACTIONS)
    assert [variant(own, action) for action in ("spawn", "abort")] == [
        variant(plain, action) for action in ("spawn", "abort")
    ]
    variant(own, "apply")["properties"]["keys"]["type"] = "changed"
    assert FURTHER["apply"]["keys"] == {"type": "array"}
    assert variant(replace(own, action_parameters={"fetch": FURTHER["fetch"]}), "apply")["required"][-1] == "input"


def test_C1_a_parameter_cannot_have_the_name_of_what_fetch_or_apply_take() -> None:
    own = {"type": "object", "properties": {"keys": {}, "view": {}, "free": {}}}
    check_parameters("vim", own, (), FURTHER)
    check_parameters("vim", own, SPAWN)
    with pytest.raises(ConfigError) as caught:
        check_parameters("vim", own, SPAWN, FURTHER)
    assert caught.value.problems == tuple(
        f"tool `vim`: parameter `{name}` has a name that a tool of this kind uses for itself (view, keys); "
        "rename it, or declare no actions"
        for name in ("keys", "view")
    )


def test_C2_variants_come_in_one_order_whatever_order_was_declared() -> None:
    schema = canonical(tool(GIT, "abort", "apply", "spawn"))
    assert [branch["properties"]["action"]["const"] for branch in schema["oneOf"]] == ["spawn", "apply", "abort"]
    assert list(schema["oneOf"][0]["properties"]) == ["action", "id", "command", "args"]


def test_C1_a_tool_without_actions_keeps_its_own_schema() -> None:
    own = {"type": "object", "properties": {"action": {"type": "string"}, "id": {"type": "integer"}}, "title": "Own"}
    schema = canonical(tool(own))
    assert schema == own
    schema["properties"]["id"]["type"] = "changed"
    assert own["properties"] == {"action": {"type": "string"}, "id": {"type": "integer"}}


def test_C1_references_of_the_parameters_still_lead_somewhere() -> None:
    own = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Place"}},
        "additionalProperties": False,
        "$defs": {"Place": {"type": "string"}},
    }
    place = tool(own, *ACTIONS)
    for schema in (canonical(place), variant(place, "spawn")):
        fits = jsonschema_rs.validator_for(schema).is_valid
        assert fits({"action": "spawn", "id": "x", "at": "here"})
        assert not fits({"action": "spawn", "id": "x", "at": 1})
        assert not fits({"action": "spawn", "id": "x", "elsewhere": "there"})


@pytest.mark.parametrize("name", ["action", "id", "input", "spawn"])
def test_C1_a_stateful_tool_cannot_take_the_names_of_the_protocol(name: str) -> None:
    own = {"type": "object", "properties": {name: {"type": "string"}, "free": {}}}
    check_parameters("git", own, ())
    with pytest.raises(ConfigError) as caught:
        check_parameters("git", own, SPAWN)
    assert caught.value.problems == (
        f"tool `git`: parameter `{name}` has a name that every stateful tool uses for itself "
        "(action, id, input, spawn); "
        "rename it, or declare no actions",
    )


def test_C1_a_reserved_name_is_found_in_a_branch_and_behind_a_reference() -> None:
    own = {
        "type": "object",
        "anyOf": [{"properties": {"id": {}}}, {"$ref": "#/$defs/Other"}],
        "$defs": {"Other": {"properties": {"input": {}}}},
    }
    with pytest.raises(ConfigError) as caught:
        check_parameters("git", own, SPAWN)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"type": "string"}, "must be an object schema"),
        ({"properties": {}}, "must be an object schema"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "at properties/a/type"),
        ({"type": "object", "properties": {"a": {"pattern": "(["}}}, "regex"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/Gone"}}}, "does not exist"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}, "Retrieval is disabled"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#b"}}, "$defs": {"b": {"$anchor": "b"}}},
            '"$ref": "#b" must name a part of the same schema, such as "#/$defs/Name"',
        ),
        ({"type": "object", "properties": {"a": {"default": {1, 2}}}}, "cannot be written as JSON"),
    ],
)
def test_C1_parameters_that_are_no_object_schema_are_refused(own: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_parameters("git", own, ())
    [problem] = caught.value.problems
    assert problem.startswith("tool `git`: ")
    assert said in problem


def test_C1_a_stateful_tools_references_must_go_to_its_definitions() -> None:
    own = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}}
    check_parameters("git", own, ())
    with pytest.raises(ConfigError, match=r'"#/properties/a" cannot be followed .* move what it names to `\$defs`'):
        check_parameters("git", own, SPAWN)


def test_C1_a_property_or_a_value_called_ref_is_no_reference() -> None:
    own = {"type": "object", "properties": {"$ref": {"const": {"$ref": "x"}}, "a": {"default": {"$ref": "y"}}}}
    check_parameters("git", own, SPAWN)


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_K6_a_schema_that_would_be_checked_for_hours_is_refused(keyword: str) -> None:
    def chain(length: int) -> dict[str, Any]:
        steps = {f"s{at}": {keyword: [{"$ref": f"#/$defs/s{at + 1}"}] * 2} for at in range(length)}
        return {"type": "object", "properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": steps | {f"s{length}": {}}}

    check_parameters("git", chain(8), SPAWN)
    for length in (40, 4000):
        with pytest.raises(ConfigError, match="one value would be checked in more than 10,000 ways"):
            check_parameters("git", chain(length), SPAWN)


@pytest.mark.parametrize("name", ["default", "examples", "required"])
def test_K6_such_a_schema_does_not_hide_in_a_property_with_the_name_of_a_keyword(name: str) -> None:
    steps = {f"s{at}": {"anyOf": [{"$ref": f"#/properties/{name}/$defs/s{at + 1}"}] * 2} for at in range(40)}
    hidden = {"$ref": f"#/properties/{name}/$defs/s0", "$defs": steps | {"s40": {"type": "string"}}}
    with pytest.raises(ConfigError, match="one value would be checked in more than 10,000 ways"):
        check_parameters("git", {"type": "object", "properties": {name: hidden}}, ())


def test_C1_a_schema_that_refers_to_itself_is_checked_once() -> None:
    tree = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}, {"$ref": "#/$defs/tree"}]
    }
    names = {"anyOf": True, "not": {}, "allOf": {"type": "string"}}  # of parameters
    check_parameters("git", {"type": "object", "properties": {"a": tree, **names}, "$defs": {"tree": tree}}, SPAWN)


def test_G3_a_reference_is_a_json_pointer() -> None:
    root = {"$defs": {"a/b": {"anyOf": [{"type": "null"}, {"type": "string"}]}}}
    assert resolve(root, "#/$defs/a~1b/anyOf/1") == {"type": "string"}
    assert resolve(root, "#") is root
    with pytest.raises(ConfigError, match="there is no `c`"):
        resolve(root, "#/$defs/c")
    with pytest.raises(ConfigError, match="must name a part of the same schema"):
        resolve(root, "other.json")
