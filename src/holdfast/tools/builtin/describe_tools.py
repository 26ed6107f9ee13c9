"""`describe_tools`: the whole description and the examples of tools that show only a summary (B8)."""

from collections.abc import Sequence
from typing import Any

from holdfast.errors import ToolError
from holdfast.tools.base import Tool
from holdfast.tools.function import tool


def describe_tools_tool(tools: Sequence[Tool]) -> Tool:
    """The tool, for these."""
    known = {each.name: each for each in tools}

    @tool
    async def describe_tools(tools: list[str]) -> list[dict[str, Any]]:
        """Get the full description and examples of tools, before you use one you are not sure about.

        Args:
            tools: Names of the tools.
        """
        unknown = [name for name in tools if name not in known]
        if unknown:
            raise ToolError(f"unknown tools: {', '.join(unknown)}; known are: {', '.join(known)}", code="unknown_tool")
        return [
            {"name": name, "description": known[name].description, "examples": list(known[name].examples)}
            for name in dict.fromkeys(tools)
        ]

    return describe_tools
