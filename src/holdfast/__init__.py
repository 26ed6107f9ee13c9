"""holdfast: every tool call is a handle that can be started, watched, talked to, waited for and found again.

These names are the public interface. Each is imported when it is first used: `import holdfast` costs next to nothing,
and nobody pays for a part that is not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.durable.deferred import Pending, ResolveOutcome
    from holdfast.durable.effects import Effects
    from holdfast.durable.keys import Key
    from holdfast.errors import ConfigError, HoldfastError, ToolError, TurnFailed
    from holdfast.handles.handle import HandleInfo
    from holdfast.handles.question import Question
    from holdfast.handles.state import Error, Ok, Printed
    from holdfast.runtime import Runtime
    from holdfast.store.rows import ProcessEvent
    from holdfast.tools.base import (
        NotificationPolicy,
        OutputPolicy,
        QuestionPolicy,
        RetryPolicy,
        SpawnPolicy,
        Tool,
        View,
    )
    from holdfast.tools.call import Call, Diff
    from holdfast.tools.function import tool
    from holdfast.tools.remote.server import mcp_server
    from holdfast.tools.terminal.make import terminal
    from holdfast.tools.waiting.agents import AgentRequest
    from holdfast.turn.ending import Ending
    from holdfast.turn.inquiry import Inquiry
    from holdfast.turn.notifications import Notification, notification_block
    from holdfast.turn.prompts import Approved, AskQuestion, Cancelled, DeliverResult, Denied, Edited, RunTool, Said
    from holdfast.turn.slot import ToolCall
    from holdfast.turn.turn import OpenBatch, Response, Turn

__all__ = [
    "AgentRequest",
    "Approved",
    "AskQuestion",
    "Call",
    "Cancelled",
    "ConfigError",
    "DeliverResult",
    "Denied",
    "Diff",
    "Edited",
    "Effects",
    "Ending",
    "Error",
    "HandleInfo",
    "HoldfastError",
    "Inquiry",
    "Key",
    "Notification",
    "NotificationPolicy",
    "Ok",
    "OpenBatch",
    "OutputPolicy",
    "Pending",
    "Printed",
    "ProcessEvent",
    "Question",
    "QuestionPolicy",
    "ResolveOutcome",
    "Response",
    "RetryPolicy",
    "RunTool",
    "Runtime",
    "Said",
    "SpawnPolicy",
    "Tool",
    "ToolCall",
    "ToolError",
    "Turn",
    "TurnFailed",
    "View",
    "mcp_server",
    "notification_block",
    "terminal",
    "tool",
]

_HOMES = {
    "AgentRequest": "holdfast.tools.waiting.agents",
    "Approved": "holdfast.turn.prompts",
    "AskQuestion": "holdfast.turn.prompts",
    "Call": "holdfast.tools.call",
    "Cancelled": "holdfast.turn.prompts",
    "ConfigError": "holdfast.errors",
    "DeliverResult": "holdfast.turn.prompts",
    "Denied": "holdfast.turn.prompts",
    "Diff": "holdfast.tools.call",
    "Edited": "holdfast.turn.prompts",
    "Effects": "holdfast.durable.effects",
    "Ending": "holdfast.turn.ending",
    "Error": "holdfast.handles.state",
    "HandleInfo": "holdfast.handles.handle",
    "HoldfastError": "holdfast.errors",
    "Inquiry": "holdfast.turn.inquiry",
    "Key": "holdfast.durable.keys",
    "Notification": "holdfast.turn.notifications",
    "NotificationPolicy": "holdfast.tools.base",
    "Ok": "holdfast.handles.state",
    "OpenBatch": "holdfast.turn.turn",
    "OutputPolicy": "holdfast.tools.base",
    "Pending": "holdfast.durable.deferred",
    "Printed": "holdfast.handles.state",
    "ProcessEvent": "holdfast.store.rows",
    "Question": "holdfast.handles.question",
    "QuestionPolicy": "holdfast.tools.base",
    "ResolveOutcome": "holdfast.durable.deferred",
    "Response": "holdfast.turn.turn",
    "RetryPolicy": "holdfast.tools.base",
    "RunTool": "holdfast.turn.prompts",
    "Runtime": "holdfast.runtime",
    "Said": "holdfast.turn.prompts",
    "SpawnPolicy": "holdfast.tools.base",
    "Tool": "holdfast.tools.base",
    "ToolCall": "holdfast.turn.slot",
    "ToolError": "holdfast.errors",
    "Turn": "holdfast.turn.turn",
    "TurnFailed": "holdfast.errors",
    "View": "holdfast.tools.base",
    "mcp_server": "holdfast.tools.remote.server",
    "notification_block": "holdfast.turn.notifications",
    "terminal": "holdfast.tools.terminal.make",
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
