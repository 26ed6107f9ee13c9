"""The `Tool` and the seam behind which it runs.

`Tool` holds all that the rest of keephold knows about a tool: its schema, its policies, and a `ToolRuntime` that can
start it. Functions, child processes, terminals and remote tools are runtimes; nothing above this file knows which.

A runtime starts a call and reports its events to a `Sink`. Input and aborts reach the call through the `Live` object
that `start` returned. All of it runs on the event loop's thread.

`Policies` and `tool_fields` are the keywords shared by every way to make a tool in Python.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, get_args, runtime_checkable

import msgspec

from keephold.errors import ConfigError
from keephold.handles.patterns import compiled
from keephold.handles.question import Question
from keephold.handles.state import Failure, Outcome
from keephold.store.rows import CARRIERS, Carrier, Kind

if TYPE_CHECKING:
    from keephold.durable.calls import Durability
    from keephold.durable.deferred import Pending
    from keephold.durable.keys import Key
    from keephold.handles.handle import Handle
    from keephold.handles.output import Output
    from keephold.handles.view import Handles
    from keephold.store.base import Entry, Op, Record
    from keephold.tools.guard import Guard
    from keephold.tools.toolbox import Tools


Action = Literal["spawn", "fetch", "apply", "abort"]
ACTIONS: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")

Scheduling = Literal["parallel", "serial", "synchronising"]
RunMode = Literal["ask", "unattended", "edit", "skip"]
OnCrash = Literal["replay", "fail", "external", "keep"]
OnTurnEnd = Literal["inquire", "await", "abort", "keep"]
TaskMode = Literal["auto", "required", "never"]
Window = Literal["head", "tail", "head_tail"]
ViewName = Literal["dispatch", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """The caps of one view of an output, in size and in lines."""

    limit: int = 16_384
    mode: Literal["bytes", "tokens"] = "bytes"
    max_lines: int = 400
    window: Window = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """The two views of an output, and how many bytes are kept behind them."""

    dispatch: OutputView = OutputView()
    model: OutputView = OutputView()
    max_output: int = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPolicy:
    """Who answers one of a tool's questions. `answer` is fixed when `answered` is true."""

    target: Literal["user", "assistant"] = "user"
    answered: bool = False
    answer: Any = None
    exclusive: bool = False
    assistant: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model that is asked, where they differ from the conversation's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPolicy:
    """Which changes of a spawned handle the model is notified of, and by which carriers."""

    on_success: bool = True
    on_failure: bool = True
    on_waiting: bool = True
    on_ready: bool = True
    on_content: bool = False
    deliver: tuple[Carrier, ...] = CARRIERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnPolicy:
    """How a spawned handle settles, ends and queues."""

    settle_ms: int = 100
    settle_max_ms: int = 1000
    abort_grace_ms: int = 2000
    ready: str | None = None
    """A regular expression (RE2): the handle is ready when a line of its output matches."""
    priority: int = 0
    on_turn_end: OnTurnEnd | None = None
    """None means `inquire`, and `keep` for a kept process and for a call that waits in durable effects."""
    turn_end_timeout_secs: float = 300
    assistant: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model that is asked at the end of a turn, where they differ from the conversation's."""
    notifications: NotificationPolicy = NotificationPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a call that failed with a `transient` error is tried again.

    `safe`: a failed attempt did nothing. `idempotent`: repeating is harmless, so a crash counts as transient.
    """

    policy: Literal["never", "safe", "idempotent"] = "never"
    max_attempts: int = 3
    base_delay_ms: int = 200
    max_delay_ms: int = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The handle that a call makes from its arguments: a spawn by another name (B2). None keeps the tool's policy."""

    id: str
    kind: Kind
    metadata: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    retry: RetryPolicy | None = None
    on_crash: OnCrash | None = None
    run: RunMode | None = None
    questions: Mapping[str, QuestionPolicy] = field(default_factory=dict)
    """Override those of the tool."""

    def of(self, tool: "Tool") -> "Tool":
        """Return the tool with the policies of this call."""
        if not (self.retry or self.on_crash or self.run or self.questions):
            return tool  # a copy for each of ten thousand wait handles would be most of their memory
        return replace(
            tool,
            retry=self.retry or tool.retry,
            on_crash=self.on_crash or tool.on_crash,
            run=self.run or tool.run,
            questions={**tool.questions, **self.questions},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """How calls of a tool make handles without the action `spawn`, and how such a call is answered."""

    read: "Callable[[Mapping[str, Any], float, Tools | None], Launch]"
    """Returns the handle to make, from the checked arguments, the time, and the tools that the conversation is offered;
    None for a call that was made before. Raises `ToolError`."""
    check: Callable[[Mapping[str, Any]], Awaitable[None]] | None = None
    """Checks the arguments before the handle is made, where that takes too long for the loop. Raises `ToolError`."""
    reply: "Callable[[Handle, Record], Awaitable[Mapping[str, Any]]]"
    """Returns the answer to the call, from its handle, which has started or is parked, and its record."""
    parks: bool = False
    """The function of the call only parks it."""
    numbered: bool = False
    """If the id is in use, append `_2` and so on (W12). Otherwise the call is refused."""
    once: str = ""
    """If set, the id of a stopped handle stays in use until that expires (W7); this is the error, with `{id}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool. `actions` is empty for a tool that is only called one-shot."""

    name: str
    runtime: "ToolRuntime"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the tool's own arguments: `{"type": "object", "properties": …, "required": […]}`."""
    unshown: frozenset[str] = frozenset()
    """Names of optional parameters that are accepted and not shown to models."""
    bounds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By parameter: keywords that are checked, and shown in every dialect but the canonical one, where a seed fixes the
    schema."""
    description: str = ""
    summary: str | None = None
    examples: tuple[str, ...] = ()
    source: Literal["local", "terminal", "python", "mcp", "builtin"] = "python"
    actions: tuple[Action, ...] = ()
    action_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By action: further optional properties of `fetch` or `apply`, such as a terminal's `keys`."""
    scheduling: Scheduling = "parallel"
    resources: tuple[str, ...] = ()
    max_running: int | None = None
    run: RunMode = "unattended"
    run_actions: Mapping[str, RunMode] = field(default_factory=dict)
    result: RunMode = "unattended"
    timeout_secs: float | None = None
    questions: Mapping[str, QuestionPolicy] = field(default_factory=dict)
    spawn: SpawnPolicy = SpawnPolicy()
    output: OutputPolicy = OutputPolicy()
    engine: str | None = None
    """The engine whose workers run the calls, by the name of its table in the configuration; None: this process."""
    on_crash: OnCrash = "fail"
    keep_secs: float = 3600
    """Seconds for which a process of a spawned call runs on without a runtime (R7, `on_crash="keep"`)."""
    retry: RetryPolicy = RetryPolicy()
    requires_durable: bool = False
    """Refuse to start on a store that keeps nothing (E9)."""
    deadline_secs: float | None = None
    """Seconds for which a call parked by `on_crash="external"` may wait (R1)."""
    offered: bool = True
    """Whether models are offered the tool."""
    has_cancel_hook: bool = False
    """Its runtime `SupportsCancelHook`."""
    kind: Kind = "tool"
    """The kind of its handles (S4)."""
    names: str | None = None
    """Without actions: the argument that names a handle, so that such calls run after its spawn (B3)."""
    launching: Launching | None = None
    """Without actions: how its calls make handles all the same."""
    returns: Mapping[str, Any] | None = None
    """JSON Schema of the object that a one-shot call returns, if it has one."""
    unrecorded: bool = False
    """Its calls are not recorded: they only read or wait, or write their effects themselves."""
    errors: Literal["text", "object"] = "text"
    """The form of the error of an invalid call: a text, or W7's object."""
    hints: Mapping[str, Any] = field(default_factory=dict)
    """Hints for clients, named as MCP's annotations: `readOnlyHint`, `destructiveHint`, …"""
    task: TaskMode = "auto"
    """Whether a one-shot call may be a task (M2): if it takes long, always, or never."""

    def __post_init__(self) -> None:
        self._one_of("on_crash", self.on_crash, get_args(OnCrash))
        self._one_of("scheduling", self.scheduling, get_args(Scheduling))
        self._one_of("run", self.run, get_args(RunMode))
        self._one_of("result", self.result, get_args(RunMode))
        self._one_of("retry", self.retry.policy, ("never", "safe", "idempotent"))
        self._one_of("task", self.task, get_args(TaskMode))
        if self.spawn.on_turn_end is not None:
            self._one_of("on_turn_end", self.spawn.on_turn_end, get_args(OnTurnEnd))
        if self.spawn.ready is not None:
            try:
                compiled(self.spawn.ready)
            except ValueError as error:
                raise ConfigError([f"tool `{self.name}`: ready is not a pattern: {error}"]) from None
        if self.deadline_secs is not None and not self.deadline_secs > 0:
            raise ConfigError([f"tool `{self.name}`: deadline_secs must be above 0, not {self.deadline_secs!r}"])
        if self.on_crash == "external" and self.deadline_secs is None:
            raise ConfigError([f'tool `{self.name}`: on_crash="external" needs a deadline: deadline_secs=3600, say'])
        if self.on_crash == "external" and self.engine is not None:
            why = f'its engine, "{self.engine}", runs it again or ends it when a worker dies; use "replay" or "fail"'
            raise ConfigError([f'tool `{self.name}`: on_crash="external" is not possible: {why}'])
        if self.max_running is not None and self.max_running < 1:
            raise ConfigError([f"tool `{self.name}`: max_running must be 1 or more, not {self.max_running}"])
        problem = engine_problem(self.engine, self.source)
        if problem is not None:
            raise ConfigError([f"tool `{self.name}`: {problem}"])
        wire, media = getattr(self.runtime, "wire", False), getattr(self.runtime, "media", None)
        for problem in keep_problems(self.on_crash, self.source, self.retry.policy, self.keep_secs, wire, media):
            raise ConfigError([f"tool `{self.name}`: {problem}"])

    def _one_of(self, what: str, given: object, known: Sequence[str]) -> None:
        if given not in known:
            right = ", ".join(f'"{each}"' for each in known)
            raise ConfigError([f"tool `{self.name}`: {what} must be one of {right}, not {given!r}"])


def engine_problem(engine: str | None, source: str | None) -> str | None:
    """Return why an engine cannot run a tool of this source, or None if it can."""
    if engine is None or source == "python":
        return None
    others = {"mcp": "tools of an MCP server run at their server", "builtin": "built-in tools run where keephold runs"}
    return f'engine = "{engine}" runs functions; {others.get(source or "", "commands run where keephold runs")}'


def keep_problems(
    on_crash: object, source: str | None, retry: str, keep_secs: float, wire: bool, media: object
) -> Iterator[str]:
    """Yield why the processes of a tool with these settings cannot be kept (R7)."""
    if not 0 < keep_secs < math.inf:
        yield f"keep_secs must be a number of seconds above 0, not {keep_secs!r}"
    if on_crash != "keep":
        return
    if source not in ("local", "terminal"):
        yield 'on_crash = "keep" keeps a process: it is for commands and terminals; an async function has "replay"'
    if retry != "never":
        yield 'on_crash = "keep" needs retry = "never": a kept process is not started a second time'
    if wire:
        yield 'on_crash = "keep" needs wire = false: wire forms are answered by the runtime, which may be gone'
    if media is not None:
        yield 'on_crash = "keep" is for a command that prints text; leave out `returns`, or use "fail" or "replay"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a tool, as its runtime gets it."""

    tool: Tool
    arguments: dict[str, Any]
    uid: str
    call_id: str
    conversation: str
    turn: str
    stateful: bool
    """Spawned: it stays alive and takes input. Otherwise one-shot."""
    handles: "Handles | None" = None
    """The conversation's handles, as the batch of this call sees them; None in a test of a runtime alone."""
    durability: "Durability | None" = None
    """Keys and journals; None in a test of a runtime alone."""
    attempt: int = 1
    retry_of: str | None = None
    """The uid of the call that it repeats."""
    fence: int = 1
    entries: "Sequence[Entry]" = ()
    """The call's journal when the attempt begins."""
    guard: "Guard | None" = None
    """The runtime's guard, for processes that a function starts; None in a test of a runtime alone."""


class Sink(Protocol):
    """Receives the events of a running call. Safe to call after the end: late events are dropped."""

    def output(self, data: bytes) -> None:
        """More output; bytes may split a character."""

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    def resized(self, rows: int, cols: int) -> None:
        """It is a terminal and has this size from here on. Called before any output."""

    def reading(self, yes: bool) -> None:
        """It has started or stopped waiting for input that only `Live.write` can bring (A6)."""

    def ask(
        self, question: Question, then: Callable[[Outcome], None], record: "Callable[[Any, bytes], Op] | None" = None
    ) -> None:
        """Ask a question. `then` gets `Ok(answer)`, or the `Failure` that says why nobody answers.

        `record` makes the op that is written with the answer, from the answer and the name of the call that gave it.
        """

    def withdraw(self) -> None:
        """Withdraw the open question."""

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """The call has ended; the first end counts."""

    def park(self, pending: "Pending") -> None:
        """Instead of `stop`: it has taken its completion key, and the result comes from outside (D)."""

    def abandon(self) -> None:
        """It cannot be made to end: stop the handle now. `released` follows when the call is really over."""

    def released(self) -> None:
        """Nothing of the call runs any more. Called once, with or after `stop`; frees its lane and resources."""


class Live(Protocol):
    """A started call, as the rest of keephold reaches it."""

    def write(self, data: Any) -> None:
        """Send the input of an `apply` (C6). If it raises `ToolError`, nothing was written."""

    def end(self, grace: float) -> None:
        """Begin to end it (C7): ask first, force after `grace` seconds. The sink gets the end."""


class ToolRuntime(Protocol):
    """Starts calls of a tool."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        """Start the call. If it raises `ToolError`, the sink gets nothing."""


@runtime_checkable
class SupportsCancelHook(Protocol):
    """A runtime with a hook for the cancellation of its parked calls (D2)."""

    async def cancelled(self, key: "Key", arguments: dict[str, Any]) -> None:
        """Cancel the work outside. Called at least once."""


@runtime_checkable
class SupportsKnowing(Protocol):
    """A runtime that can resume only those calls of its tool whose arguments name something known here (R1)."""

    def knows(self, arguments: Mapping[str, Any]) -> bool: ...


class SupportsSlots(Protocol):
    """A runtime with limits of concurrent calls: of threads (Y2), or of the runs of an agent (W11)."""

    def slots_of(self, arguments: Mapping[str, Any]) -> Mapping[str, int]: ...


@runtime_checkable
class SupportsRecordedInput(Protocol):
    """A live call that stores its input before it takes it (E10)."""

    def write_recorded(self, data: Any, cause: bytes) -> None:
        """Like `write`; `cause` names the call that sends it."""


@runtime_checkable
class SupportsApply(Protocol):
    """A live call whose `apply` takes more than `input`: it gets all the arguments instead of `write`."""

    def apply(self, arguments: Mapping[str, Any], cause: bytes) -> None:
        """Like `Live.write`: if it raises `ToolError`, nothing was written. `cause` names the call that sends it."""


class SupportsReturn(Protocol):
    """A tool's runtime whose processes may outlive the `Runtime` (R7)."""

    async def take_back(self, invocation: Invocation, sink: "KeepingSink") -> "SupportsKeeping":
        """Take back the process of a call that an earlier runtime started. The sink gets its end if it has ended."""


class SupportsKeeping(Live, Protocol):
    """A live call whose process may be kept."""

    kept: bool
    """Whether its process runs on without this runtime."""
    started: bool
    """Whether its keeper has started the process, so that another runtime finds it."""

    def release(self) -> None:
        """Forget the process, which runs on: another runtime takes it back. The sink gets nothing more."""


class KeepingSink(Sink, Protocol):
    """The sink of a call whose output another process writes."""

    def spooled(self) -> "Output":
        """Return the call's output."""

    def followed(self, total: int) -> None:
        """The other process has written that many bytes of output in all."""

    def took(self, causes: Sequence[bytes]) -> None:
        """Record that the process got the input of these calls, which may be sent again by a resumed batch (B9)."""

    def crashed(self, error: Failure, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """Like `stop`: the process was lost because no runtime had it."""

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call `then` when the store has the end of the call."""

    def lost(self) -> None:
        """Another runtime has taken the process."""


@runtime_checkable
class SupportsGuard(Protocol):
    """A tool's runtime that was made before the `Runtime`, and gets its guard later (R2)."""

    def guarded(self, guard: "Guard") -> "ToolRuntime":
        """Return the same runtime with this guard."""


def guarded(tool: Tool, guard: "Guard") -> Tool:
    """Return the tool with this guard, if it starts processes: one made in Python has none yet."""
    runtime = tool.runtime
    return replace(tool, runtime=runtime.guarded(guard)) if isinstance(runtime, SupportsGuard) else tool


class SupportsProbe(Protocol):
    """A live call that can report whether it is reading its input right now (C4, A6)."""

    def probe(self) -> bool | None:
        """Return None if that is unknown."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """The screen of a terminal at one moment."""

    lines: tuple[str, ...]
    """One for each row, without trailing blanks."""
    rows: int
    cols: int
    cursor: tuple[int, int]
    """Row and column, counted from 1."""
    title: str = ""
    alternate: bool = False
    """The alternate screen of full-screen programs is shown."""
    emulator: Literal["ghostty", "line"] = "ghostty"
    """`line`: no emulator is installed, so these are the last printed lines, not a screen."""
    scrollback: int = 0
    """Number of lines that have left the screen at its top and can still be read."""


@runtime_checkable
class SupportsScreen(Protocol):
    """A live call that is a terminal. Its output contains control sequences."""

    def screen(self) -> Screen: ...

    def scrollback(self, count: int) -> tuple[str, ...]:
        """Return the last `count` lines above the screen, oldest first."""

    def draws(self, since: int) -> bool:
        """Whether its output from that offset on is meant as a screen, so that lines would not make sense."""

    def resize(self, rows: int, cols: int) -> None: ...

    def type(self, data: bytes) -> None:
        """Type bytes of the user who drives the terminal, unchanged. If it raises `ToolError`, nothing was written."""

    unseen: bool
    """Typed input is not echoed now, so there may be a password prompt that was not detected yet."""

    def interrupts(self, data: bytes) -> bool:
        """Whether typing this discards input that was typed before and not read: Ctrl-C and the like."""

    def driven(self, by_person: bool) -> None:
        """The user has taken over, or handed it back."""


class Policies(TypedDict, total=False):
    """Keywords with the same meaning and default as for `@keephold.tool`."""

    summary: str | None
    examples: Sequence[str]
    scheduling: Scheduling
    resources: Sequence[str]
    max_running: int | None
    run: RunMode
    run_actions: Mapping[str, RunMode]
    result: RunMode
    timeout_secs: float | None
    on_turn_end: OnTurnEnd | None
    turn_end_timeout_secs: float
    ready: str | None
    assistant: Mapping[str, Any]
    notifications: NotificationPolicy | None
    priority: int
    on_crash: Literal["fail", "replay", "keep"]
    keep_secs: float
    retry: RetryPolicy | Literal["never", "safe", "idempotent"]
    task: TaskMode
    hints: Mapping[str, Any]


_OF_SPAWN = ("on_turn_end", "turn_end_timeout_secs", "notifications", "ready", "priority")


def tool_fields(
    name: str,
    *,
    examples: Sequence[str] = (),
    actions: Sequence[Action] = (),
    resources: Sequence[str] = (),
    assistant: Mapping[str, Any] = {},
    retry: RetryPolicy | Literal["never", "safe", "idempotent"] = "never",
    **policies: Any,
) -> dict[str, Any]:
    """Return the fields of `Tool`. Raises `ConfigError` for actions that no tool can have."""
    if isinstance(actions, str) or not set(actions) <= set(ACTIONS) or (actions and "spawn" not in actions):
        right = f'a tuple of "spawn" and any of {ACTIONS[1:]}'
        raise ConfigError([f"tool `{name}`: actions must be {right}, not {actions!r}"])
    of_spawn = {key: given for key in _OF_SPAWN if (given := policies.pop(key, None)) is not None}
    return {
        "name": name,
        "examples": tuple(examples),
        "actions": tuple(actions),
        "resources": tuple(resources),
        "spawn": SpawnPolicy(assistant=dict(assistant), **of_spawn),
        "retry": RetryPolicy(policy=retry) if isinstance(retry, str) else retry,
        **policies,
    }
