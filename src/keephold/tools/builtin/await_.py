"""`await`: block until handles have stopped, have printed a line or are ready (A)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from keephold.errors import ToolError
from keephold.handles.state import Reply
from keephold.handles.view import Waited
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.function import tool

DESCRIPTION = (
    "Block until stateful tool handles reach completion. Use `any` to wait for the first handle to finish, `all` to "
    "wait for every handle to finish, or both to combine conditions. Use it for tools that you started in the "
    "background; never poll. Returns `completed` with results, and `pending`; early, with `needs_input`, if all that "
    "is pending needs your input."
)
_LONGEST = 10**9
"""Seconds, about 30 years."""
_IDS = {"type": "array", "items": {"type": "string"}}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "any": {
            **_IDS,
            "description": "Handle IDs. Returns when at least one of these handles reaches 'stopped'.",
        },
        "all": {
            **_IDS,
            "description": "Handle IDs. Returns when every one of these handles reaches 'stopped'.",
        },
        "output": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "pattern": {"type": "string", "description": "RE2, searched in each line."},
                },
                "required": ["id", "pattern"],
            },
            "description": "Returns when each has printed a matching line or stopped; `matched` is the line.",
        },
        "ready": {
            **_IDS,
            "description": "Returns when each is ready or has stopped.",
        },
        "timeout_secs": {
            "type": "integer",
            "description": "Maximum seconds to wait. If exceeded, returns with current handle states. "
            "Omit for no timeout.",
        },
    },
    "anyOf": [{"required": [name]} for name in ("any", "all", "output", "ready")],
}


_ENTRY = {"type": "object", "properties": {"id": {"type": "string"}, "state": {"type": "string"}}, "required": ["id"]}
RETURNS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "completed": {"type": "array", "items": _ENTRY, "description": "Those that have stopped, with their results."},
        "pending": {"type": "array", "items": _ENTRY},
        "timed_out": {"type": "boolean"},
        "needs_input": {"type": "boolean", "description": "All that are pending wait for you."},
    },
    "required": ["completed", "pending"],
}


def await_tool(show: Callable[[Waited], Reply]) -> Tool:
    """Make the tool; `show` makes the reply from the result of a wait (A3)."""

    @tool(name="await", description=DESCRIPTION, parameters=PARAMETERS, scheduling="synchronising")
    async def await_(
        call: Call,
        any: list[str] | None = None,
        all: list[str] | None = None,
        output: list[dict[str, str]] | None = None,
        ready: list[str] | None = None,
        timeout_secs: float | None = None,
    ) -> Reply:
        if not any and not all and not output and not ready:
            raise ToolError("At least one handle ID required", code="invalid_arguments")
        waited = await call.handles.wait(
            all=all or (),
            any=any or (),
            output=output or (),
            ready=ready or (),
            timeout=call.handles.within(timeout_secs),
            on_progress=call.pass_on,
        )
        return show(waited)

    bounds = {"timeout_secs": {"minimum": 0, "maximum": _LONGEST}}
    return replace(
        await_, unrecorded=True, returns=RETURNS, bounds=bounds, hints={"readOnlyHint": True, "openWorldHint": False}
    )
