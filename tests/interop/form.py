"""Tools that ask their user by a form; configurations name them. `register` has twelve fields, and the others are those
that the conformance suite asks for."""

import json
from typing import Any

from pydantic import BaseModel
from tests.interop.asking import Choices, Defaults, Response

import keephold
from keephold import Call, Question

FIELDS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "minLength": 1},
    "email": {"type": "string", "format": "email"},
    "page": {"type": "string", "format": "uri"},
    "day": {"type": "string", "format": "date"},
    "colour": {"type": "string", "enum": ["red", "blue"]},
    "size": {"type": "string", "enum": ["s", "m", "l"], "default": "m"},
    "count": {"type": "integer", "minimum": 1},
    "floor": {"type": "integer", "default": 3},
    "weight": {"type": "number"},
    "rate": {"type": "number", "default": 0.5},
    "sure": {"type": "boolean"},
    "loud": {"type": "boolean", "default": False},
}
REQUIRED = ["name", "email", "colour", "count", "sure"]
FILLED_IN = {
    "name": "Ada", "email": "ada@example.org", "page": "https://example.org/", "day": "2026-01-02", "colour": "blue",
    "size": "m", "count": 7, "floor": 3, "weight": 1.5, "rate": 0.5, "sure": True, "loud": False,
}  # fmt: skip
"""The answer of the clients' users."""


@keephold.tool
async def register(call: Call) -> dict[str, Any]:
    """Register somebody: ask the user for everything."""
    form = {"Form": {"properties": FIELDS, "required": REQUIRED}}
    answer: dict[str, Any] = await call.ask(Question(id="person", text="Who comes?", answer_type=form))
    return answer


async def _filled_in(call: Call, message: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    form = {"Form": {"properties": schema["properties"], "required": schema.get("required", [])}}
    answer = await call.ask(Question(id="form", text=message, answer_type=form))
    return f"action=accept, content={json.dumps(answer)}"


@keephold.tool
async def test_elicitation(call: Call, message: str) -> str:
    """Ask the user."""
    return f"User response: {await _filled_in(call, message, Response)}"


@keephold.tool
async def test_elicitation_sep1034_defaults(call: Call) -> str:
    """Ask the user, with a default for everything."""
    return f"Elicitation result: {await _filled_in(call, 'Please provide user information', Defaults)}"


@keephold.tool
async def test_elicitation_sep1330_enums(call: Call) -> str:
    """Ask the user to choose."""
    return f"Elicitation completed: {await _filled_in(call, 'Please select values', Choices)}"


FORMS = (test_elicitation, test_elicitation_sep1034_defaults, test_elicitation_sep1330_enums)
