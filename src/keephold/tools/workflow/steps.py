"""Steps without nested steps (their work and its arguments, which are part of the journal entry), and steps with them:
branches, loops, choices, and a list that may fail."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from keephold.durable.journal import to_bytes
from keephold.errors import ToolError
from keephold.tools.cel import shortened
from keephold.tools.workflow import definition
from keephold.tools.workflow.definition import Step, Steps, Value
from keephold.tools.workflow.expressions import NOTHING, Evaluated
from keephold.tools.workflow.fields import shown, some
from keephold.tools.workflow.frame import Cut, Frame, StepFailed

if TYPE_CHECKING:
    from keephold.tools.workflow.engine import WorkflowRun


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step. `given` is None if it follows from the journal anyway."""

    run: Callable[[str], Awaitable[Any]]
    """Gets the name of its entry in the journal."""
    given: Any = None


def leaf(run: "WorkflowRun", step: Step, name: str, frame: Frame, evaluated: Evaluated) -> Work:
    """Return the work of a step. If it cannot be resolved, the work fails, which is recorded, too."""
    try:
        return _work(run, step, name, frame, evaluated)
    except ToolError as error:
        refused = error

    async def refuse(entry: str) -> Any:
        raise refused

    return Work(refuse)


def _work(run: "WorkflowRun", step: Step, name: str, frame: Frame, evaluated: Evaluated) -> Work:
    match step.kind:
        case definition.AgentStep() as kind:
            whom, given = kind.agent_id.resolve(evaluated), kind.parameters.resolve(evaluated)
            return _asked(run.host.agent, whom, given, "agentId")
        case definition.ToolStep() as kind:
            whom, given = kind.name.resolve(evaluated), kind.arguments.resolve(evaluated)
            return _asked(run.host.tool, whom, given, "name")
        case definition.ApiStep() as kind:
            request, secs = kind.request.resolve(evaluated), kind.seconds
            return Work(lambda entry: run.http.request(request, entry, secs), request)
        case definition.WaitHandles() as kind:
            return _wait_handles(run, kind, evaluated)
        case definition.WaitEvent() as kind:
            return Work(partial(_event, run, kind, name))
        case definition.Delay() as kind:
            ms = _ms(kind.ms.resolve(evaluated))
            return Work(lambda _: unchanged(ms), ms)
    return Work(lambda _: _pure(run, step, frame, evaluated))


async def unchanged(value: Any) -> Any:
    return value


async def _pure(run: "WorkflowRun", step: Step, frame: Frame, evaluated: Evaluated) -> Any:
    """Steps without effects outside."""
    kind = step.kind
    if isinstance(kind, definition.GetVariable) and kind.name in frame.variables:
        return frame.variables[kind.name]
    if evaluated is NOTHING:
        evaluated = await run.expressions.evaluate(step.expressions, frame.values)
    match kind:
        case definition.Transform():
            return evaluated(kind.expression)
        case definition.SetVariable():
            return kind.value.resolve(evaluated)
        case definition.GetVariable():
            return _default(kind, frame, evaluated)
        case definition.Merge():
            return _merged(kind, kind.values.resolve(evaluated))
    raise AssertionError(f"no leaf: {kind}")


def _asked(
    ask: Callable[[str, dict[str, Any], str], Awaitable[Any]], whom: Any, given: Any, key: str
) -> Work:  # fmt: skip
    if not isinstance(whom, str):
        raise ToolError(f"`{key}` must be a string, and its expression gives {_kind(whom)}")
    if not isinstance(given, dict):
        raise ToolError(f"`arguments` must be an object, and its expression gives {_kind(given)}")

    async def run(entry: str) -> Any:
        result = await ask(whom, given, entry)
        to_bytes(
            result, "its result"
        )  # an error is recorded here; later it would not be, and the call would be repeated
        return result

    return Work(run, [whom, given])


def _default(kind: definition.GetVariable, frame: Frame, evaluated: Evaluated) -> Any:
    if kind.default is not None:
        return kind.default.resolve(evaluated)
    known = some(f"`{name}`" for name in frame.variables) or "none yet"
    raise ToolError(f"no variable `{kind.name}` has been set; there are: {known}. A `default` would be taken")


def _merged(kind: definition.Merge, values: Any) -> Any:
    if not isinstance(values, list):
        raise ToolError(f"`values` must be an array, and its expression gives {_kind(values)}")
    if kind.mode == "array":
        return [one for each in values for one in (each if isinstance(each, list) else [each])]
    merged: dict[str, Any] = {}
    for at, each in enumerate(values):
        if not isinstance(each, dict):
            raise ToolError(f'`values[{at}]` is {_kind(each)}; objects are merged, or arrays with mode "array"')
        merged |= each
    return merged


