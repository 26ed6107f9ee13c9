"""Run tool calls as handles that can be started, watched, given input, waited for and found again.

These names, and the modules `errors`, `outcomes`, `policies`, `prompts` and `testing`, are the public interface. Each
is imported at its first use, so `import keephold` loads nothing else.
"""

from importlib import import_module

TYPE_CHECKING = False  # as type checkers take it; importing `typing` would take half of the time

if TYPE_CHECKING:
    from keephold import errors as errors
    from keephold import outcomes as outcomes
    from keephold import policies as policies
    from keephold import prompts as prompts
    from keephold import testing as testing
    from keephold.durable.deferred import Pending
    from keephold.durable.effects import Effects
    from keephold.durable.keys import Key
    from keephold.errors import ConfigError, KeepholdError, ToolError
    from keephold.handles.handle import HandleInfo
    from keephold.handles.question import Question
    from keephold.runtime import Runtime
    from keephold.tools.base import Tool
    from keephold.tools.call import Call, FileDiff
    from keephold.tools.function import tool
    from keephold.tools.program import command, terminal
    from keephold.tools.remote.server import mcp_server
    from keephold.turn.notifications import Notification, notification_block
    from keephold.turn.tool_call import ToolCall
    from keephold.turn.turn import Response, Turn

__all__ = [
    "Call",
    "ConfigError",
    "Effects",
    "FileDiff",
    "HandleInfo",
    "KeepholdError",
    "Key",
    "Notification",
    "Pending",
    "Question",
    "Response",
    "Runtime",
    "Tool",
    "ToolCall",
    "ToolError",
    "Turn",
    "command",
    "mcp_server",
    "notification_block",
    "terminal",
    "tool",
]

_MODULES = ("errors", "outcomes", "policies", "prompts", "testing")

_HOMES = {
    "Call": "keephold.tools.call",
    "ConfigError": "keephold.errors",
    "Effects": "keephold.durable.effects",
    "FileDiff": "keephold.tools.call",
    "HandleInfo": "keephold.handles.handle",
    "KeepholdError": "keephold.errors",
    "Key": "keephold.durable.keys",
    "Notification": "keephold.turn.notifications",
    "Pending": "keephold.durable.deferred",
    "Question": "keephold.handles.question",
    "Response": "keephold.turn.turn",
    "Runtime": "keephold.runtime",
    "Tool": "keephold.tools.base",
    "ToolCall": "keephold.turn.tool_call",
    "ToolError": "keephold.errors",
    "Turn": "keephold.turn.turn",
    "command": "keephold.tools.program",
    "mcp_server": "keephold.tools.remote.server",
    "notification_block": "keephold.turn.notifications",
    "terminal": "keephold.tools.program",
    "tool": "keephold.tools.function",
}

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name as public

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"keephold.{name}")
        if name not in _HOMES:
            raise AttributeError(f"keephold has no public name `{name}`; it has {', '.join((*__all__, *_MODULES))}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use finds the name without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
