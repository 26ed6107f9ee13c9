"""What a tool is, and the seam behind which it runs.

`Tool` is everything the rest of holdfast knows about a tool: its schema, its policies, and a `ToolRuntime` that can
start it. A function, a child process, a terminal, a remote tool are runtimes; nothing above this file knows which.

A runtime starts a call and gets a `Sink`; whatever happens to the call is told to the sink. What the world tells the
call (input, an abort) goes through the `Live` thing that `start` returned. All of it runs on the event loop's thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from holdfast.errors import ConfigError
from holdfast.handles.question import Question
from holdfast.handles.state import Outcome

if TYPE_CHECKING:
    from holdfast.handles.view import Handles

Action = Literal["spawn", "fetch", "apply", "abort"]
ACTIONS: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")

Scheduling = Literal["parallel", "serial", "synchronising"]
RunMode = Literal["ask", "unattended", "edit", "skip"]
OnTurnEnd = Literal["inquire", "await", "abort", "keep"]
Window = Literal["head", "tail", "head_tail"]
ViewName = Literal["dispatch", "model", "history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How much of an output is shown (O1): a cap of size and one of lines."""

    limit: int = 16_384
    mode: Literal["bytes", "tokens"] = "bytes"
    max_lines: int = 400
    window: Window = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """The three views of O2, and how much is kept behind them (O5)."""

    dispatch: View = View()
    model: View = View()
    history: View = View()
    max_output: int = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPolicy:
    """Who answers one of a tool's questions (Q2, Q4). `answer` is fixed when `answered` is true."""

    target: Literal["user", "assistant"] = "user"
    answered: bool = False
    answer: Any = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnPolicy:
    """How a spawned handle settles (C4), ends (C7, T1) and queues (W11)."""

    settle_ms: int = 100
    settle_max_ms: int = 1000
    abort_grace_ms: int = 2000
    priority: int = 0
    on_turn_end: OnTurnEnd = "inquire"
    turn_end_timeout_secs: float = 300


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
    source: Literal["local", "python", "builtin"] = "python"
    actions: tuple[Action, ...] = ()
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

    def __post_init__(self) -> None:
        if self.max_running is not None and self.max_running < 1:
            raise ConfigError([f"tool `{self.name}`: max_running must be 1 or more, not {self.max_running}"])


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


class Reply(msgspec.Struct, frozen=True):
    """What a call is answered with, as calling code and as a model get it (O2)."""

    result: str
    model: str
    is_error: bool = False
    code: str | None = None
    """Of an error, its stable code."""
    cursors: tuple[tuple[str, int], ...] = ()
    """By uid: up to where it showed a handle's output (C5)."""


class Sink(Protocol):
    """Where a running tool tells what happens to it. Safe to call after the end: late news is dropped."""

    def output(self, data: bytes) -> None:
        """More output; bytes may split a character."""

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    def reading(self, yes: bool) -> None:
        """It has begun, or ceased, to wait for input that only `Live.write` can bring (A6)."""

    def ask(self, question: Question, then: Callable[[Outcome], None]) -> None:
        """A question. `then` gets `Ok(answer)`, or the `Error` that says why nobody answers."""

    def withdraw(self) -> None:
        """It does not want its open question answered any more."""

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """The end; the first one counts."""

    def abandon(self) -> None:
        """It was told to end and cannot be made to: stop the handle now, `released` comes when it is really over."""

    def released(self) -> None:
        """Nothing of the call runs any more. Called once, with or after `stop`; frees its lane and resources."""


class Live(Protocol):
    """A started call, as the rest of holdfast can reach it."""

    def write(self, data: Any) -> None:
        """What `apply` sends to a running tool (C6). Raises `ToolError`, and then nothing was written."""

    def end(self, grace: float) -> None:
        """Begin to end it (C7): ask first, force after `grace` seconds. The end comes through the sink."""


class ToolRuntime(Protocol):
    """Starts calls of a tool."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        """Start the call. Raises `ToolError` if it cannot be started; then the sink hears nothing."""


class SupportsSlots(Protocol):
    """A runtime of which only so many calls run at once, whatever tools they belong to (Y2's threads)."""

    slots: Mapping[str, int]


class SupportsProbe(Protocol):
    """A live thing that can be asked whether it is reading its input right now (C4, A6)."""

    def probe(self) -> bool | None:
        """True or False where it is known, None where it is not."""
