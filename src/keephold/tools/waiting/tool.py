"""A wait tool: a built-in that answers with an object (W), and the runtime as the wait tools see it.

An error of the call is an object, too: `{"error": …, "isError": true}` (W7).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keephold.durable.calls import Durability
from keephold.durable.waits import Waits
from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.observing import Measure
from keephold.handles.registry import Registry
from keephold.handles.state import Reply
from keephold.store.base import HandleQuery
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.function import Function
from keephold.tools.signature import Signature
from keephold.tools.toolbox import Tools
from keephold.tools.workflow.expressions import Expressions

if TYPE_CHECKING:
    from keephold.tools.waiting.agents import Agents
    from keephold.turn.replies import Replies
    from keephold.turn.tool_services import ToolServices

Arguments = dict[str, Any]
Schema = dict[str, Any]

READS: dict[str, Any] = {"readOnlyHint": True, "openWorldHint": False}
WRITES: dict[str, Any] = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
ENDS: dict[str, Any] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


_YIELD = 100
"""Handles that are looked up before others may run."""
_NAMED = 100
"""Unknown handles after which no others are looked for."""
_OURS = "call:"
"""How the ids of one-shot calls begin, those of `sleep` among them (S6, W1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitToolHost:
    """The runtime, as the wait tools see it."""

    durability: Callable[[], Durability]
    """The registry and keys, which are made after the tools."""
    replies: "Replies"
    services: "ToolServices"
    """Ends handles, and calls tools in a conversation."""
    has_tool: Callable[[str], bool]
    offered: Callable[[str], Awaitable[Tools]]
    """Returns the tools that a conversation is offered."""
    agents: "Agents"
    measure: Measure
    expressions: Expressions
    """Those of workflows."""
    detached: str = "deny"
    """The decision if no user can be asked (P2)."""
    private_addresses: bool
    """Whether workflows may reach addresses that are not public."""
    api_hosts: Sequence[str]
    """Patterns of the hosts that workflows may send requests to, without asking."""

    @property
    def registry(self) -> Registry:
        return self.durability().registry

    @property
    def waits(self) -> Waits:
        return self.durability().waits

    def now(self) -> float:
        return self.durability().registry.clock.now()

    def created(self, call: Call) -> float:
        """Return when the call's handle was made."""
        handle = self.registry.loaded(call.uid)
        return self.now() if handle is None else handle.state.created

    def named(self, call: Call, id: str) -> Handle:
        """Return the handle of the id that the call itself names (`Tool.names`), which its batch has loaded."""
        try:
            return call.handles.named(id)
        except ToolError as error:
            raise _in_our_words(id, error) from None

    async def find(self, call: Call, id: str) -> Handle:
        """Return the newest handle of the id, or the running `sleep` that `list_wait_handles` shows under it."""
        await call.handles.arrive((id,))
        return await self._find(call, id)

    async def _find(self, call: Call, id: str) -> Handle:
        try:
            return await call.handles.find(id)
        except ToolError as error:
            timer = await self._timer(call, id) if id.startswith(_OURS) else None
            if timer is not None:
                return timer
            raise _in_our_words(id, error) from None

    async def find_all(self, call: Call, ids: Sequence[str]) -> dict[str, Handle]:
        """Return the handles of these ids, each once. Raises one error that names the unknown ids (W4)."""
        found: dict[str, Handle] = {}
        wrong: list[ToolError] = []
        await call.handles.arrive(ids)
        for number, id in enumerate(dict.fromkeys(ids)):
            if number and not number % _YIELD:
                await asyncio.sleep(0)  # a store in memory does not wait
            try:
                found[id] = await self._find(call, id)
            except ToolError as error:
                wrong.append(error)
                if len(wrong) == _NAMED:
                    break
        if wrong:
            code = wrong[0].code if len(wrong) == 1 else "handle_not_found"
            raise ToolError(". ".join(error.message for error in wrong), code=code)
        return found

    async def _timer(self, call: Call, id: str) -> Handle | None:
        timers = await self.registry.store.handles(
            HandleQuery(conversation=call.conversation, kind="timer", status="pending", stateful=False, timers=True)
        )
        record = next((each for each in reversed(timers) if each.id == id), None)
        return None if record is None else self.registry.adopt(record)


def _in_our_words(id: str, error: ToolError) -> ToolError:
    if error.code == "handle_expired":
        return ToolError(f"Wait handle {id} expired: it settled long ago and its result is gone", code=error.code)
    return ToolError(f"Wait handle {id} not found", code=error.code)


def wait_tool(
    host: WaitToolHost, parameters: Schema, returns: Schema, **fields: Any
) -> Callable[[Callable[[Call, Arguments], Awaitable[Reply]]], Tool]:
    """Make a wait tool of a function, whose name and docstring the model sees."""

    def make(function: Callable[[Call, Arguments], Awaitable[Reply]]) -> Tool:
        async def answered(call: Call, **arguments: Any) -> Any:
            try:
                return await function(call, arguments)
            except KeepholdError as error:
                if error.code in ("runtime_closed", "runtime_closing"):
                    raise
                more = error.more if isinstance(error, Refused) else {}
                answer = {"error": error.message, **more, "isError": True}
                return host.replies.object(answer, is_error=True, code=error.code)

        answered.__name__, answered.__doc__ = function.__name__, function.__doc__
        return function_tool(parameters, answered, returns=returns, **{"unrecorded": True, **fields})

    return make


def function_tool(parameters: Schema, function: Callable[..., Awaitable[Any]], **fields: Any) -> Tool:
    """Make a tool whose function takes the call and its arguments by their names in JSON."""
    description = " ".join((function.__doc__ or "").split())
    return Tool(
        name=function.__name__,
        description=description,
        parameters=parameters,
        runtime=Function(function, Signature(description, parameters, "call", None)),
        errors="object",
        offered=False,
        **{"source": "builtin", **fields},
    )


class Refused(ToolError):
    """An error whose reply has more fields than its message."""

    def __init__(self, message: str, *, code: str, **more: Any) -> None:
        super().__init__(message, code=code)
        self.more = more


def object_schema(required: str = "", /, **properties: Any) -> Schema:
    """Return the JSON Schema of an object with these properties, of which the named ones are required."""
    return {"type": "object", "properties": properties, "required": required.split()}
