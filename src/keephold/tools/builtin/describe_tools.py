"""`describe_tools`: the whole description and the examples of tools that show only a summary (B8)."""

from collections.abc import Callable, Iterable
from typing import Any

from keephold.errors import ToolError
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.function import tool

DESCRIPTION = (
    "Get the full description and examples of tools, before you use one you are not sure about. The list of tools may "
    "show only their summaries. It runs nothing. Returns `name`, `description` and `examples` of each."
)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "string"}, "description": "Names of the tools, as listed."}
    },
    "required": ["tools"],
}


def describe_tools_tool(offered: Callable[[str], Iterable[Tool]]) -> Tool:
    """Make the tool; `offered` returns the tools of a conversation, which may come and go."""

    @tool(description=DESCRIPTION, parameters=PARAMETERS)
    async def describe_tools(call: Call, tools: list[str]) -> list[dict[str, Any]]:
        known = {each.name: each for each in offered(call.conversation)}
        unknown = [name for name in tools if name not in known]
        if unknown:
            raise ToolError(f"unknown tools: {', '.join(unknown)}; known are: {', '.join(known)}", code="unknown_tool")
        return [
            {"name": name, "description": known[name].description, "examples": list(known[name].examples)}
            for name in dict.fromkeys(tools)
        ]

    return describe_tools
