"""keephold's tools for an agent of pydantic-ai (G4): the calls of one response are one batch, a run is a turn.

    agent = Agent(model, toolsets=[KeepholdToolset(rt)])

- Each run is a turn of the conversation that pydantic-ai names by `conversation_id`. It ends with the run, by each
  handle's policy (T); a run that fails or is cancelled cancels it (T5). What the end of a turn has to tell is news with
  which the next run begins. `KeepholdToolset(turn)` runs in a turn of yours: you end it, and the model can speak again.
- All calls of a response that are this toolset's are one batch (B1), in emitted order, whatever other tools they are
  mixed with and in whatever order pydantic-ai takes them. Calls that somebody may hold back (`approval_required`,
  hooks) are in it if they come at once, else in a batch of their own behind it: see `_emitted.py`.
- A failed call is a tool return with the outcome `failed`, never a `ModelRetry`. keephold's errors say what would be
  right, and a retry would count against the tool: two wrong calls of a model would end the run.
- News is a text of its own behind the results (N4), or behind the text of a failed call, which can carry nothing else.
- A cancelled run cancels its batch (B7). When nobody waits for a batch any more, it is cancelled as well.

Which calls of a model's response make one batch, inside pydantic-ai's agent (B1).

pydantic-ai hands calls over one by one, beside each other or one after the other. A batch takes those that have come
and those that are certain to come. Certain is a call that nothing stands in the way of: whatever asks for approval,
skips calls or changes their arguments decides before the call reaches its toolset, and a batch that ran ahead of it
would run what was never allowed. Such calls are waited for; they are in the batch if they come in time.
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
from keephold.schema.dialects import Dialect
from keephold.turn.notifications import Notification, notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response, Turn

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


__all__ = ["KeepholdToolset"]


class KeepholdToolset(AbstractToolset[Any]):
    """The tools of a runtime, for the agents of pydantic-ai: with a `Runtime` each run is a turn, with a `Turn` all
    runs are part of that one."""

    def __init__(self, source: Runtime | Turn) -> None:
        if not isinstance(source, Runtime | Turn):
            raise TypeError(f"KeepholdToolset takes a keephold.Runtime or a keephold.Turn, not {source!r:.80}")
        self._source = source

    @property
    def id(self) -> str | None:
        """None: a runtime cannot be moved into the steps of another engine."""
        return None

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        """The same tools in a turn, for one run."""
        return _Run(self._source, ctx)

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools, described in the dialect of the run's model (G3)."""
        runtime = self._source if isinstance(self._source, Runtime) else self._source._runtime
        return {
            tool["name"]: ToolsetTool(
                toolset=self,
                # Not strict: pydantic-ai would make it so where it can, and the schema is that of another dialect.
                tool_def=ToolDefinition(
                    name=tool["name"],
                    description=tool["description"],
                    parameters_json_schema=tool["parameters"],
                    strict=False,
                ),
                max_retries=1,  # of hooks of yours: no call of ours is ever retried
                args_validator=Taker(self, tool["name"]),
            )
            for tool in runtime.tools(_dialect(ctx.model))
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Only runs call tools."""
        raise UserError("tools of keephold are called in the run of an agent: Agent(toolsets=[KeepholdToolset(rt)])")


class _Run(KeepholdToolset):
    """The tools in one run of an agent."""

    def __init__(self, source: Runtime | Turn, ctx: RunContext[Any]) -> None:
        super().__init__(source)
        self._ctx = ctx
        self._turn = source if isinstance(source, Turn) else source.turn(ctx.conversation_id)
        self._around: BaseException | None = None
        """What was being handled when the run began, which is no failure of the run."""
        self._step = 0
        self._gathering: _Batch | None = None
        """The batch that still takes calls."""
        self._ahead: dict[str, _Batch] = {}
        """By id: calls of this step that a batch has run, and that pydantic-ai has not come to yet."""
        self._begun: set[str] = set()
        """Ids of the calls of this step that are in a batch."""
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._around = sys.exception()
        if isinstance(self._source, Runtime):
            await self._turn.__aenter__()
        try:
            if self._ctx.pending_messages is not None:  # else it rides on the first response
                self._tell(await self._turn.notifications())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _tell(self, news: Sequence[Notification]) -> None:
        if news:
            self._ctx.enqueue(notification_block(news))

    async def __aexit__(self, *_: Any) -> None:
        """End the turn, if it is the run's own. Toolsets are not told why they are left; the interpreter knows."""
        if isinstance(self._source, Runtime):
            failure = sys.exception()
            if failure is self._around or failure is None:
                await self._turn.__aexit__(None, None, None)
            else:
                await self._turn.__aexit__(type(failure), failure, failure.__traceback__)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """What a call is answered with, in the batch of its response."""
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
        # Calls that pydantic-ai begins together have come when the loop comes round, with whatever hooks made of them.
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
        """The answer to one of its calls, when all are answered. When nobody waits any more, it is cancelled (B7)."""
        self._waiting += 1
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            if self._waiting == 1:
                self.task.cancel()
                await asyncio.wait([self.task])  # not for long
            raise
        finally:
            self._waiting -= 1
        return self.task.result()[id]


def _returned(response: Response) -> str | ToolReturn[str]:
    """A response, as a tool of pydantic-ai returns it."""
    news = notification_block(response.notifications)
    if response.is_error:
        raise ToolFailed(f"{response.model}\n\n{news}" if news else response.model)
    return ToolReturn(response.model, content=news) if news else response.model


def _dialect(model: Any) -> Dialect:
    """That of the models which may be asked, if they have one in common."""
    models = model.models if isinstance(model, FallbackModel) else [model]
    dialects = {dialect_of(each) if isinstance(each, Model) else "generic" for each in models}
    return dialects.pop() if len(dialects) == 1 else "generic"
