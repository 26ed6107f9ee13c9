"""holdfast: every tool call is a handle that can be started, watched, talked to, waited for and found again.

These names are the public interface. Each is imported when it is first used: `import holdfast` costs next to nothing,
and nobody pays for a part that is not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import ConfigError, HoldfastError, ToolError
    from holdfast.handles.handle import HandleInfo
    from holdfast.handles.question import Question
    from holdfast.handles.state import Error, Ok, Printed
    from holdfast.runtime import Runtime
    from holdfast.tools.base import OutputPolicy, QuestionPolicy, Tool, View
    from holdfast.tools.call import Call
    from holdfast.tools.function import tool
    from holdfast.turn.slot import ToolCall
    from holdfast.turn.turn import Response, Turn

__all__ = [
    "Call",
    "ConfigError",
    "Error",
    "HandleInfo",
    "HoldfastError",
    "Ok",
    "OutputPolicy",
    "Printed",
    "Question",
    "QuestionPolicy",
    "Response",
    "Runtime",
    "Tool",
    "ToolCall",
    "ToolError",
    "Turn",
    "View",
    "tool",
]

_HOMES = {
    "Call": "holdfast.tools.call",
    "ConfigError": "holdfast.errors",
    "Error": "holdfast.handles.state",
    "HandleInfo": "holdfast.handles.handle",
    "HoldfastError": "holdfast.errors",
    "Ok": "holdfast.handles.state",
    "OutputPolicy": "holdfast.tools.base",
    "Printed": "holdfast.handles.state",
    "Question": "holdfast.handles.question",
    "QuestionPolicy": "holdfast.tools.base",
    "Response": "holdfast.turn.turn",
    "Runtime": "holdfast.runtime",
    "Tool": "holdfast.tools.base",
    "ToolCall": "holdfast.turn.slot",
    "ToolError": "holdfast.errors",
    "Turn": "holdfast.turn.turn",
    "View": "holdfast.tools.base",
    "tool": "holdfast.tools.function",
}

if not TYPE_CHECKING:  # a type checker that saw this function would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"holdfast has no public name `{name}`; it has {', '.join(__all__)}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # from now on the name is found without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
