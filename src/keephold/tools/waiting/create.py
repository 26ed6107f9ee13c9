"""`create_wait_handle`: a handle that is completed later, by its id or its key (W1, W5, W7).

It is a call that takes its completion key and parks, so it costs nothing while it waits and outlives the process (D).
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from keephold.durable.deferred import Pending, TimedPending
from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Failure, Stopped
from keephold.store.base import OWN_METADATA, Record
from keephold.text import instant, to_json
from keephold.tools.base import Launch, Launching, SpawnPolicy, Tool
from keephold.tools.call import Call
from keephold.tools.toolbox import Tools
from keephold.tools.waiting.tool import WRITES, WaitToolHost, function_tool, object_schema
from keephold.tools.waiting.view import TYPES, duration, number, one_of, status, text
from keephold.tools.waiting.view import reply as reply_of

NAME = "create_wait_handle"
EXISTS = "Wait handle {id} already exists"
METADATA_BYTES = 8192

TIMEOUT = duration("Milliseconds from now after which it fails; 0 is never. Default: 0.")
PRIORITY = {
    "type": "integer",
    "minimum": -(2**31),
    "maximum": 2**31 - 1,
    "description": "Of those that queue, the highest starts first. Default: 0.",
}
PARAMETERS = object_schema(
    "handleId type",
    handleId=text("Unique identifier for the handle, which you choose."),
    type=one_of(TYPES, "`hook`: another system completes it by its key. The others are labels."),
    metadata={"type": "object", "description": "Additional metadata, up to 8 KiB. Default: none."},
    timeoutMs=TIMEOUT,
    priority=PRIORITY,
)
RETURNS = reply_of(
    "success handleId type status startTime timeout? metadata? priority? key? completeUrl?",
    key=text("Only for a hook: the key that completes the handle, once."),
    completeUrl=text("Only for a hook, if keephold serves HTTP: POST the result here."),
)


def create_tool(host: WaitToolHost) -> Tool:
    async def create_wait_handle(call: Call, **arguments: Any) -> Pending:
        """Create a wait handle for tracking an async operation. Use it for work outside keephold, by a webhook or a
        person; it starts nothing. `complete_wait_handle` ends it, and `wait_for` gets the result. Returns at once, for
        a `hook` with the `key` that completes it.
        """
        await call.completion_key()
        return timed(arguments.get("timeoutMs"), host.created(call))

    async def reply(handle: Handle, record: Record) -> dict[str, Any]:
        state, given = handle.state, record.arguments
        if isinstance(state, Stopped) and handle.parking is None and isinstance(state.outcome, Failure):
            raise ToolError(state.outcome.message, code=state.outcome.code)
        answer = {
            "success": True,
            "handleId": handle.id,
            "type": handle.kind,
            "status": status(handle),
            "startTime": instant(state.created),
        }
        answer |= {"timeout": given["timeoutMs"]} if given.get("timeoutMs") else {}
        answer |= {key: given[key] for key in ("metadata", "priority") if given.get(key) is not None}
        if handle.kind == "hook":
            key, url = await host.waits.key_of(record), host.durability().complete_url
            answer["key"] = str(key)
            answer |= {} if url is None else {"completeUrl": f"{url}/{key}"}
        return answer

    return function_tool(
        PARAMETERS,
        create_wait_handle,
        returns=RETURNS,
        unshown=frozenset(("priority",)),  # it never queues
        launching=Launching(read=_read, reply=reply, parks=True, once=EXISTS),
        on_crash="replay",
        spawn=SpawnPolicy(on_turn_end="keep"),
        hints=WRITES | {"title": "Create a wait handle"},
    )


def _read(arguments: Mapping[str, Any], now: float, tools: Tools | None) -> Launch:
    return Launch(
        id=arguments["handleId"],
        kind=arguments["type"],
        metadata=small(given(arguments)),
        priority=arguments.get("priority") or 0,
    )


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a call. Raises `ToolError` for keys of our own, which a user may be asked by."""
    metadata: dict[str, Any] = arguments.get("metadata") or {}
    if ours := [key for key in metadata if key.startswith(OWN_METADATA)]:
        own = "` or `".join(OWN_METADATA)
        raise ToolError(f"metadata `{ours[0]}`: keys that begin with `{own}` are ours", code="invalid_arguments")
    return metadata


def small(metadata: dict[str, Any]) -> dict[str, Any]:
    """Check the size of metadata, which every reply and list includes. Raises `ToolError`."""
    size = len(to_json(metadata))
    if size > METADATA_BYTES:
        raise ToolError(
            f"`metadata` has {size} bytes, more than {METADATA_BYTES}; it is for labels, keep data elsewhere",
            code="limit_exceeded",
        )
    return metadata


def timed(timeout_ms: float | None, created: float) -> Pending:
    """Return the terms of a handle whose timeout starts at its creation (W5)."""
    if not timeout_ms:
        return Pending()
    deadline = datetime.fromtimestamp(created + timeout_ms / 1000, UTC)
    return TimedPending(deadline, timed_out=timed_out(timeout_ms))


def timed_out(timeout_ms: float) -> str:
    return f"Operation timed out after {number(timeout_ms)}ms"
