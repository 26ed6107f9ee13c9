"""Where a step runs: what its expressions see, where its results go, and until when it may run.

Steps that run one after another share what they write. Branches that run side by side do not: each sees what was there
when they began and writes into a layer of its own, and the layers are laid over each other in the order of the
branches when all have ended. Which of them was faster is seen by nobody, so a replay makes the same of them.

How the parts of the engine tell each other what happened: what a step ended with, and what ends more than a step.

What a workflow needs of the world around it, and how it ends when it fails.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from keephold.errors import ToolError
from keephold.tools.workflow.definition import Value
from keephold.tools.workflow.expressions import Expression

Record = dict[str, Any]
Records = list[Any]
"""Records of steps that have ended. A list in it holds those of a branch."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When whoever has the name must have ended: a step, or the run, whose name is empty."""

    at: float
    name: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Frame:
    """One list of steps that is being run."""

    prefix: str = ""
    """What the names of its steps in the journal begin with."""
    input: Any
    context: Mapping[str, Any]
    data: Any
    variables: "ChainMap[str, Any]" = field(default_factory=ChainMap)
    results: "ChainMap[str, Any]" = field(default_factory=ChainMap)
    """By step id, the result of its last visit."""
    records: Records = field(default_factory=list)
    deadline: Deadline | None = None
    error: Record | None = None
    """The last error that was handled."""
    loop: Mapping[str, Any] | None = None
    """`item` and `index`."""
    concurrent: bool = False
    """Others run beside it."""
    guarded: bool = False
    """Whoever is around goes on if it fails."""

    def within(self, prefix: str, *, loop: Mapping[str, Any] | None = None) -> "Frame":
        """For a list inside one of its steps: it writes where this one does."""
        return Frame(
            prefix=prefix,
            input=self.input,
            context=self.context,
            data=self.data,
            variables=self.variables,
            results=self.results,
            records=self.records,
            deadline=self.deadline,
            error=self.error,
            loop=loop or self.loop,
            concurrent=self.concurrent,
            guarded=self.guarded,
        )

    def beside(self, prefix: str, *, loop: Mapping[str, Any] | None = None) -> "Frame":
        """For a list that runs beside others."""
        frame = self.within(prefix, loop=loop)
        frame.variables, frame.results = self.variables.new_child(), self.results.new_child()
        frame.records = []
        frame.concurrent = True
        self.records.append(frame.records)
        return frame

    def join(self, other: "Frame") -> None:
        """Take over what a list has written that ran beside others."""
        self.variables.update(other.variables.maps[0])
        self.results.update(other.results.maps[0])

    def evaluate(self, expression: Expression) -> Any:
        """What an expression gives here. Raises `ToolError`."""
        return expression.evaluate({name: self._seen(name, keys) for name, keys in expression.reads.names.items()})

    def resolve(self, value: Value) -> Any:
        """A value of a config, its expressions evaluated. Raises `ToolError`."""
        return value.resolve(self.evaluate)

    def _seen(self, name: str, keys: frozenset[str] | None) -> Any:
        """A variable, of an object only the keys that are read: there may be thousands of results."""
        if name == "steps":
            return dict(self.results) if keys is None else _only(self.results, keys)
        if name == "context":
            return self.whole_context() if keys is None else self._context_at(keys)
        value = self._variable(name)
        return value if keys is None or not isinstance(value, dict) else _only(value, keys)

    def _variable(self, name: str) -> Any:
        match name:
            case "input":
                return self.input
            case "data":
                return self.data
            case "vars":
                return dict(self.variables)
            case "error":
                return self.error
        return (self.loop or {}).get(name)

    def whole_context(self) -> dict[str, Any]:
        """What was given, and the result of every step as `step_<id>`."""
        return {**self.context, **{f"step_{id}": result for id, result in self.results.items()}}

    def _context_at(self, keys: frozenset[str]) -> dict[str, Any]:
        seen = _only(self.context, keys)
        for key in keys:
            if key.startswith("step_") and key[5:] in self.results:
                seen[key] = self.results[key[5:]]
        return seen


def _only(value: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value[key] for key in keys if key in value}


def flat(records: Records) -> list[Record]:
    """The records of all branches, in the order of the branches."""
    found: list[Record] = []
    for each in records:
        found.extend(flat(each) if isinstance(each, list) else [each])
    return found


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step has ended, with a result or with an error. `at` is recorded, so a replay finds the same."""

    at: float
    result: Any = None
    error: ToolError | None = None
    skipped: bool = False


class Failure(Exception):
    """A step failed and nothing around it has handled that yet."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


class Cut(Exception):
    """The time of somebody is up, who is this step or around it; that ends everything up to them."""

    def __init__(self, name: str, at: float) -> None:
        super().__init__(name)
        self.name = name
        self.at = at
        self.recorded = False
        """Whether the step that it hit is among the records."""


class LimitReached(Exception):
    """The run has reached one of its limits; nothing handles that."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


def nearer(one: Deadline | None, other: Deadline | None) -> Deadline | None:
    """The deadline that comes first; of two at once the first."""
    if one is None or other is None:
        return one or other
    return other if other.at < one.at else one


def timed_out(seconds: float) -> ToolError:
    return ToolError(f"it timed out after {seconds * 1000:.0f} ms", code="timeout", transient=True)


class WorkflowHost(Protocol):
    """The conversation that a workflow runs in."""

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any:
        """Call a tool one-shot; its result. Raises `ToolError`.

        `entry` names the call, once in a workflow. After a crash it is asked for by that name again, and may be under
        way, or over, from before.
        """

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        """Run an agent, as a call of its own like a tool's; its result. Raises `ToolError`."""

    async def wait(self, ids: Sequence[str], mode: Literal["all", "any", "race"], timeout: float | None) -> Any:
        """Wait for handles; what they ended with. Raises `ToolError`."""

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """How far it is."""


class WorkflowFailed(ToolError):
    """The workflow failed, or its time was up. `partial` is its result so far, with the status that says which."""

    def __init__(self, cause: ToolError, partial: Mapping[str, Any]) -> None:
        super().__init__(cause.message, code=cause.code, transient=cause.transient, trace=cause.trace)
        self.partial = dict(partial)
