"""The call that an error suggests: one that would have worked, which the model can send back as it is (C9).

It is made of what the model sent, of examples from the tool's schema and of the ids of the conversation's handles: it
shows the model nothing that it was not shown before. It is in the form that the call had (G5). A suggestion acts on no
handle that the call did not name: instead of aborting another one or writing to it, it looks at it. To a call that only
looks, it suggests to start nothing but a tool that says it changes nothing. A placeholder such as `<path>` stands only
for a text that the call itself left out. If no call is known that would have worked, the error stands alone.

Only the model's view of a reply has it, as the last line of a text or as `try` in an object; programs get the error.
"""

import difflib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from keephold.errors import ToolError, WrongArguments
from keephold.handles.handle import Handle
from keephold.handles.patterns import compiled
from keephold.handles.question import Question, answer_fits, select_options
from keephold.handles.state import Reply, Running, Waiting
from keephold.ids import check_id, made_id
from keephold.schema.shared import HANDLE_TOOLS, PREFIX, action_of, verb_of
from keephold.text import to_json
from keephold.tools.base import ACTIONS, Action, Tool
from keephold.tools.toolbox import has, is_builtin, nearest
from keephold.turn.tool_call import ParsedCall

_log = logging.getLogger("keephold.turn")

Suggested = tuple[str, dict[str, Any]]
"""The name of a tool, and arguments."""

_MOST = 800
"""Bytes of the arguments of a suggestion."""
_IDS = ("id", "handleId", "taskId")
_LISTS = ("any", "all", "ready", "handleIds")
_LINE = "(?i)ready|listening|started"
"""A pattern for the line of a server that is ready, where none was given."""
_OTHER_NAMES = frozenset(("id", "ids", "handle", "handles", "handleid", "handleids", "taskid", "taskids"))
"""Names under which models send the ids of handles, in lower case and without `_` and `-`."""
_CONDITIONS = 8
_LONGEST_TEXT = 100
_MEANT: Mapping[str, Action] = {
    **dict.fromkeys(("start", "run", "launch"), "spawn"),
    **dict.fromkeys(("get", "read", "status"), "fetch"),
    **dict.fromkeys(("send", "write", "input"), "apply"),
    **dict.fromkeys(("kill", "stop", "cancel"), "abort"),
}
"""Other words for actions."""
_WAITS = ("await", "wait_for", "wait_for_multiple", "read_output")
_LOOK = ("not_running", "driven_by_person", "question_exclusive", "input_not_read", "already_stopped")
_MISSING = ("handle_not_found", "handle_expired", "handle_of_another_tool")
_WRONG = ("invalid_arguments", "unknown_action", "invalid_handle_id", "limit_exceeded", "unknown_tool")
_CODES = frozenset((*_LOOK, *_MISSING, *_WRONG, "batch_rejected", "bad_answer"))


def with_suggestion(reply: Reply, parsed: ParsedCall, names: Mapping[str, Handle]) -> Reply:
    """Return the reply with the call that would have worked, if it refuses a call and there is such a call."""
    error = parsed.error
    code = error.code if error is not None else reply.code if reply.is_error else None
    ran = error is None and parsed.action is None and (parsed.tool is None or parsed.tool.source != "builtin")
    if code not in _CODES or parsed.tools is None or (ran and code != "invalid_arguments"):
        return reply
    try:
        found = _Suggestion(parsed, names).of(code)
    except Exception:  # of arguments or a schema that no example can be made of; the refusal must arrive all the same
        _log.warning("no suggestion could be made for a call of `%s`", parsed.call.name, exc_info=True)
        found = None
    if found is None or found == (parsed.call.name, _sent(parsed)):
        return reply
    name, arguments = found
    said = f"{name} {to_json(arguments).decode()}"
    try:
        shown = msgspec.json.decode(reply.model) if reply.model.startswith("{") else None
    except msgspec.DecodeError:
        shown = None
    whole = f"{reply.model}\nTry: {said}"
    if isinstance(shown, dict):
        whole = to_json({**shown, "try": said}).decode()
    return replace(reply, model=whole)


