"""keephold's tools for an agent of pydantic-ai: the calls of one response are one batch, a run is a turn (G4).

    agent = Agent(model, toolsets=[KeepholdToolset(rt)])

- Each run is a turn of the conversation that pydantic-ai names by `conversation_id`. It ends with the run, by each
  handle's policy (T); a run that fails or is cancelled cancels it (T5). Results at the end of a turn are notifications
  at the start of the next run. `KeepholdToolset(turn)` runs in a turn of yours: you end it, and the model can respond
  again.
- All calls of a response to this toolset are one batch (B1), in emitted order, even if mixed with other tools.
- A failed call is a tool return with the outcome `failed`, never a `ModelRetry`: a retry counts against the tool, and
  two wrong calls would end the run.
- Notifications are a text of their own after the results (N4), or part of a failed call's text.
- A cancelled run cancels its batch (B7). A batch is also cancelled when no call waits for it.

pydantic-ai hands calls over one by one. A batch takes the calls that have arrived and those that are certain to arrive
unchanged. A toolset or hook that asks for approval, skips calls or changes arguments decides before the call reaches
this toolset; a batch that ran ahead would run calls that were never approved. Such calls join the batch if they arrive
in time; otherwise they form the next batch.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Self

import msgspec
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.exceptions import ToolFailed, UserError
from pydantic_ai.messages import ModelResponse, ToolReturn
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ApprovalRequiredToolset, CombinedToolset, ToolsetTool, WrapperToolset

from keephold.agent.models import dialect_of
from keephold.errors import TurnFailed
from keephold.runtime import Runtime
from keephold.schema.dialects import Dialect, tool_list
from keephold.turn.notifications import Notification, notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

_HOOKS = [
    f"{when}_tool_{what}"
    for what, whens in (("validate", ("before", "after", "wrap")), ("execute", ("before", "wrap")))
    for when in whens
]
"""Hooks that may skip a call or change its arguments before its toolset gets it."""


class Taker:
    """An arguments' validator for pydantic-ai that accepts everything: keephold checks calls itself and answers with
    the right form (C9). It also knows the tool's toolset and original name."""

    def __init__(self, toolset: AbstractToolset[Any], name: str) -> None:
        self.toolset = toolset
        self.name = name

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        """Return the arguments as an object, for hooks that read them."""
        return Unread.unless_object(input if isinstance(input, str) else input.decode(errors="replace"))

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        """Return decoded arguments as they are."""
        return dict(input)


class Unread(dict[str, Any]):
    """Arguments that are not a JSON object: empty for hooks, and as the model sent them for keephold."""

    text: str

    @classmethod
    def unless_object(cls, text: str) -> dict[str, Any]:
        """Return the object in the text, if it is one."""
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
    """Return the calls of the newest response that form a batch now, by id in order, without those in `begun`."""
    newest = next((each for each in reversed(ctx.messages) if isinstance(each, ModelResponse)), None)
    emitted = {} if newest is None else {call.tool_call_id: call for call in newest.tool_calls}
    # A message after the response answers part of it: such a run executes only the calls it is handed.
    all_open = newest is not None and newest is ctx.messages[-1]
    batch: dict[str, ToolCall] = {}
    for id, call in emitted.items():
        if id in arrived:
            batch[id] = arrived[id]
        elif all_open and id not in begun and (name := _certain(call.tool_name, ctx, toolset)):
            batch[id] = ToolCall(id, name, call.args if call.args is not None else {})
    return {**batch, **arrived}


def _certain(name: str, ctx: RunContext[Any], toolset: AbstractToolset[Any]) -> str | None:
    """Return the toolset's own name of a tool, if its calls are certain to arrive unchanged."""
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
    if kind is Instrumentation:  # it only observes
        return False
    return any(getattr(kind, hook) is not getattr(AbstractCapability, hook) for hook in _HOOKS)


def _passes(outer: AbstractToolset[Any], toolset: AbstractToolset[Any]) -> bool:
    """Return whether one toolset passes every call on to the other."""
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


__all__ = ["KeepholdToolset"]


