"""Arguments that fit pass untouched; those that do not are told what was wrong and what would be right (C9, C10)."""

import json
import time
import timeit
from dataclasses import replace
from typing import Any

import pytest

from keephold.errors import ConfigError, ToolError
from keephold.handles.question import Question
from keephold.schema.arguments import ArgumentCheck, check_for, decode_input
from keephold.tools.base import ACTIONS, Action, Invocation, Live, Sink, Tool

Schema = dict[str, Any]


class NeverStarted:
    """These tools are described, not run."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise AssertionError("arguments were checked, nothing was to run")


GIT = Tool(
    name="git",
    runtime=NeverStarted(),
    parameters={
        "type": "object",
        "properties": {
            "command": {"enum": ["stage", "commit"]},
            "args": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["command"],
    },
    actions=ACTIONS,
)
PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "name": {"type": "string"}, "note": {"type": ["string", "null"]}},
    "required": ["lat"],
}


def check(
    properties: Schema, required: tuple[str, ...] = (), defs: Schema | None = None, **keywords: Any
) -> ArgumentCheck:
    schema = {"type": "object", "properties": properties, "required": list(required), "$defs": defs or {}, **keywords}
    return ArgumentCheck(schema, tool="t")


def refusal(check: ArgumentCheck, arguments: dict[str, Any]) -> str:
    with pytest.raises(ToolError) as caught:
        check(arguments)
    assert caught.value.code == "invalid_arguments"
    return caught.value.message


# C9: errors


def test_C9_a_missing_argument_is_named_with_all_that_are_required() -> None:
    both = check({"a": {}, "b": {}, "c": {}}, ("a", "b"))
    assert refusal(both, {"c": 1}) == "Invalid arguments for `t`: missing `a`, `b`; required: `a`, `b`"
    nested = check({"at": PLACE})
    assert refusal(nested, {"at": {}}) == "Invalid arguments for `t`: missing `lat` in `at`; required: `lat`"


def test_C9_an_unknown_argument_is_an_error_that_names_the_nearest() -> None:
    package = check({"package": {"type": "string"}, "release": {"type": "boolean"}})
    assert refusal(package, {"pacakge": "x"}) == (
        "Invalid arguments for `t`: unknown argument `pacakge`; did you mean `package`?"
    )
    assert (
        refusal(package, {"zzz": 1}) == "Invalid arguments for `t`: unknown argument `zzz`; known: `package`, `release`"
    )
    assert refusal(check({}), {"a": 1}) == "Invalid arguments for `t`: unknown argument `a`; known: none"


def test_C9_unknown_arguments_pass_where_the_schema_says_so() -> None:
    assert check({}, additionalProperties=True)({"a": 1}) == {"a": 1}
    typed = check({}, additionalProperties={"type": "integer"})
    assert typed({"a": 1}) == {"a": 1}
    assert refusal(typed, {"a": "x"}) == 'Invalid arguments for `t`: `a` must be an integer, not "x"'


def test_C9_nested_objects_are_as_open_as_their_schema_says() -> None:
    assert check({"at": PLACE})({"at": {"lat": 1, "more": 2}}) == {"at": {"lat": 1, "more": 2}}
    closed = check({"at": {**PLACE, "additionalProperties": False}})
    assert "unknown argument `at.nme`; did you mean `name`?" in refusal(closed, {"at": {"lat": 1, "nme": "x"}})


def test_C9_names_known_to_a_branch_only_are_known() -> None:
    schema = {
        "type": "object",
        "anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}],
        "properties": {"b": {"type": "integer"}},
    }
    either = ArgumentCheck(schema, tool="t")
    assert either({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert refusal(either, {"a": "x"}).endswith(': `a` must be an integer, not "x"')
    assert "unknown argument `c`" in refusal(either, {"a": 1, "c": 2})


@pytest.mark.parametrize(
    ("own", "given", "said"),
    [
        ({"type": "integer"}, "3 m", '`p` must be an integer, not "3 m"'),
        ({"type": ["integer", "null"]}, [], "`p` must be an integer or null, not an array"),
        ({"type": "boolean"}, {}, "`p` must be true or false, not an object"),
        ({"type": "string"}, True, "`p` must be a string, not true"),
        ({"type": "string"}, 10**400, "`p` must be a string, not a huge integer"),
        ({"type": "string"}, float("nan"), "`p` must be a string, not nan"),
        ({"enum": ["a", 1]}, "b", '`p` must be one of "a", 1, not "b"'),
        ({"const": "a"}, "b", '`p` must be "a", not "b"'),
        ({"minimum": 2}, 1, "`p` must be at least 2; it is 1"),
        ({"maxLength": 2}, "abc", '`p` must have at most 2 characters; it is "abc"'),
        ({"pattern": "^a"}, "b", '`p` must match ^a; it is "b"'),
        ({"uniqueItems": True}, [1, 1], "`p` must not hold an item twice; it is an array"),
        ({"contains": {"type": "string"}}, [1], "`p` does not satisfy `contains` of the schema; it is an array"),
        ({"not": {"type": "string"}}, "b", '`p` does not satisfy `not` of the schema; it is "b"'),
        ({"items": {"properties": {"x": {"type": "null"}}}}, [{}, {"x": 1}], "`p[1].x` must be null, not 1"),
        (
            {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
            "x",
            '`p` must be an integer or true or false, not "x"',
        ),
        ({"anyOf": [PLACE, {"type": "null"}]}, {"lat": "x"}, '`p.lat` must be a number, not "x"'),
        ({"anyOf": [PLACE, {"type": "null"}]}, {}, "missing `lat` in `p`; required: `lat`"),
        ({"anyOf": [{"required": ["x"]}, {"required": ["y", "z"]}]}, {}, "`p` needs `x` or `y`, `z`"),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "c", '`p` must be one of "a", "b", not "c"'),
    ],
)
def test_C9_a_wrong_value_is_told_with_its_place_and_what_would_be_right(own: Schema, given: Any, said: str) -> None:
    assert refusal(check({"p": own}), {"p": given}) == f"Invalid arguments for `t`: {said}"


def test_C9_of_a_tagged_union_the_form_that_was_meant_is_told() -> None:
    cat = {
        "type": "object",
        "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
        "required": ["kind"],
    }
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}, "required": ["kind"]}
    pet = check({"pet": {"oneOf": [cat, dog]}})
    assert refusal(pet, {"pet": {"kind": "dog", "name": 1}}).endswith("`pet.name` must be a string, not 1")
    assert refusal(pet, {"pet": {"kind": "cow"}}).endswith('`pet.kind` must be one of "cat", "dog", not "cow"')


def test_C9_several_errors_are_listed_five_at_most() -> None:
    many = check({name: {"type": "integer"} for name in "abcdefg"})
    assert refusal(many, {"a": "", "b": ""}).splitlines() == [
        "Invalid arguments for `t`:",
        '- `a` must be an integer, not ""',
        '- `b` must be an integer, not ""',
    ]
    lines = refusal(many, dict.fromkeys("abcdefg", "")).splitlines()
    assert len(lines) == 7
    assert lines[-1] == "- …and more"


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    "arguments",
    [
        {"p": "x" * MEGABYTE},
        {"p": [1] * (MEGABYTE // 3)},
        {"p": {"k" * MEGABYTE: 1}},
        {"x" * MEGABYTE: 1},
        {f"{name:060}": 1 for name in range(MEGABYTE // 70)},
        {"p": {f"{name:060}": "" for name in range(MEGABYTE // 70)}},
    ],
    ids=["string", "array", "key", "name", "names", "keys"],
)
def test_C9_the_error_stays_short_however_long_the_arguments(arguments: dict[str, Any]) -> None:
    strings = {"type": "array", "items": {"type": "string"}}
    typed = {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"maxLength": 9}}
    long = check({"p": {"anyOf": [strings, typed]}})
    started = time.thread_time()
    assert len(refusal(long, arguments)) < 800
    # The validator alone takes 4 s of the processor to list a third of a million errors.
    assert time.thread_time() - started < 2


def test_C9_an_enum_of_many_values_is_shown_in_part() -> None:
    said = refusal(check({"p": {"enum": [f"{'v' * 50}{number}" for number in range(5000)]}}), {"p": "x"})
    assert len(said) < 800
    assert '…, not "x"' in said


@pytest.mark.parametrize(
    "value", [{1: 2}, {"k": {1, 2}}, {"k": b"x"}, {"k": "\ud800"}], ids=["key", "set", "bytes", "surrogate"]
)
def test_C9_what_is_not_json_is_an_error_and_no_exception(value: Any) -> None:
    assert "cannot be written as JSON" in refusal(check({"p": {"type": "string"}}), {"p": value})


def test_C9_a_text_nested_without_end_is_an_error_and_no_exception() -> None:
    tree = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    nested = check({"p": {"$ref": "#/$defs/Tree"}}, defs={"Tree": tree})
    assert "must be an array" in refusal(nested, {"p": "[" * 100_000})
    assert refusal(nested, {"p": "[" * 700 + "1" + "]" * 700})


@pytest.mark.parametrize(
    ("own", "given", "blamed"),
    [
        ({"not": {"type": "string"}, "contains": {}}, "x", "not"),
        ({"contains": {"type": "string"}, "not": {"type": "object"}}, [1], "contains"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, "if"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "dependentRequired"),
        ({"propertyNames": {"maxLength": 1}}, {"aa": 1}, "propertyNames"),
        (
            {"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": False},
            {"a": 1},
            "patternProperties",
        ),
        ({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 2, "oneOf"),
    ],
)
def test_C9_the_keyword_is_named_where_there_are_no_better_words(own: Schema, given: Any, blamed: str) -> None:
    assert f"`p` does not satisfy `{blamed}` of the schema" in refusal(check({"p": own}), {"p": given})


def test_C9_a_name_unknown_to_all_forms_of_a_nested_object_is_told() -> None:
    own = {"oneOf": [{"$ref": "#/$defs/A"}], "unevaluatedProperties": False}
    nested = check({"p": own}, defs={"A": {"properties": {"a": {}}, "required": ["a"]}})
    assert refusal(nested, {"p": {"a": 1, "b": 2}}).endswith("unknown argument `p.b`; known: `a`")


def test_C9_properties_of_two_forms_at_once_are_refused() -> None:
    schema = {
        "type": "object",
        "oneOf": [
            {"properties": {"a": {}}, "required": ["a"], "not": {"required": ["b"]}},
            {"properties": {"b": {}}, "required": ["b"], "not": {"required": ["a"]}},
        ],
    }
    assert "does not satisfy `not`" in refusal(ArgumentCheck(schema, tool="t"), {"a": 1, "b": 2})
    loose = {
        "type": "object",
        "anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}}],
    }
    assert "does not satisfy `unevaluatedProperties`" in refusal(ArgumentCheck(loose, tool="t"), {"a": 1, "b": 2})


def test_C9_old_drafts_are_read_as_they_mean() -> None:
    old: Schema = {"type": "object", "properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}}
    draft4 = ArgumentCheck({"$schema": "http://json-schema.org/draft-04/schema#", **old}, tool="t")
    assert draft4({"n": 1}) == {"n": 1}
    assert refusal(draft4, {"n": 0}) == "Invalid arguments for `t`: `n` must be greater than 0; it is 0"
    old["properties"] = {"list": {"type": "array", "items": [{"type": "string"}]}}
    draft4 = ArgumentCheck({"$schema": "http://json-schema.org/draft-04/schema#", **old}, tool="t")
    assert refusal(draft4, {"list": [1, 2]}) == "Invalid arguments for `t`: `list[0]` must be a string, not 1"


def test_C9_a_property_named_like_an_index_is_found() -> None:
    assert refusal(check({"7": {"type": "integer"}}), {"7": "x"}).endswith('must be an integer, not "x"')


def test_C1_a_schema_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="tool `t`: parameters are not a valid JSON Schema, at properties/a/type"):
        check({"a": {"type": "text"}})


# C10: null, defaults, text


def test_C10_null_for_an_optional_argument_that_is_not_nullable_means_left_out() -> None:
    mixed = check({"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}, "d": {"enum": ["x", None]}}, ())
    given = {"a": None, "b": None, "c": None, "d": None}
    assert mixed(given) == {"b": None, "c": None, "d": None}
    assert given == {"a": None, "b": None, "c": None, "d": None}


def test_C10_null_for_a_required_argument_is_an_error() -> None:
    assert refusal(check({"a": {"type": "string"}}, ("a",)), {"a": None}).endswith("`a` must be a string, not null")


@pytest.mark.parametrize(
    "own",
    [
        PLACE,
        {"$ref": "#/$defs/Place"},
        {"anyOf": [PLACE, {"type": "null"}]},
        {"allOf": [{"$ref": "#/$defs/Place"}]},
        {"oneOf": [{"type": "object", "required": ["other"]}, {"$ref": "#/$defs/Place"}]},
    ],
    ids=["object", "$ref", "nullable", "allOf", "oneOf"],
)
def test_C10_null_means_left_out_at_any_depth(own: Schema) -> None:
    deep = check({"p": own, "all": {"type": "array", "items": own}}, defs={"Place": PLACE})
    null = {"lat": 1, "name": None, "note": None}
    clean = {"lat": 1, "note": None}
    assert deep({"p": null, "all": [null, clean]}) == {"p": clean, "all": [clean, clean]}


def test_C10_a_union_is_read_by_the_form_that_fits_also_behind_odd_references() -> None:
    one = {
        "type": "object",
        "properties": {"tag": {"const": 1}, "x": {"type": ["string", "null"]}},
        "required": ["tag"],
    }
    two = {"type": "object", "properties": {"tag": {"$ref": "#/properties/tag"}, "x": {"type": "string"}}}
    union = check({"p": {"oneOf": [one, two]}, "tag": {"const": 2}})
    assert union({"p": {"tag": 1, "x": None}}) == {"p": {"tag": 1, "x": None}}
    assert union({"p": {"tag": 2, "x": None}}) == {"p": {"tag": 2}}


def test_C10_a_top_level_default_is_filled_in_and_a_deeper_one_is_not() -> None:
    schema = {
        "n": {"type": "integer", "default": 3},
        "tags": {"type": "array", "default": []},
        "none": {"type": "string", "default": None},
        "maybe": {"type": ["string", "null"], "default": None},
        "at": {"type": "object", "properties": {"x": {"default": 1}}},
    }
    filled = check(schema, ("n",))
    assert filled({"at": {}}) == {"at": {}, "n": 3, "tags": [], "maybe": None}
    assert filled({"n": 1, "tags": ["x"], "maybe": "y"}) == {"n": 1, "tags": ["x"], "maybe": "y"}
    assert filled({"tags": None, "none": None})["tags"] == []
    filled({})["tags"].append("mine")
    assert filled({})["tags"] == []


def test_C10_arguments_with_nothing_to_do_are_handed_on() -> None:
    arguments = {"a": "x"}
    assert check({"a": {"type": "string"}})(arguments) is arguments


def test_G3_json_text_is_decoded_where_only_an_object_or_an_array_will_do() -> None:
    free = check({"o": {"type": "object"}, "a": {"type": "array"}, "s": {"type": "string"}, "any": {}})
    sent = {"o": '{"k": [1]}', "a": " [1]", "s": "{}", "any": "[1]"}
    assert free({**sent, "s": None}) == {"o": {"k": [1]}, "a": [1], "any": "[1]"}
    assert free(sent) == {"o": {"k": [1]}, "a": [1], "s": "{}", "any": "[1]"}
    assert refusal(free, {"o": "[1]"}).endswith('`o` must be an object, not "[1]"')
    assert refusal(free, {"o": "{k}"}).endswith('`o` must be an object, not "{k}"')


def test_G3_a_mistake_inside_decoded_text_is_told_by_its_place() -> None:
    assert refusal(check({"at": PLACE}), {"at": '{"lat": "x"}'}).endswith('`at.lat` must be a number, not "x"')


# The checks of a tool


@pytest.mark.parametrize(
    ("action", "sent", "clean"),
    [
        ("spawn", {"command": "stage"}, {"command": "stage"}),
        ("fetch", {}, {}),
        ("apply", {}, {"input": None}),
        ("apply", {"input": {"k": 1}}, {"input": {"k": 1}}),
        ("abort", {}, {}),
    ],
)
def test_C10_an_action_drops_the_nulls_of_the_others(action: Action, sent: Schema, clean: Schema) -> None:
    everything = {"action": action, "id": "h", "command": None, "args": None, "input": None, **sent}
    assert check_for(GIT, action)(everything) == {"action": action, "id": "h", **clean}


def test_C10_the_nulls_of_other_actions_go_also_where_anything_is_taken() -> None:
    open_tool = Tool(
        name="t",
        runtime=NeverStarted(),
        parameters={"type": "object", "additionalProperties": True},
        actions=("spawn", "apply"),
    )
    assert check_for(open_tool, "spawn")({"action": "spawn", "id": "h", "x": None, "input": None}) == {
        "action": "spawn",
        "id": "h",
        "x": None,
    }


TERMINAL = replace(
    GIT,
    action_parameters={
        "fetch": {"view": {"enum": ["auto", "screen"]}},
        "apply": {"keys": {"type": "array", "items": {"type": "string"}}, "size": {"type": "object"}},
    },
)


@pytest.mark.parametrize(
    ("sent", "clean"),
    [
        ({"input": "x", "keys": None, "size": None}, {"input": "x"}),
        ({"input": None, "keys": ["UP"], "size": None}, {"keys": ["UP"]}),
        ({"input": None, "keys": None, "size": {"rows": 1}}, {"size": {"rows": 1}}),
        ({"input": None, "keys": ["UP"]}, {"keys": ["UP"]}),
        ({"input": None, "keys": None, "size": None}, {"input": None}),
        ({"input": None}, {"input": None}),
        ({"keys": ["UP"]}, {"keys": ["UP"]}),
        ({"input": "", "keys": ["UP"]}, {"input": "", "keys": ["UP"]}),
        ({}, {}),
    ],
)
def test_C10_null_input_ends_it_unless_apply_says_something_else(sent: Schema, clean: Schema) -> None:
    everything = {"action": "apply", "id": "h", "view": None, "command": None, **sent}
    assert check_for(TERMINAL, "apply")(everything) == {"action": "apply", "id": "h", **clean}


def test_C10_what_an_action_adds_is_optional_and_checked() -> None:
    fetch = check_for(TERMINAL, "fetch")
    assert fetch({"action": "fetch", "id": "h", "view": None}) == {"action": "fetch", "id": "h"}
    assert fetch({"action": "fetch", "id": "h", "view": "screen"})["view"] == "screen"
    assert refusal(fetch, {"action": "fetch", "id": "h", "view": "sreen"}).endswith(
        '`view` must be one of "auto", "screen", not "sreen"'
    )
    assert refusal(fetch, {"action": "fetch", "id": "h", "keys": ["UP"]}) == (
        "Invalid arguments for `git fetch`: `keys` goes with another `action`; `git fetch` takes `action`, `id`, `view`"
    )
    apply = check_for(TERMINAL, "apply")
    assert refusal(apply, {"action": "apply", "id": "h", "keys": 5}).endswith("`keys` must be an array, not 5")
    assert refusal(check_for(TERMINAL, "spawn"), {"action": "spawn", "id": "h", "command": "stage", "size": {}}) == (
        "Invalid arguments for `git spawn`: `size` goes with another `action`; "
        "`git spawn` takes `action`, `id`, `command`, `args`"
    )


def test_C2_spawn_without_id_says_so() -> None:
    assert refusal(check_for(GIT, "spawn"), {"action": "spawn", "command": "stage"}) == (
        "Invalid arguments for `git spawn`: missing `id`; required: `action`, `id`, `command`"
    )


def test_C1_an_argument_of_another_action_is_an_error_that_says_so() -> None:
    assert refusal(check_for(GIT, "fetch"), {"action": "fetch", "id": "h", "command": "stage"}) == (
        "Invalid arguments for `git fetch`: `command` goes with another `action`; `git fetch` takes `action`, `id`"
    )


def test_C1_one_shot_is_spawn_less_action_and_id() -> None:
    once = check_for(GIT, None)
    assert once({"command": "stage", "args": None}) == {"command": "stage"}
    assert refusal(once, {}) == "Invalid arguments for `git`: missing `command`; required: `command`"
    assert refusal(once, {"id": "h", "command": "stage"}) == (
        "Invalid arguments for `git`: `id` goes with another `action`; `git` takes `command`, `args`"
    )


def test_C1_without_actions_action_and_id_are_ordinary_arguments() -> None:
    plain = Tool(
        name="t",
        runtime=NeverStarted(),
        parameters={"type": "object", "properties": {"action": {"type": "integer"}, "id": {}}},
    )
    assert check_for(plain, None)({"action": 1, "id": [2]}) == {"action": 1, "id": [2]}


def test_C9_a_small_call_is_checked_in_microseconds() -> None:
    spawn = check_for(GIT, "spawn")
    arguments = {"action": "spawn", "id": "h", "command": "stage", "args": ["--patch"]}
    best = min(timeit.repeat(lambda: spawn(arguments), number=1000, repeat=5)) / 1000
    assert best < 5e-6


# G3: apply's input as text

CONFIRM = Question(id="q", text="Sure?", answer_type="Boolean")
CHOOSE = Question(id="q", text="Which?", answer_type={"Select": {"options": ["a", "b"]}})
WRITE = Question(id="q", text="What?", answer_type="Text")


@pytest.mark.parametrize(
    ("question", "sent", "meant"),
    [
        (CONFIRM, "true", True),
        (CONFIRM, " false ", False),
        (CONFIRM, True, True),
        (CONFIRM, "yes", "yes"),
        (CONFIRM, "1", "1"),
        (CHOOSE, "a", "a"),
        (CHOOSE, '"a"', "a"),
        (CHOOSE, '"c"', '"c"'),
        (WRITE, '"a"', '"a"'),
        (WRITE, "true", "true"),
        (WRITE, 1, 1),
        (CONFIRM, "[" * 100_000, "[" * 100_000),
    ],
)
def test_G3_text_that_is_json_of_the_questions_type_is_decoded(question: Question, sent: Any, meant: Any) -> None:
    decoded = decode_input(sent, question)
    assert decoded == meant
    assert type(decoded) is type(meant)


SECS = {"n": {"type": "integer", "maximum": 9}, "f": {"type": "number"}, "b": {"type": "boolean"}}


@pytest.mark.parametrize(
    "name, sent, read",
    [("n", "5", 5), ("n", " 5.0 ", 5), ("n", "1e0", 1), ("f", "0.5", 0.5), ("f", "-3", -3),
     ("b", "true", True), ("b", "False", False)],
)  # fmt: skip
def test_C9_text_is_read_where_the_schema_allows_no_string(name: str, sent: str, read: Any) -> None:
    taken: list[str] = []
    found = check(SECS)({name: sent}, taken)[name]
    assert (found, type(found)) == (read, type(read))
    assert taken == [f"`{name}`: {json.dumps(sent)} was read as {json.dumps(read)}"]


@pytest.mark.parametrize(
    "name, sent",
    [("n", "5 s"), ("n", "0x5"), ("n", "05"), ("n", "5.5"), ("n", ""), ("n", "true"), ("n", "٣"), ("f", "NaN"),
     ("f", "9" * 40), ("b", "1"), ("b", "yes"), ("b", "null")],
)  # fmt: skip
def test_C9_text_that_could_mean_something_else_is_refused(name: str, sent: str) -> None:
    assert f" must be {'true or false' if name == 'b' else 'a'}" in refusal(check(SECS), {name: sent})


@pytest.mark.parametrize("sent", ["12345678901234567.0", "1e30", "-9007199254740993.0"])
def test_C9_text_of_an_integer_that_a_float_cannot_hold_is_not_read_as_another_one(sent: str) -> None:
    whole = check({"n": {"type": "integer"}})
    assert " must be an integer" in refusal(whole, {"n": sent})
    assert whole({"n": "12345678901234567"}) == {"n": 12345678901234567}


TEXTS = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize("part", [TEXTS, {"anyOf": [TEXTS, {"type": "null"}]}, {"$ref": "#/$defs/texts"}])
@pytest.mark.parametrize("text", ["a", "5", "true", "a b", "{a}"])
def test_C9_a_lone_text_is_read_as_an_array_where_only_texts_are_allowed(part: dict[str, Any], text: str) -> None:
    taken: list[str] = []
    schema = {"type": "object", "properties": {"l": part}, "$defs": {"texts": TEXTS}}
    assert ArgumentCheck(schema, tool="t")({"l": text}, taken) == {"l": [text]}
    assert taken == [f"`l`: {json.dumps(text)} was read as [{json.dumps(text)}]"]


@pytest.mark.parametrize(
    "part, text",
    [(TEXTS, "[a"), (TEXTS, " "), (TEXTS | {"minItems": 2}, "a"), ({"type": "array"}, "a"),
     ({"type": "array", "items": {}}, "a"), ({"type": "array", "items": {"type": "integer"}}, "a"),
     ({"type": "array", "items": {"enum": ["b"]}}, "a"), ({"anyOf": [TEXTS, {"type": "object"}]}, "a")],
)  # fmt: skip
def test_C9_a_lone_text_that_could_mean_something_else_is_refused(part: dict[str, Any], text: str) -> None:
    assert "`l`" in refusal(check({"l": part}), {"l": text})


def test_C9_text_stays_text_where_a_string_is_allowed() -> None:
    either = check({"a": {"type": ["integer", "string"]}, "b": {}, "c": {"enum": [1, "1"]}})
    sent = {"a": "5", "b": "true", "c": "1", "extra": 1}
    assert "`extra`" in refusal(either, sent)
    taken: list[str] = []
    assert either({"a": "5", "b": "true", "c": "1"}, taken) == {"a": "5", "b": "true", "c": "1"} and not taken


def test_C9_a_number_out_of_range_is_refused_for_its_range() -> None:
    assert refusal(check(SECS), {"n": "10"}).endswith("`n` must be at most 9; it is 10")


def test_C9_text_is_read_inside_arrays_objects_and_unions_and_named_by_its_path() -> None:
    items = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}}
    nested = check({"o": {"type": "object", "properties": {"l": items}}, "free": {"type": "object"}})
    taken: list[str] = []
    sent = {"o": {"l": ["1", "false", 3]}, "free": '{"k": "1"}'}
    assert nested(sent, taken) == {"o": {"l": [1, False, 3]}, "free": {"k": "1"}}
    assert taken == [
        '`o.l[0]`: "1" was read as 1',
        '`o.l[1]`: "false" was read as false',
    ]  # a free object has to be text
