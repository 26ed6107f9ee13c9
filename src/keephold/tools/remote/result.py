"""A server's result as the outcome of a call: text, JSON, or an error. Nothing is dropped."""

from typing import Any

import mcp.types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from keephold.errors import ToolError
from keephold.tools.remote.server import McpServer

_LOST = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)
_HTTP_TROUBLE = (types.INTERNAL_ERROR, "Server returned an error response")
"""How `mcp` words a response with an error status and no JSON-RPC in it: from a proxy, or an overloaded server."""


def value_of(result: types.CallToolResult) -> Any:
    """Return the value of a result: its structured content, else its text. Raises `ToolError` for an error."""
    text = "\n".join(_shown(part) for part in result.content)
    if result.is_error:
        raise ToolError(text or "The tool failed and did not say why.")
    if "structured_content" not in result.model_fields_set or result.structured_content is None:
        return text
    structured = result.structured_content
    other = [_shown(part) for part in result.content if not isinstance(part, types.TextContent)]
    if other:
        return {"structuredContent": structured, "content": other}
    # A server that only wraps a text in an object does not add anything by it.
    return text if structured == {"result": text} else structured


def _shown(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent():
            return f"[image {part.mime_type}, {_size(part.data)}]"
        case types.AudioContent():
            return f"[audio {part.mime_type}, {_size(part.data)}]"
        case types.ResourceLink():
            about = f" ({part.mime_type})" if part.mime_type else ""
            return f"[resource {part.name}{about}: {part.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return f"[resource {resource.uri}]\n{resource.text}"
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            return f"[resource {resource.uri}, {resource.mime_type or 'binary'}, {_size(resource.blob)}]"
    return f"[{part.type}]"


def _size(base64: str) -> str:
    """Return the size of base64 data, for people."""
    count = len(base64.rstrip("=")) * 3 // 4
    return f"{count} bytes" if count < 1024 else f"{-(-count // 1024)} KiB"


def is_lost(error: MCPError) -> bool:
    """Whether the error says that the server was not reached or is gone, so that trying again may help."""
    return error.code in _LOST or (error.code, error.message) == _HTTP_TROUBLE


def failure(server: McpServer, error: Exception) -> ToolError:
    """Return the error of a call that the server refused, or answered in an invalid form."""
    if isinstance(error, MCPError):
        text = f"MCP server `{server.name}` answered with an error: {error.message} ({error.code})"
    elif isinstance(error, ValidationError):
        text = f"MCP server `{server.name}` answered with something that is no result of a tool"
    else:
        text = f"MCP server `{server.name}`: {error}"
    return ToolError(server.without_secrets(text), code="mcp_error")
