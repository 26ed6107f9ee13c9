"""A workflow: its steps as a model wrote them, which is JSON that may be wrong in any way, and as it is ready to run,
with its expressions checked. `reading.py` makes the second from the first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from keephold.tools.workflow.expressions import Evaluated, Expression

END = "$end"
"""The target of a jump that ends the list of its step."""

MAX_STEPS = 10_000
"""Steps that one run executes, each visit of a step counted."""
MAX_DEFINED = 2000
"""Steps of a workflow, nested ones included."""
MAX_NESTING = 16
MAX_BRANCHES = 64
MAX_CONCURRENCY = 64
MAX_TASKS = 128
"""Lists that run concurrently in one run. Inside others, one of each step runs in any case."""
MAX_ITERATIONS = 10_000
MAX_DELAY_MS = 365 * 24 * 3600 * 1000

Mode = Literal["all", "any", "race"]


class Value(msgspec.Struct, frozen=True):
    """A value of a config, with an `Expression` for each `{"cel": "…"}` in it."""

    given: Any
    expressions: tuple[Expression, ...] = ()

    def resolve(self, evaluated: Evaluated) -> Any:
        """Return it with the values of its expressions. Raises `ToolError`."""
        return _resolved(self.given, evaluated)


class OpenObject(dict[str, Any]):
    """An object of a value that has expressions in it. All others are taken as they are, however large."""


class OpenArray(list[Any]):
    """The same for an array."""


_OPEN = frozenset((Expression, OpenObject, OpenArray))


def _resolved(given: Any, evaluated: Evaluated) -> Any:
    match given:
        case Expression():
            return evaluated(given)
        case OpenObject():
            return {key: _resolved(part, evaluated) if type(part) in _OPEN else part for key, part in given.items()}
        case OpenArray():
            return [_resolved(part, evaluated) if type(part) in _OPEN else part for part in given]
    return given


class Steps(msgspec.Struct, frozen=True):
    """Steps of one list. Jumps stay within it."""

    steps: tuple["Step", ...]
    positions: Mapping[str, int]


class Retry(msgspec.Struct, frozen=True):
    """How often a transient error is tried again, and after which pauses (ms)."""

    max_attempts: int = 3
    base_delay_ms: int = 200
    max_delay_ms: int = 5000

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait after that failed attempt. Not random: a replay must get the same."""
        return float(min(self.base_delay_ms * 2 ** min(attempt - 1, 40), self.max_delay_ms) / 1000)


class AgentStep(msgspec.Struct, frozen=True):
    agent_id: Value
    parameters: Value


class ToolStep(msgspec.Struct, frozen=True):
    name: Value
    arguments: Value


class ApiStep(msgspec.Struct, frozen=True):
    request: Value
    """`{"method", "url", "headers", "body"?}`."""
    seconds: float
    """How long the request may take. While the user is asked about its host, this time does not pass."""


class Condition(msgspec.Struct, frozen=True):
    expression: Expression
    then: Steps | None
    otherwise: Steps | None


class Transform(msgspec.Struct, frozen=True):
    expression: Expression


class Delay(msgspec.Struct, frozen=True):
    ms: Value


class Parallel(msgspec.Struct, frozen=True):
    branches: tuple[Steps, ...]
    concurrency: int


class Loop(msgspec.Struct, frozen=True):
    items: Value | None
    """None: the current data."""
    steps: Steps
    max_iterations: int
    concurrency: int


class TryCatch(msgspec.Struct, frozen=True):
    tried: Steps
    caught: Steps


class Switch(msgspec.Struct, frozen=True):
    value: Value
    cases: tuple[tuple[Value, Steps], ...]
    default: Steps | None


class Merge(msgspec.Struct, frozen=True):
    values: Value
    mode: Literal["object", "array"]


class SetVariable(msgspec.Struct, frozen=True):
    name: str
    value: Value


class GetVariable(msgspec.Struct, frozen=True):
    name: str
    default: Value | None


class WaitHandles(msgspec.Struct, frozen=True):
    ids: Value
    mode: Mode


