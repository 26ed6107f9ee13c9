"""Python functions as tools: `@keephold.tool` and the runtime behind it (Y, Y2).

An async function runs as a task, a sync one in a daemon thread of its own. An exception becomes the call's error and
never reaches the turn.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Literal, overload

from keephold.content import returned
from keephold.durable.deferred import Pending
from keephold.durable.keys import Key
from keephold.errors import ConfigError, KeepholdError, ToolError
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome, Reply, error_of
from keephold.text import plain, to_json
from keephold.tools.base import (
    Action,
    Invocation,
    Live,
    NotificationPolicy,
    OnCrash,
    OnTurnEnd,
    OutputPolicy,
    QuestionPolicy,
    RetryPolicy,
    RunMode,
    Scheduling,
    Sink,
    TaskMode,
    Tool,
    tool_fields,
)
from keephold.tools.call import Call
from keephold.tools.guard import watch_children
from keephold.tools.signature import Signature

_log = logging.getLogger("keephold.tools")
_THREADS = 64


NO_KEY = Failure(
    "The tool returned Pending without first obtaining a completion key: `key = await call.completion_key()`.",
    "pending_tool_missing_completion_key",
)
_CANCELLED = Failure("Tool execution cancelled.", "cancelled")
CancelHook = Callable[[Key, dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool(Tool):
    """A tool made from a Python function. It can still be called as one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(self.runtime, Function)
        return self.runtime.function(*args, **kwargs)

    def on_cancel(self, hook: CancelHook) -> CancelHook:
        """Register `async def (key, arguments)`, which cancels the work outside when a parked call is cancelled.

        It is called at least once, also if the process dies in between.
        """
        assert isinstance(self.runtime, Function)
        self.runtime.hook = hook
        object.__setattr__(self, "has_cancel_hook", True)  # frozen for everyone else; the decorator completes it
        return hook


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    summary: str | None = None,
    examples: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    actions: Sequence[Action] = (),
    scheduling: Scheduling = "parallel",
    resources: Sequence[str] = (),
    max_running: int | None = None,
    run: RunMode = "unattended",
    run_actions: Mapping[str, RunMode] = {},
    result: RunMode = "unattended",
    questions: Mapping[str, QuestionPolicy] = {},
    timeout_secs: float | None = None,
    on_turn_end: OnTurnEnd | None = None,
    turn_end_timeout_secs: float = 300,
    assistant: Mapping[str, Any] = {},
    notifications: NotificationPolicy | None = None,
    ready: str | None = None,
    priority: int = 0,
    output: OutputPolicy | None = None,
    engine: str | None = None,
    on_crash: OnCrash = "fail",
    retry: RetryPolicy | Literal["never", "safe", "idempotent"] = "never",
    requires_durable: bool = False,
    deadline_secs: float | None = None,
    task: TaskMode = "auto",
    hints: Mapping[str, Any] = {},
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: its schema comes from the signature, its description from the docstring.

    A parameter annotated `keephold.Call`, or a first one named `call` without an annotation, gets the call and is not
    part of the schema. With `actions` the tool is stateful: a model may spawn it, fetch its output and send it input.
    """
    if function is not None:
        return _make(function)
    return lambda function: _make(function, **options)


def _make(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    output: OutputPolicy | None = None,
    **policies: Any,
) -> FunctionTool:
    fields = tool_fields(name or function.__name__, **policies)
    if not inspect.iscoroutinefunction(function):
        if "apply" in fields["actions"]:
            why = 'a sync function takes no input; leave "apply" out of its actions, or make it async'
            raise ConfigError([f"tool `{fields['name']}`: {why}"])
        if fields.get("on_crash", "fail") != "fail":
            raise ConfigError([f'tool `{fields["name"]}`: on_crash="{fields["on_crash"]}" needs an async function'])
    signature = Signature.of(function)
    return FunctionTool(
        description=signature.description if description is None else description,
        parameters=signature.parameters if parameters is None else parameters,
        output=output or OutputPolicy(),
        runtime=Function(function, signature),
        returns=signature.returns,
        **fields,
    )


class Function:
    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function = function
        self.signature = signature
        self.threaded = not inspect.iscoroutinefunction(function)
        if self.threaded:
            self.slots_of: Callable[[Mapping[str, Any]], Mapping[str, int]] = lambda _: {"thread": _THREADS}
        self.hook: CancelHook | None = None

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        if invocation.tool.source != "builtin":
            watch_children()
        call = Call(invocation, sink, threaded=self.threaded)
        kwargs = self.signature.bind(call, invocation.arguments)
        if self.threaded:
            thread = _Thread(call, sink)
            thread.start(self.function, kwargs)
            return thread
        task = _Task(call, sink, can_park=self.signature.parks)
        task.start(self.function, kwargs)
        return task

    async def cancelled(self, key: Key, arguments: dict[str, Any]) -> None:
        if self.hook is not None:
            await self.hook(key, arguments)


class _Task:
    """A running async function."""

    __slots__ = ("_call", "_sink", "_task", "can_park")

    def __init__(self, call: Call, sink: Sink, *, can_park: bool = False) -> None:
        self._call = call
        self._sink = sink
        self._task: asyncio.Task[None] | None = None
        self.can_park = can_park

    def start(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drive(function, kwargs))

    async def _drive(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        outcome: Outcome | Pending
        try:
            value = await function(**kwargs)
            outcome = value if isinstance(value, Pending) else ok_outcome(value)
        except asyncio.CancelledError:
            outcome = _CANCELLED
        except (KeyboardInterrupt, GeneratorExit):  # the program or the loop is ending
            raise
        except BaseException as error:  # a tool that calls sys.exit() ends itself, not the runtime
            outcome = error_outcome(error, self._call)
        if self._call._children is not None:
            await self._call._children.ended()
        if isinstance(outcome, Pending) and not self.has_key:
            outcome = NO_KEY
        if isinstance(outcome, Pending):
            self._sink.park(outcome)
        else:
            _stop(self._sink, outcome)

    def write(self, data: Any) -> None:
        self._call._write(data, b"")

    def write_recorded(self, data: Any, cause: bytes) -> None:
        self._call._write(data, cause)

    async def settled(self) -> None:
        durable = self._call._durable
        if durable is not None and durable.journal is not None:
            await durable.journal.idle()

    @property
    def has_key(self) -> bool:
        durable = self._call._durable
        return durable is not None and durable.taken

    @property
    def records_input(self) -> bool:
        return self._call._journal is not None

    @property
    def queued(self) -> Sequence[Question]:
        return self._call._queued or ()

    @property
    def waits_in_effects(self) -> bool:
        durable = self._call._durable
        return durable is not None and durable.waits_in_effects

    def end(self, grace: float) -> None:
        self._call._cancelled = True
        if self._call._children is not None:
            self._call._children.end(grace)
        task = self._task
        assert task is not None
        if not task.cancel():
            return
        if task is not asyncio.current_task() and _never_ran(task):
            # Cancelled before its first step, the function never runs, so `_drive` could not report the end.
            task.add_done_callback(lambda _: _stop(self._sink, _CANCELLED))


def _stop(sink: Sink, outcome: Outcome) -> None:
    sink.stop(outcome)
    sink.released()


def _never_ran(task: "asyncio.Task[None]") -> bool:
    coroutine = task.get_coro()
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


class _Thread:
    """A running sync function. It cannot be forced to end: on abort its handle stops and the thread lingers."""

    __slots__ = ("_call", "_loop", "_sink")

    def __init__(self, call: Call, sink: Sink) -> None:
        self._call = call
        self._sink = sink
        self._loop = asyncio.get_running_loop()

    def start(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        run = copy_context().run  # the thread inherits the call's context, such as its span
        threading.Thread(target=run, args=(self._work, function, kwargs), daemon=True, name=function.__name__).start()

    def _work(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        try:
            outcome = ok_outcome(function(**kwargs))
        except BaseException as error:
            outcome = error_outcome(error, self._call)
        try:
            self._loop.call_soon_threadsafe(_stop, self._sink, outcome)
        except RuntimeError:
            _log.warning("a thread of a tool ended after its event loop was closed; its result is lost")

    def write(self, data: Any) -> None:
        raise ToolError("this tool is a sync function and takes no input; make it async to use call.input()")

    def end(self, grace: float) -> None:
        self._call._cancelled = True
        self._sink.abandon()


def ok_outcome(value: Any) -> Outcome:
    """Return the outcome of a function that returned `value`: a string, or any JSON value, copied."""
    if isinstance(value, str):
        return Ok(str.__str__(value))
    if isinstance(value, Reply):
        return value
    if isinstance(value, Pending):  # a sync function cannot take a key
        return NO_KEY
    try:
        outcome = value if isinstance(value, Ok) else Ok(*(returned(value) or (value,)))
        builtins = plain(outcome.value)
        to_json(builtins)  # a value that cannot be written is refused now, not at every read
        return Ok(builtins, outcome.content)
    except RecursionError:
        return Failure("The tool returned a value that is nested too deeply.")
    except Exception as error:
        return Failure(f"The tool returned a {type(value).__name__}, which is not JSON: {error}")


def error_outcome(error: BaseException, call: Call) -> Failure:
    """Return the outcome of a function that raised. The trace goes to the log."""
    if isinstance(error, ToolError):
        return error_of(error)
    if isinstance(error, KeepholdError):
        return Failure(error.message, error.code)
    _log.error("tool `%s` raised (call %s)", call._invocation.tool.name, call.uid, exc_info=error)
    text = str(error)
    return Failure(f"{type(error).__name__}: {text}" if text else type(error).__name__)
