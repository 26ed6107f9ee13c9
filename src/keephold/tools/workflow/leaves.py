"""Steps without steps in them: what each does, and what it is given, which belongs to its entry in the journal."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from keephold.durable.journal import to_bytes
from keephold.errors import ToolError
from keephold.tools.workflow.definition import (
    MAX_DELAY_MS,
    Agent,
    Api,
    Delay,
    GetVariable,
    Kind,
    Merge,
    SetVariable,
    Tool,
    Transform,
    WaitEvent,
    WaitHandles,
)
from keephold.tools.workflow.frame import Frame

if TYPE_CHECKING:
    from keephold.tools.workflow.engine import Run


@dataclass(frozen=True, slots=True)
class Work:
    """What a step is to do. `given` is None where that follows from what is recorded anyway."""

    run: Callable[[str], Awaitable[Any]]
    """Gets the name of the entry in the journal that it is done for."""
    given: Any = None


def leaf(run: "Run", kind: Kind, name: str, frame: Frame) -> Work:
    """The work of a step. What cannot be resolved is work that fails: that, too, is recorded."""
    try:
        return _work(run, kind, name, frame)
    except ToolError as error:
        return Work(partial(_raise, error))


async def _raise(error: ToolError, entry: str) -> Any:
    raise error


def _work(run: "Run", kind: Kind, name: str, frame: Frame) -> Work:
    match kind:
        case Agent():
            return _asked(run.around.agent, frame.resolve(kind.agent_id), frame.resolve(kind.parameters), "agentId")
        case Tool():
            return _asked(run.around.tool, frame.resolve(kind.name), frame.resolve(kind.arguments), "name")
        case Api():
            request = frame.resolve(kind.request)
            return Work(lambda _: run.http.request(request), request)
        case WaitHandles():
            return _wait_handles(run, kind, frame)
        case WaitEvent():
            return Work(partial(_event, run, kind, name))
        case Delay():
            ms = _ms(frame.resolve(kind.ms))
            return Work(lambda _: _given(ms), ms)
    return Work(lambda _: _pure(kind, frame))


async def _given(value: Any) -> Any:
    return value


async def _pure(kind: Kind, frame: Frame) -> Any:
    """Steps that do nothing outside."""
    match kind:
        case Transform():
            return frame.evaluate(kind.expression)
        case SetVariable():
            return frame.resolve(kind.value)
        case GetVariable():
            return _variable(kind, frame)
        case Merge():
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
        to_bytes(result, "its result")  # here an error is recorded; later it would not be, and the call done again
        return result

    return Work(run, [whom, given])


def _variable(kind: GetVariable, frame: Frame) -> Any:
    if kind.name in frame.variables:
        return frame.variables[kind.name]
    if kind.default is not None:
        return frame.resolve(kind.default)
    known = ", ".join(f"`{name}`" for name in frame.variables) or "none yet"
    raise ToolError(f"no variable `{kind.name}` has been set; there are: {known}. A `default` would be taken")


def _merged(kind: Merge, values: Any) -> Any:
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
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MAX_DELAY_MS:
        raise ToolError(f"a delay is a number of ms from 0 to {MAX_DELAY_MS:,}, not {_kind(given)}")
    return given


def _wait_handles(run: "Run", kind: WaitHandles, frame: Frame) -> Work:
    ids = frame.resolve(kind.ids)
    if not isinstance(ids, list) or not ids or not all(isinstance(id, str) for id in ids):
        raise ToolError("a wait is for ids of handles, at least one, each a string")

    async def wait(entry: str) -> Any:
        result = await run.around.wait(ids, kind.mode, None)
        to_bytes(result, "its result")
        return result

    return Work(wait, [ids, kind.mode])


async def _event(run: "Run", kind: WaitEvent, name: str, entry: str) -> Any:
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
