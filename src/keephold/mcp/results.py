"""Tools and results as MCP writes them: descriptions for `tools/list`, answers for `tools/call` (M1)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from mcp_types import CallToolResult, TextContent, ToolAnnotations, ToolExecution
from mcp_types import Tool as Described

from keephold.handles.handle import Handle
from keephold.handles.state import Ok, Stopped
from keephold.schema.dialects import tool_list
from keephold.schema.shared import HANDLE_TOOLS, Presentation
from keephold.tools.base import Tool
from keephold.tools.toolbox import is_builtin
from keephold.turn.notifications import Notification, notification_block

SchemaForm = Literal["generic", "canonical"]
_NO_RESULT = ("aborted", "cancelled", "runtime_closed")
"""Codes of calls that ended without a result."""
_USUAL = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}
"""The hints that MCP takes for granted."""
_WITH_CONTENT = {"structuredContent", "content"}
"""The keys of a foreign result that has an object and images."""
_ROOTS = frozenset(("anyOf", "oneOf", "allOf", "$ref", "not", "if"))
"""Keywords at the root of a schema that providers refuse, or that say what an object must have."""


def described(tools: Sequence[Tool], schema: SchemaForm, actions: Presentation | None = None) -> list[Described]:
    """Return the tools for `tools/list`; `actions` is how stateful ones are shown (G5)."""
    known = {**HANDLE_TOOLS, **{tool.name: tool for tool in tools}}
    return [_described(known[shown["name"]], shown) for shown in tool_list(tools, schema, actions)]


def may_be_task(tool: Tool) -> bool:
    return tool.task != "never" and tool.launching is None and tool.source != "builtin"


def _described(tool: Tool, shown: dict[str, Any]) -> Described:
    support: Literal["optional", "required"] | None = "optional" if may_be_task(tool) else None  # None: forbidden
    if tool.task == "required":
        support = "required"
    foreign = tool.source == "mcp"
    hints = {
        name: hint for name, hint in tool.hints.items() if name != "title" and (foreign or _USUAL.get(name) is not hint)
    }
    return Described(
        name=tool.name,
        title=tool.hints.get("title"),
        description=shown["description"],
        input_schema=dict(tool.parameters) if foreign and _plain(tool) else shown["parameters"],
        output_schema=_form(tool),
        annotations=ToolAnnotations.model_validate(hints) if hints else None,
        execution=None if support is None else ToolExecution(task_support=support),
    )


def _plain(tool: Tool) -> bool:
    """Return whether a client gets the schema of a foreign tool as its server wrote it: it is one-shot, and its root is
    not a union, which providers refuse."""
    return not tool.actions and not _ROOTS & tool.parameters.keys()


def result(
    tool: Tool | None,
    text: str,
    is_error: bool,
    notifications: Sequence[Notification] = (),
    *,
    code: str | None = None,
    content: Sequence[Mapping[str, Any]] = (),
) -> CallToolResult:
    """Return the answer to a call. Images and the like follow its text, and notifications as a text of their own (M5).

    A call that was ended has no result: that is an error to the client, though not the tool's (S3).
    """
    if code in _NO_RESULT:
        is_error = True
        if tool is not None and tool.errors == "object" and not text.startswith("{"):
            text = msgspec.json.encode({"error": text, "isError": True}).decode()
    parts: list[Any] = [TextContent(type="text", text=text), *content]
    if notifications:
        parts.append(TextContent(type="text", text=notification_block(notifications)))
    structured = None
    if not is_error and tool is not None and _form(tool) is not None:
        structured = _structured(tool, text)
        if content and structured.keys() == _WITH_CONTENT:
            structured = structured["structuredContent"]
    return CallToolResult(content=parts, structured_content=structured, is_error=is_error)


def content_of(handle: Handle | None) -> Sequence[Mapping[str, Any]]:
    """Return the images and the like that a call has returned."""
    outcome = handle.state.outcome if handle is not None and isinstance(handle.state, Stopped) else None
    return outcome.content or () if isinstance(outcome, Ok) else ()


def _form(tool: Tool) -> dict[str, Any] | None:
    """Return the schema of the answer. The tool's own object may be missing if the call is parked or the user skipped
    it, so nothing is required (P3, D10)."""
    if tool.returns is None or tool.actions or tool.returns.get("type") != "object" or _ROOTS & tool.returns.keys():
        return None
    if is_builtin(tool):
        return {"type": "object"}  # the fields would cost more tokens than the tool; its description says what matters
    return {key: value for key, value in tool.returns.items() if key not in ("required", "additionalProperties")}


def _structured(tool: Tool, text: str) -> dict[str, Any]:
    """Return the object that a text is the JSON of, cut in its strings (O3), or an object with the text."""
    known = (tool.returns or {}).get("properties") or {}
    if tool.source == "mcp" and known.keys() == {"result"} and known["result"].get("type") == "string":
        return {"result": text}
    try:
        shown = msgspec.json.decode(text)
    except msgspec.DecodeError:
        shown = None
    return shown if isinstance(shown, dict) else {} if "message" in known else {"message": text}
