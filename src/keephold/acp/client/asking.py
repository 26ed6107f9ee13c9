"""What an agent asks its client for permission, and what it is answered."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from keephold.acp.wire import INVALID_PARAMS, Params, RpcError

CANCELLED = {"outcome": {"outcome": "cancelled"}}


class Permission(msgspec.Struct, frozen=True):
    """A request for permission: the tool call, as the agent describes it, and the options there are."""

    session_id: str
    tool_call: dict[str, Any]
    options: tuple[dict[str, Any], ...]

    def option(self, *kinds: str) -> str | None:
        """The id of the first option of one of these kinds, the first kind first: `allow_once`, `reject_once` …"""
        for kind in kinds:
            for option in self.options:
                if option.get("kind") == kind:
                    return str(option["optionId"])
        return None


OnPermission: TypeAlias = Callable[[Permission], Awaitable[str | None] | str | None]
"""Gets a request and returns the id of the chosen option, or None for `cancelled`."""


def reject(permission: Permission) -> str | None:
    """Say no: what happens where nobody is there to be asked."""
    return permission.option("reject_once", "reject_always")


def read(params: Params) -> Permission:
    """The request in the params of a `session/request_permission`."""
    try:
        return msgspec.convert(
            {
                "session_id": params["sessionId"],
                "tool_call": params["toolCall"],
                "options": [{"optionId": each["optionId"], **each} for each in params["options"]],
            },
            Permission,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from None


async def decide(permission: Permission, on_permission: OnPermission) -> dict[str, Any]:
    """The answer to the request."""
    chosen = on_permission(permission)
    if inspect.isawaitable(chosen):
        chosen = await chosen
    if chosen is None:
        return CANCELLED
    known = [option["optionId"] for option in permission.options]
    if chosen not in known:
        raise ValueError(f"on_permission returned {chosen!r}, which is none of the options {known}")
    return {"outcome": {"outcome": "selected", "optionId": chosen}}
