"""Steps with steps in them: branches side by side, loops, choices, and a list that may fail."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from keephold.errors import ToolError
from keephold.tools.workflow.definition import Condition, Loop, Parallel, Steps, Switch, TryCatch, Value
from keephold.tools.workflow.expressions import shortened
from keephold.tools.workflow.flow import Cut, Failure
from keephold.tools.workflow.frame import Frame

if TYPE_CHECKING:
    from keephold.tools.workflow.engine import Run

Nested = Callable[["Run", Any, str, Frame], Awaitable[Any]]


async def _condition(run: "Run", kind: Condition, name: str, frame: Frame) -> Any:
    with failing():
        given = frame.evaluate(kind.expression)
        if not isinstance(given, bool):
            source = shortened(kind.expression.source)
            raise ToolError(f"`expression` must give true or false, and `{source}` gives neither")
    if kind.then is None and kind.otherwise is None:
        return given
    return await _chosen(run, kind.then if given else kind.otherwise, name, frame, "then" if given else "else")


async def _switch(run: "Run", kind: Switch, name: str, frame: Frame) -> Any:
    value = _resolved(frame, kind.value)
    for at, (equals, steps) in enumerate(kind.cases):
        if _same(_resolved(frame, equals), value):
            return await _chosen(run, steps, name, frame, str(at))
    return await _chosen(run, kind.default, name, frame, "default")


async def _chosen(run: "Run", steps: Steps | None, name: str, frame: Frame, key: str) -> Any:
    """What a list makes of the data; no list leaves it as it is."""
    return frame.data if steps is None else await run.run_list(steps, frame.within(f"{name}/{key}/"))


async def _try_catch(run: "Run", kind: TryCatch, name: str, frame: Frame) -> Any:
    tried = frame.within(f"{name}/try/")
    tried.guarded = True
    try:
        return await run.run_list(kind.tried, tried)
    except Failure:
        caught = frame.within(f"{name}/catch/")
        caught.error = tried.error
        return await run.run_list(kind.caught, caught)


async def _parallel(run: "Run", kind: Parallel, name: str, frame: Frame) -> Any:
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


async def _loop(run: "Run", kind: Loop, name: str, frame: Frame) -> Any:
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


async def _side_by_side(run: "Run", lists: list[tuple[Steps, Frame]], concurrency: int, frame: Frame) -> list[Any]:
    """Run all of them to their ends, whatever becomes of the others: what each ended with, data or error.

    If the time of somebody around is up, each of them finds that by itself.
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
    """What cannot be worked out here is a failure of the step, and not of the engine."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, _: object) -> None:
        if isinstance(error, ToolError):
            raise Failure(error) from None


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON: true is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


NESTED: dict[type, Nested] = {
    Condition: _condition,
    Loop: _loop,
    Parallel: _parallel,
    Switch: _switch,
    TryCatch: _try_catch,
}
