"""One tool call that a client knows (X1): how an editor first shows it, its question, and its end in words and as data.

At first a call has a title, a kind and files. A tool may set its kind: `hints={"kind": "edit"}`. Files are arguments
whose schema has the format `path`, which a `pathlib.Path` parameter has, or whose name looks like a path.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from keephold.acp.agent.updates import fenced
from keephold.errors import ConfigError
from keephold.handles.form import fields_of, label_of
from keephold.handles.handle import Handle
from keephold.handles.question import Question, form_of, select_options
from keephold.handles.state import Failure, Ok, PrintedOutput, Reply, Stopped, Waiting
from keephold.schema.shared import HANDLE_TOOLS, action_of
from keephold.text import exact, to_json
from keephold.tools.base import ACTIONS, Tool
from keephold.turn.prompts import AskQuestion, DeliverResult, Prompt, RunTool
from keephold.turn.replies import Replies
from keephold.turn.tool_call import ToolCall

KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls in ACP."""

_PATHS = ("path", "file_path", "filepath")
_FORMATS = ("path", "file-path", "directory-path")
_LINES = ("line", "line_number")
_TITLE = 120
_VALUE = 60
ShownEnd = tuple[bool, str, Any]
"""Whether it failed, the words, and the data (`rawOutput`)."""


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


class ShownCall:
    """One tool call that the client knows."""

    __slots__ = (
        "action", "asked", "conversation", "diffs", "due", "handle", "handle_id", "id", "kind", "label", "note",
        "question", "renamed", "sent", "status", "terminal", "title", "tool",
    )  # fmt: skip

    def __init__(self, id: str, call: ToolCall, described: CallDescription, conversation: str) -> None:
        self.id = id
        self.label, self.tool = call.id, call.name
        self.title, self.kind, self.action, self.handle_id, _ = described
        self.conversation = conversation
        self.handle: Handle | None = None
        self.status = "pending"
        self.asked = False
        """The user was asked whether it may run."""
        self.renamed = False
        """Its title at the client is replaced by the open prompt's."""
        self.question: Question | None = None
        self.note = ""
        """How to answer its question, if the client cannot ask it."""
        self.diffs: list[dict[str, Any]] = []
        self.terminal: str | None = None
        """The client's terminal that shows its output; empty while it is being made."""
        self.sent = float("-inf")
        self.due: asyncio.TimerHandle | None = None
        """The timer for its next output."""

    @property
    def over(self) -> bool:
        return self.status in ("completed", "failed")


def call_id(turn: str, label: str, count: int) -> str:
    """Return the client's id for a call: the turn's first, second … call of that label."""
    return f"{turn}.{label}" if count == 1 else f"{turn}.{label}.{count}"


def has_made(shown: ShownCall, handle: Handle) -> bool:
    """Return whether this call of a batch made the handle. Equal calls match in order."""
    if shown.handle is not None or shown.over or (shown.label, shown.tool) != (handle.call_id, handle.tool.name):
        return False
    return shown.action is None or (shown.action == "spawn" and shown.handle_id == handle.id)


def is_about(shown: ShownCall, prompt: Prompt) -> bool:
    """Return whether a prompt is about this call. Equal calls match in order."""
    if shown.over or shown.tool != prompt.tool or shown.conversation != prompt.conversation:
        return False
    if isinstance(prompt, RunTool):
        same = shown.handle_id == prompt.id if prompt.id is not None else shown.action is None
        return same and shown.action == prompt.action and shown.asked == (prompt.problem is not None)
    handle = shown.handle
    if (
        handle is None
        or (prompt.id is not None and handle.id != prompt.id)
        or handle.stateful != (prompt.id is not None)
    ):
        return False
    if isinstance(prompt, AskQuestion):
        return isinstance(handle.state, Waiting) and handle.state.question == prompt.question
    assert isinstance(prompt, DeliverResult)
    return handle.withheld


def agent_name(conversation: str) -> str:
    return conversation.rpartition("/")[2].rpartition("@")[0] or "agent"


def in_words(question: Question) -> str:
    options, form = select_options(question), form_of(question)
    parts = [question.pre_amble, f"**{question.text}**"]
    if options is not None:
        parts.append("\n".join(f"- {option}" for option in options))
    if form is not None:
        labels = (label_of(name, field, name in form["required"]) for name, field in fields_of(form))
        parts.append("\n".join(f"- {label}" for label in labels))
    return "\n\n".join(part for part in parts if part)


def ended(replies: Replies, handle: Handle, state: Stopped, most: int, *, in_terminal: bool = False) -> ShownEnd:
    """Return the end of a handle. An aborted one has failed, because ACP has no other status; the words say why. With
    `in_terminal`, its output is shown elsewhere and not repeated."""
    never_ran = state.started is None
    if not handle.stateful:
        reply = replies.outcome(handle)
        failed = reply.is_error or never_ran or isinstance(state.outcome, Failure)
        is_output = bool(reply.model) and not never_ran and handle.tool.source in ("local", "terminal")
        if in_terminal and isinstance(state.outcome, PrintedOutput):
            return failed, "", {"exit_code": state.exit_code}
        return failed, fenced(reply.model) if is_output else reply.model, response_output(reply.model)
    printed = "" if in_terminal else replies.tail(handle, most)
    shown = fenced(printed) if printed else ""
    match state.outcome:
        case Failure(message, code):
            return True, "\n\n".join(part for part in (message, shown) if part), {"error": message, "code": code}
        case PrintedOutput():
            return never_ran, shown, {"exit_code": state.exit_code}
        case Ok(value):
            said = replies.printed(handle)
            return never_ran, "\n\n".join(part for part in (shown, said) if part), value
        case Reply(_, model, is_error):
            return is_error or never_ran, model, response_output(model)


def response_output(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
    return text or None