class KeepholdToolset(AbstractToolset[Any]):
    """The tools of a runtime for agents of pydantic-ai: with a `Runtime` each run is a turn, with a `Turn` all runs are
    part of it."""

    def __init__(self, source: Runtime | Turn) -> None:
        if not isinstance(source, Runtime | Turn):
            raise TypeError(f"KeepholdToolset takes a keephold.Runtime or a keephold.Turn, not {source!r:.80}")
        self._source = source

    @property
    def id(self) -> str | None:
        """None: a runtime cannot be moved into the steps of another engine."""
        return None

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        """Return the same tools in a turn, for one run."""
        return _Run(self._source, ctx)

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools in the dialect of the run's model (G3)."""
        toolbox = self._source.toolbox if isinstance(self._source, Runtime) else self._source._parts.toolbox
        offered = toolbox if isinstance(self._source, Runtime) else self._source._tools
        return {
            tool["name"]: ToolsetTool(
                toolset=self,
                # Not strict: pydantic-ai would make it strict where it can, though the schema is of
                # another dialect.
                tool_def=ToolDefinition(
                    name=tool["name"],
                    description=tool["description"],
                    parameters_json_schema=tool["parameters"],
                    strict=False,
                ),
                max_retries=1,  # for your hooks: keephold's calls are never retried
                args_validator=Taker(self, tool["name"]),
            )
            for tool in tool_list(offered, _dialect(ctx.model), toolbox.actions)
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Raise: only runs call tools."""
        raise UserError("tools of keephold are called in the run of an agent: Agent(toolsets=[KeepholdToolset(rt)])")


class _Run(KeepholdToolset):
    """The tools in one run of an agent."""

    def __init__(self, source: Runtime | Turn, ctx: RunContext[Any]) -> None:
        super().__init__(source)
        self._ctx = ctx
        self._turn = source if isinstance(source, Turn) else source.turn(ctx.conversation_id)
        self._around: BaseException | None = None
        """The exception being handled when the run began, which is not a failure of the run."""
        self._step = 0
        self._gathering: _Batch | None = None
        """The batch that still takes calls."""
        self._ahead: dict[str, _Batch] = {}
        """By id: calls of this step that a batch has run before pydantic-ai reached them."""
        self._begun: set[str] = set()
        """Ids of the calls of this step that are in a batch."""
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._around = sys.exception()
        if isinstance(self._source, Runtime):
            await self._turn.__aenter__()
        try:
            if self._ctx.pending_messages is not None:  # else it is sent with the first response
                self._tell(await self._turn.notifications())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _tell(self, notifications: Sequence[Notification]) -> None:
        if notifications:
            self._ctx.enqueue(notification_block(notifications))

    async def __aexit__(self, *_: Any) -> None:
        """End the turn, if it is the run's own. Toolsets do not get the exception, so read it from the interpreter."""
        if isinstance(self._source, Runtime):
            failure = sys.exception()
            if failure is self._around or failure is None:
                await self._turn.__aexit__(None, None, None)
            else:
                await self._turn.__aexit__(type(failure), failure, failure.__traceback__)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Return the answer to a call, in the batch of its response."""
        if ctx.run_step != self._step:
            self._step, self._gathering = ctx.run_step, None
            self._ahead.clear()
            self._begun.clear()
        id = ctx.tool_call_id or ""
        batch = self._ahead.pop(id, None)
        if batch is None:
            batch = self._gathering
            if batch is None:
                batch = self._gathering = _Batch()
                batch.task = asyncio.create_task(self._run(batch, ctx))
            batch.arrived[id] = ToolCall(id, name, tool_args.text if isinstance(tool_args, Unread) else tool_args)
        return _returned(await batch.response(id))

    async def _run(self, batch: "_Batch", ctx: RunContext[Any]) -> Mapping[str, Response]:
        # Calls that pydantic-ai begins together, changed by hooks or not, have arrived after one pass of the
        # loop.
        await asyncio.sleep(0)
        if self._gathering is batch:
            self._gathering = None
        calls = batch_of(batch.arrived, ctx, self, self._begun)
        if ctx.run_step == self._step:
            self._begun |= calls.keys()
            self._ahead |= dict.fromkeys(calls.keys() - batch.arrived.keys(), batch)
        async with self._one_at_a_time:
            responses = await self._turn.run(list(calls.values()))
        if self._turn.failed is not None:
            raise TurnFailed(f"the turn has failed ({self._turn.failed.message})")
        return dict(zip(calls, responses, strict=True))


class _Batch:
    """A batch, while it takes calls and while it runs."""

    task: "asyncio.Task[Mapping[str, Response]]"

    def __init__(self) -> None:
        self.arrived: dict[str, ToolCall] = {}
        self._waiting = 0

    async def response(self, id: str) -> Response:
        """Return the answer to one call when all are answered. If no call waits any more, cancel the batch (B7)."""
        self._waiting += 1
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            if self._waiting == 1:
                self.task.cancel()
                await asyncio.wait([self.task])
            raise
        finally:
            self._waiting -= 1
        return self.task.result()[id]


def _returned(response: Response) -> str | ToolReturn[str]:
    """Return a response as a tool of pydantic-ai returns it."""
    notifications = notification_block(response.notifications)
    if response.is_error:
        raise ToolFailed(f"{response.model}\n\n{notifications}" if notifications else response.model)
    return ToolReturn(response.model, content=notifications) if notifications else response.model


def _dialect(model: Any) -> Dialect:
    """Return the dialect that all possible models share."""
    models = model.models if isinstance(model, FallbackModel) else [model]
    dialects = {dialect_of(each) if isinstance(each, Model) else "generic" for each in models}
    return dialects.pop() if len(dialects) == 1 else "generic"
