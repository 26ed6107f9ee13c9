"""The workflow of a call. Its id is the uid of the handle, its state is the journal, its activities are the attempts.

It imports nothing but the SDK, and does nothing that could differ in a replay of its history. A step is an update: it
counts when the workflow has answered. An update names its attempt, and the workflow refuses those of an earlier one, so
that a worker which was cut off records nothing. Before the server's limit of updates, and of history, the attempt is
suspended, and the workflow continues as new with the journal.
"""

import asyncio
import base64
import builtins
import json
import zlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, is_cancelled_exception

WORKFLOW = "keephold-call"
ACTIVITY = "keephold-attempt"
LOST = "keephold-lost"
"""Type of the error of an update whose attempt is not the current one."""
UNKNOWN = "keephold-unknown-tool"
UPDATES = 1500
"""Updates after which the workflow continues as new; the server refuses more than 2,000."""
INLINE_BYTES = 32 << 10
"""A journal up to this travels with the attempt; a larger one is read in pages."""
PAGE_BYTES = 512 << 10
HEARTBEAT_SECS = 15
DEATHS = 3
"""How many workers in a row may die before a call that has recorded nothing is stopped (R8). After the first, one from
which nothing was heard counts less: for a minute, the server gives attempts to workers that were cut off, and no tool
begins there."""
CARRIED_BYTES = 928 << 10
"""A state up to this is carried to the next run; the server takes 2 MiB with the call's arguments."""
_FOREVER = timedelta(days=3650)
_UNKNOWN_SECS = 10
_FAILED = 1 / 4
"""How much a worker that fails, or from which nothing was heard, counts as a death."""

Json = dict[str, Any]


