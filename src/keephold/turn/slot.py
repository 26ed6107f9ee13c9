"""One call of a batch: what the model sent, read and checked, and its place in the batch (B1, C1, C2, C9, C10)."""

import contextlib
from typing import Any, Literal, Protocol

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.registry import check_id
from keephold.handles.text import plain
from keephold.limits import Limits, nested_deeper
from keephold.schema.arguments import ArgumentCheck
from keephold.schema.canonical import json_type
from keephold.tools.base import Action, Launch, Tool
from keephold.tools.toolbox import Toolbox
from keephold.turn.prompt_queue import Asking, PromptQueue


class ToolCall(msgspec.Struct, frozen=True):
    """A call as a model emits it. `id` is a label, unique only in its batch; `arguments` an object or its JSON text."""

    id: str
    name: str
    arguments: dict[str, Any] | str = {}


class Tools(Protocol):
    """Where the tool of a call is looked up: all of a runtime's, or some of them."""

    def find(self, name: str) -> Tool: ...

    def check(self, tool: Tool, action: Action | None) -> ArgumentCheck: ...


By = Literal["model", "person"]
"""Who acts on a handle."""


class Slot:
    """A call's place in its batch."""

    __slots__ = (
        "action",
        "answers",
        "arguments",
        "asking",
        "by",
        "call",
        "cause",
        "declines",
        "error",
        "given",
        "handle",
        "handle_id",
        "launch",
        "named",
        "patience",
        "people",
        "position",
        "secret",
        "tool",
        "uid",
    )

    def __init__(self, call: ToolCall, position: int) -> None:
        self.call = call
        self.position = position
        self.tool: Tool | None = None
        self.action: Action | None = None
        self.arguments: dict[str, Any] = {}
        """The tool's own arguments; for `apply` also `input`."""
        self.handle_id: str | None = None
        """The id the call names."""
        self.named: Handle | None = None
        """The handle of that id, from the moment the batch begins."""
        self.launch: Launch | None = None
        """Of a spawn by another name: the handle it makes (B2)."""
        self.handle: Handle | None = None
        """The handle it makes: a spawn's, or the unseen one of a one-shot call; of a resumed `apply` that was sent
        before, the one it was sent to."""
        self.error: ToolError | None = None
        self.given: dict[str, Any] | str = call.arguments
        """The arguments as they were given, or `{}` where they are not even JSON: what is stored of them."""
        self.cause = b""
        """Of an `apply`: which call it is, recorded with what it sends, so that a resumed batch sends it once (B9)."""
        self.by: By = "model"
        """Who sends it: a person may do what the model may not (C2, Q4)."""
        self.declines = False
        """The person does not want to answer the open question (Q7)."""
        self.answers: str | None = None
        """It is the answer to the question of that id, or of that key (`question_key`); empty: to whichever is open.
        Never input."""
        self.secret = False
        """It is the answer to a question for a secret, and nothing else."""
        self.patience: float | None = None
        """Of a spawn: so many seconds after which it answers `pending` if its permission is still asked for; None: it
        waits for that."""
        self.people: PromptQueue | None = None
        """Who is asked about this call, if not those of the runtime."""
        self.asking: Asking | None = None
        """The prompt that its permission waits for."""
        self.uid: str | None = None
        """Of a batch that is taken up again: the uid of the handle the call made (B9)."""

    @property
    def lane(self) -> Literal["parallel", "serial", "synchronising"]:
        if self.tool is None or self.error is not None or self.action in ("fetch", "apply", "abort"):
            return "parallel"  # what is refused waits for nobody
        return self.tool.scheduling

    def withdraw(self) -> None:
        """Nobody needs to permit it any more."""
        if self.asking is not None:
            self.asking.withdraw()
            self.asking = None


def slot_of(handle: Handle, action: Action, arguments: dict[str, Any], by: By) -> Slot:
    """Make the call of an action on a handle outside any batch."""
    slot = Slot(ToolCall(handle.call_id, handle.tool.name), 0)
    slot.tool, slot.action, slot.handle_id = handle.tool, action, handle.id
    slot.arguments, slot.by = arguments, by
    return slot


def backs_out(slot: Slot) -> bool:
    """Return whether an `apply` only presses Ctrl-C at a terminal: that answers no question, whoever sends it."""
    keys = slot.arguments.get("keys") or ()
    return slot.arguments.get("input") is None and bool(keys) and all(key.upper() == "C-C" for key in keys)


def checked_again(slot: Slot, tool: Tool, edited: Any, toolbox: Toolbox, limits: Limits) -> dict[str, Any]:
    """Arguments that a person edited, checked like the assistant's own (P5). Raises `ToolError`."""
    if not isinstance(edited, dict):
        raise ToolError("the arguments must be a JSON object", code="invalid_arguments")
    arguments, _ = _read_arguments(ToolCall(slot.call.id, slot.call.name, edited), limits)
    if slot.action is None or slot.launch is not None:
        return toolbox.check(tool, None)(arguments)
    changed = [name for name in ("action", "id") if name in arguments]
    if changed:
        raise ToolError(f"`{changed[0]}` cannot be changed; leave it out", code="invalid_arguments")
    checked = toolbox.check(tool, slot.action)({"action": slot.action, "id": slot.handle_id, **arguments})
    return _own(checked)


