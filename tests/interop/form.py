"""A tool that asks its user for a form of twelve fields; a configuration names it."""

from typing import Any

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
