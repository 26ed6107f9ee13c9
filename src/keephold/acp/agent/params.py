"""Read and check the parameters of clients' requests: capabilities, sessions, and prompts as content for a model."""

import base64
import binascii
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.acp.agent.shown import clipped
from keephold.acp.wire import TURN_COMPLETE, Params, invalid_params
from keephold.errors import ConfigError
from keephold.store.base import ConversationRow
from keephold.text import instant
from keephold.tools.remote.server import McpServer, mcp_server

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent

Signal = Literal["extension", "update", "off"]
"""How the end of a turn is signalled (X2)."""
TITLE = 80
"""Characters of a session's title."""


class Client(msgspec.Struct, frozen=True):
    """The client's capabilities, from its `initialize`."""

    terminals: bool = False
    forms: bool = False
    signal: Signal = "extension"


def client_of(said: dict[str, Any], signal: Signal) -> Client:
    """Return the client's capabilities. A client that asks for `turn_complete` as an update gets that form, unless
    signals are off (X2)."""
    elicitation, meta = said.get("elicitation"), said.get("_meta")
    wanted = meta.get(TURN_COMPLETE, "extension") if isinstance(meta, dict) else "extension"
    if signal == "extension" and wanted not in ("extension", None, False):
        signal = "update"
    forms = isinstance(elicitation, dict) and elicitation.get("form") is not None
    return Client(terminals=said.get("terminal") is True, forms=forms, signal=signal)


def string(params: Params, key: str) -> str:
    value = params.get(key)
    if not isinstance(value, str) or not value:
        raise invalid_params(f"`{key}` must be a string")
    return value


def directory(params: Params) -> str:
    cwd = string(params, "cwd")
    if not cwd.startswith("/"):
        raise invalid_params(f"`cwd` must be an absolute path, not `{cwd}`")
    return normal(cwd)


def directories(params: Params) -> tuple[str, ...]:
    """Return the additional directories of a session."""
    given = params.get("additionalDirectories") or []
    if not isinstance(given, list) or not all(isinstance(each, str) and each.startswith("/") for each in given):
        raise invalid_params("`additionalDirectories` must be a list of absolute paths")
    return tuple(dict.fromkeys(map(normal, given)))


def servers(params: Params) -> list[McpServer]:
    """Return the MCP servers that the client brings, to be started in the session's directory. Names that are the same
    for keephold are numbered."""
    given, cwd = params.get("mcpServers") or [], directory(params)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise invalid_params("`mcpServers` must be a list of servers")
    found: dict[str, McpServer] = {}
    try:
        for each in given:
            name = re.sub("[^A-Za-z0-9_-]", "-", str(each["name"]))[:64]
            numbered = (name, *(f"{name[:60]}-{number}" for number in range(2, len(given) + 1)))
            free = next(one for one in numbered if one not in found)
            found[free] = _server(free, each, cwd)
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise invalid_params(f"an MCP server that cannot be taken: {error}") from None
    return list(found.values())


def _server(name: str, given: dict[str, Any], cwd: str) -> McpServer:
    kind = given.get("type", "stdio")
    if kind == "http":
        return mcp_server(name, url=str(given["url"]), headers=_pairs(given.get("headers")))
    if kind != "stdio":
        raise ValueError(f"`{name}` is of type {kind!r}; there are stdio and http")
    command = (str(given["command"]), *map(str, given.get("args") or ()))
    return mcp_server(name, command=command, env=_pairs(given.get("env")), cwd=cwd)


def _pairs(listed: Any) -> dict[str, str]:
    return {str(each["name"]): str(each["value"]) for each in listed or ()}


def normal(path: str) -> str:
    return os.path.normpath(path)


def cursor_of(cursor: Any) -> tuple[float, str] | None:
    """Return the position where a list continues."""
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(str(cursor)), type=tuple[float, str])
    except (ValueError, msgspec.DecodeError):
        raise invalid_params("`cursor` is not one that `session/list` gave") from None


def is_session(row: ConversationRow) -> bool:
    """Return whether the conversation is a session with content. Conversations of sub-agents have no directory."""
    return isinstance(row.metadata.get("cwd"), str) and row.lines > 0


def next_cursor(row: ConversationRow) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((row.updated, row.id))).decode()


def listed(row: ConversationRow) -> dict[str, Any]:
    title = row.metadata.get("title")
    told: dict[str, Any] = {"sessionId": row.id, "cwd": row.metadata["cwd"], "updatedAt": instant(row.updated)}
    additional = row.metadata.get("additionalDirectories")
    if isinstance(additional, list) and additional:
        told["additionalDirectories"] = additional
    return {**told, "title": title} if isinstance(title, str) else told


def prompt_content(blocks: Any) -> "str | Sequence[UserContent]":
    """Return a prompt's content blocks for the model. Raises `RpcError` for one that cannot be used."""
    if not isinstance(blocks, list) or not blocks:
        raise invalid_params("`prompt` must be a list of content blocks with at least one")
    parts = [_content(block) for block in blocks]
    if all(isinstance(part, str) for part in parts):
        said = "\n\n".join(str(part) for part in parts)
        if not said.strip():
            raise invalid_params("the prompt is empty")
        return said
    return parts


def title_of(blocks: Sequence[Any]) -> str:
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    said = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return clipped(said.strip().splitlines()[0], TITLE) if said.strip() else "A session"


def _content(block: Any) -> "UserContent":
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            return _text(block, "text")
        case "image":
            return _binary(_text(block, "data"), _text(block, "mimeType"))
        case "resource_link":
            name = block.get("title") or block.get("name")
            return f"[{name}]({_text(block, 'uri')})" if name else _text(block, "uri")
        case "resource":
            return _resource(block.get("resource"))
        case "audio":
            raise invalid_params("audio is not taken (promptCapabilities.audio is false); send text or images")
    raise invalid_params(f"content of type {kind!r} is not known; there are text, image, resource_link and resource")


def _resource(resource: Any) -> "UserContent":
    if not isinstance(resource, dict):
        raise invalid_params("`resource` must be an object with `uri` and `text` or `blob`")
    uri = _text(resource, "uri")
    if "text" in resource:
        return f'<file uri="{uri}">\n{_text(resource, "text")}\n</file>'
    mime = resource.get("mimeType")
    return _binary(_text(resource, "blob"), mime if isinstance(mime, str) and mime else "application/octet-stream")


def _binary(data: str, mime: str) -> "UserContent":
    from pydantic_ai.messages import BinaryContent

    try:
        return BinaryContent(base64.b64decode(data, validate=True), media_type=mime)
    except (binascii.Error, ValueError):
        raise invalid_params("data must be base64") from None


def _text(block: dict[str, Any], key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise invalid_params(f"`{key}` of a {block.get('type', 'resource')} block must be a string")
    return value
