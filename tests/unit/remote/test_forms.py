"""Forms of elicitation as questions (M6): which fields can be asked, and how they read."""

from typing import Any

import pytest

from keephold.tools.remote.asking import form_fields


def form(required: list[str] | None = None, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def test_a_single_field_is_asked_in_the_words_of_the_message() -> None:
    (field,) = form_fields("Delete it?", form(sure={"type": "boolean", "description": "For ever."})).values()
    question = field.question
    assert (question.id, question.text, question.pre_amble) == ("sure", "Delete it?", "For ever.")
    assert question.answer_type == "Boolean"


def test_several_fields_have_words_of_their_own_and_the_message_before_them() -> None:
    fields = form_fields("About you", form(name={"type": "string", "title": "Your name"}, old={"type": "boolean"}))
    assert [(each.question.text, each.question.pre_amble) for each in fields.values()] == [
        ("Your name", "About you"),
        ("old", "About you"),
    ]


@pytest.mark.parametrize(
    "table",
    [
        {"type": "string", "enum": ["r", "b"], "enumNames": ["Red", "Blue"]},
        {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": "Blue"}]},
    ],
)
def test_choices_are_shown_by_their_titles_and_mean_their_values(table: dict[str, Any]) -> None:
    (field,) = form_fields("Colour?", form(colour={**table, "default": "b"})).values()
    assert field.question.answer_type == {"Select": {"options": ["Red", "Blue"]}}
    assert field.question.default == "Blue"
    assert field.values == {"Red": "r", "Blue": "b"}


def test_titles_that_are_not_all_different_are_not_shown() -> None:
    table = {"type": "string", "enum": ["r", "b"], "enumNames": ["Colour", "Colour"]}
    (field,) = form_fields("Colour?", form(colour=table)).values()
    assert field.question.answer_type == {"Select": {"options": ["r", "b"]}}


def test_a_default_of_another_type_is_none() -> None:
    (field,) = form_fields("Name?", form(name={"type": "string", "default": 3})).values()
    assert field.question.default is None


def test_a_text_that_may_be_left_out_says_so() -> None:
    (field,) = form_fields("Name?", form([], name={"type": "string"})).values()
    assert field.question.text == "Name? (may be left empty)" and not field.required


def test_what_cannot_be_asked_is_left_out_if_it_may_be() -> None:
    fields = form_fields("Who?", form(["name"], name={"type": "string"}, age={"type": "integer"}))
    assert list(fields) == ["name"]


@pytest.mark.parametrize(
    "table", [{"type": "integer"}, {"type": "array", "items": {"enum": ["a"]}}, {"type": "string", "enum": []}, {}]
)
def test_what_must_be_given_and_cannot_be_asked_is_refused_with_its_name(table: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="booleans, choices and texts, and `age` is none of these"):
        form_fields("Who?", form(age=table))


def test_a_form_without_fields_has_none() -> None:
    assert form_fields("Go on?", {"type": "object", "properties": {}}) == {}
