"""Questions with several fields (Q1): which answers fit, how typed texts are read, and which schemas are kept."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keephold import Question
from keephold.handles.form import as_typed, form_from, label_of, problem_of, read_form
from keephold.handles.question import answer_fits, expected, form_answer, problem_with, question_form

FIELDS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 2, "title": "Your name"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "mail": {"type": "string", "format": "email"},
    "born": {"type": "string", "format": "date"},
    "pay": {"type": "number"},
    "sure": {"type": "boolean", "default": True},
    "colour": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]},
    "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "maxItems": 1},
}
ASKED = Question(id="f", text="Who?", answer_type={"Form": {"properties": FIELDS, "required": ["name", "age", "sure"]}})
FORM = ASKED.answer_type["Form"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"name": "Rose", "age": 3}, None),
        ({"name": "Rose", "age": 3, "tags": ["x"], "mail": "a@example.org", "born": "2020-02-29"}, None),
        ({"age": 3}, '"name" is a required property'),
        ({"name": "Rose", "age": "3"}, "`age`: "),
        ({"name": "Rose", "age": True}, "`age`: "),
        ({"name": "Rose", "age": 3.5}, "`age`: "),
        ({"name": "Rose", "age": 151}, "`age`: 151 is greater than the maximum of 150"),
        ({"name": "R", "age": 3}, "`name`: "),
        ({"name": "Rose", "age": 3, "mail": "nobody"}, '`mail`: "nobody" is not an email address'),
        ({"name": "Rose", "age": 3, "born": "29 February"}, "`born`: "),
        ({"name": "Rose", "age": 3, "colour": "Red"}, "`colour`: "),
        ({"name": "Rose", "age": 3, "tags": ["x", "y"]}, "`tags`: "),
        ({"name": "Rose", "age": 3, "more": 1}, "more"),
        (
            "Rose",
            "the answer must be an object with the fields `name` (text, required), `age` (whole number, required)",
        ),
    ],
)
def test_Q1_an_answer_fits_its_fields(answer: Any, problem: str | None) -> None:
    assert answer_fits(ASKED, answer) is (problem is None)
    if problem is not None:
        assert problem in problem_with(ASKED, answer)


def test_Q1_a_form_is_kept_and_shown_as_the_schema_that_it_is() -> None:
    assert msgspec.json.decode(msgspec.json.encode(ASKED), type=Question) == ASKED
    message, schema = question_form(ASKED, "wrong")
    assert message == "wrong\n\nWho?" and schema == {"type": "object", **FORM}
    assert form_answer(ASKED, {"name": "Rose", "pay": None}) == {"name": "Rose"}
    assert "`colour` (one of " in expected(ASKED)


def test_Q1_typed_texts_are_read_by_type() -> None:
    typed = {
        "name": "Rose",
        "age": " 7",
        "pay": "1.5",
        "sure": "no",
        "colour": "Blue",
        "tags": "y",
        "mail": "",
        "x": "1",
    }
    assert read_form(FORM, typed) == {
        "name": "Rose",
        "age": 7,
        "pay": 1.5,
        "sure": False,
        "colour": "b",
        "tags": ["y"],
    }
    assert read_form(FORM, {"colour": "2", "age": "old", "pay": "inf"}) == {"colour": "b", "age": "old", "pay": "inf"}
    assert [as_typed(value) for value in (True, 1.5, ["a", "b"], "x")] == ["true", "1.5", "a, b", "x"]
    assert label_of("age", FIELDS["age"], False) == "age (whole number, at least 0, at most 150, optional)"


def test_K6_keywords_of_foreign_schemas_that_could_do_harm_are_dropped() -> None:
    wild = {"type": "string", "pattern": "(a+)+$", "$ref": "http://example.org", "format": "regex", "title": 3}
    form = form_from({"properties": {"a": {**wild, "default": 3}}, "required": ["a", "b"]})
    assert form == {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    with pytest.raises(ValueError, match="may have 100 fields, and this one has 101"):
        form_from({"properties": {str(at): {"type": "string"} for at in range(101)}})
    odd = form_from({"properties": {"a": {"type": "integer", "minimum": "low", "maxLength": -1, "maximum": True}}})
    assert odd["properties"] == {"a": {"type": "integer"}}
    assert problem_of(odd, {"a": "\ud800"}) is not None


def test_K6_numbers_and_titles_that_no_validator_takes_are_dropped() -> None:
    """A person could not have answered such a question, and the model's answer failed with a traceback."""
    fields = {
        "a": {"type": "number", "minimum": float("inf"), "maximum": 10**400},
        "b": {"type": "string", "oneOf": [{"const": "x", "title": "\ud800"}, {"const": "y", "title": "Y"}]},
        "c": {"type": "string", "enum": ["x"], "enumNames": ["\ud800"]},
    }
    form = form_from({"properties": fields, "required": [*fields]})
    choice = {"type": "string", "enum": ["x"]}
    assert form["properties"] == {"a": {"type": "number"}, "b": {**choice, "enum": ["x", "y"]}, "c": choice}
    assert problem_of(form, {"a": 1, "b": "x", "c": "x"}) is None


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "string", "description": "x" * 70_000}},
        {"a" * 70_000: {"type": "string"}},
        {str(at): {"type": "string", "enum": [str(each) for each in range(1000)]} for at in range(100)},
    ],
)
def test_K6_a_form_does_not_fill_the_context_of_the_model(properties: Any) -> None:
    with pytest.raises(ValueError, match="may have 65536 bytes"):
        form_from({"properties": properties})


WORDS = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "email", "date", "", "\ud800"])
KEYS = st.sampled_from(
    ["type", "title", "default", "enum", "enumNames", "oneOf", "const", "format", "minimum", "items"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
FIELD = st.builds(lambda kind, more: {**more, "type": kind}, WORDS, st.dictionaries(KEYS, ANYTHING, max_size=4))


@given(properties=st.dictionaries(WORDS, FIELD | ANYTHING, max_size=4) | ANYTHING, required=ANYTHING, answer=ANYTHING)
def test_K6_a_hostile_form_is_refused_or_asked_and_never_breaks_the_call(
    properties: Any, required: Any, answer: Any
) -> None:
    try:
        form = form_from({"properties": properties, "required": required})
    except ValueError:
        return
    question = Question(id="f", text="Who?", answer_type={"Form": form})
    assert msgspec.json.decode(msgspec.json.encode(question), type=Question) == question
    for said in (answer, dict.fromkeys(form["properties"], answer)):
        assert answer_fits(question, said) or problem_with(question, said)
    read_form(form, dict.fromkeys(form["properties"], "1"))
