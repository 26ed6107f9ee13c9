"""The frame of a step: the variables of its expressions, its results, and its deadline.

Steps that run one after another share their results. Concurrent branches do not: each sees the state at their start and
writes into a layer of its own. When all have ended, the layers are merged in the order of the branches. The speed of a
branch has no effect, so a replay gets the same.

The module also has the exceptions by which parts of the engine end steps and runs, and the `WorkflowHost`.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from keephold.errors import ToolError
from keephold.tools.workflow.expressions import Reads

Record = dict[str, Any]
Records = list[Any]
"""Records of steps that have ended. A list in it has those of a branch."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The deadline of a step, or of the run, whose name is empty."""

    at: float
    name: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Frame:
    """One list of steps that is being run, or one step with lists."""

    prefix: str = ""
    """Prefix of the names of its steps or lists in the journal."""
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
    """Others run concurrently."""
    guarded: bool = False
    """An enclosing step or list handles a failure."""

    def within(self, key: str | int, **more: Any) -> "Frame":
        """Return a frame for a list of the step, which writes to this one. `more` differs in it."""
        return replace(self, prefix=f"{self.prefix}{key}/", **more)

    def beside(self, key: int, **more: Any) -> "Frame":
        """Return a frame for a concurrent list."""
        frame = self.within(key, **more)
        frame.variables, frame.results = self.variables.new_child(), self.results.new_child()
        frame.records = []
        frame.concurrent = True
        self.records.append(frame.records)
        return frame

    def join(self, other: "Frame") -> None:
        """Merge the results of a concurrent list."""
        self.variables.update(other.variables.maps[0])
        self.results.update(other.results.maps[0])

    def values(self, reads: Reads) -> dict[str, Any]:
        """Return the variables that are read here."""
        return {name: self._seen(name, keys) for name, keys in reads.items()}

    def _seen(self, name: str, keys: Set[str] | None) -> Any:
        """Return a variable; for an object only the keys that are read, because there may be thousands of results."""
        if name == "steps":
            return dict(self.results) if keys is None else _only(self.results, keys)
        if name == "context":
            return self.whole_context() if keys is None else self._context_at(keys)
        known = {"input": self.input, "data": self.data, "vars": self.variables, "error": self.error}
        value = known[name] if name in known else (self.loop or {}).get(name)
        if keys is not None and isinstance(value, dict | ChainMap):
            return _only(value, keys)
        return dict(value) if isinstance(value, ChainMap) else value

    def whole_context(self) -> dict[str, Any]:
        """Return the input, and the result of every step as `step_<id>`."""
        return {**self.context, **{f"step_{id}": result for id, result in self.results.items()}}

    def _context_at(self, keys: Set[str]) -> dict[str, Any]:
        seen = _only(self.context, keys)
        for key in keys:
            if key.startswith("step_") and key[5:] in self.results:
                seen[key] = self.results[key[5:]]
        return seen


def _only(value: Mapping[str, Any], keys: Set[str]) -> dict[str, Any]:
    return {key: value[key] for key in keys if key in value}


def flat(records: Records) -> list[Record]:
    """Return the records of all branches, in the order of the branches."""
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


class _Raised(Exception):
    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


class StepFailed(_Raised):
    """A step failed and no enclosing step has handled that yet."""


class LimitReached(_Raised):
    """The run has reached one of its limits, which nothing handles."""


class Cut(Exception):
    """A deadline has passed, of this step or an enclosing one; it ends everything up to that."""

    def __init__(self, name: str, at: float) -> None:
        super().__init__(name)
        self.name = name
        self.at = at
        self.recorded = False
        """Whether the interrupted step is among the records."""


def nearer(one: Deadline | None, other: Deadline | None) -> Deadline | None:
    """Return the deadline that comes first; of two equal ones the first."""
    if one is None or other is None:
        return one or other
    return other if other.at < one.at else one


def timed_out(seconds: float) -> ToolError:
    return ToolError(f"it timed out after {seconds * 1000:.0f} ms", code="timeout", transient=True)


class WorkflowHost(Protocol):
    """The conversation that a workflow runs in."""

    async def tool(self, name: str, arguments: dict[str, Any], entry: str) -> Any:
        """Call a tool one-shot and return its result. Raises `ToolError`.

        `entry` names the call, once in a workflow. After a crash it is requested by that name again, and may be running
        or over already.
        """

    async def agent(self, agent_id: str, parameters: dict[str, Any], entry: str) -> Any:
        """Run an agent as a call of its own, and return its result. Raises `ToolError`."""

    async def wait(self, ids: Sequence[str], mode: Literal["all", "any", "race"]) -> Any:
        """Wait for handles and return their results. Raises `ToolError`."""

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """Report progress."""


class WorkflowFailed(ToolError):
    """The workflow failed, or its time was up. `partial` is its result so far, with the status that says which."""

    def __init__(self, cause: ToolError, partial: Mapping[str, Any]) -> None:
        super().__init__(cause.message, code=cause.code, transient=cause.transient, trace=cause.trace)
        self.partial = dict(partial)
