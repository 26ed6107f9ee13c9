"""What clients send with their requests, read and checked, and what sessions are listed as."""

import base64
import os
from typing import Any

import msgspec

from holdfast.acp.sessions import Client, Signal
from holdfast.acp.updates import time_of
from holdfast.acp.wire import INVALID_PARAMS, Params, RpcError
from holdfast.store.base import ConversationRow

SIGNAL = "holdfast/turnComplete"
"""In `_meta` of capabilities: that the end of a turn is told, or how it is to be (X2)."""


def client_of(said: dict[str, Any], signal: Signal) -> Client:
    """What a client can do. One that asks for the seed's form of the signal gets it, unless signals are off (X2)."""
    elicitation, meta = said.get("elicitation"), said.get("_meta")
    wanted = meta.get(SIGNAL, "extension") if isinstance(meta, dict) else "extension"
    if signal == "extension" and wanted not in ("extension", None, False):
        signal = "update"
    forms = isinstance(elicitation, dict) and elicitation.get("form") is not None
    return Client(terminals=said.get("terminal") is True, forms=forms, signal=signal)


def string(params: Params, key: str) -> str:
    """A parameter that must be there."""
    value = params.get(key)
    if not isinstance(value, str) or not value:
        raise wrong(f"`{key}` must be a string")
    return value


def directory(params: Params) -> str:
    """The working directory of a session, and the check of what else comes with it."""
    cwd, servers = string(params, "cwd"), params.get("mcpServers")
    if not cwd.startswith("/"):
        raise wrong(f"`cwd` must be an absolute path, not `{cwd}`")
    if servers:
        names = ", ".join(str(each.get("name")) for each in servers if isinstance(each, dict))
        where = "name them in holdfast.toml: [mcp.servers.NAME]"
        raise wrong(f"MCP servers are not taken from clients ({names}); {where}")
    return normal(cwd)


def normal(path: str) -> str:
    """A directory by one name."""
    return os.path.normpath(path)


def cursor_of(cursor: Any) -> tuple[float, str] | None:
    """Where a list goes on."""
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(str(cursor)), type=tuple[float, str])
    except (ValueError, msgspec.DecodeError):
        raise wrong("`cursor` is not one that `session/list` gave") from None


def is_session(row: ConversationRow) -> bool:
    """What was begun in a directory and has something to show. Conversations of sub-agents have no directory."""
    return isinstance(row.metadata.get("cwd"), str) and row.lines > 0


def next_cursor(row: ConversationRow) -> str:
    """What a client asks with for the sessions after this one."""
    return base64.urlsafe_b64encode(msgspec.json.encode((row.updated, row.id))).decode()


def listed(row: ConversationRow) -> dict[str, Any]:
    """A session as `session/list` shows it."""
    title = row.metadata.get("title")
    told = {"sessionId": row.id, "cwd": row.metadata["cwd"], "updatedAt": time_of(row.updated)}
    return {**told, "title": title} if isinstance(title, str) else told


def wrong(why: str) -> RpcError:
    """The answer to parameters that cannot be taken."""
    return RpcError(INVALID_PARAMS, f"Invalid params: {why}")
