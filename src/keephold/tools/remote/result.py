"""A server's result as the outcome of a call: text, JSON, or an error. Nothing is dropped."""

from typing import Any

import mcp.types as types
import msgspec
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from keephold.content import described, media
from keephold.errors import ToolError
from keephold.handles.state import Ok
from keephold.tools.remote.server import McpServer

_LOST = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)
_HTTP_TROUBLE = (types.INTERNAL_ERROR, "Server returned an error response")
"""How `mcp` words a response with an error status and no JSON-RPC in it: from a proxy, or an overloaded server."""


def outcome_of(result: types.CallToolResult) -> Ok:
    """Return a result as an outcome: its structured content, else its text, and the blocks that are not text.

    Raises `ToolError` for an error.
    """
    blocks = [part.model_dump(by_alias=True, mode="json", exclude_none=True) for part in result.content]
    shown = [described(block) for block in blocks]
    text = "\n".join(shown)
    if result.is_error:
        raise ToolError(text or "The tool failed and did not say why.")
    value: Any = text
    if "structured_content" in result.model_fields_set and result.structured_content is not None:
        structured = result.structured_content
        other = [said for said, block in zip(shown, blocks, strict=True) if block["type"] != "text"]
        if other:
            value = {"structuredContent": structured, "content": other}
        elif structured != {"result": text}:  # an object that only wraps the text does not add anything
            value = structured
    return Ok(value, media(blocks) or msgspec.UNSET)


def is_lost(error: MCPError) -> bool:
    """Whether the error says that the server was not reached or is gone, so that trying again may help."""
    return error.code in _LOST or (error.code, error.message) == _HTTP_TROUBLE


def failure(server: McpServer, error: Exception) -> ToolError:
    """Return the error of a call that the server refused, or answered in an invalid form."""
    if isinstance(error, MCPError):
        text = f"MCP server `{server.name}` answered with an error: {error.message} ({error.code})"
    elif isinstance(error, ValidationError):
        text = f"MCP server `{server.name}` answered with something that is not the result of a tool"
    else:
        text = f"MCP server `{server.name}`: {error}"
    return ToolError(server.without_secrets(text), code="mcp_error")