def _sent(parsed: ParsedCall) -> dict[str, Any]:
    """Return the arguments that the model sent, as far as they can be read."""
    given: Any = parsed.call.arguments
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (ValueError, RecursionError):
            given = {}
    return dict(given) if isinstance(given, dict) else {}


class _Suggestion:
    """Finds a call that would have worked instead of one that did not."""

    def __init__(self, parsed: ParsedCall, names: Mapping[str, Handle]) -> None:
        assert parsed.tools is not None
        self._tools = parsed.tools
        self._parsed = parsed
        self._names = names
        self._given = {name: value for name, value in _sent(parsed).items() if value is not None}
        self._sent = self._given
        """The same with ids under the name that the tool has for them."""
        self._shared = parsed.call.name.startswith(PREFIX) or "action" not in self._sent

    def of(self, code: str) -> Suggested | None:
        tool = self._parsed.tool
        if tool is None:
            name = next(iter(nearest(self._parsed.call.name, [each.name for each in self._known()])), None)
            tool = None if name is None else self._tools.find(name)
        if tool is None:
            return None
        self._sent = _with_ids(tool, self._given)
        if code == "bad_answer":
            return self._answer()
        if verb_of(tool.name) is None and not tool.actions:
            return self._plain(tool, code)
        action, id = action_of(tool.name, self._sent)
        asked = True
        if action is not None and action not in tool.actions and verb_of(tool.name) is None:
            word = str(action)[:20].lower()
            near = difflib.get_close_matches(word, tool.actions, 1)
            asked = word in _MEANT or bool(near)
            known = id is not None and str(id) in self._names
            action = _MEANT.get(word) or next(iter(near), "fetch" if known or word in ACTIONS else "spawn")
        if action is None or action == "spawn":
            spawn = action == "spawn" and "spawn" in tool.actions
            return self._start(tool, spawn, id, code, invented=asked)
        return self._on_handle(tool, ACTIONS[ACTIONS.index(action)], id, code)

    def _known(self) -> Iterator[Tool]:
        """Yield the tools that the conversation is offered, with those for handles."""
        stateful = False
        for tool in self._tools:
            stateful = stateful or bool(tool.actions)
            yield tool
        if stateful:
            yield from HANDLE_TOOLS.values()

    # Calls that make handles, or none

    def _start(self, tool: Tool, spawn: bool, id: Any, code: str = "", *, invented: bool = True) -> Suggested | None:
        """Return a call of a stateful tool with arguments that fit; `invented`: some may be placeholders."""
        own = {name: value for name, value in self._sent.items() if name not in ("action", "id", "spawn")}
        if tool.name != self._parsed.call.name and verb_of(self._parsed.call.name) is not None:
            own = {}
        made = self._tools.check(tool, None).mended(own, _MOST, invented=invented)
        if code == "limit_exceeded" and made == own:
            return self._live()
        if made == own and code == "invalid_arguments" and not spawn:
            made = self._fewer(tool)
        if made is None or not spawn:
            return None if made is None else (tool.name, made)
        free = self._free(id, tool)
        return (tool.name, {"spawn": free, **made} if self._shared else {"action": "spawn", "id": free, **made})

    def _live(self) -> Suggested | None:
        """Return a wait for one of the live handles: the conversation has as many as it may have."""
        live = [handle.id for handle in self._names.values() if handle.active]
        if self._parsed.action != "spawn" or not live:
            return None
        return ("await", {"any": live[:3], "timeout_secs": 60})

    def _free(self, id: Any, tool: Tool) -> str:
        """Return the id if it can be used, else one like it that is not used."""
        wanted = made_id(tool.name if id is None or isinstance(id, bool) else str(id))[:100]
        try:
            check_id(wanted)
        except ToolError:
            wanted = tool.name
        error = self._parsed.error
        taken = self._parsed.handle_id if error is not None and error.code == "batch_rejected" else None
        once = tool.name.startswith("create_")
        used, count, free = self._names, 1, wanted
        while free == taken or (free in used and (used[free].active or once)):
            count += 1
            free = f"{wanted}-{count}"
        return free

    def _plain(self, tool: Tool, code: str) -> Suggested | None:
        """Return a call of a tool without actions."""
        if tool.name == "describe_tools":
            return self._described(tool)
        if tool.name == "create_task" and code == "batch_rejected":  # which ids of tasks are free is not known here
            return ("get_task", {"taskId": self._sent["taskId"]}) if has(self._tools, "get_task") else None
        if tool.name == "await" and self._names and (self._sent.get("output") or code == "invalid_arguments"):
            conditions = self._conditions()
            if conditions:
                return self._waiting(tool, self._named_or_near(), conditions)
        if tool.source == "builtin" or tool.launching is not None:
            if code in (*_MISSING, *_LOOK):
                return self._instead_of_missing(tool)
            if tool.name in _WAITS and not any(self._sent.get(name) for name in (*_IDS, *_LISTS, "call_id")):
                return self._instead_of_missing(tool)
        instead = self._parsed.error.instead if isinstance(self._parsed.error, WrongArguments) else {}
        made = self._tools.check(tool, None).mended({**self._sent, **instead}, _MOST)
        if made == self._given and code == "invalid_arguments" and tool.launching is None:
            if tool.name in _WAITS:  # two ways to name a handle, of which one was wanted
                return self._instead_of_missing(tool)
            made = self._fewer(tool)
        if made is not None and (tool.source == "builtin" or tool.launching is not None):
            made |= {name: self._free(made[name], tool) for name in _IDS if name in made and _new(tool, made[name])}
        return None if made is None else (tool.name, made)

    def _fewer(self, tool: Tool) -> dict[str, Any] | None:
        """Return other arguments than those sent, which fit the schema: the tool itself has refused one of them."""
        required = tool.parameters.get("required", ())
        for kept in ({name: value for name, value in self._sent.items() if name in required}, {}):
            fewer = self._tools.check(tool, None).mended(kept, _MOST)
            if fewer is not None and fewer != self._given and tool.source in ("builtin", "python"):
                return fewer
        return None

    def _described(self, tool: Tool) -> Suggested | None:
        known = [each.name for each in self._tools if each.source != "builtin"]
        given = self._sent.get("tools")
        near = [n for each in (given if isinstance(given, list) else ()) for n in nearest(str(each), known)]
        return (tool.name, {"tools": near or known[:1]}) if known else None

    # Calls that name handles

    def _instead_of_missing(self, tool: Tool) -> Suggested | None:
        """Return a call of a built-in that names handles which are there, or one that shows which are."""
        if tool.name in _WAITS:
            known = self._named_or_near()
            if known:
                return self._waiting(tool, known)
            listing = "list_wait_handles" if tool.name.startswith("wait") else ""
        else:
            id = next((self._sent[name] for name in _IDS if name in self._sent), None)
            if isinstance(id, str) and id in self._names:
                return ("await", {"all": [id], "timeout_secs": 0})
            listing = "list_tasks" if "taskId" in self._sent else "list_wait_handles"
        if listing and has(self._tools, listing):
            return (listing, {})
        return self._example()

    def _conditions(self) -> list[dict[str, str]]:
        """Return what was probably meant by the `output` of an `await`, and by `ready` for tools that have none."""
        given = self._sent.get("output")
        if isinstance(given, dict) and not given.keys() & {"id", "pattern"}:
            given = [{"id": id, "pattern": pattern} for id, pattern in given.items()]
        entries = given if isinstance(given, list) else [{"pattern": given} if isinstance(given, str) else given]
        ready = self._sent.get("ready")
        for id in ready if isinstance(ready, list) else ():
            if isinstance(id, str) and id in self._names and self._names[id].tool.spawn.ready is None:
                entries = [*entries, {"id": id}]
        named = self._named_or_near()[0]
        made = []
        for each in entries[:_CONDITIONS]:
            if isinstance(each, dict):
                id = str(each.get("id"))
                made.append({"id": id if id in self._names else named, "pattern": _pattern(each.get("pattern"))})
        return made

    def _named_or_near(self) -> list[str]:
        """Return the ids of the call that are there, else the nearest or newest that is."""
        given = [self._sent[name] for name in _IDS if isinstance(self._sent.get(name), str)]
        for name in _LISTS:
            given += [id for id in self._sent.get(name) or () if isinstance(id, str)]
        lines = self._sent.get("output")
        for each in lines if isinstance(lines, list) else ():
            given += [each["id"]] if isinstance(each, dict) and isinstance(each.get("id"), str) else []
        known = [id for id in dict.fromkeys(given) if id in self._names]
        if known or not self._names:
            return known
        near = [id for each in given[:5] for id in difflib.get_close_matches(each[:100], list(self._names)[-200:], 1)]
        return near[:1] or [max(self._names.values(), key=_lasting).id]

    def _waiting(self, tool: Tool, known: list[str], conditions: Sequence[dict[str, str]] = ()) -> Suggested | None:
        match tool.name:
            case "await":
                ids: dict[str, Any] = {
                    name: kept
                    for name in ("any", "all", "ready")
                    if (kept := [id for id in self._sent.get(name) or () if id in known and self._may(name, id)])
                }
                ids |= {"output": list(conditions)} if conditions else {}
                ready = bool(self._sent.get("ready")) and all(self._may("ready", id) for id in known)
                given = {
                    **(ids or {"ready" if ready else "all": known}),
                    "timeout_secs": self._sent.get("timeout_secs", 60),
                }
            case "read_output":
                rest = {name: value for name, value in self._sent.items() if name not in ("id", "call_id")}
                given = {"id": known[0], **rest}
            case "wait_for":
                given = {**self._sent, "handleId": known[0]}
            case _:
                given = {**self._sent, "handleIds": known}
        made = self._tools.check(tool, None).mended(given, _MOST)
        return None if made is None else (tool.name, made)

    def _may(self, name: str, id: str) -> bool:
        """Whether a handle may be named there: only some can become ready."""
        return name != "ready" or self._names[id].tool.spawn.ready is not None

    def _on_handle(self, tool: Tool, action: Action, id: Any, code: str) -> Suggested | None:
        """Return the same action on the handle if it can take it, else a look at the handle or at another one."""
        handle = self._names.get(id) if isinstance(id, str) else None
        if handle is None:
            shared = verb_of(tool.name) is not None
            own = [each for each in self._names.values() if (each.tool.actions if shared else each.tool is tool)]
            wanted = "" if id is None else str(id)[:100]
            near = difflib.get_close_matches(wanted, [each.id for each in own][-200:], 1)
            if shared and isinstance(id, str) and "id" not in self._given and action != "apply":
                return (tool.name, {"id": id})  # it was under another name, so nobody has looked for the handle
            if own:
                return self._look(self._names[near[0]] if near else max(own, key=_lasting))
            return self._example()
        if code in _LOOK or action not in handle.tool.actions:
            return self._look(handle)
        kept = {name: value for name, value in self._sent.items() if name not in ("action", "id", "spawn", "eof")}
        arguments = self._tools.check(handle.tool, action).mended({"action": action, "id": handle.id, **kept}, _MOST)
        own_arguments = {name: value for name, value in (arguments or {}).items() if name not in ("action", "id")}
        takes = handle.run is not None and isinstance(handle.state, Running | Waiting) and not handle.parked
        if arguments is None or (action == "apply" and not (takes and "input" in self._sent)):
            return self._look(handle)
        if action == "apply" and own_arguments == kept:  # it fits, and the tool itself refused it
            return self._look(handle)
        return self._call(handle, action, own_arguments)

    def _call(self, handle: Handle, action: Action, arguments: Mapping[str, Any]) -> Suggested:
        if self._shared:
            return (PREFIX + action, {"id": handle.id, **arguments})
        return (handle.tool.name, {"action": action, "id": handle.id, **arguments})

    def _look(self, handle: Handle) -> Suggested:
        if "fetch" in handle.tool.actions:
            return self._call(handle, "fetch", {})
        return ("await", {"all": [handle.id], "timeout_secs": 0})

    def _answer(self) -> Suggested | None:
        """Return an answer of the type of the open question: the one that was probably meant, else the careful one."""
        handle = self._names.get(str(self._parsed.handle_id))
        if handle is None or not isinstance(handle.state, Waiting) or handle.state.question.secret:
            return None
        return self._call(handle, "apply", {"input": _meant(self._sent.get("input"), handle.state.question)})

    def _example(self) -> Suggested | None:
        """Return how a handle is made where there is none. The model has asked for nothing to be started, and the
        arguments are made up: only by a tool of the owner's that says it changes nothing."""
        able = [tool for tool in self._tools if "spawn" in tool.actions and tool.run == "unattended"]
        able = [tool for tool in able if tool.source != "mcp" and tool.hints.get("readOnlyHint") is True]
        ids = [self._sent[name] for name in _IDS if isinstance(self._sent.get(name), str)]
        ids += [id for name in _LISTS for id in self._sent.get(name) or () if isinstance(id, str)]
        for tool in able:
            made = self._tools.check(tool, None).mended({}, _MOST, invented=False)
            if made is not None:
                free = self._free(ids[0] if ids else tool.name, tool)
                return (tool.name, {"spawn": free, **made} if self._shared else {"action": "spawn", "id": free, **made})
        return None


