"""The engine (W10): runs the steps of a workflow, each as one entry of the call's journal.

A replay runs the workflow again. The journal has the result and time of each step under the step's name: its path, with
a number for each visit. Everything in between (which step is next, an expression's value, a passed deadline) follows
from the journal and is computed again. So after a crash the workflow resumes at the step that was interrupted.

One thing does not follow: whether an expression reaches a limit of the worker's time or memory. If it does, and the
step itself would not record that, an entry of its own says so.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from keephold.durable.effects import Effects
from keephold.durable.journal import NOT_THE_TOOLS
from keephold.durable.keys import Key
from keephold.errors import KeepholdError, ToolError
from keephold.text import instant
from keephold.tools.cel import shortened
from keephold.tools.workflow.definition import (
    END,
    MAX_STEPS,
    PURE,
    Delay,
    SetVariable,
    Step,
    Steps,
    WaitEvent,
    WaitHandles,
    Workflow,
)
from keephold.tools.workflow.expressions import NOTHING, Evaluated, Expressions, LimitHit, Unavailable
from keephold.tools.workflow.frame import (
    Cut,
    Deadline,
    Frame,
    LimitReached,
    StepEnded,
    StepFailed,
    WorkflowFailed,
    WorkflowHost,
    flat,
    nearer,
    timed_out,
)
from keephold.tools.workflow.http import Http
from keephold.tools.workflow.steps import NESTED, Work, leaf, unchanged

ENDED_AT = "ended at "
"""How the trace of a recorded error begins, which has its time."""
STOPPED = "it was stopped: the time was up"
"""The error of a step that the deadline of an enclosing one has interrupted."""
_YIELD = 50
"""Visits after which a run yields to the loop."""
MAX_KEPT = 16 * 1024 * 1024
"""Bytes of all results of a run, as JSON. Its result has most of them twice, and is written at once."""


async def run_workflow(
    definition: Workflow,
    fx: Effects,
    host: WorkflowHost,
    *,
    expressions: Expressions,
    now: Callable[[], float],
    max_steps: int = MAX_STEPS,
    http: Http | None = None,
) -> dict[str, Any]:
    """Run it and return its result. Raises `WorkflowFailed` with the results so far if a step fails or the time is up.

    `now` returns the time of day. It is called only where the answer is recorded, or to wait for a recorded time.
    `http` sends the requests of `api` steps (default: to no host).
    """
    run = WorkflowRun(definition, fx, host, http or Http(), expressions, now, max_steps)
    try:
        return await run.whole()
    finally:
        await run.http.close()


class WorkflowRun:
    """One run of a workflow in one attempt."""

    def __init__(
        self,
        definition: Workflow,
        fx: Effects,
        host: WorkflowHost,
        http: Http,
        expressions: Expressions,
        now: Callable[[], float],
        max_steps: int,
    ) -> None:
        self.fx = fx
        self.host = host
        self.http = http
        self.expressions = expressions
        self.now = now
        self._definition = definition
        self._max_steps = max_steps
        self._executed = 0
        self._kept = 0
        self.tasks = 0
        """Lists that run concurrently, in all steps."""
        self._ends: dict[str, float] = {}
        """By the name of a visit of a step with nested steps: the latest end in it."""
        self._began = self._last = 0.0

    async def whole(self) -> dict[str, Any]:
        definition = self._definition
        self._began = self._last = await self._time("start")
        frame = Frame(input=definition.input, context=definition.context, data=definition.input)
        if definition.timeout is not None:
            frame.deadline = Deadline(self._began + definition.timeout, "", definition.timeout)
        try:
            await self.run_list(definition.steps, frame)
        except (StepFailed, LimitReached) as failed:
            raise WorkflowFailed(failed.error, self._result("failed", frame)) from None
        except Cut:
            error = ToolError(f"Operation timed out after {(definition.timeout or 0) * 1000:.0f}ms", code="timeout")
            raise WorkflowFailed(error, self._result("timeout", frame)) from None
        return self._result("completed", frame)

    def _result(self, status: str, frame: Frame) -> dict[str, Any]:
        return {
            "workflowId": self._definition.id,
            "name": self._definition.name,
            "status": status,
            "steps": flat(frame.records),
            "finalOutput": frame.data,
            "context": {**frame.whole_context(), "variables": dict(frame.variables)},
            "executionTime": round((self._last - self._began) * 1000),
        }

    async def run_list(self, steps: Steps, frame: Frame) -> Any:
        """Run a list to its end and return the data. Raises `StepFailed` or `Cut`."""
        visits: dict[str, int] = {}
        position = 0
        if not steps.steps:
            await self._count(frame.prefix)  # or a loop in a loop would go round without end
        while position < len(steps.steps):
            step = steps.steps[position]
            visit = visits[step.id] = visits.get(step.id, 0) + 1
            target = await self._visit(step, f"{frame.prefix}{step.id}:{visit}", frame)
            if target == END:
                break
            position = position + 1 if target is None else steps.positions[target]
        return frame.data

    async def _visit(self, step: Step, name: str, frame: Frame) -> str | None:
        """Run a step once and return the target of its jump."""
        await self._count(step.id)
        total = float(len(self._definition.steps.steps)) if self._definition.straight else None
        self.host.progress(self._executed - 1, total, f"{step.id} ({step.type})")
        try:
            ended = await self._run(step, name, frame)
        except Cut as cut:
            ended = StepEnded(cut.at, error=timed_out(step.timeout or 0))
            if cut.name != name:
                if not cut.recorded:
                    cut.recorded = True
                    self._record(step, frame, StepEnded(cut.at, error=ToolError(STOPPED)))
                raise
        self._record(step, frame, ended)
        if ended.error is None:
            if not ended.skipped and not step.preserve_data:
                frame.data = ended.result
            if isinstance(step.kind, SetVariable) and not ended.skipped:
                frame.variables[step.kind.name] = ended.result
            return None if ended.skipped else step.on_success
        frame.error = {"message": ended.error.message, "code": ended.error.code, "stepId": step.id}
        if step.goes_on:
            return step.on_error
        error = ended.error
        raise StepFailed(
            ToolError(f"step `{step.id}` failed: {error.message}", code=error.code, transient=error.transient)
        )

    async def _count(self, next: str) -> None:
        """Count a visit, an attempt, or a list without steps; together they are limited."""
        self._executed += 1
        if self._executed > self._max_steps:
            why = (
                f"the workflow has executed {self._max_steps:,} steps, which is the limit; `{next}` was next. "
                "Look for a jump that never ends"
            )
            raise LimitReached(ToolError(why, code="limit_exceeded"))
        if not self._executed % _YIELD:
            await asyncio.sleep(0)  # recorded steps do not wait for anything

    def _record(self, step: Step, frame: Frame, ended: StepEnded) -> None:
        """Keep the end of a visit."""
        record: dict[str, Any] = {"stepId": step.id, "type": step.type}
        result = ended.result
        if ended.error is None:
            record["result"] = result
        else:
            record["error"] = ended.error.message
            result = {"error": ended.error.message}
        record |= {"timestamp": instant(ended.at), "success": ended.error is None}
        frame.records.append(record)
        frame.results[step.id] = result
        self._last = max(self._last, ended.at)
        enclosing = frame.prefix[:-1].rpartition("/")[0]
        self._ends[enclosing] = max(self._ends.get(enclosing, 0.0), ended.at)
        self._kept += len(msgspec.json.encode(result))
        if self._kept > MAX_KEPT:
            raise LimitReached(
                ToolError(f"the results of the steps are over 16 MiB, with that of `{step.id}`", code="limit_exceeded")
            )

    async def _run(self, step: Step, name: str, frame: Frame) -> StepEnded:
        try:
            evaluated = await self._evaluate(step, name, frame)
            reason = _reason_to_skip(step, evaluated)
        except ToolError as error:
            return StepEnded(await self._time(name, error=_error(error)), error=error)
        if reason is not None:
            at = await self._time(name, skipped=reason)
            return StepEnded(at, {"skipped": True, "reason": reason}, skipped=True)
        if type(step.kind) in NESTED:
            return await self._nested(step, name, frame, evaluated)
        if isinstance(step.kind, Delay):
            return await self._delay(step, name, frame, evaluated)
        return await self._leaf(step, name, frame, evaluated)

    async def _evaluate(self, step: Step, name: str, frame: Frame) -> Evaluated:
        """Evaluate the guards of a step, and its other expressions in the same request.

        A step without effects evaluates its own when its work is done, so that a replay does not have to. If it has
        guards, they go along all the same.
        """
        guards = step.guards
        wanted = [given for _, given, _ in guards]
        if guards or not isinstance(step.kind, PURE):
            wanted += step.expressions
        if not wanted:
            return NOTHING
        limit = f"{name}!"
        if self.fx.recorded(limit):
            raise ToolError(**await self.fx.run_json(limit, None, unchanged))
        try:
            return await self.expressions.evaluate(wanted, frame.values, [runs for *_, runs in guards])
        except Unavailable as error:
            raise LimitReached(error) from None
        except LimitHit as error:
            hit = error
        if self.fx.recorded(name):  # the step was done, so the values were there: another path would repeat its work
            raise LimitReached(ToolError(f"step `{step.id}` cannot be replayed: {hit.message}", code=hit.code))

        async def say(_: Any) -> dict[str, Any]:
            return _error(hit)

        raise ToolError(**await self.fx.run_json(limit, None, say))

    async def _nested(self, step: Step, name: str, frame: Frame, evaluated: Evaluated) -> StepEnded:
        """Run a step with nested steps. Its entry is written when it enters a list; its end is the last one in it."""
        deadline, guarded = await self._deadline(step, name, frame), frame.guarded or step.goes_on
        inner = replace(frame, prefix=f"{name}/", deadline=deadline, guarded=guarded)
        result, error = None, None
        try:
            result = await NESTED[type(step.kind)](self, step.kind, inner, evaluated)
        except StepFailed as failed:
            error = failed.error
        except Cut as cut:
            if cut.name != name:
                raise
            error = timed_out(step.timeout or 0)
            self._ends[name] = max(self._ends[name], cut.at)
        at = self._ends.pop(name, None)
        if at is None:  # it entered no list
            at = await self._time(name, **({} if error is None else {"error": _error(error)}))
        return StepEnded(at, result, error)

    async def enter(self, frame: Frame, **lists: Any) -> None:
        """Record that a step begins its nested steps: the `list` it has chosen, or how many `lists`, and `at_once`.

        This is for `control/workflows.py`, which evaluates nothing. A replay evaluates the expressions again.
        """
        name = frame.prefix[:-1]
        self._ends[name] = await self._time(name, **lists)

    async def _deadline(self, step: Step, name: str, frame: Frame) -> Deadline | None:
        """Return the deadline of a step. Its start is recorded, so that a restart does not extend it."""
        if step.timeout is None:
            return frame.deadline
        began = await self._time(f"{name}?")
        return nearer(frame.deadline, Deadline(began + step.timeout, name, step.timeout))

    async def _delay(self, step: Step, name: str, frame: Frame, evaluated: Evaluated) -> StepEnded:
        """Sleep; the one entry has the start, from which the end follows."""
        work = leaf(self, step, name, frame, evaluated)
        final = not (frame.guarded or step.goes_on)
        entry = await self._entry(name, work, frame.deadline, None, final=final)
        if "result" not in entry:
            return self._ended(entry)
        ms, began = entry["result"], entry["at"]
        seconds = ms / 1000 if step.timeout is None else min(ms / 1000, step.timeout)
        due = await self._until(began + seconds, frame)
        if seconds * 1000 < ms:
            return StepEnded(due, error=timed_out(seconds))
        return StepEnded(due, {"delayed": ms, "timestamp": instant(due)})

    async def _leaf(self, step: Step, name: str, frame: Frame, evaluated: Evaluated) -> StepEnded:
        """Run a step without nested steps: one entry for each attempt."""
        work = leaf(self, step, name, frame, evaluated)
        if isinstance(step.kind, WaitEvent):
            await self._announce(step.kind, name, step, frame)
        waits = isinstance(step.kind, WaitHandles | WaitEvent)
        deadline = await self._deadline(step, name, frame) if waits else frame.deadline
        attempt = 1
        while True:
            entry_name = name if attempt == 1 else f"{name}~{attempt}"
            last = attempt >= step.retry.max_attempts
            final = last and not (frame.guarded or step.goes_on)
            entry = await self._entry(entry_name, work, deadline, None if waits else step.timeout, final=final)
            failed = entry.get("error")
            if failed is None or not failed["transient"] or last:
                return self._ended(entry)
            await self._until(entry["at"] + step.retry.pause(attempt), frame)
            await self._count(step.id)
            attempt += 1

    async def event_key(self, kind: WaitEvent, name: str) -> Key:
        """Return the key of the event that a visit waits for: each visit has its own."""
        return await self.fx.external_event_key(f"{name}:{kind.event}")

    async def _announce(self, kind: WaitEvent, name: str, step: Step, frame: Frame) -> None:
        """Report the awaited event by its key's id, never the key: with the key, the model could resolve it itself
        (K5).

        Process events are numbered in the order they are reached. Concurrent branches would have another order in a
        replay, so there only the progress reports it.
        """
        id = (await self.event_key(kind, name)).key_id
        self.host.progress(self._executed - 1, None, f"{step.id} waits for the event `{kind.event}` (key_id {id})")
        if frame.concurrent:
            return
        try:
            await self.fx.emit_process_event("workflow.waiting", {"stepId": step.id, "event": kind.event, "key_id": id})
        except ToolError as error:
            if error.code != "durable_effect_process_event_unavailable":
                raise

    def _ended(self, entry: dict[str, Any]) -> StepEnded:
        self._last = max(self._last, entry["at"])
        if "cut" in entry:
            raise Cut(entry["cut"], entry["at"])
        if "error" in entry:
            return StepEnded(entry["at"], error=ToolError(**entry["error"]))
        return StepEnded(entry["at"], entry["result"])

    async def _entry(
        self, name: str, work: Work, deadline: Deadline | None, limit: float | None, *, final: bool
    ) -> dict[str, Any]:
        """Do the work as one step of the journal: `at`, and one of `result`, `error`, `cut`.

        An error that ends the run is recorded as an error, so that another attempt (R5) repeats the step. An error that
        is handled is recorded as the step's result, and stays.
        """

        async def function(_: Any) -> dict[str, Any]:
            entry = await self._attempt(name, work, deadline, limit)
            if final and "error" in entry:
                raise ToolError(**entry["error"], trace=(f"{ENDED_AT}{entry['at']!r}",))
            return entry

        try:
            entry: dict[str, Any] = await self.fx.run_json(name, work.given, function)
            return entry
        except ToolError as error:
            if error.trace and error.trace[0].startswith(ENDED_AT):
                return {"at": float(error.trace[0].removeprefix(ENDED_AT)), "error": _error(error)}
            if error.code != "durable_effect_not_json":
                raise  # the journal belongs to another workflow
            return {"at": self._last, "error": _error(error)}  # it is in the workflow itself, so it will always fail

    async def _attempt(self, name: str, work: Work, deadline: Deadline | None, limit: float | None) -> dict[str, Any]:
        left = math.inf if deadline is None else deadline.at - self.now()
        if deadline is not None and left <= 0:
            return {"at": self.now(), "cut": deadline.name}
        seconds = min(left, math.inf if limit is None else limit)
        timer = asyncio.timeout(None if seconds == math.inf else seconds)
        try:
            async with timer:
                result = await work.run(name)
            return {"at": self.now(), "result": result}
        except ToolError as error:
            raised = error
        except TimeoutError as error:
            if deadline is not None and timer.expired() and seconds == left:
                return {"at": self.now(), "cut": deadline.name}
            raised = timed_out(seconds) if timer.expired() else ToolError(f"TimeoutError: {error}")
        except KeepholdError as error:
            if error.code in NOT_THE_TOOLS:
                raise
            raised = ToolError(error.message, code=error.code)
        except Exception as error:
            raised = ToolError(f"{type(error).__name__}: {error}")
        return {"at": self.now(), "error": _error(raised)}

    async def _time(self, name: str, **more: Any) -> float:
        """Return the time of day when this was first asked. `more` is recorded with it."""

        async def ask(_: Any) -> dict[str, Any]:
            return {"at": self.now(), **more}

        entry = await self.fx.run_json(name, None, ask)
        return float(entry["at"] if isinstance(entry, dict) else entry)  # earlier versions recorded the time alone

    async def _until(self, due: float, frame: Frame) -> float:
        """Wait until a time that follows from the journal. Raises `Cut` at the frame's deadline if that is earlier."""
        deadline = frame.deadline
        end = due if deadline is None else min(due, deadline.at)
        while (left := end - self.now()) > 0:  # noqa: ASYNC110 (nobody but time can tell)
            await asyncio.sleep(left)
        self._last = max(self._last, end)
        if deadline is not None and deadline.at < due:
            raise Cut(deadline.name, end)
        return end


def _reason_to_skip(step: Step, evaluated: Evaluated) -> str | None:
    for field, expression, runs in step.guards:
        given = evaluated(expression)
        if not isinstance(given, bool):
            raise ToolError(f"`{field}` must give true or false, and `{shortened(expression.source)}` gives neither")
        if given is not runs:
            return f"{field} is {str(given).lower()}: {shortened(expression.source)}"
    return None


def _error(error: ToolError) -> dict[str, Any]:
    return {"message": error.message, "code": error.code, "transient": error.transient}
