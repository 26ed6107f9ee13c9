"""Which calls of a model's response make one batch, inside pydantic-ai's agent (B1).

pydantic-ai hands calls over one by one, beside each other or one after the other. A batch takes those that have come
and those that are certain to come. Certain is a call that nothing stands in the way of: whatever asks for approval,
skips calls or changes their arguments decides before the call reaches its toolset, and a batch that ran ahead of it
would run what was never allowed. Such calls are waited for; they are in the batch if they come in time.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.messages import ModelResponse
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.toolsets import AbstractToolset, ApprovalRequiredToolset, CombinedToolset, WrapperToolset

from keephold.turn.slot import ToolCall

_HOOKS = [
    f"{when}_tool_{what}"
    for what, whens in (("validate", ("before", "after", "wrap")), ("execute", ("before", "wrap")))
    for when in whens
]
"""What may skip a call, or change its arguments, before its toolset has it."""


class Taker:
    """The arguments' validator of pydantic-ai, as one that refuses nothing: keephold checks calls itself, and answers
    with what would be right (C9). It also tells whose a tool is and how it is called there, whatever renames it."""

    def __init__(self, toolset: AbstractToolset[Any], name: str) -> None:
        self.toolset = toolset
        self.name = name

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        """The arguments as an object for whoever looks at them on the way."""
        return Unread.unless_object(input if isinstance(input, str) else input.decode(errors="replace"))

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        """Arguments that have been decoded, as they are."""
        return dict(input)


class Unread(dict[str, Any]):
    """Arguments that are no JSON object: empty on the way, and as the model sent them for keephold."""

    text: str

    @classmethod
    def unless_object(cls, text: str) -> dict[str, Any]:
        """The object that this text is, if it is one."""
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        unread = cls()
        unread.text = text
        return unread


def batch_of(
    arrived: Mapping[str, ToolCall], ctx: RunContext[Any], toolset: AbstractToolset[Any], begun: Set[str]
) -> dict[str, ToolCall]:
    """The calls of the newest response that make a batch now, by id and as emitted; never one that has `begun`."""
    newest = next((each for each in reversed(ctx.messages) if isinstance(each, ModelResponse)), None)
    emitted = {} if newest is None else {call.tool_call_id: call for call in newest.tool_calls}
    # What follows a response answers it, at least in part: a run that goes on from there runs what it hands over only.
    all_open = newest is not None and newest is ctx.messages[-1]
    batch: dict[str, ToolCall] = {}
    for id, call in emitted.items():
        if id in arrived:
            batch[id] = arrived[id]
        elif all_open and id not in begun and (name := _certain(call.tool_name, ctx, toolset)):
            batch[id] = ToolCall(id, name, call.args if call.args is not None else {})
    return {**batch, **arrived}


def _certain(name: str, ctx: RunContext[Any], toolset: AbstractToolset[Any]) -> str | None:
    """The toolset's own name of a tool, if a call of it is certain to reach the toolset unchanged."""
    tools = ctx.tool_manager
    tool = tools.tools.get(name) if tools is not None and tools.tools is not None else None
    if tools is None or tool is None or not isinstance(tool.args_validator, Taker):
        return None
    if tool.args_validator.toolset is not toolset or tool.tool_def.defer or not ctx.is_tool_available(tool.tool_def):
        return None
    return tool.args_validator.name if _nothing_decides(tools, toolset) else None


def _nothing_decides(tools: ToolManager[Any], toolset: AbstractToolset[Any]) -> bool:
    hooked = tools.root_capability is not None and any(_has_hooks(each) for each in _leaves(tools.root_capability))
    return not hooked and _passes(tools.toolset, toolset)


def _leaves(capability: AbstractCapability[Any]) -> list[AbstractCapability[Any]]:
    leaves: list[AbstractCapability[Any]] = []
    capability.apply(leaves.append)
    return leaves


def _has_hooks(capability: AbstractCapability[Any]) -> bool:
    kind = type(capability)
    if kind is Instrumentation:  # only watches
        return False
    return any(getattr(kind, hook) is not getattr(AbstractCapability, hook) for hook in _HOOKS)


def _passes(outer: AbstractToolset[Any], toolset: AbstractToolset[Any]) -> bool:
    """Whether there is a way from one toolset into another on which every call is passed on."""
    if outer is toolset:
        return True
    return _passes_on(outer) and any(_passes(inner, toolset) for inner in _inside(outer))


def _passes_on(outer: AbstractToolset[Any]) -> bool:
    ours = type(outer).call_tool.__module__.startswith("pydantic_ai.toolsets.")
    return ours and not isinstance(outer, ApprovalRequiredToolset)


def _inside(outer: AbstractToolset[Any]) -> Iterator[AbstractToolset[Any]]:
    if isinstance(outer, WrapperToolset):
        yield outer.wrapped
    elif isinstance(outer, CombinedToolset):
        yield from outer.toolsets
