"""Steps without nested steps (their work and its arguments, which are part of the journal entry), and steps with them:
branches, loops, choices, and a list that may fail."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from keephold.durable.journal import to_bytes
from keephold.errors import ToolError
from keephold.tools.workflow import definition
from keephold.tools.workflow.definition import Kind, Steps, Value
from keephold.tools.workflow.expressions import shortened
from keephold.tools.workflow.frame import Cut, Failure, Frame

if TYPE_CHECKING:
    from keephold.tools.workflow.engine import WorkflowRun


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step. `given` is None if it follows from the journal anyway."""

    run: Callable[[str], Awaitable[Any]]
    """Gets the name of its entry in the journal."""
    given: Any = None


def leaf(run: "WorkflowRun", kind: Kind, name: str, frame: Frame) -> Work:
    """Return the work of a step. If it cannot be resolved, the work fails, which is recorded, too."""
    try:
        return _work(run, kind, name, frame)
    except ToolError as error:
        refused = error

    async def refuse(entry: str) -> Any:
        raise refused

    return Work(refuse)


def _work(run: "WorkflowRun", kind: Kind, name: str, frame: Frame) -> Work:
    match kind:
        case definition.Agent():
            return _asked(run.around.agent, frame.resolve(kind.agent_id), frame.resolve(kind.parameters), "agentId")
        case definition.Tool():
            return _asked(run.around.tool, frame.resolve(kind.name), frame.resolve(kind.arguments), "name")
        case definition.Api():
            request = frame.resolve(kind.request)
            return Work(lambda entry: run.http.request(request, entry, kind.seconds), request)
        case definition.WaitHandles():
            return _wait_handles(run, kind, frame)
        case definition.WaitEvent():
            return Work(partial(_event, run, kind, name))
        case definition.Delay():
            ms = _ms(frame.resolve(kind.ms))
            return Work(lambda _: _given(ms), ms)
    return Work(lambda _: _pure(kind, frame))


async def _given(value: Any) -> Any:
    return value


async def _pure(kind: Kind, frame: Frame) -> Any:
    """Steps without effects outside."""
    match kind:
        case definition.Transform():
            return frame.evaluate(kind.expression)
        case definition.SetVariable():
            return frame.resolve(kind.value)
        case definition.GetVariable():
            return _variable(kind, frame)
        case definition.Merge():
            return _merged(kind, frame.resolve(kind.values))
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


def _variable(kind: definition.GetVariable, frame: Frame) -> Any:
    if kind.name in frame.variables:
        return frame.variables[kind.name]
    if kind.default is not None:
        return frame.resolve(kind.default)
    known = ", ".join(f"`{name}`" for name in frame.variables) or "none yet"
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


def _wait_handles(run: "WorkflowRun", kind: definition.WaitHandles, frame: Frame) -> Work:
    ids = frame.resolve(kind.ids)
    if not isinstance(ids, list) or not ids or not all(isinstance(id, str) for id in ids):
        raise ToolError("a wait is for ids of handles, at least one, each a string")

    async def wait(entry: str) -> Any:
        result = await run.around.wait(ids, kind.mode)
        to_bytes(result, "its result")
        return result

    return Work(wait, [ids, kind.mode])


async def _event(run: "WorkflowRun", kind: definition.WaitEvent, name: str, entry: str) -> Any:
    return await run.fx.await_event_json(await run.event_key(kind, name))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
    return repr(value)


Nested = Callable[["WorkflowRun", Any, str, Frame], Awaitable[Any]]


async def _condition(run: "WorkflowRun", kind: definition.Condition, name: str, frame: Frame) -> Any:
    with failing():
        given = frame.evaluate(kind.expression)
        if not isinstance(given, bool):
            source = shortened(kind.expression.source)
            raise ToolError(f"`expression` must give true or false, and `{source}` gives neither")
    if kind.then is None and kind.otherwise is None:
        return given
    return await _chosen(run, kind.then if given else kind.otherwise, name, frame, "then" if given else "else")


