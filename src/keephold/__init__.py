"""keephold: every tool call is a handle that can be started, watched, talked to, waited for and found again.

These names are the public interface. Each is imported when it is first used: `import keephold` costs next to nothing,
and nobody pays for a part that is not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keephold.durable.deferred import Pending, ResolveOutcome
    from keephold.durable.effects import Effects
    from keephold.durable.keys import Key
    from keephold.errors import ConfigError, KeepholdError, ToolError, TurnFailed
    from keephold.handles.handle import HandleInfo
    from keephold.handles.question import Question
    from keephold.handles.state import Failure, Ok, PrintedOutput
    from keephold.runtime import Runtime
    from keephold.store.rows import ProcessEvent
    from keephold.tools.base import (
        NotificationPolicy,
        OutputPolicy,
        OutputView,
        QuestionPolicy,
        RetryPolicy,
        SpawnPolicy,
        Tool,
    )
    from keephold.tools.call import Call, FileDiff
    from keephold.tools.function import tool
    from keephold.tools.remote.server import mcp_server
    from keephold.tools.terminal.make import terminal
    from keephold.tools.waiting.agents import AgentRequest
    from keephold.turn.ending import Ending
    from keephold.turn.inquiry import Inquiry
    from keephold.turn.notifications import Notification, notification_block
    from keephold.turn.prompts import Answer, Approved, AskQuestion, DeliverResult, Denied, Dismissed, Edited, RunTool
    from keephold.turn.slot import ToolCall
    from keephold.turn.turn import OpenBatch, Response, Turn

__all__ = [
    "AgentRequest",
    "Answer",
    "Approved",
    "AskQuestion",
    "Call",
    "ConfigError",
    "DeliverResult",
    "Denied",
    "Dismissed",
    "Edited",
    "Effects",
    "Ending",
    "Failure",
    "FileDiff",
    "HandleInfo",
    "Inquiry",
    "KeepholdError",
    "Key",
    "Notification",
    "NotificationPolicy",
    "Ok",
    "OpenBatch",
    "OutputPolicy",
    "OutputView",
    "Pending",
    "PrintedOutput",
    "ProcessEvent",
    "Question",
    "QuestionPolicy",
    "ResolveOutcome",
    "Response",
    "RetryPolicy",
    "RunTool",
    "Runtime",
    "SpawnPolicy",
    "Tool",
    "ToolCall",
    "ToolError",
    "Turn",
    "TurnFailed",
    "mcp_server",
    "notification_block",
    "terminal",
    "tool",
]

_HOMES = {
    "AgentRequest": "keephold.tools.waiting.agents",
    "Answer": "keephold.turn.prompts",
    "Approved": "keephold.turn.prompts",
    "AskQuestion": "keephold.turn.prompts",
    "Call": "keephold.tools.call",
    "ConfigError": "keephold.errors",
    "DeliverResult": "keephold.turn.prompts",
    "Denied": "keephold.turn.prompts",
    "Dismissed": "keephold.turn.prompts",
    "Edited": "keephold.turn.prompts",
    "Effects": "keephold.durable.effects",
    "Ending": "keephold.turn.ending",
    "Failure": "keephold.handles.state",
    "FileDiff": "keephold.tools.call",
    "HandleInfo": "keephold.handles.handle",
    "Inquiry": "keephold.turn.inquiry",
    "KeepholdError": "keephold.errors",
    "Key": "keephold.durable.keys",
    "Notification": "keephold.turn.notifications",
    "NotificationPolicy": "keephold.tools.base",
    "Ok": "keephold.handles.state",
    "OpenBatch": "keephold.turn.turn",
    "OutputPolicy": "keephold.tools.base",
    "OutputView": "keephold.tools.base",
    "Pending": "keephold.durable.deferred",
    "PrintedOutput": "keephold.handles.state",
    "ProcessEvent": "keephold.store.rows",
    "Question": "keephold.handles.question",
    "QuestionPolicy": "keephold.tools.base",
    "ResolveOutcome": "keephold.durable.deferred",
    "Response": "keephold.turn.turn",
    "RetryPolicy": "keephold.tools.base",
    "RunTool": "keephold.turn.prompts",
    "Runtime": "keephold.runtime",
    "SpawnPolicy": "keephold.tools.base",
    "Tool": "keephold.tools.base",
    "ToolCall": "keephold.turn.slot",
    "ToolError": "keephold.errors",
    "Turn": "keephold.turn.turn",
    "TurnFailed": "keephold.errors",
    "mcp_server": "keephold.tools.remote.server",
    "notification_block": "keephold.turn.notifications",
    "terminal": "keephold.tools.terminal.make",
    "tool": "keephold.tools.function",
}

if not TYPE_CHECKING:  # a type checker that saw this function would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"keephold has no public name `{name}`; it has {', '.join(__all__)}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # from now on the name is found without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
