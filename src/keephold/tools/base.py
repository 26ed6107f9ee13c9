"""What a tool is, and the seam behind which it runs.

`Tool` is everything the rest of keephold knows about a tool: its schema, its policies, and a `ToolRuntime` that can
start it. A function, a child process, a terminal, a remote tool are runtimes; nothing above this file knows which.

A runtime starts a call and gets a `Sink`; whatever happens to the call is told to the sink. What the world tells the
call (input, an abort) goes through the `Live` thing that `start` returned. All of it runs on the event loop's thread.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import msgspec

from keephold.errors import ConfigError
from keephold.handles.question import Question
from keephold.handles.state import Outcome
from keephold.store.rows import CARRIERS, Carrier, Kind

if TYPE_CHECKING:
    from keephold.durable.calls import Durability
    from keephold.durable.deferred import Pending
    from keephold.durable.keys import Key
    from keephold.handles.handle import Handle
    from keephold.handles.view import Handles
    from keephold.store.base import Entry, Op
    from keephold.tools.guard import Guard

Action = Literal["spawn", "fetch", "apply", "abort"]
ACTIONS: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")

Scheduling = Literal["parallel", "serial", "synchronising"]
RunMode = Literal["ask", "unattended", "edit", "skip"]
OnCrash = Literal["replay", "fail", "external"]
OnTurnEnd = Literal["inquire", "await", "abort", "keep"]
TaskMode = Literal["auto", "required", "never"]
Window = Literal["head", "tail", "head_tail"]
ViewName = Literal["dispatch", "model", "history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """How much of an output is shown (O1): a cap of size and one of lines."""

    limit: int = 16_384
    mode: Literal["bytes", "tokens"] = "bytes"
    max_lines: int = 400
    window: Window = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """The three views of O2, and how much is kept behind them (O5)."""

    dispatch: OutputView = OutputView()
    model: OutputView = OutputView()
    history: OutputView = OutputView()
    max_output: int = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPolicy:
    """Who answers one of a tool's questions (Q2, Q4). `answer` is fixed when `answered` is true."""

    target: Literal["user", "assistant"] = "user"
    answered: bool = False
    answer: Any = None
    exclusive: bool = False
    assistant: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model that is asked, where they differ from the conversation's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationPolicy:
    """What of a spawned handle is news, and on what it may ride (N2, N4)."""

    on_success: bool = True
    on_failure: bool = True
    on_waiting: bool = True
    on_content: bool = False
    deliver: tuple[Carrier, ...] = CARRIERS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnPolicy:
    """How a spawned handle settles (C4), ends (C7, T1) and queues (W11)."""

    settle_ms: int = 100
    settle_max_ms: int = 1000
    abort_grace_ms: int = 2000
    priority: int = 0
    on_turn_end: OnTurnEnd | None = None
    """None: `inquire`, and `keep` for a call that waits in durable effects (T1)."""
    turn_end_timeout_secs: float = 300
    assistant: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model that is asked at the end of a turn (T2), where they differ from the conversation's."""
    notifications: NotificationPolicy = NotificationPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a call that failed with a `transient` error is tried again (R5).

    `safe`: a failed attempt did nothing. `idempotent`: repeating is harmless, so a crash counts as transient.
    """

    policy: Literal["never", "safe", "idempotent"] = "never"
    max_attempts: int = 3
    base_delay_ms: int = 200
    max_delay_ms: int = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The handle that a call makes of its own arguments, where its tool has no `spawn`: one by another name (B2)."""

    id: str
    kind: Kind
    metadata: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    retry: RetryPolicy | None = None
    """Of this call, where it differs from its tool's."""
    on_crash: OnCrash | None = None
    """The same."""
    run: RunMode | None = None
    """The same (P1)."""
    questions: Mapping[str, QuestionPolicy] = field(default_factory=dict)
    """Over those of its tool."""

    def of(self, tool: "Tool") -> "Tool":
        """The tool with the policies of this call."""
        return replace(
            tool,
            retry=self.retry or tool.retry,
            on_crash=self.on_crash or tool.on_crash,
            run=self.run or tool.run,
            questions={**tool.questions, **self.questions},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """How calls of a tool make handles by another name than `spawn`, and what such a call is answered with."""

    read: Callable[[Mapping[str, Any], float], Launch]
    """The handle, of the checked arguments and the time. Raises `ToolError`."""
    reply: "Callable[[Handle, Durability], Awaitable[Mapping[str, Any]]]"
    """What the call is answered with, once the handle has started or, if it parks, is parked."""
    parks: bool = False
    """The handle is parked by its function, which does nothing else."""
    numbered: bool = False
    """Where the id is taken another one is made of it: `_2`, … (W12). Else it is refused."""
    once: str = ""
    """An id is taken also by a handle that has stopped, until that has expired (W7); `{id}` in this says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool. `actions` is empty for a tool that is only ever called one-shot (C1)."""

    name: str
    runtime: "ToolRuntime"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of the tool's own arguments: `{"type": "object", "properties": …, "required": […]}`."""
    description: str = ""
    summary: str | None = None
    examples: tuple[str, ...] = ()
    source: Literal["local", "terminal", "python", "mcp", "builtin"] = "python"
    actions: tuple[Action, ...] = ()
    action_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By action: further optional properties that `fetch` or `apply` takes, such as a terminal's `keys`."""
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
    on_crash: OnCrash = "fail"
    retry: RetryPolicy = RetryPolicy()
    requires_durable: bool = False
    """Refuses to start where nothing survives (E9)."""
    deadline_secs: float | None = None
    """How long a call parked by `on_crash="external"` may wait (R1)."""
    offered: bool = True
    """Whether models are told of it. It can be called either way."""
    has_cancel_hook: bool = False
    """Its runtime `SupportsCancelHook`."""
    kind: Kind = "tool"
    """What its calls are (S4)."""
    names: str | None = None
    """Of a tool without actions: the argument that names a handle, so that such calls come after its spawn (B3)."""
    launching: Launching | None = None
    """Of a tool without actions whose calls are spawns all the same."""
    returns: Mapping[str, Any] | None = None
    """JSON Schema of what a one-shot call returns, if that is an object of one form."""
    unrecorded: bool = False
    """Nothing of a call of it needs to be kept: it only looks or waits, or writes itself what it does."""
    errors: Literal["text", "object"] = "text"
    """How a call is answered that was wrong itself: with a text, or with W7's object."""
    hints: Mapping[str, Any] = field(default_factory=dict)
    """What clients are told of its nature, as MCP's annotations name it: `readOnlyHint`, `destructiveHint`, …"""
    task: TaskMode = "auto"
    """Whether a one-shot call may be a task for clients that know tasks (M2): when it takes long, always, or never."""

    def __post_init__(self) -> None:
        self._one_of("on_crash", self.on_crash, get_args(OnCrash))
        self._one_of("scheduling", self.scheduling, get_args(Scheduling))
        self._one_of("run", self.run, get_args(RunMode))
        self._one_of("result", self.result, get_args(RunMode))
        self._one_of("retry", self.retry.policy, ("never", "safe", "idempotent"))
        self._one_of("task", self.task, get_args(TaskMode))
        if self.spawn.on_turn_end is not None:
            self._one_of("on_turn_end", self.spawn.on_turn_end, get_args(OnTurnEnd))
        if self.deadline_secs is not None and not self.deadline_secs > 0:
            raise ConfigError([f"tool `{self.name}`: deadline_secs must be above 0, not {self.deadline_secs!r}"])
        if self.on_crash == "external" and self.deadline_secs is None:
            raise ConfigError([f'tool `{self.name}`: on_crash="external" needs a deadline: deadline_secs=3600, say'])
        if self.max_running is not None and self.max_running < 1:
            raise ConfigError([f"tool `{self.name}`: max_running must be 1 or more, not {self.max_running}"])

    def _one_of(self, what: str, given: object, known: Sequence[str]) -> None:
        if given not in known:
            right = ", ".join(f'"{each}"' for each in known)
            raise ConfigError([f"tool `{self.name}`: {what} must be one of {right}, not {given!r}"])


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
    """Spawned by the caller: it stays alive and may be talked to. Otherwise one-shot."""
    handles: "Handles | None" = None
    """The conversation's handles, as the batch of this call sees them; None where a runtime is tried by itself."""
    durability: "Durability | None" = None
    """Keys and journals; None where a runtime is tried by itself."""
    attempt: int = 1
    fence: int = 1
    entries: "Sequence[Entry]" = ()
    """The call's journal when the attempt begins."""


class Sink(Protocol):
    """Where a running tool tells what happens to it. Safe to call after the end: late news is dropped."""

    def output(self, data: bytes) -> None:
        """More output; bytes may split a character."""

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    def resized(self, rows: int, cols: int) -> None:
        """It is a terminal, of this size from here on. Told first before any output."""

    def reading(self, yes: bool) -> None:
        """It has begun, or ceased, to wait for input that only `Live.write` can bring (A6)."""

    def ask(
        self, question: Question, then: Callable[[Outcome], None], record: "Callable[[Any, bytes], Op] | None" = None
    ) -> None:
        """A question. `then` gets `Ok(answer)`, or the `Error` that says why nobody answers.

        `record` makes of the answer, and the name of the call that gave it, what is written with it.
        """

    def withdraw(self) -> None:
        """It does not want its open question answered any more."""

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """The end; the first one counts."""

    def park(self, pending: "Pending") -> None:
        """Instead of `stop`: it has taken its completion key and the result comes from outside (D)."""

    def abandon(self) -> None:
        """It was told to end and cannot be made to: stop the handle now, `released` comes when it is really over."""

    def released(self) -> None:
        """Nothing of the call runs any more. Called once, with or after `stop`; frees its lane and resources."""


class Live(Protocol):
    """A started call, as the rest of keephold can reach it."""

    def write(self, data: Any) -> None:
        """What `apply` sends to a running tool (C6). Raises `ToolError`, and then nothing was written."""

    def end(self, grace: float) -> None:
        """Begin to end it (C7): ask first, force after `grace` seconds. The end comes through the sink."""


class ToolRuntime(Protocol):
    """Starts calls of a tool."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        """Start the call. Raises `ToolError` if it cannot be started; then the sink hears nothing."""


class SupportsCancelHook(Protocol):
    """A runtime that is told when a parked call of it is cancelled (D2)."""

    async def cancelled(self, key: "Key", arguments: dict[str, Any]) -> None:
        """End the work outside. Called at least once."""


class SupportsKnowing(Protocol):
    """A runtime that can go on with some calls of its tool only: those whose arguments name what is here (R1)."""

    def knows(self, arguments: Mapping[str, Any]) -> bool: ...


class SupportsSlots(Protocol):
    """A runtime of which only so many calls run at once, whatever tools they belong to (Y2's threads)."""

    slots: Mapping[str, int]


class SupportsSlotsOfCalls(Protocol):
    """The same where it depends on the call: of each agent only so many run at once (W11)."""

    def slots_of(self, arguments: Mapping[str, Any]) -> Mapping[str, int]: ...


class SupportsRecordedInput(Protocol):
    """A live thing that stores what it is sent before it takes it (E10)."""

    def write_recorded(self, data: Any, cause: bytes) -> None:
        """Like `write`; `cause` names the call that sends it."""


class SupportsApply(Protocol):
    """A live thing whose `apply` takes more than `input`: it gets all of its arguments instead of `write`."""

    def apply(self, arguments: Mapping[str, Any]) -> None:
        """Like `Live.write`: raises `ToolError`, and then nothing was written."""


class SupportsGuard(Protocol):
    """A runtime made before the one that will run it: it gets the guard of that one (R2)."""

    def guarded(self, guard: "Guard") -> "ToolRuntime":
        """The same with this guard."""


class SupportsProbe(Protocol):
    """A live thing that can be asked whether it is reading its input right now (C4, A6)."""

    def probe(self) -> bool | None:
        """True or False where it is known, None where it is not."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """What a terminal shows at one moment."""

    lines: tuple[str, ...]
    """One for each row, without the blanks at its end."""
    rows: int
    cols: int
    cursor: tuple[int, int]
    """Row and column, counted from 1."""
    title: str = ""
    alternate: bool = False
    """The alternate screen of full-screen programs is shown."""
    emulator: Literal["ghostty", "line"] = "ghostty"
    """`line`: no emulator is installed; these are the last lines that were printed, not a screen."""
    scrollback: int = 0
    """How many lines have left the screen at its top and can still be had."""


@runtime_checkable
class SupportsScreen(Protocol):
    """A live thing that is a terminal. Its output is what a terminal got, with control sequences."""

    def screen(self) -> Screen: ...

    def scrollback(self, count: int) -> tuple[str, ...]:
        """The last so many lines above the screen, oldest first."""

    def draws(self, since: int) -> bool:
        """Whether what it printed from that offset on is meant as a screen: lines would not make sense of it."""

    def resize(self, rows: int, cols: int) -> None: ...

    def type(self, data: bytes) -> None:
        """What a person who drives the terminal types, as it is. Raises `ToolError`, and then nothing was written."""

    unseen: bool
    """What is typed now would not be echoed, so it may be a password prompt that nobody has noticed yet."""

    def interrupts(self, data: bytes) -> bool:
        """Whether typing this takes back what was typed before and not read: Ctrl-C and its like."""

    def driven(self, by_person: bool) -> None:
        """A person has taken over, or handed it back."""
