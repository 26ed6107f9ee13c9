"""How an editor first shows a call: its title, its kind, its files (X1).

A tool may set its kind: `hints={"kind": "edit"}`. Files are arguments whose schema has the format `path`, which a
`pathlib.Path` parameter has, or whose name looks like a path.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from keephold.characters import exact
from keephold.errors import ConfigError
from keephold.schema.shared import HANDLE_TOOLS, action_of
from keephold.text import to_json
from keephold.tools.base import ACTIONS, Tool
from keephold.turn.tool_call import ToolCall

KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls in ACP."""

_PATHS = ("path", "file_path", "filepath")
_FORMATS = ("path", "file-path", "directory-path")
_LINES = ("line", "line_number")
_TITLE = 120
_VALUE = 60


class CallDescription(NamedTuple):
    """A call as it was made."""

    title: str
    kind: str
    action: str | None
    """None for a one-shot call."""
    handle_id: str | None
    """The handle that the call names."""
    fields: dict[str, Any]
    """The fields of ACP's tool call, without id and status."""


def describe(call: ToolCall, tool: Tool | None) -> CallDescription:
    """Return how an editor shows the call; `tool` is None if the tool is unknown."""
    arguments = _arguments(call)
    stateful = tool is not None and (tool.actions or tool.name in HANDLE_TOOLS)
    action, id = action_of(call.name, arguments) if stateful else (None, None)
    action = action if action in ACTIONS else None
    if action is None:
        id = arguments.get(tool.names or "") if tool is not None else None
    handle_id = id if isinstance(id, str) else None
    title, kind = title_of(call.name, tool, arguments, action, handle_id), kind_of(tool, action)
    fields: dict[str, Any] = {"title": title, "kind": kind, "rawInput": arguments or call.arguments}
    where = list(locations(tool, arguments)) if tool is not None else []
    if where:
        fields["locations"] = where
    return CallDescription(title, kind, action, handle_id, fields)


def _arguments(call: ToolCall) -> dict[str, Any]:
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        given = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return given if isinstance(given, dict) else {}


def check_kinds(tools: Iterable[Tool]) -> None:
    problems = [
        f"tool `{tool.name}`: the hint `kind` must be one of {', '.join(KINDS)}, not {tool.hints['kind']!r}"
        for tool in tools
        if tool.source != "mcp" and tool.hints.get("kind", "other") not in KINDS
    ]
    if problems:
        raise ConfigError(problems)


def kind_of(tool: Tool | None, action: str | None = None) -> str:
    if tool is None:
        return "other"
    hints = _own_hints(tool)
    said = hints.get("kind")
    if action == "fetch":
        return "read"
    if said in KINDS:
        return str(said)
    if tool.source in ("local", "terminal") or tool.kind == "workflow":
        return "execute"
    if tool.kind in ("agent", "timer") or tool.scheduling == "synchronising":
        return "think"
    return "read" if hints.get("readOnlyHint") else "other"


def _own_hints(tool: Tool) -> Mapping[str, Any]:
    """Return the hints to trust in a prompt: a foreign server could call anything a harmless read."""
    return {} if tool.source == "mcp" else tool.hints


def title_of(
    name: str, tool: Tool | None, arguments: Mapping[str, Any], action: str | None, handle_id: str | None
) -> str:
    """Return the call in one line: `build: cargo_check package=core`, `fetch build (cargo_check)`."""
    own = {key: value for key, value in arguments.items() if not (action and key in ("action", "id", "spawn"))}
    said = " ".join((name, *(f"{key}={_shortened(value)}" for key, value in own.items())))
    if action == "spawn":
        said = f"{handle_id}: {said}"
    elif action is not None:
        said = f"{action} {handle_id} ({name})" + (f" {_shortened(own['input'])}" if "input" in own else "")
    elif tool is not None and isinstance(_own_hints(tool).get("title"), str) and not own:
        said = tool.hints["title"]
    return clipped(said, _TITLE)


def clipped(said: str, most: int) -> str:
    """Return the text on one line of printable characters, at most that long."""
    line = exact(" ".join(said.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _shortened(value: Any) -> str:
    return clipped(value if isinstance(value, str) else to_json(value).decode(), _VALUE)


def locations(tool: Tool, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the files that the arguments name, as absolute paths: relative ones start at the tool's directory."""
    properties = tool.parameters.get("properties", {})
    line = next((arguments[key] for key in _LINES if type(arguments.get(key)) is int and arguments[key] >= 0), None)
    for key, value in arguments.items():
        schema = properties.get(key)
        if key not in _PATHS and not (isinstance(schema, Mapping) and _is_path(schema)):
            continue
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and path:
                where: dict[str, Any] = {"path": absolute(tool, path)}
                yield where if line is None else {**where, "line": line}


def absolute(tool: Tool, path: str) -> str:
    return os.path.normpath(Path(getattr(tool.runtime, "cwd", None) or Path.cwd()) / path)


def _is_path(schema: Mapping[str, Any]) -> bool:
    inside = [schema.get("items"), *(schema.get("anyOf") or ())]
    return schema.get("format") in _FORMATS or any(isinstance(each, Mapping) and _is_path(each) for each in inside)