async def _switch(run: "WorkflowRun", kind: definition.Switch, name: str, frame: Frame) -> Any:
    value = _resolved(frame, kind.value)
    for at, (equals, steps) in enumerate(kind.cases):
        if _same(_resolved(frame, equals), value):
            return await _chosen(run, steps, name, frame, str(at))
    return await _chosen(run, kind.default, name, frame, "default")


async def _chosen(run: "WorkflowRun", steps: Steps | None, name: str, frame: Frame, key: str) -> Any:
    """Return the data after a list; no list leaves it unchanged."""
    return frame.data if steps is None else await run.run_list(steps, frame.within(f"{name}/{key}/"))


async def _try_catch(run: "WorkflowRun", kind: definition.TryCatch, name: str, frame: Frame) -> Any:
    tried = frame.within(f"{name}/try/")
    tried.guarded = True
    try:
        return await run.run_list(kind.tried, tried)
    except Failure:
        caught = frame.within(f"{name}/catch/")
        caught.error = tried.error
        return await run.run_list(kind.caught, caught)


async def _parallel(run: "WorkflowRun", kind: definition.Parallel, name: str, frame: Frame) -> Any:
    frames = [frame.beside(f"{name}/{at}/") for at in range(len(kind.branches))]
    for each in frames:
        each.guarded = True
    ends = await _side_by_side(run, list(zip(kind.branches, frames, strict=True)), kind.concurrency, frame)
    results = [
        {"success": False, "error": end.message} if isinstance(end, ToolError) else {"success": True, "result": end}
        for end in ends
    ]
    failures = sum(isinstance(end, ToolError) for end in ends)
    counts = {"successCount": len(ends) - failures, "failureCount": failures}
    return {"type": "parallel", "results": results, **counts}


async def _loop(run: "WorkflowRun", kind: definition.Loop, name: str, frame: Frame) -> Any:
    items = frame.data if kind.items is None else _resolved(frame, kind.items)
    with failing():
        if not isinstance(items, list):
            raise ToolError("Loop step requires array data")
        if len(items) > kind.max_iterations:
            raise ToolError(
                f"there are {len(items):,} items and `maxIterations` is {kind.max_iterations:,}; nothing was done",
                code="limit_exceeded",
            )

    def body(at: int, make: Callable[..., Frame]) -> Frame:
        made = make(f"{name}/{at}/", loop={"item": items[at], "index": at})
        made.data = items[at]
        return made

    if kind.concurrency == 1:
        results = [await run.run_list(kind.steps, body(at, frame.within)) for at in range(len(items))]
    else:
        frames = [body(at, frame.beside) for at in range(len(items))]
        results = await _side_by_side(run, [(kind.steps, each) for each in frames], kind.concurrency, frame)
        for at, end in enumerate(results):
            if isinstance(end, ToolError):
                raise Failure(ToolError(f"item {at}: {end.message}", code=end.code, transient=end.transient))
    return {"type": "loop", "iterations": len(items), "results": results}


async def _side_by_side(
    run: "WorkflowRun", lists: list[tuple[Steps, Frame]], concurrency: int, frame: Frame
) -> list[Any]:
    """Run all of them to their ends and return what each ended with, data or error.

    If an enclosing deadline passes, each of them notices it by itself.
    """
    ends: list[Any] = [None] * len(lists)
    cuts: list[Cut] = []
    waiting = iter(range(len(lists)))

    async def worker() -> None:
        for at in waiting:
            steps, own = lists[at]
            try:
                ends[at] = await run.run_list(steps, own)
            except Failure as failed:
                ends[at] = failed.error
            except Cut as cut:
                cuts.append(cut)

    workers = [asyncio.create_task(worker()) for _ in range(min(concurrency, len(lists)))]
    try:
        if workers:
            await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for each in workers:
            if each.done():
                each.result()
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    for _, own in lists:
        frame.join(own)
    if cuts:
        raise cuts[0]
    return ends


def _resolved(frame: Frame, value: Value) -> Any:
    with failing():
        return frame.resolve(value)


class failing:  # noqa: N801 (reads as a statement)
    """An error here is a failure of the step, not of the engine."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, _: object) -> None:
        if isinstance(error, ToolError):
            raise Failure(error) from None


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
