"""Shared by the adapters for provider SDKs. No SDK is imported: its objects and its API's JSON use the same names."""

from collections.abc import Mapping, Sequence
from typing import Any

from keephold.turn.notifications import notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response


def part(of: Any, name: str) -> Any:
    """Return a field of an SDK's object or of a dictionary; None if it is missing."""
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def tool_call(id: Any, name: Any, arguments: Any) -> ToolCall:
    """Return a call as the model sent it; `turn.run` answers invalid calls (C9)."""
    return ToolCall(str(id or ""), str(name or ""), arguments)


def notification_text(responses: Sequence[Response]) -> str:
    """Return the notifications of a batch's responses as one text; empty if there are none."""
    return notification_block([each for response in responses for each in response.notifications])