@workflow.defn(name=WORKFLOW, sandboxed=False)
class CallWorkflow:
    """One call."""

    @workflow.init
    def __init__(self, call: Json, carried: str | None = None) -> None:
        before: Json = {} if carried is None else json.loads(zlib.decompress(base64.b64decode(carried)))
        self._attempt: int = before.get("attempt", 0)
        self._lines = {(line["kind"], line["name"]): line for line in before.get("lines", [])}
        self._events: Json = before.get("events", {})
        self._unsent: list[Any] = before.get("unsent", [])
        """Frames that perhaps no front end has taken, each with the attempt that made it and its number there."""
        self._failures: int = before.get("failures", 0)
        self._deaths: float = before.get("deaths", 0)
        self._updates = 0
        self._running = False

    @workflow.run
    async def run(self, call: Json, carried: str | None = None) -> Json:
        report = await self._call(call)
        report.setdefault("unsent", self._unsent)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return report

    async def _call(self, call: Json) -> Json:
        while True:
            report = await self._perform(call)
            kind = report["report"]
            if kind in ("ended", "parked"):
                return report
            if workflow.cancellation_reason() is not None:  # it came while the attempt ended otherwise
                return await self._last(call) if kind == "suspended" else _cancelled()
            try:
                if kind == "suspended":
                    self._deaths = 0
                    await self._suspended(report)
                elif kind == "again":
                    self._deaths = 0
                    self._failures += 1
                    kept = {name: line for name, line in self._lines.items() if line.get("ok", True)}
                    self._lines = kept  # a retry forgets errors (R5)
                    await workflow.sleep(report["delay"])
                elif kind == "died":
                    self._deaths += 1 if report["began"] or not self._deaths else _FAILED
                    if not call.get("repeats"):
                        return _crashed("The worker that ran this call ended before the call did.", "crashed", True)
                    if self._deaths >= DEATHS:
                        return _crashed(f"{DEATHS} workers in a row died while they ran this call.", "crash_loop")
                elif kind == "broken":
                    self._deaths += _FAILED
                    if not call.get("repeats") or self._deaths >= DEATHS:
                        return _failed(report["message"], "engine_failed")
                    await workflow.sleep(_UNKNOWN_SECS)
                elif kind == "unknown":
                    await workflow.sleep(_UNKNOWN_SECS)
                if self._updates >= UPDATES or workflow.info().is_continue_as_new_suggested():
                    await workflow.wait_condition(workflow.all_handlers_finished)
                    state = self._packed()
                    if len(state) > CARRIED_BYTES:
                        return _failed(f"The journal of this call is too large: {len(state)} bytes.", "limit_exceeded")
                    workflow.continue_as_new(args=[call, state])
            except asyncio.CancelledError:  # it waited: its tool gets its cancellation in one more attempt
                return await self._last(call) if kind == "suspended" else _cancelled()

    async def _last(self, call: Json) -> Json:
        report = await self._perform(call, cancelled=True)
        return report if report["report"] in ("ended", "parked") else _cancelled()

    async def _suspended(self, report: Json) -> None:
        awaiting, due = report.get("awaiting", []), report.get("due")
        left = None if due is None else min(max(0.0, due - workflow.time()), _FOREVER.total_seconds())
        if left == 0 or self._updates >= UPDATES:
            return
        try:
            await workflow.wait_condition(
                lambda: any(name in self._events for name in awaiting),
                timeout=None if left is None else timedelta(seconds=left),
            )
        except builtins.TimeoutError:
            return  # its sleep is over

    async def _perform(self, call: Json, *, cancelled: bool = False) -> Json:
        """Run one attempt, and return its report; `died`, `broken` and `unknown` are those of the workflow itself."""
        self._attempt += 1
        self._running = True
        given: Json = {"attempt": self._attempt, "failures": self._failures, "deaths": self._deaths}
        given |= {"unsent": self._unsent, "room": UPDATES - self._updates, "lines": None}
        lines = list(self._lines.values())
        if _size([lines, self._events]) <= INLINE_BYTES:
            given |= {"lines": lines, "events": self._events}
        if cancelled:
            given["cancelled"] = True
        try:
            report = await _outcome(
                workflow.start_activity(
                    ACTIVITY,
                    args=[call, given],
                    start_to_close_timeout=_FOREVER,
                    heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECS),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                    cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                )
            )
        except ActivityError as error:
            return self._broken(error)
        finally:
            self._running = False
        self._unsent = report.get("unsent", [])
        return report

    def _broken(self, error: ActivityError) -> Json:
        cause = error.cause
        if is_cancelled_exception(error) or workflow.cancellation_reason() is not None:
            return _cancelled()
        if isinstance(cause, TimeoutError):
            return {"report": "died", "began": bool(cause.last_heartbeat_details)}
        if isinstance(cause, ApplicationError) and cause.type == UNKNOWN:
            return {"report": "unknown"}
        if isinstance(cause, ApplicationError) and cause.type == LOST:  # this attempt is current: a front end said so
            return _failed(f"The front end refused the worker: {cause.message}", "cancelled")
        return {"report": "broken", "message": f"The worker failed: {cause or error}"}

    # The journal

    @workflow.update
    def record(self, attempt: int, line: Json) -> bool:
        """Record a line; the answer says whether the attempt should be suspended."""
        self._updates += 1
        self._deaths = 0
        self._lines.setdefault((line["kind"], line["name"]), line)
        return self._updates >= UPDATES or workflow.info().is_continue_as_new_suggested()

    @record.validator
    def _may_record(self, attempt: int, line: Json) -> None:
        self._check(attempt)

    @workflow.update
    async def events(self, attempt: int, known: int) -> Json | None:
        """Return a page of the events after the first `known`, when there is one; None when the attempt is over."""
        self._updates += 1
        await workflow.wait_condition(lambda: len(self._events) > known or not self._is(attempt))
        return dict(_page(list(self._events.items())[known:])) if self._is(attempt) else None

    @events.validator
    def _may_follow(self, attempt: int, known: int) -> None:
        self._check(attempt)

    @workflow.signal
    def resolve(self, event: str, resolution: Json) -> None:
        """Deliver an event; the first resolution counts."""
        self._events.setdefault(event, resolution)

    @workflow.query
    def journal(self, start: int) -> list[Json]:
        """Return a page of the journal and then of the events, beginning with the line of that number."""
        resolved = [{"kind": "resolved", "name": name, "value": value} for name, value in self._events.items()]
        return _page([*self._lines.values(), *resolved][start:])

    def _is(self, attempt: int) -> bool:
        return self._running and attempt == self._attempt

    def _check(self, attempt: int) -> None:
        if not self._is(attempt):
            raise ApplicationError("another attempt runs this call", type=LOST)

    def _packed(self) -> str:
        state = {
            "attempt": self._attempt,
            "lines": list(self._lines.values()),
            "events": self._events,
            "unsent": self._unsent,
            "failures": self._failures,
            "deaths": self._deaths,
        }
        return base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()


async def _outcome(attempt: "workflow.ActivityHandle[Any]") -> Json:
    """Return the report of an attempt. If an attempt ends in the moment in which its call is cancelled, the SDK drops
    the report, and the tool of a suspended call would not get its cancellation."""
    try:
        report: Json = await asyncio.shield(attempt)
    except asyncio.CancelledError:
        await workflow.wait_condition(lambda: True)  # until the rest of what the server has sent is known
        if not attempt.done():
            attempt.cancel()
        report = await attempt
    return report


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _page(items: list[Any]) -> list[Any]:
    """Return the first of these, as many as one answer takes."""
    size = 0
    for at, item in enumerate(items):
        size += _size(item)
        if at and size > PAGE_BYTES:
            return items[:at]
    return items


def _failed(message: str, code: str, transient: bool = False) -> Json:
    outcome = {"type": "error", "message": message, "code": code, "transient": transient}
    return {"report": "ended", "outcome": outcome}


def _crashed(message: str, code: str, transient: bool = False) -> Json:
    return {**_failed(message, code, transient), "crashed": True}


def _cancelled() -> Json:
    return _failed("Tool execution cancelled.", "cancelled")
