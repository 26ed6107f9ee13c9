"""A world for workflows: a journal that can be killed at any commit, and surroundings that note what they were asked.

The journal keeps JSON under the names of the steps, as the real one does; `tests/durable` has the real one.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from keephold import Key, ToolError
from keephold.durable.journal import to_bytes
from keephold.tools import cel as cel_module
from keephold.tools.workflow import Workflow, WorkflowFailed, read_workflow, run_workflow
from keephold.tools.workflow.expressions import Expressions


class Killed(BaseException):
    """The process has died: nothing in the engine may catch this."""


class Effects:
    """The effects of one life on entries that outlive it. `dies_at` is the commit at which it dies, written or not."""

    durable = True

    def __init__(
        self,
        entries: dict[str, bytes] | None = None,
        *,
        failed: list[str] | None = None,
        dies_at: int | None = None,
        written: bool = True,
    ) -> None:
        self.entries = {} if entries is None else entries
        self.failed = [] if failed is None else failed
        """Entries that are errors."""
        self.commits = 0
        self.ran: list[str] = []
        """Steps whose functions ran in this life."""
        self.events: list[tuple[str, Any]] = []
        self.brought: dict[str, asyncio.Future[Any]] = {}
        self._used: set[str] = set()
        self._dies_at = dies_at
        self._written = written
        self._numbers = itertools.count(1)

    async def run_json(self, step_id: str, input: Any, function: Callable[[Any], Awaitable[Any]]) -> Any:
        assert step_id not in self._used, f"step id {step_id} twice"
        self._used.add(step_id)
        given = to_bytes(input, "the input")
        if step_id in self.entries:
            was, value = msgspec.json.decode(self.entries[step_id])
            assert msgspec.json.encode(was) == msgspec.json.encode(msgspec.json.decode(given)), f"{step_id}: {input}"
            if step_id in self.failed:
                message, code, transient, trace = value
                raise ToolError(message, code=code, transient=transient, trace=trace)
            return value
        self.ran.append(step_id)
        try:
            result = await function(input)
        except ToolError as error:
            self.failed.append(step_id)
            self._commit(step_id, to_bytes([input, [error.message, error.code, error.transient, error.trace]], "it"))
            raise
        self._commit(step_id, to_bytes([input, result], "the result"))
        return msgspec.json.decode(to_bytes(result, "the result"))

    def recorded(self, step_id: str) -> bool:
        return step_id in self.entries and step_id not in self._used

    def _commit(self, name: str, value: bytes) -> None:
        self.commits += 1
        if self.commits == self._dies_at:
            if self._written:
                self.entries[name] = value
            raise Killed
        self.entries[name] = value

    def key(self, name: str) -> "asyncio.Future[Any]":
        return self.brought.setdefault(name, asyncio.get_running_loop().create_future())

    async def external_event_key(self, name: str) -> Key:
        return Key(f"key-of-{name}", f"id-of-{name}")

    async def await_event_json(self, key: str) -> Any:
        return await asyncio.shield(self.key(key.removeprefix("key-of-")))

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("sleeps are numbered by order, which is not kept side by side")

    async def emit_process_event(self, type: str, payload: Any = None) -> None:
        name = f"event {next(self._numbers)}"
        if name not in self.entries:
            self._commit(name, b"null")
            self.events.append((type, payload))


Answer = Callable[[dict[str, Any]], Any]


class Around:
    """Surroundings whose tools are functions. What they were asked is in `asked`."""

    def __init__(self, tools: Mapping[str, Answer] | None = None) -> None:
        self.tools = dict(tools or {})
        self.asked: list[Any] = []
        self.entries: list[str] = []
        """The names of the calls."""
        self.told: list[tuple[float, float | None, str | None]] = []
        self.handles: Callable[[Sequence[str], str], Awaitable[Any]] | None = None

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any:
        self.entries.append(entry)
        self.asked.append([name, arguments])
        result = self.tools[name](arguments)
        return await result if isinstance(result, Awaitable) else result

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        self.asked.append([agent_id, parameters])
        if agent_id != "writer":
            raise ToolError(f"no agent `{agent_id}`; there is writer")
        return {"response": f"about {parameters['prompt']}"}

    async def wait(self, ids: Sequence[str], mode: str) -> Any:
        self.asked.append([list(ids), mode])
        assert self.handles is not None
        return await self.handles(ids, mode)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.told.append((done, total, message))


def workflow(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"workflowId": "w", "name": "W", "steps": list(steps), **more}


def step(id: str, type: str, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": type, "config": config or {}, **more}


def cel(source: str) -> dict[str, str]:
    return {"cel": source}


def transform(id: str, expression: str, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return step(id, "transform", {"expression": expression, **(config or {})}, **more)


def call(id: str, name: str, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A step that calls a tool with the current data."""
    return step(id, "tool", {"name": name, "arguments": {"data": cel("data")}, **(config or {})}, **more)


def failing(message: str = "boom", **options: Any) -> Answer:
    def fail(arguments: dict[str, Any]) -> Any:
        raise ToolError(message, **options)

    return fail


async def run(
    given: dict[str, Any], around: Around | None = None, fx: Effects | None = None, *, now: Any = None, **options: Any
) -> dict[str, Any]:
    """Read it and run it."""
    time = now or (lambda: 1_767_225_600.0)
    expressions = options.pop("expressions", None) or inline()
    workflow = await read_workflow(given, expressions)
    return await run_workflow(
        workflow, fx or Effects(), around or Around(), expressions=expressions, now=time, **options
    )


async def failed(given: dict[str, Any], *rest: Any, **options: Any) -> WorkflowFailed:
    """How it fails."""
    try:
        result = await run(given, *rest, **options)
    except WorkflowFailed as error:
        return error
    raise AssertionError(f"it did not fail: {result}")


class Inline:
    """What the worker runs, without a worker: quick, and as dangerous as the expressions."""

    async def request(self, body: Any) -> Any:
        return cel_module.answer(msgspec.msgpack.decode(msgspec.msgpack.encode(body)))

    def close(self) -> None: ...


def inline() -> Expressions:
    return Expressions(Inline())


def read(given: dict[str, Any]) -> Workflow:
    """Read it; outside of a loop only."""
    return asyncio.run(read_workflow(given, inline()))


def refusal(given: dict[str, Any]) -> str:
    """Why it is not run at all; outside of a loop only."""
    try:
        read(given)
    except ToolError as error:
        assert error.code == "invalid_arguments"
        return error.message
    raise AssertionError("it was taken")


def ids(result: Mapping[str, Any]) -> list[str]:
    """The steps of a result in order, those that failed with `!`."""
    return [each["stepId"] + ("" if each["success"] else "!") for each in result["steps"]]
