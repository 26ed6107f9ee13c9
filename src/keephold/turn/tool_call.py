"""A call: as the model sends it, as it was read and checked, and while it runs (B1, C1, C2, C9, C10)."""

import contextlib
from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import EndedBy, Failure, Outcome, Reply
from keephold.handles.view import Handles
from keephold.ids import check_id
from keephold.limits import Limits, nested_deeper
from keephold.schema.canonical import json_type
from keephold.schema.faults import cut
from keephold.schema.shared import action_of, sent_to_handle, verb_of
from keephold.store.base import Allowed, Record
from keephold.text import json_text, plain
from keephold.tools.base import Action, Launch, Tool
from keephold.tools.toolbox import Toolbox, Tools
from keephold.turn.permission import Ask
from keephold.turn.prompt_queue import Asking, PromptQueue


class ToolCall(msgspec.Struct, frozen=True):
    """A call as a model emits it. `id` is a label, unique only in its batch; `arguments` an object or its JSON text."""

    id: str
    name: str
    arguments: dict[str, Any] | str = {}


By = Literal["model", "person", "principal"]
"""Who acts on a handle. A principal's client may answer questions, but not those that only a person may (K9)."""
_ABORTERS: dict[By, str] = {"model": "the assistant", "person": "a person", "principal": "the client"}


class ParsedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call, read and checked."""

    call: ToolCall
    position: int = 0
    """Its place in the batch."""
    tool: Tool | None = None
    action: Action | None = None
    arguments: dict[str, Any] = {}
    """The tool's own arguments; for `apply` also `input`."""
    given: dict[str, Any] | str = {}
    """The arguments as the model sent them, for the store; `{}` if they are not even JSON."""
    handle_id: str | None = None
    """The id the call names."""
    launch: Launch | None = None
    """The handle that a spawn by another name makes (B2)."""
    error: ToolError | None = None
    """Why the call is refused. A spawn keeps its id even then, so it can be awaited."""
    taken: tuple[str, ...] = ()
    """Sentences about arguments that were read in another type than they were sent in."""
    by: By = "model"
    """Who sends it: a person may do what the model may not (C2, Q4)."""
    tools: Tools | None = None
    """The tools that it may use."""
    cause: bytes = b""
    """Identifies an `apply`; recorded with what it sends, so that a resumed batch sends it once (B9)."""
    answers: str | None = None
    """The id or key (`question_key`) of the question that this answers; empty: any open one. It is never input."""
    secret: bool = False
    """The input answers a question for a secret, and is refused by any other."""
    declines: bool = False
    """The user does not want to answer the open question (Q7)."""
    ends: tuple[Failure, EndedBy] | None = None
    """How an `abort` by the runtime itself, which needs no permission, ends the handle; None: as `by` aborts it."""

    @property
    def lane(self) -> Literal["parallel", "serial", "synchronising"]:
        if self.tool is None or self.error is not None or self.action in ("fetch", "apply", "abort"):
            return "parallel"  # a refused call waits for no other
        return self.tool.scheduling

    @property
    def ending(self) -> tuple[Failure, EndedBy]:
        """How an `abort` ends the handle (C7)."""
        return self.ends or (Failure(f"Aborted by {_ABORTERS[self.by]}.", "aborted"), "abort")

    @property
    def backs_out(self) -> bool:
        """Whether an `apply` only presses Ctrl-C at a terminal: that answers no question."""
        keys = self.arguments.get("keys") or ()
        return self.arguments.get("input") is None and bool(keys) and all(key.upper() == "C-C" for key in keys)


def call_on(handle: Handle, action: Action, arguments: dict[str, Any], by: By) -> ParsedCall:
    """Make the call of an action on a handle, outside any batch."""
    call = ToolCall(handle.call_id, handle.tool.name)
    return ParsedCall(call=call, tool=handle.tool, action=action, arguments=arguments, handle_id=handle.id, by=by)


