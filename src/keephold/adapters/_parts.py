"""Shared by the adapters. No SDK is imported: its objects and its API's JSON use the same names."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from keephold.errors import MissingExtra
from keephold.extras import installed
from keephold.runtime import Runtime
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


def need_package(adapter: str, package: str, distribution: str) -> None:
    """Raise `MissingExtra` unless the framework's package is installed. keephold has no extra for it."""
    if not installed(package):
        raise MissingExtra(
            f"{adapter} needs the package {distribution}, which is not installed: pip install {distribution}"
        )


async def answered(rt: Runtime, conversation: str, name: str, arguments: Any) -> tuple[str, bool]:
    """Run one call without a turn, and return its text with its notifications, and whether it is an error.

    Cancelling this cancels the call (B7); the notifications stay for the next call (N3).
    """
    queued = await rt.call_queue(conversation).begin(tool_call(secrets.token_hex(6), name, arguments))
    try:
        response = await queued.response()
    except asyncio.CancelledError:
        queued.detach()
        queued.cancel()
        raise
    told = notification_text([response])
    return f"{response.model}\n\n{told}" if told else response.model, response.is_error
