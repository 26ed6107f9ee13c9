"""Tools and results as MCP writes them (M1): descriptions for `tools/list`, answers for `tools/call`."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from mcp_types import CallToolResult, TextContent, ToolAnnotations, ToolExecution
from mcp_types import Tool as Described

from holdfast.schema.dialects import tool_list
from holdfast.tools.base import Tool
from holdfast.turn.notifications import Notification, notification_block

Schema = Literal["generic", "canonical"]


def described(tools: Sequence[Tool], schema: Schema) -> list[Described]:
    """The tools, as `tools/list` has them."""
    return [_described(tool, shown) for tool, shown in zip(tools, tool_list(tools, schema), strict=True)]


def may_be_task(tool: Tool) -> bool:
    """Whether calls of a tool may be tasks at all."""
    return tool.task != "never" and tool.launching is None and tool.source != "builtin"


def _described(tool: Tool, shown: dict[str, Any]) -> Described:
    support: Literal["forbidden", "optional", "required"] = "optional" if may_be_task(tool) else "forbidden"
    if tool.task == "required":
        support = "required"
    return Described(
        name=tool.name,
        title=tool.hints.get("title"),
        description=shown["description"],
        input_schema=shown["parameters"],
        output_schema=dict(tool.returns) if tool.returns is not None and not tool.actions else None,
        annotations=ToolAnnotations.model_validate(dict(tool.hints)) if tool.hints else None,
        execution=ToolExecution(task_support=support),
    )


def result(tool: Tool | None, text: str, is_error: bool, news: Sequence[Notification] = ()) -> CallToolResult:
    """What a call is answered with; news rides on it as a text of its own (M5)."""
    content: list[Any] = [TextContent(type="text", text=text)]
    if news:
        content.append(TextContent(type="text", text=notification_block(news)))
    structured = None if is_error or tool is None or tool.returns is None or tool.actions else _structured(text)
    return CallToolResult(content=content, structured_content=structured, is_error=is_error)


def _structured(text: str) -> Any:
    """The object that a text is the JSON of. It was cut, if at all, in its strings (O3)."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None