class ActiveCall:
    """A call that is being carried out. The first answer counts; later ones are harmless."""

    __slots__ = (
        "_on_answer", "_on_parked", "allowed", "asking", "handle", "handles", "made", "named", "parsed", "patience",
        "prompt_queue", "verdict",
    )  # fmt: skip

    def __init__(
        self,
        parsed: ParsedCall,
        on_answer: "Callable[[ActiveCall, Reply], None]",
        *,
        handle: Handle | None = None,
        handles: Handles | None = None,
        on_parked: "Callable[[ActiveCall], None] | None" = None,
        prompt_queue: PromptQueue | None = None,
        patience: float | None = None,
    ) -> None:
        self.parsed = parsed
        """Replaced when the user edits the arguments."""
        self._on_answer = on_answer
        self._on_parked = on_parked or _ignore
        self.handles = handles
        """The conversation's handles, as this call sees them."""
        self.prompt_queue = prompt_queue
        """Who is asked about this call, if not the runtime's prompter."""
        self.patience = patience
        """Seconds after which a spawn answers `pending` if its permission is still open; None: it waits."""
        self.handle: Handle
        """The handle that the call makes or names."""
        if handle is not None:
            self.handle = handle
        self.made: Handle | None = None
        """The handle it makes: a spawn's, or the unseen one of a one-shot call; for a resumed `apply` that was sent
        before, the handle it was sent to."""
        self.named: Handle | None = None
        """The handle of the id it names, from the moment its batch begins."""
        self.allowed: Allowed | None = None
        """The permission with which it runs; None: the configuration's."""
        self.verdict: Outcome | Ask | UnsetType | None = UNSET
        """Whether a one-shot call or a spawn may run, decided once. None: it may; UNSET: not decided yet."""
        self.asking: Asking | None = None
        """The open prompt for its permission."""

    def make(self, handle: Handle) -> None:
        """Set the handle that the call makes."""
        self.made = self.handle = handle

    def restore(self, record: Record) -> None:
        """Use the approval that a dead process recorded and did not use: it is for the recorded arguments (P5)."""
        if record.allowed is not None and record.allowed.by in ("user", "standing"):
            self.parsed = msgspec.structs.replace(self.parsed, arguments=record.arguments)
            self.allowed, self.verdict = record.allowed, None

    def answer(self, reply: Reply) -> None:
        self._on_answer(self, reply)

    def answered(self) -> None:
        """Drop the callbacks: they refer to this call, and its result may be large."""
        self._on_answer, self._on_parked = _ignore_answer, _ignore

    def parked(self) -> None:
        """Report that a one-shot call waits for its completion from outside (D10)."""
        self._on_parked(self)

    def withdraw(self) -> None:
        """Withdraw the open prompt for its permission."""
        if self.asking is not None:
            self.asking.withdraw()
            self.asking = None


def _ignore(call: ActiveCall) -> None: ...


def _ignore_answer(call: ActiveCall, reply: Reply) -> None: ...


def checked_again(parsed: ParsedCall, tool: Tool, edited: Any, toolbox: Toolbox, limits: Limits) -> dict[str, Any]:
    """Check arguments that the user edited like the model's own (P5). Raises `ToolError`."""
    if not isinstance(edited, dict):
        raise ToolError("the arguments must be a JSON object", code="invalid_arguments")
    arguments, _ = _read_arguments(ToolCall(parsed.call.id, parsed.call.name, edited), limits)
    if parsed.action is None or parsed.launch is not None:
        return toolbox.check(tool, None)(arguments)
    changed = [name for name in ("action", "id") if name in arguments]
    if changed:
        raise ToolError(f"`{changed[0]}` cannot be changed; leave it out", code="invalid_arguments")
    checked = toolbox.check(tool, parsed.action)({"action": parsed.action, "id": parsed.handle_id, **arguments})
    return _own(checked)