def _ms(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= definition.MAX_DELAY_MS:
        raise ToolError(f"a delay is a number of ms from 0 to {definition.MAX_DELAY_MS:,}, not {_kind(given)}")
    return given


def _wait_handles(run: "WorkflowRun", kind: definition.WaitHandles, evaluated: Evaluated) -> Work:
    ids = kind.ids.resolve(evaluated)
    if not isinstance(ids, list) or not ids or not all(isinstance(id, str) for id in ids):
        raise ToolError("a wait is for ids of handles, at least one, each a string")

    async def wait(entry: str) -> Any:
        result = await run.host.wait(ids, kind.mode)
        to_bytes(result, "its result")
        return result

    return Work(wait, [ids, kind.mode])


async def _event(run: "WorkflowRun", kind: definition.WaitEvent, name: str, entry: str) -> Any:
    return await run.fx.await_event_json(await run.event_key(kind, name))


def _kind(value: Any) -> str:
    return "a string" if isinstance(value, str) else shown(value)


Nested = Callable[["WorkflowRun", Any, Frame, Evaluated], Awaitable[Any]]


async def _condition(run: "WorkflowRun", kind: definition.Condition, frame: Frame, evaluated: Evaluated) -> Any:
    with _failing():
        given = evaluated(kind.expression)
        if not isinstance(given, bool):
            source = shortened(kind.expression.source)
            raise ToolError(f"`expression` must give true or false, and `{source}` gives neither")
    if kind.then is None and kind.otherwise is None:
        return given
    return await _chosen(run, kind.then if given else kind.otherwise, frame, "then" if given else "else")


async def _switch(run: "WorkflowRun", kind: definition.Switch, frame: Frame, evaluated: Evaluated) -> Any:
    value = _resolved(kind.value, evaluated)
    for at, (equals, steps) in enumerate(kind.cases):
        if _same(_resolved(equals, evaluated), value):
            return await _chosen(run, steps, frame, str(at))
    return await _chosen(run, kind.default, frame, "default")


async def _chosen(run: "WorkflowRun", steps: Steps | None, frame: Frame, key: str) -> Any:
    """Return the data after a list; no list leaves it unchanged."""
    if steps is None:
        return frame.data
    await run.enter(frame, list=key)
    return await run.run_list(steps, frame.within(key))


async def _try_catch(run: "WorkflowRun", kind: definition.TryCatch, frame: Frame, _: Evaluated) -> Any:
    await run.enter(frame, list="try")
    tried = frame.within("try", guarded=True)
    try:
        return await run.run_list(kind.tried, tried)
    except StepFailed:
        return await run.run_list(kind.caught, frame.within("catch", error=tried.error))


async def _parallel(run: "WorkflowRun", kind: definition.Parallel, frame: Frame, _: Evaluated) -> Any:
    ends = await _side_by_side(run, kind.branches, lambda at: frame.beside(at, guarded=True), kind.concurrency, frame)
    results = [
        {"success": False, "error": end.message} if isinstance(end, ToolError) else {"success": True, "result": end}
        for end in ends
    ]
    failures = sum(isinstance(end, ToolError) for end in ends)
    counts = {"successCount": len(ends) - failures, "failureCount": failures}
    return {"type": "parallel", "results": results, **counts}


async def _loop(run: "WorkflowRun", kind: definition.Loop, frame: Frame, evaluated: Evaluated) -> Any:
    items = frame.data if kind.items is None else _resolved(kind.items, evaluated)
    with _failing():
        if not isinstance(items, list):
            raise ToolError("Loop step requires array data")
        if len(items) > kind.max_iterations:
            raise ToolError(
                f"there are {len(items):,} items and `maxIterations` is {kind.max_iterations:,}; nothing was done",
                code="limit_exceeded",
            )

    def body(at: int, make: Callable[..., Frame]) -> Frame:
        return make(at, loop={"item": items[at], "index": at}, data=items[at])

    if kind.concurrency == 1:
        await run.enter(frame, lists=len(items), at_once=1)
        results = [await run.run_list(kind.steps, body(at, frame.within)) for at in range(len(items))]
    else:
        lists = [kind.steps] * len(items)
        results = await _side_by_side(run, lists, lambda at: body(at, frame.beside), kind.concurrency, frame)
        for at, end in enumerate(results):
            if isinstance(end, ToolError):
                raise StepFailed(ToolError(f"item {at}: {end.message}", code=end.code, transient=end.transient))
    return {"type": "loop", "iterations": len(items), "results": results}


async def _side_by_side(
    run: "WorkflowRun", lists: Sequence[Steps], make: Callable[[int], Frame], concurrency: int, frame: Frame
) -> list[Any]:
    """Run all of them to their ends and return what each ended with, data or error.

    If an enclosing deadline passes, each of them notices it by itself. A frame is made when its list begins: a loop in
    a loop could have a million of them, and reaches the limit of steps long before.
    """
    ends: list[Any] = [None] * len(lists)
    frames: dict[int, Frame] = {}
    cuts: list[Cut] = []
    waiting = iter(range(len(lists)))

    async def worker() -> None:
        for at in waiting:
            own = frames[at] = make(at)
            try:
                ends[at] = await run.run_list(lists[at], own)
            except StepFailed as failed:
                ends[at] = failed.error
            except Cut as cut:
                cuts.append(cut)

    count = max(1, min(concurrency, len(lists), definition.MAX_TASKS - run.tasks))
    workers: list[asyncio.Task[None]] = []
    run.tasks += count
    try:
        await run.enter(frame, lists=len(lists), at_once=count)
        workers += (asyncio.create_task(worker()) for _ in range(count))
        await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for each in workers:
            if each.done():
                each.result()
    finally:
        run.tasks -= count
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    for at in range(len(frames)):
        frame.join(frames[at])
    if cuts:
        raise cuts[0]
    return ends


def _resolved(value: Value, evaluated: Evaluated) -> Any:
    with _failing():
        return value.resolve(evaluated)


@contextmanager
def _failing() -> Iterator[None]:
    """An error here is a failure of the step, not of the engine."""
    try:
        yield
    except ToolError as error:
        raise StepFailed(error) from None


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON: true is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


NESTED: dict[type, Nested] = {
    definition.Condition: _condition,
    definition.Loop: _loop,
    definition.Parallel: _parallel,
    definition.Switch: _switch,
    definition.TryCatch: _try_catch,
}