def _with_ids(tool: Tool, sent: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with ids of handles under the name that the tool has for them, alone or as an array."""
    known = dict.fromkeys(("id", "action", "spawn")) if tool.actions else tool.parameters.get("properties", {})
    right = next((name for name in ("id", "handleId", "handleIds", "taskId", "all") if name in known), None)
    if right is None or not (is_builtin(tool) or sent.get("action") is not None):
        return sent
    own = tool.parameters.get("properties", {})
    made: dict[str, Any] = {}
    for name, value in sent.items():
        other = name not in own and name.replace("_", "").replace("-", "").lower() in _OTHER_NAMES
        name = right if other and right not in sent else name
        if name in own and tool.actions:
            pass
        elif name in _LISTS and isinstance(value, str | int):
            value = [value]
        elif name in _IDS and isinstance(value, list) and value:
            value = value[0]
        made[name] = value
    return made


def _pattern(given: Any) -> str:
    """Return the pattern if it is one; else the text that it was probably meant to be."""
    if not isinstance(given, str) or not given:
        return _LINE
    try:
        compiled(given)
    except ValueError:
        return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", given[:_LONGEST_TEXT])
    return given


def _new(tool: Tool, id: Any) -> bool:
    """Whether the tool makes something under the id, or would if the id were valid."""
    return tool.name.startswith("create_") or made_id(id) != id


def _lasting(handle: Handle) -> tuple[bool, float]:
    """Order handles: live ones cannot expire, and new ones do so later."""
    return handle.active, handle.state.created


def _meant(given: Any, question: Question) -> Any:
    if question.answer_type == "Boolean":
        return str(given).strip().lower() in ("true", "yes", "y", "ok", "1")
    options = select_options(question)
    if options is None:
        return str(given)[:100]
    near = difflib.get_close_matches(str(given)[:100], options, 1)
    default = [question.default] if answer_fits(question, question.default) else []
    return [*near, *default, *options][0]
