"""A workflow that is ready to run: checked, its expressions compiled. `reading.py` makes it from arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from keephold.tools.workflow.expressions import Expression

END = "$end"
"""The target of a jump that ends the list of its step."""

MAX_STEPS = 10_000
"""Steps that one run executes, each visit of a step counted."""
MAX_NESTING = 16
MAX_BRANCHES = 64
MAX_CONCURRENCY = 64
MAX_ITERATIONS = 10_000
MAX_DELAY_MS = 365 * 24 * 3600 * 1000

Mode = Literal["all", "any", "race"]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a config, with an `Expression` for each `{"cel": "…"}` in it."""

    given: Any
    literal: bool
    """Whether it has no expression."""

    def resolve(self, evaluate: Callable[[Expression], Any]) -> Any:
        return self.given if self.literal else _resolved(self.given, evaluate)


def _resolved(given: Any, evaluate: Callable[[Expression], Any]) -> Any:
    match given:
        case Expression():
            return evaluate(given)
        case dict():
            return {key: _resolved(each, evaluate) for key, each in given.items()}
        case list():
            return [_resolved(each, evaluate) for each in given]
    return given


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one list. Jumps stay within it."""

    steps: tuple["Step", ...]
    positions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a transient error is tried again, and after which pauses (ms)."""

    max_attempts: int = 3
    base_delay_ms: int = 200
    max_delay_ms: int = 5000

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait after that failed attempt. Not random: a replay must get the same."""
        return float(min(self.base_delay_ms * 2 ** min(attempt - 1, 40), self.max_delay_ms) / 1000)


@dataclass(frozen=True, slots=True)
class Agent:
    agent_id: Value
    parameters: Value


@dataclass(frozen=True, slots=True)
class Tool:
    name: Value
    arguments: Value


@dataclass(frozen=True, slots=True)
class Api:
    request: Value
    """`{"method", "url", "headers", "body"?}`."""


@dataclass(frozen=True, slots=True)
class Condition:
    expression: Expression
    then: Steps | None
    otherwise: Steps | None


@dataclass(frozen=True, slots=True)
class Transform:
    expression: Expression


@dataclass(frozen=True, slots=True)
class Delay:
    ms: Value


@dataclass(frozen=True, slots=True)
class Parallel:
    branches: tuple[Steps, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class Loop:
    items: Value | None
    """None: the current data."""
    steps: Steps
    max_iterations: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class TryCatch:
    tried: Steps
    caught: Steps


@dataclass(frozen=True, slots=True)
class Switch:
    value: Value
    cases: tuple[tuple[Value, Steps], ...]
    default: Steps | None


@dataclass(frozen=True, slots=True)
class Merge:
    values: Value
    mode: Literal["object", "array"]


@dataclass(frozen=True, slots=True)
class SetVariable:
    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class GetVariable:
    name: str
    default: Value | None


@dataclass(frozen=True, slots=True)
class WaitHandles:
    ids: Value
    mode: Mode


@dataclass(frozen=True, slots=True)
class WaitEvent:
    event: str


Kind = (
    Agent | Tool | Api | Condition | Transform | Delay | Parallel | Loop | TryCatch | Switch | Merge | SetVariable
    | GetVariable | WaitHandles | WaitEvent
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. `kind` is its work; the other fields are common to all steps."""

    id: str
    type: str
    kind: Kind
    on_success: str | None = None
    on_error: str | None = None
    condition: Expression | None = None
    skip_if: Expression | None = None
    preserve_data: bool = False
    continue_on_error: bool = False
    timeout: float | None = None
    """Seconds."""
    retry: Retry = Retry(max_attempts=1)

    @property
    def goes_on(self) -> bool:
        """Whether the list continues if it fails."""
        return self.on_error is not None or self.continue_on_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """A workflow that may be run."""

    id: str
    name: str
    steps: Steps
    straight: bool
    """Every step runs at most once, without jumps and nesting, so that progress can be reported."""
    input: Any = None
    context: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds, of the whole run."""
    priority: int = 0
