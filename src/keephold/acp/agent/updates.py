"""The objects of `session/update` in ACP. Nothing is sent from here."""

from typing import Any

from keephold.text import instant

Update = dict[str, Any]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def message(value: str, id: str) -> Update:
    return {"sessionUpdate": "agent_message_chunk", "content": text(value), "messageId": id}


def thought(value: str, id: str) -> Update:
    return {"sessionUpdate": "agent_thought_chunk", "content": text(value), "messageId": id}


def user_message(block: dict[str, Any], id: str) -> Update:
    return {"sessionUpdate": "user_message_chunk", "content": block, "messageId": id}


def tool_call(id: str, fields: dict[str, Any]) -> Update:
    return {"sessionUpdate": "tool_call", "toolCallId": id, **fields}


def tool_call_update(id: str, fields: dict[str, Any]) -> Update:
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, **fields}


def usage(used: int, size: int, cost: float | None) -> Update:
    """The used context, and the session's cost in US dollars, if known."""
    told: Update = {"sessionUpdate": "usage_update", "used": used, "size": size}
    return told if cost is None else {**told, "cost": {"amount": cost, "currency": "USD"}}


def session_info(title: str, at: float) -> Update:
    return {"sessionUpdate": "session_info_update", "title": title, "updatedAt": instant(at)}


def select(id: str, name: str, value: str, options: list[dict[str, Any]]) -> dict[str, Any]:
    """An option of a session whose category is its id: `mode` or `model`."""
    told = {"id": id, "name": name, "category": id, "type": "select"}
    return {**told, "currentValue": value, "options": options}


def config_options(options: list[dict[str, Any]]) -> Update:
    return {"sessionUpdate": "config_option_update", "configOptions": options}


def current_mode(mode: str) -> Update:
    return {"sessionUpdate": "current_mode_update", "currentModeId": mode}


def turn_complete(request: str, stop_reason: str) -> Update:
    """`turn_complete` as an update, for clients that ask for that form (X2)."""
    return {"sessionUpdate": "turn_complete", "promptRequestId": request, "stopReason": stop_reason}


def shown_text(value: str) -> dict[str, Any]:
    return {"type": "content", "content": text(value)}


def shown_diff(path: str, old: str | None, new: str) -> dict[str, Any]:
    """A change of a file as content of a tool call; `old` is None for a new file."""
    return {"type": "diff", "path": path, "oldText": old, "newText": new}


def shown_terminal(id: str) -> dict[str, Any]:
    return {"type": "terminal", "terminalId": id}


def fenced(value: str) -> str:
    """Return text for verbatim display by a client that renders Markdown."""
    fence = "```"
    while fence in value:
        fence += "`"
    return f"{fence}\n{value.rstrip()}\n{fence}"