def _own(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of an action's arguments that are not the command itself."""
    return {name: value for name, value in arguments.items() if name not in ("action", "id")}


def read_call(call: ToolCall, position: int, toolbox: Tools, limits: Limits, now: float) -> Slot:
    """The call, checked. What is wrong with it is in `error`; a spawn keeps its id even then, so it can be awaited."""
    slot = Slot(call, position)
    try:
        tool = slot.tool = toolbox.find(str(call.name))
        arguments, slot.given = _read_arguments(call, limits)
        if not tool.actions:
            if tool.names is not None and isinstance(arguments.get(tool.names), str):
                slot.handle_id = arguments[tool.names]
            slot.arguments = toolbox.check(tool, None)(arguments)
            if tool.launching is not None:
                _read_launch(slot, tool, tool.launching.read(slot.arguments, now))
        elif arguments.get("action") is None:
            arguments.pop("action", None)
            slot.arguments = toolbox.check(tool, None)(arguments)
        else:
            _read_action(slot, tool, arguments, toolbox)
    except ToolError as error:
        slot.error = error
        slot.given = _storable(call.arguments)
    return slot


def _read_launch(slot: Slot, tool: Tool, launch: Launch) -> None:
    slot.action, slot.launch, slot.handle_id = "spawn", launch, check_id(launch.id)
    slot.tool = launch.of(tool)


def _read_action(slot: Slot, tool: Tool, arguments: dict[str, Any], toolbox: Tools) -> None:
    action = arguments["action"]
    if action not in tool.actions:
        have = ", ".join(f'"{each}"' for each in tool.actions)
        raise ToolError(f"tool `{tool.name}` has no action {action!r}; it has {have}", code="unknown_action")
    slot.action = action
    if arguments.get("id") is None:
        raise ToolError(
            f'action "{action}" of tool `{tool.name}` needs `id`: '
            + ("the name you choose for the new handle" if action == "spawn" else "the handle's id"),
            code="invalid_arguments",
        )
    slot.handle_id = check_id(arguments["id"]) if action == "spawn" else str(arguments["id"])
    slot.arguments = _own(toolbox.check(tool, action)(arguments))


def _read_arguments(call: ToolCall, limits: Limits) -> tuple[dict[str, Any], dict[str, Any] | str]:
    """The arguments, and as they were given."""
    given = call.arguments
    if isinstance(given, str):
        encoded = given.encode(errors="surrogatepass")
        _within(len(encoded), limits)
        try:
            value = msgspec.json.decode(encoded) if given.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ToolError(f"the arguments are not valid JSON: {error}", code="invalid_arguments") from None
        except RecursionError:
            raise _too_deep(limits) from None
    else:
        try:
            encoded = msgspec.json.encode(given)
        except TypeError:
            given, encoded = _plain(given)
        except ValueError as error:
            raise ToolError(f"the arguments are not JSON: {error}", code="invalid_arguments") from None
        except RecursionError:
            raise _too_deep(limits) from None
        _within(len(encoded), limits)
        value = dict(given) if isinstance(given, dict) else given
    if value is None:
        return {}, given
    if not isinstance(value, dict):
        raise ToolError(
            f'the arguments must be a JSON object, like {{"key": "value"}}, not {json_type(value)}',
            code="invalid_arguments",
        )
    if encoded.count(b"[") + encoded.count(b"{") > limits.nesting and nested_deeper(value, limits.nesting):
        raise _too_deep(limits)
    return value, given


def _storable(given: Any) -> dict[str, Any] | str:
    """Arguments that were refused, for the record."""
    if isinstance(given, str):
        return given
    with contextlib.suppress(TypeError, ValueError, NotImplementedError, RecursionError):
        value = plain(given)
        if isinstance(value, dict):
            return value
    return {}


def _plain(given: Any) -> tuple[Any, bytes]:
    """Arguments made in Python: what is a string by another name, such as a key, is one (D3)."""
    try:
        value = plain(given)
        return value, msgspec.json.encode(value)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ToolError(f"the arguments are not JSON: {error}", code="invalid_arguments") from None


def _too_deep(limits: Limits) -> ToolError:
    return ToolError(
        f"the arguments are nested deeper than {limits.nesting} levels ([limits] nesting)", code="limit_exceeded"
    )


def _within(size: int, limits: Limits) -> None:
    if size > limits.arguments_bytes:
        raise ToolError(
            f"the arguments have {size} bytes, more than the {limits.arguments_bytes} allowed for one call "
            "([limits] arguments_bytes); pass large data as a file",
            code="limit_exceeded",
        )
