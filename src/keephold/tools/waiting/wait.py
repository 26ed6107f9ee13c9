"""`wait_for`, `wait_for_multiple` and `sleep`: block until handles have settled, or for a time (W1–W5).

Waiting is event-driven, so `pollIntervalMs` is accepted and ignored. A timeout limits the wait and ends nothing; before
it is reported the states are read again, from the store if another process may have changed them. A `sleep` is a
`timer` handle while it runs; resumed after a crash, it sleeps the rest.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.state import Reply, Stopped, Waiting
from keephold.handles.view import Waited, WaitQuery
from keephold.handles.waits import Group, all_of, any_of, first_success
from keephold.text import instant, to_json
from keephold.tools.base import OutputView, Tool
from keephold.tools.call import Call
from keephold.tools.waiting.tool import READS, Arguments, WaitToolHost, object_schema, wait_tool
from keephold.tools.waiting.view import (
    COUNT,
    RenderedText,
    came_to,
    duration,
    elapsed,
    fitting,
    milliseconds,
    number,
    one_of,
    operation_ms,
    progress_of,
    read_hint,
    reply,
    status,
    text,
    wants,
)

_TIMEOUT = duration("Maximum time to wait in milliseconds; 0 does not wait. The work continues. Default: no limit.")
_POLL = {"type": "number", "description": "Accepted and not used: waiting is event-driven."}
_UNUSED = frozenset(("pollIntervalMs",))
PARAMETERS_ONE = object_schema("handleId", handleId=text("ID of the handle."), timeoutMs=_TIMEOUT, pollIntervalMs=_POLL)
PARAMETERS_MULTIPLE = object_schema(
    "handleIds mode",
    handleIds={"type": "array", "items": {"type": "string"}, "description": "IDs of handles."},
    mode=one_of(
        ("all", "any", "race"),
        "`all`: every operation has settled. `any`: one has succeeded, or all have failed. "
        "`race`: the first has settled.",
    ),
    timeoutMs=_TIMEOUT,
    pollIntervalMs=_POLL,
)
_PENDING = {
    "needsInput": {"type": "boolean", "description": "It waits for the caller: answer it, or send it input."},
    "question": {"type": "object"},
    "behind": text("It queues behind this handle, which waits for the caller."),
    "endedBy": text("Who ended it on purpose."),
}
_PENDING_NAMES = "needsInput? question? behind? progress? endedBy?"
RETURNS_ONE = reply(
    "handleId type? status result? error? partialResult? isError? operationElapsedMs? operationElapsedTime? elapsedMs? "
    f"startTime? endTime? waitedMs? waitedTime? {_PENDING_NAMES}",
    elapsedMs={**COUNT, "description": "When the wait timed out: how long it waited."},
    **_PENDING,
)
_ENTRY = reply(f"type status result? error? partialResult? elapsedMs elapsedTime {_PENDING_NAMES}", **_PENDING)
RETURNS_MULTIPLE = reply(
    "mode status error? winner? totalCount completedCount failedCount pendingCount needsInput? results elapsedMs? "
    "waitedMs waitedTime",
    mode={"type": "string", "enum": ["all", "any", "race"]},
    status={"type": "string", "enum": ["completed", "partial", "failed", "timeout", "pending"]},
    winner=text("In a race: who settled first."),
    results={"type": "object", "additionalProperties": _ENTRY},
)


def wait_for_tool(host: WaitToolHost) -> Tool:
    show, hints = host.replies.object, READS | {"title": "Wait for an operation"}

    @wait_tool(
        host, PARAMETERS_ONE, RETURNS_ONE, scheduling="synchronising", task="never", hints=hints, unshown=_UNUSED
    )
    async def wait_for(call: Call, arguments: Arguments) -> Reply:
        """Wait for a single async operation to complete. Use it for a handle of `create_wait_handle`, an agent or
        a workflow; `wait_for_multiple` for several; `await` for tools that you started in the background. Returns
        `status` and `result` or `error`, or `needsInput`.
        """
        began = host.now()
        handle = await host.find(call, arguments["handleId"])
        timeout = _within(call, arguments)
        waited = await wait(host, call, "all", (handle,), timeout)
        now = host.now()
        passed = milliseconds(now - began)
        host.measure.waited("wait_for", "timeout" if waited.timed_out else status(handle), now - began)
        if waited.timed_out:
            error = f"Wait timed out after {number(timeout or 0)}ms"
            answer = {"handleId": handle.id, "status": "timeout", "error": error, "elapsedMs": passed}
            return show(answer | progress_of(handle.progress))
        took, how = operation_ms(handle.state, now), status(handle)
        answer = {"handleId": handle.id, "type": handle.kind, "status": how, **came_to(handle, host.replies.printed)}
        if waited.needs_input:
            answer |= {**wants(handle), **progress_of(handle.progress)}
        if how == "failed":
            answer["isError"] = True
        answer |= {"operationElapsedMs": took, "operationElapsedTime": elapsed(took)}
        answer |= {"waitedMs": passed, "waitedTime": elapsed(passed), "startTime": instant(handle.state.created)}
        if isinstance(handle.state, Stopped):
            answer["endTime"] = instant(handle.state.stopped)
        return show(
            answer,
            is_error=how == "failed",
            code=_code(handle) if how == "failed" else None,
            shown=() if handle.active else (handle,),
            asked=(handle,) if waited.needs_input and isinstance(handle.state, Waiting) else (),
            hint=read_hint(handle.id),
        )

    return wait_for


def wait_for_multiple_tool(host: WaitToolHost) -> Tool:
    show, hints = host.replies.object, READS | {"title": "Wait for several operations"}

    @wait_tool(
        host,
        PARAMETERS_MULTIPLE,
        RETURNS_MULTIPLE,
        scheduling="synchronising",
        task="never",
        hints=hints,
        unshown=_UNUSED,
    )
    async def wait_for_multiple(call: Call, arguments: Arguments) -> Reply:
        """Wait for multiple async operations: for all of them, for any success, or for the first to settle. Use it as
        `wait_for`, for several handles. Returns the `status` of the whole, and `results` by id.
        """
        mode, timeout = arguments["mode"], _within(call, arguments)
        if not arguments["handleIds"]:
            raise ToolError("At least one handle ID required: `handleIds` is empty", code="invalid_arguments")
        began = host.now()
        handles = tuple((await host.find_all(call, arguments["handleIds"])).values())
        waited = await wait(host, call, mode, handles, timeout)
        now = host.now()
        passed = milliseconds(now - began)
        statuses = [status(handle) for handle in handles]
        answer: dict[str, Any] = {"mode": mode, "status": _verdict(mode, waited, statuses)}
        host.measure.waited("wait_for_multiple", answer["status"], now - began)
        if waited.timed_out:
            answer["error"] = f"Wait timed out after {number(timeout or 0)}ms"
        elif mode == "race" and not waited.needs_input:
            answer["winner"] = first(waited).id
        answer |= _counts(statuses)
        if waited.needs_input:
            answer["needsInput"] = True
        answer["results"] = {each.id: _entry(each, now, host.replies.printed, waited.needs_input) for each in handles}
        _fit(answer["results"])
        if waited.timed_out:
            answer["elapsedMs"] = passed
        answer |= {"waitedMs": passed, "waitedTime": elapsed(passed)}
        return show(
            answer,
            shown=[handle for handle in handles if not handle.active],
            asked=[handle for handle in handles if waited.needs_input and isinstance(handle.state, Waiting)],
            hint="Read the rest with read_output; it takes id, offset, limit and pattern.",
            limit=_room(answer),
        )

    return wait_for_multiple


def _within(call: Call, arguments: Arguments) -> float | None:
    """Return how long to wait, in milliseconds: until the client gives up at most (M7)."""
    given = arguments.get("timeoutMs")
    timeout = call.handles.within(None if given is None else given / 1000)
    return None if timeout is None else timeout * 1000


async def wait(
    host: WaitToolHost, call: Call, mode: str, handles: tuple[Handle, ...], timeout_ms: float | None
) -> Waited:
    """Wait as the mode requires."""
    timeout = None if timeout_ms is None else timeout_ms / 1000
    waited = await call.handles.wait_for(WaitQuery([_group(mode, handles)], handles, timeout, call.pass_on))
    if waited.timed_out:  # W5: read again first; another process's wake-up may have been lost
        await host.registry.refresh([handle.uid for handle in handles])
        waited = await call.handles.wait_for(WaitQuery([_group(mode, handles)], handles, 0))
    return waited


def _group(mode: str, handles: Sequence[Handle]) -> Group:
    match mode:
        case "all":
            return all_of(handles)
        case "any":
            return first_success(handles)
    return any_of(handles)


def _verdict(mode: str, waited: Waited, statuses: Sequence[str]) -> str:
    """Return the status of the whole (W3)."""
    if waited.timed_out:
        return "timeout"
    if waited.needs_input:
        return "pending"
    match mode:
        case "all":
            return "completed" if all(each == "completed" for each in statuses) else "partial"
        case "any":
            return "completed" if "completed" in statuses else "failed"
    return status(first(waited))


def first(waited: Waited) -> Handle:
    """Return the handle that settled first; in the same instant, the one whose end the wait saw first."""
    over = [handle for handle in waited.handles if isinstance(handle.state, Stopped)]
    return min(over, key=lambda handle: (_stopped_at(handle), handle is not waited.first))


def _stopped_at(handle: Handle) -> float:
    assert isinstance(handle.state, Stopped)
    return handle.state.stopped


def _counts(statuses: Sequence[str]) -> dict[str, int]:
    return {
        "totalCount": len(statuses),
        "completedCount": statuses.count("completed"),
        "failedCount": statuses.count("failed") + statuses.count("timeout"),
        "pendingCount": statuses.count("pending"),
    }


def _entry(handle: Handle, now: float, said: RenderedText, needs_input: bool) -> dict[str, Any]:
    took = operation_ms(handle.state, now)
    entry = {"type": handle.kind, "status": status(handle), **came_to(handle, said)}
    if handle.active:
        entry |= progress_of(handle.progress)
        if needs_input and handle.blocked_on_caller():
            entry |= wants(handle)
    return entry | {"elapsedMs": took, "elapsedTime": elapsed(took)}


def _fit(results: dict[str, dict[str, Any]]) -> None:
    """Give each of many results less room."""
    if len(results) > 4:
        for entry in results.values():
            for key in entry.keys() & {"result", "partialResult"}:
                entry[key] = fitting(entry[key], 4 * OutputView().limit // len(results))


def _room(answer: dict[str, Any]) -> int:
    """Return the limit of the reply: all results share four limits (O3), and their other fields are added."""
    results: dict[str, Any] = answer["results"]
    told = ("result", "error", "partialResult")
    bare = {id: {key: value for key, value in entry.items() if key not in told} for id, entry in results.items()}
    return OutputView().limit * min(4, len(results)) + len(to_json(answer | {"results": bare}))


def _code(handle: Handle) -> str:
    assert isinstance(handle.state, Stopped)
    return getattr(handle.state.outcome, "code", None) or "tool_error"


PARAMETERS = object_schema(
    "durationMs",
    durationMs=duration("Duration to wait in milliseconds."),
    label=text("Optional label for the timer."),
)
RETURNS = reply(
    "success status? error? label? requestedDurationMs actualDurationMs remainingMs? startTime endTime",
    success={"type": "boolean", "description": "Whether all of the time has passed."},
    remainingMs={**COUNT, "description": "When the wait timed out: how long to sleep again."},
)


def sleep_tool(host: WaitToolHost) -> Tool:
    @wait_tool(host, PARAMETERS, RETURNS, kind="timer", unrecorded=False, hints=READS | {"title": "Sleep"})
    async def sleep(call: Call, arguments: Arguments) -> Reply:
        """Wait for a specified duration (simple timer/delay). Use it to pause before you try something again. Do not
        use it to wait for work: `wait_for` returns as soon as that is done. Returns how long it took.
        """
        start = host.created(call)
        wanted = arguments["durationMs"] / 1000
        sleeps = call.handles.within(wanted) or 0.0
        while (left := start + sleeps - host.now()) > 0:  # noqa: ASYNC110 (nobody but time can tell)
            await asyncio.sleep(left)  # again if the time of day and the loop's disagree
        end = host.now()
        label = arguments.get("label")
        answer: dict[str, Any] = {"success": sleeps >= wanted} | ({} if label is None else {"label": label})
        if sleeps < wanted:  # the client would give up: it gets the shape of a wait that timed out (W3, M7)
            answer |= {"status": "timeout", "error": f"Wait timed out after {number(sleeps * 1000)}ms"}
        answer |= {"requestedDurationMs": arguments["durationMs"], "actualDurationMs": milliseconds(end - start)}
        if sleeps < wanted:
            answer["remainingMs"] = milliseconds(start + wanted - end)
        return host.replies.object(answer | {"startTime": instant(start), "endTime": instant(end)})

    return sleep
