"""Forms of elicitation as questions (M6): the question that asks a form, and the content that its answer becomes."""

from typing import Any

import pytest

from keephold.handles.form import form_from
from keephold.handles.question import Question
from keephold.tools.remote.asking import question_of


def form(required: list[str] | None = None, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def asked(message: str, schema: dict[str, Any]) -> Question:
    return question_of(message, form_from(schema))[0]


def content(schema: dict[str, Any], answer: Any) -> dict[str, Any] | None:
    return question_of("", form_from(schema))[1](answer)


def test_a_single_field_is_asked_in_the_words_of_the_message() -> None:
    question = asked("Delete it?", form(sure={"type": "boolean", "description": "Really."}))
    assert (question.id, question.text, question.pre_amble) == ("sure", "Delete it?", "Really.")
    assert question.answer_type == "Boolean"


@pytest.mark.parametrize(
    "table",
    [
        {"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]},
        {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]},
    ],
)
def test_choices_are_shown_by_their_titles_and_mean_their_values(table: dict[str, Any]) -> None:
    question = asked("Colour?", form(colour={**table, "default": "b"}))
    assert question.answer_type == {"Select": {"options": ["Red", "Blue"]}} and question.default == "Blue"
    assert content(form(colour=table), "Red") == {"colour": "r"}


def test_titles_that_are_not_all_different_are_not_shown() -> None:
    table = {"type": "string", "enum": ["r", "b"], "enumNames": ["Colour", "Colour"]}
    assert asked("Colour?", form(colour=table)).answer_type == {"Select": {"options": ["r", "b"]}}


def test_a_default_of_another_type_is_dropped() -> None:
    assert asked("Name?", form(name={"type": "string", "default": 3})).default is None


@pytest.mark.parametrize(
    "schema",
    [
        form(age={"type": "integer"}),
        form(mail={"type": "string", "format": "email"}),
        form([], name={"type": "string"}),
        form(name={"type": "string"}, old={"type": "boolean"}),
        form(tags={"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}),
    ],
)
def test_any_other_form_is_one_question_with_fields(schema: dict[str, Any]) -> None:
    question = asked("Who?", schema)
    assert (question.id, question.text) == ("form", "Who?")
    assert question.answer_type["Form"]["properties"].keys() == schema["properties"].keys()


def test_defaults_of_required_fields_fill_an_answer_and_are_the_default_if_they_suffice() -> None:
    schema = form(["name", "age"], name={"type": "string"}, age={"type": "integer", "default": 3})
    assert content(schema, {"name": "Rose"}) == {"name": "Rose", "age": 3}
    assert asked("Who?", schema).default is None
    assert asked("Who?", form(["age"], name={"type": "string"}, age=schema["properties"]["age"])).default == {"age": 3}


def test_optional_fields_that_cannot_be_asked_are_left_out() -> None:
    question = asked("Who?", form(["name"], name={"type": "string"}, pet={"type": "object"}))
    assert question.id == "name"


@pytest.mark.parametrize(
    "table", [{"type": "object"}, {"type": "array", "items": {}}, {"type": "string", "enum": []}, {}, True]
)
def test_required_fields_that_cannot_be_asked_are_refused_by_name(table: Any) -> None:
    with pytest.raises(ValueError, match="texts, numbers, booleans and choices, and `age` is none of these"):
        form_from(form(age=table))


def test_a_form_without_fields_is_confirmed() -> None:
    question, read = question_of("Go?", form_from({"type": "object", "properties": {}}))
    assert (question.id, question.answer_type, read(True), read(False)) == ("confirm", "Boolean", {}, None)
