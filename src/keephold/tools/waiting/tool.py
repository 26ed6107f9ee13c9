"""A wait tool: a built-in that takes its arguments and answers with an object in the words of the wait tools (W).

What is wrong with a call is an object, too: `{"error": …, "isError": true}` (W7).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from keephold.errors import KeepholdError, ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Reply
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.function import Function
from keephold.tools.signature import Signature

Arguments = dict[str, Any]
Schema = dict[str, Any]

READS: dict[str, Any] = {"readOnlyHint": True, "openWorldHint": False}
WRITES: dict[str, Any] = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
ENDS: dict[str, Any] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


class Show(Protocol):
    """Makes a reply of an object (`Replies.object`)."""

    def __call__(
        self,
        value: Mapping[str, Any],
        *,
        is_error: bool = False,
        code: str | None = None,
        shown: Sequence[Handle] = (),
        asked: Sequence[Handle] = (),
        hint: str = "",
        limit: int | None = None,
    ) -> Reply: ...


def wait_tool(
    show: Show,
    name: str,
    description: str,
    parameters: Schema,
    returns: Schema,
    function: Callable[[Call, Arguments], Awaitable[Any]],
    **fields: Any,
) -> Tool:
    """The tool; `function` gets the call and its arguments, and returns a `Reply` or, if it is launched, anything."""

    async def answered(call: Call, **arguments: Any) -> Any:
        try:
            return await function(call, arguments)
        except Refused as refused:
            return show({"error": refused.message, **refused.more, "isError": True}, is_error=True, code=refused.code)
        except KeepholdError as error:
            if error.code in ("runtime_closed", "runtime_closing"):
                raise
            return show({"error": error.message, "isError": True}, is_error=True, code=error.code)

    return function_tool(name, description, parameters, answered, returns=returns, **{"unrecorded": True, **fields})


def function_tool(
    name: str, description: str, parameters: Schema, function: Callable[..., Awaitable[Any]], **fields: Any
) -> Tool:
    """A tool whose function takes the call and its arguments by the names they have in JSON."""
    return Tool(
        name=name,
        description=description,
        parameters=parameters,
        runtime=Function(function, Signature(description, parameters, "call", None)),
        errors="object",
        offered=False,
        **{"source": "builtin", **fields},
    )


class Refused(ToolError):
    """An error of the call that says more than its message: `more` is in the reply beside it."""

    def __init__(self, message: str, *, code: str, **more: Any) -> None:
        super().__init__(message, code=code)
        self.more = more


def object_schema(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """JSON Schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}