class WaitEvent(msgspec.Struct, frozen=True):
    event: str


StepKind = (
    AgentStep | ToolStep | ApiStep | Condition | Transform | Delay | Parallel | Loop | TryCatch | Switch | Merge
    | SetVariable | GetVariable | WaitHandles | WaitEvent
)  # fmt: skip


PURE = (Transform, Merge, SetVariable, GetVariable)
"""Kinds without effects outside: their expressions are evaluated when the step is done, which is recorded."""


def expressions_of(part: Any) -> Iterator[Expression]:
    """Yield the expressions of a kind, those of nested steps excepted."""
    match part:
        case Expression():
            yield part
        case Value():
            yield from part.expressions
        case tuple():
            for each in part:
                yield from expressions_of(each)
        case msgspec.Struct() if not isinstance(part, Steps):
            for field in part.__struct_fields__:
                yield from expressions_of(getattr(part, field))


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `kind` is its work; the other fields are common to all steps."""

    id: str
    type: str
    kind: StepKind
    expressions: tuple[Expression, ...] = ()
    """Those of its kind."""
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
    def guards(self) -> list[tuple[str, Expression, bool]]:
        """The fields that decide whether it is skipped, and the value with which it is not."""
        both = ("condition", self.condition, True), ("skipIf", self.skip_if, False)
        return [(field, given, runs) for field, given, runs in both if given is not None]

    @property
    def goes_on(self) -> bool:
        """Whether the list continues if it fails."""
        return self.on_error is not None or self.continue_on_error


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that may be run."""

    id: str
    name: str
    steps: Steps
    straight: bool
    """Every step runs at most once, without jumps and nesting, so that progress can be reported."""
    input: Any = None
    context: Mapping[str, Any] = {}
    timeout: float | None = None
    """Seconds, of the whole run."""
    priority: int = 0


EACH = "each"
"""The key of a loop's list."""
_SHOWN = 200
"""Characters of a text of the definition."""


@dataclass(frozen=True)
class NestedList:
    """A list of steps in a step: what its entries are named by, and what it is called."""

    key: str
    name: str
    steps: list[dict[str, Any]]


def nested_lists(step: Mapping[str, Any]) -> list[NestedList]:
    """Return the lists in a step."""
    config = config_of(step)
    match step["type"]:
        case "condition":
            given = [key for key in ("then", "else") if config.get(key) is not None]
            return [NestedList(key, key, steps_of(config[key])) for key in given]
        case "parallel":
            branches = config.get("branches")
            found = branches if isinstance(branches, list) else []
            return [NestedList(str(at), f"branch {at + 1}", steps_of(each)) for at, each in enumerate(found)]
        case "loop":
            return [NestedList(EACH, "for each item", steps_of(config.get("steps")))]
        case "try_catch":
            return [NestedList(key, key, steps_of(config.get(key))) for key in ("try", "catch")]
        case "switch":
            cases = config.get("cases")
            found_cases = [
                NestedList(str(at), f"= {text_of(each.get('equals'))}", steps_of(each.get("steps")))
                for at, each in enumerate(cases if isinstance(cases, list) else ())
                if isinstance(each, Mapping)
            ]
            default = config.get("default")
            return found_cases + ([] if default is None else [NestedList("default", "otherwise", steps_of(default))])
    return []


def steps_of(given: Any) -> list[dict[str, Any]]:
    """Return the steps of a list that have an id and a type."""
    if not isinstance(given, list):
        return []
    return [
        each for each in given if isinstance(each, dict) and all(isinstance(each.get(k), str) for k in ("id", "type"))
    ]


def all_steps(given: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a list, and those inside them."""
    for step in steps_of(given):
        yield step
        for inner in nested_lists(step):
            yield from all_steps(inner.steps)


def config_of(step: Mapping[str, Any]) -> Mapping[str, Any]:
    config = step.get("config")
    return config if isinstance(config, Mapping) else {}


def text_of(value: Any) -> str:
    """Return a text of the definition, or an expression's, for people."""
    if isinstance(value, Mapping) and isinstance(value.get("cel"), str):
        value = value["cel"]
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
