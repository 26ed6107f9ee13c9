"""The values of `keephold spawn`: text where the tool takes text, else JSON (L1)."""

from typing import Any

import pytest

from keephold.cli.spawn import _value


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("3", {"type": "integer"}, 3),
        ("3", {"type": "string"}, "3"),
        ("3", {"type": ["string", "integer"]}, "3"),
        ("3", {}, "3"),
        ("3", None, "3"),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
        ("3", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3"),
        ('["a"]', {"oneOf": [{"type": "array"}, {"type": "null"}]}, ["a"]),
        ("many", {"type": "integer"}, "many"),
    ],
)
def test_L1_a_value_is_text_where_the_tool_takes_text_else_json(text: str, schema: Any, value: object) -> None:
    assert _value(text, schema) == value
