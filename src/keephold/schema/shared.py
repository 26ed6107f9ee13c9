"""The shared presentation of stateful tools (G5).

Each tool is shown with its own parameters, required where they are required, and an optional `spawn`. Three tools,
`handle_fetch`, `handle_apply` and `handle_abort`, act on the handles of all tools. The other presentation, `per_tool`,
gives each tool an `action` (see `canonical`). Calls of both forms are always understood.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from keephold.tools.base import ACTIONS, Action, Invocation, Live, Sink, Tool

Presentation = Literal["shared", "per_tool"]

PREFIX = "handle_"
"""How the names of the tools for handles begin; no other tool's name does."""
SPAWN = {
    "type": "string",
    "description": "An id: start in the background under it and return at once. Default: wait for the result.",
}
_ID = {"type": "string", "description": "The id that you gave the handle when you started it."}
_EOF = {
    "type": "boolean",
    "description": "true: close the program's input, as Ctrl-D does, after `input`. Default: false.",
}
_INPUT = "Text for the program, with a newline where a person would press Enter, or the answer to the open question."
_DESCRIPTIONS: Mapping[Action, str] = {
    "fetch": "Show a handle's state, its output since you last looked, and its result once it has stopped. Use it to "
    "look at running work. Do not call it in a loop: `await` waits until handles have stopped.",
    "apply": "Send input to a running handle, or answer the question of a waiting one. Returns the handle's state and "
    "its new output when the program has reacted. With `id` alone, nothing is sent.",
    "abort": "End a handle's work now and stop the handle. Returns its last state. A stopped handle stays as it is.",
}
_HINTS: Mapping[Action, Mapping[str, Any]] = {
    "fetch": {"readOnlyHint": True, "openWorldHint": False},
    "apply": {"readOnlyHint": False},
    "abort": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True},
}

USE: Mapping[Presentation, str] = {
    "shared": """\
Tools that take `spawn` can run in the background. {"spawn": "<an id that you choose>", …} starts one and returns at \
once; it runs while you do other things. Without `spawn` the call runs to its end and returns the result. Use that for \
quick work. `handle_fetch` shows new output, `handle_apply` sends input or answers a question of the tool, \
`handle_abort` ends it. Each takes the `id` that you chose.""",
    "per_tool": """\
Tools that take `action` can run in the background. {"action": "spawn", "id": "<an id that you choose>", …} starts one \
and returns at once; it runs while you do other things. Without `action` the call runs to its end and returns the \
result. Use that for quick work. `fetch` shows new output, `apply` sends input or answers a question of the tool, \
`abort` ends it. Each takes the `id` that you chose.""",
}
"""How a model uses stateful tools, for its instructions."""


def presentation(dialect: str, actions: Presentation | None) -> Presentation:
    """Return how stateful tools are shown: as configured, else `per_tool` in the canonical form only."""
    return actions or ("per_tool" if dialect == "canonical" else "shared")


class _OfAnyTool:
    """Starts nothing: a call of these tools acts on a handle, by the tool of that handle."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise AssertionError("these calls start nothing")


def _handle_tool(action: Action) -> Tool:
    return Tool(
        name=PREFIX + action,
        runtime=_OfAnyTool(),
        description=_DESCRIPTIONS[action],
        source="builtin",
        hints=_HINTS[action],
        unrecorded=True,
        parameters={"type": "object", "properties": {"id": _ID}, "required": ["id"]},
    )


HANDLE_TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in map(_handle_tool, ACTIONS[1:])}


def verb_of(name: str) -> Action | None:
    """Return the action of a tool for handles; None for any other tool."""
    return next((action for action in ACTIONS if name == PREFIX + action and name in HANDLE_TOOLS), None)


def action_of(name: str, arguments: Mapping[str, Any]) -> tuple[str | None, Any]:
    """Return the action that a call of a stateful tool or a tool for handles names, in either form, and its id."""
    verb = verb_of(name)
    if verb is not None:
        return verb, arguments.get("id")
    if arguments.get("action") is None and arguments.get("spawn") is not None:
        return "spawn", arguments["spawn"]
    return arguments.get("action"), arguments.get("id")


def verbs_for(tools: Iterable[Tool]) -> list[str]:
    """Return the names of the tools for the handles of these tools: each only if some tool has its action."""
    actions = {action for tool in tools for action in tool.actions}
    return [name for name in HANDLE_TOOLS if verb_of(name) in actions]


def with_spawn(tool: Tool) -> dict[str, Any]:
    """Return the tool's own parameters, with `spawn` if it can be spawned."""
    own = copy.deepcopy(dict(tool.parameters))
    if "spawn" in tool.actions:
        own["properties"] = {**own.get("properties", {}), "spawn": dict(SPAWN)}
    return own


def handle_tools(tools: Iterable[Tool], *, untyped: bool) -> list[Tool]:
    """Return the tools for the handles of these tools: each only if some tool has its action.

    `untyped`: the dialect can say "any value", so `input` may be any.
    """
    stateful, made = [tool for tool in tools if tool.actions], []
    for name, handle_tool in HANDLE_TOOLS.items():
        action = verb_of(name)
        able = [tool for tool in stateful if action in tool.actions]
        if able and action is not None:
            properties: dict[str, Any] = {"id": _ID}
            if action == "apply":
                properties["input"] = {**({} if untyped else {"type": "string"}), "description": _INPUT}
            for tool in able:
                properties |= tool.action_parameters.get(action, {})
            if action == "apply":
                properties["eof"] = _EOF
            made.append(replace(handle_tool, parameters={**handle_tool.parameters, "properties": properties}))
    return made


def sent_to_handle(action: Action, arguments: Mapping[str, Any]) -> tuple[Action, dict[str, Any]]:
    """Return a call of a tool for handles as the action of the handle's tool, without its id.

    Null means left out. An `apply` that sends nothing is a fetch; one that only closes the input sends null.
    """
    given = {name: value for name, value in arguments.items() if value is not None and name != "id"}
    if action != "apply":
        return action, given
    if isinstance(given.get("eof"), str):
        given["eof"] = {"true": True, "false": False}.get(given["eof"].strip().lower(), given["eof"])
    if given.get("eof") is False:
        del given["eof"]
    if given == {"eof": True}:
        return "apply", {"input": None}
    return ("apply", given) if given else ("fetch", {})
