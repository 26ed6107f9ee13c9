"""Read and check the parameters of clients' requests, and list sessions."""

import base64
import os
import re
from typing import Any

import msgspec

from keephold.acp.agent.session import Client, Signal
from keephold.acp.rpc import TURN_COMPLETE, Params, invalid_params
from keephold.errors import ConfigError
from keephold.store.base import ConversationRow
from keephold.text import instant
from keephold.tools.remote.server import McpServer, mcp_server


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
