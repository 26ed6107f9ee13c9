"""What `execute_agent_async` and `execute_workflow_async` share: ids, replies, retries, and a time limit (W5, W12)."""

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keephold.handles.handle import Handle, OnStop
from keephold.handles.registry import Registry
from keephold.handles.state import Failure
from keephold.handles.text import to_json
from keephold.tools.base import RetryPolicy
from keephold.tools.call import Call
from keephold.tools.waiting.create import timed_out
from keephold.tools.waiting.tool import object_schema
from keephold.tools.waiting.view import FLAG, STATUS, TEXT, TIME, instant, status

if TYPE_CHECKING:
    from keephold.tools.waiting.host import End

_NOT_IN_AN_ID = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_NAME_LENGTH = 100
"""So much of a name is in an id, which has room for 128 characters."""

RETRY = object_schema(
    {
        "maxAttempts": {"type": "integer", "minimum": 1, "maximum": 100},
        "baseDelayMs": {
            "type": "integer",
            "minimum": 0,
            "description": "Pause before the second attempt; default 200.",
        },
        "maxDelayMs": {"type": "integer", "minimum": 0, "description": "Pauses double up to this; default 5000."},
    },
    ["maxAttempts"],
) | {"description": "Try again after a transient failure, with growing pauses."}
RETURNS = {
    "async": FLAG,
    "handleId": TEXT,
    "status": STATUS,
    "message": TEXT,
    "startTime": TIME,
    "timeout": {"type": "number"},
}
REQUIRED = ("async", "handleId", "status", "message", "startTime")


def handle_id(kind: str, name: str, now: float) -> str:
    """`agent_<agentId>_<ms>`; what an id may not have becomes `-` (W12)."""
    return f"{kind}_{_NOT_IN_AN_ID.sub('-', name)[:_NAME_LENGTH]}_{int(now * 1000)}"


def retry(arguments: Mapping[str, Any]) -> RetryPolicy | None:
    """The policy of a call that says when to try again."""
    given = arguments.get("retry")
    if given is None:
        return None
    return RetryPolicy(
        policy="safe",
        max_attempts=given["maxAttempts"],
        base_delay_ms=given.get("baseDelayMs", 200),
        max_delay_ms=given.get("maxDelayMs", 5000),
    )


def reply(handle: Handle, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What such a call is answered with; `what` began."""
    waiting = to_json({"handleId": handle.id}).decode()
    answer = {
        "async": True,
        "handleId": handle.id,
        "status": status(handle),
        "message": f"{what} execution started asynchronously. Wait for it with wait_for {waiting}.",
        "startTime": instant(handle.state.created),
    }
    return answer | ({"timeout": arguments["timeoutMs"]} if arguments.get("timeoutMs") else {})


def created(call: Call) -> float:
    """When the handle of the call was made."""
    handle = call._durability.registry.loaded(call.uid)
    return call._durability.registry.clock.now() if handle is None else handle.state.created


class Overdue:
    """Ends what has not begun, or is between two attempts, when its time is up (W5): nothing of it runs that could."""

    def __init__(self, registry: Registry, handle: Handle, timeout_ms: float, end: "End") -> None:
        self._registry = registry
        self._handle = handle
        self._ms = timeout_ms
        self._end = end
        left = handle.state.created + timeout_ms / 1000 - registry.clock.now()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._due)
        handle.watch(OnStop(lambda _: self._timer.cancel()))

    def _due(self) -> None:
        handle, run = self._handle, self._handle.run
        if handle.active and not self._registry.closing and (run is None or run.live is None):
            error = Failure(timed_out(self._ms), "timeout")
            self._registry.run_soon(self._end(handle, error, "timeout"))