def by_handle(parsed: ParsedCall, tool: Tool, toolbox: Tools) -> ParsedCall:
    """Return a call of a tool for handles as a call of the handle's own tool, checked. Raises `ToolError`."""
    action = parsed.action
    assert action is not None
    if action not in tool.actions:
        have = ", ".join(f"`handle_{each}`" for each in tool.actions if each != "spawn") or "none of them"
        raise ToolError(
            f"tool `{tool.name}`, which runs handle `{parsed.handle_id}`, has no {action}; it takes {have}",
            code="unknown_action",
        )
    known = tool.action_parameters.get(action, {})
    arguments = {name: value for name, value in parsed.arguments.items() if action == "apply" or name in known}
    eof = arguments.pop("eof", False)
    foreign = [name for name in arguments if name in ("keys", "size") and name not in known]
    if foreign:
        raise ToolError(
            f"handle `{parsed.handle_id}` takes no `{foreign[0]}`: only terminals do; send `input`",
            code="invalid_arguments",
        )
    if not isinstance(eof, bool):
        raise ToolError(f"`eof` must be true or false, not {json_type(eof)}", code="invalid_arguments")
    taken: list[str] = []
    checked = _own(toolbox.check(tool, action)({"action": action, "id": parsed.handle_id, **arguments}, taken))
    return replace(parsed, tool=tool, arguments={**checked, "eof": True} if eof else checked, taken=tuple(taken))


def _own(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return an action's arguments without those that name the action and the handle."""
    return {name: value for name, value in arguments.items() if name not in ("action", "id")}


def read_call(call: ToolCall, position: int, tools: Tools, limits: Limits, now: float) -> ParsedCall:
    """Read and check a call; a mistake in it is its `error`. `tools` are those that it may use (K10)."""
    tool: Tool | None = None
    action: Action | None = None
    handle_id: str | None = None
    launch: Launch | None = None
    error: ToolError | None = None
    arguments: dict[str, Any] = {}
    taken: list[str] = []
    given = call.arguments
    try:
        tool = tools.find(str(call.name))
        sent, given = _read_arguments(call, limits)
        verb = verb_of(tool.name)
        if verb is not None:  # its arguments are checked by the handle's tool, once that is known
            handle_id = _read_id(tool, verb, sent.get("id"))
            action, arguments = sent_to_handle(verb, sent)
        elif not tool.actions:
            if tool.names is not None and isinstance(sent.get(tool.names), str):
                handle_id = sent[tool.names]
            arguments = tools.check(tool, None)(sent, taken)
            if tool.launching is not None:
                launched = tool.launching.read(arguments, now, tools)
                handle_id = check_id(launched.id)
                action, launch, tool = "spawn", launched, launched.of(tool)
        else:
            named, id = action_of(tool.name, sent)
            spawn = sent.pop("spawn", None)
            if named is None:
                sent.pop("action", None)
                arguments = tools.check(tool, None)(sent, taken)
            else:
                handle_id = id if named != "spawn" and isinstance(id, str) else None  # loaded even if it is refused
                action = _read_action(tool, named)
                if spawn is not None and id is not spawn:
                    raise ToolError("give `spawn` or `action`, not both", code="invalid_arguments")
                handle_id = _read_id(tool, action, id)
                arguments = _own(tools.check(tool, action)({**sent, "action": action, "id": id}, taken))
    except ToolError as mistake:
        error, given = mistake, _storable(call.arguments)
    return ParsedCall(
        call=call,
        position=position,
        tool=tool,
        action=action,
        arguments=arguments,
        given=given,
        handle_id=handle_id,
        launch=launch,
        error=error,
        taken=tuple(taken),
        tools=tools,
    )


def _read_action(tool: Tool, action: Any) -> Action:
    if action not in tool.actions:
        have = ", ".join(f'"{each}"' for each in tool.actions)
        raise ToolError(
            f"tool `{tool.name}` has no action {cut(json_text(action))}; it has {have}", code="unknown_action"
        )
    return cast(Action, action)


def _read_id(tool: Tool, action: Action, id: Any) -> str:
    if id is None:
        raise ToolError(
            f'action "{action}" of tool `{tool.name}` needs `id`: '
            + ("the name you choose for the new handle" if action == "spawn" else "the handle's id"),
            code="invalid_arguments",
        )
    return check_id(id) if action == "spawn" else id if isinstance(id, str) else json_text(id)


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
