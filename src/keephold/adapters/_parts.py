"""What the adapters for the providers' own SDKs have in common. No SDK is imported: their objects and the JSON of
their APIs have the same names."""

from collections.abc import Mapping, Sequence
from typing import Any

from keephold.turn.notifications import notification_block
from keephold.turn.tool_call import ToolCall
from keephold.turn.turn import Response


def part(of: Any, name: str) -> Any:
    """A field of an SDK's object or of a dictionary; None if there is none."""
    return of.get(name) if isinstance(of, Mapping) else getattr(of, name, None)


def tool_call(id: Any, name: Any, arguments: Any) -> ToolCall:
    """A call as the model sent it, right or wrong: `turn.run` says what was wrong with it (C9)."""
    return ToolCall(str(id or ""), str(name or ""), arguments)


def notification_text(responses: Sequence[Response]) -> str:
    """The news that rides on the responses of a batch, as one text; empty without any."""
    return notification_block([news for response in responses for news in response.notifications])
