"""The progress of a workflow (W10): its definition with the state of each step.

The engine replays the workflow from its journal, as after a crash, and stops where the journal ends. `_Replay` folds
the begins and ends of visits that the engine passes on the way.

A step is `done`, `failed`, `skipped` (by its condition, or because its list was not entered), `current` or `to come`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypedDict, cast

from keephold.errors import ToolError
from keephold.tools.workflow import read_workflow
from keephold.tools.workflow.definition import Loop, Parallel, Step
from keephold.tools.workflow.definition import Workflow as Definition
from keephold.tools.workflow.engine import WorkflowRun
from keephold.tools.workflow.expressions import Evaluated, Expression, Expressions, Values
from keephold.tools.workflow.frame import Frame, StepEnded
from keephold.tools.workflow.shape import EACH, nested_lists, steps_of, text_of

_YIELD = 100
"""Entries after which a replay yields to the loop."""
_QUIET = 10
"""Iterations of the loop without a new entry after which a replay has stopped."""


class Workflow(TypedDict):
    """A workflow's definition with the state of each step, and the ids of the current steps."""

    id: str
    name: str
    steps: list[dict[str, Any]]
    current: list[str]


async def workflow_json(
    arguments: Mapping[str, Any],
    journal: list[dict[str, Any]],
    expressions: Expressions,
    *,
    active: bool,
    now: float,
) -> Workflow:
    """Describe a workflow.

    A step is `{"id", "type", "state", "began", "ended", "visits", "attempt", "error", "on_success", "on_error",
    "condition", "skip_if", "lists"}`; a list in it `{"name", "steps", "times"}`, `times`: how often it was entered.
    `arguments` and `journal` are the handle's, as JSON; `active`: it has not stopped.
    """
    entries = {entry["name"]: entry for entry in journal if entry["kind"] == "step"}
    seen: dict[str, _Seen] = {}
    with suppress(ToolError):  # a call with invalid arguments has a handle, too
        replay = _Replay(await read_workflow(arguments, expressions), entries, expressions, now)
        await replay.to_its_end()
        seen = replay.seen
    for each in seen.values():
        if each.state == "current" and not active:
            each.state = "failed"
    return {
        "id": text_of(arguments.get("workflowId")),
        "name": text_of(arguments.get("name")),
        "steps": [_shown(step, seen, over=not active) for step in steps_of(arguments.get("steps"))],
        "current": [id for id, each in seen.items() if each.state == "current"],
    }


@dataclass
class _Seen:
    """A step, over all its visits."""

    state: str = "to come"
    began: float | None = None
    ended: float | None = None
    visits: int = 0
    attempt: int = 1
    error: str | None = None
    entered: dict[str, int] = field(default_factory=dict)
    """How often each list in it was entered, by the list's key."""


class _Replay(WorkflowRun):
    """Replays a workflow as far as its journal goes. It is its own effects, and has no host: no step does anything."""

    def __init__(
        self,
        definition: Definition,
        entries: Mapping[str, dict[str, Any]],
        expressions: Expressions,
        now: float,
    ) -> None:
        self.seen: dict[str, _Seen] = {}
        self._entries = entries
        self._read = 0
        self._visits: dict[str, tuple[Step, float | None]] = {}
        """By the name of a visit: its step, and when it began."""
        self._latest: dict[str, float | None] = {}
        """By the name of a visit, or the prefix of a list: the latest end in it."""
        self._expressions = expressions
        self._evaluating = 0
        self._evaluated = asyncio.Event()
        me = cast(Any, self)
        values = (entry["value"] for entry in entries.values())
        ends = (value["at"] for value in values if isinstance(value, dict) and "at" in value)
        time = max(now, *ends, now)  # the process that runs it may have another clock
        super().__init__(definition, me, me, cast(Any, None), me, lambda: time, max_steps=2**31)

    async def to_its_end(self) -> None:
        """Replay until every branch has ended, or waits for an entry that the journal does not have."""
        running = asyncio.ensure_future(self.whole())
        quiet, read = 0, -1
        while quiet < _QUIET and not running.done():
            if self._evaluating:
                self._evaluated.clear()
                await self._evaluated.wait()
                quiet = 0
                continue
            quiet, read = (quiet + 1 if read == self._read else 0), self._read
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError, ToolError):  # an error is that of a step
            await running

    # The engine's visits

    async def visit(self, step: Step, name: str, frame: Frame) -> str | None:
        if frame.prefix not in self._latest:
            self._latest[frame.prefix] = self._enter(frame.prefix)
        began = self._latest[frame.prefix]
        self._visits[name] = step, began
        self._latest[name] = began
        seen = self.seen.setdefault(step.id, _Seen())
        seen.state, seen.began, seen.ended, seen.error = "current", began, None, None
        seen.visits, seen.attempt = seen.visits + 1, 1
        return await super().visit(step, name, frame)

    def _enter(self, prefix: str) -> float | None:
        """Count that a list was entered, and return when."""
        if not prefix:
            return self.began
        name, _, key = prefix[:-1].rpartition("/")
        step, began = self._visits[name]
        key = EACH if isinstance(step.kind, Loop) else key
        entered = self.seen[step.id].entered
        entered[key] = entered.get(key, 0) + 1
        return began if isinstance(step.kind, Parallel) else self._latest[name]

    def record(self, step: Step, name: str, frame: Frame, ended: StepEnded) -> None:
        seen = self.seen[step.id]
        seen.state = "failed" if ended.error is not None else "skipped" if ended.skipped else "done"
        seen.ended, seen.error = ended.at, None if ended.error is None else ended.error.message
        self._latest[frame.prefix] = self._latest[frame.prefix[:-1].rpartition("/")[0]] = ended.at
        super().record(step, name, frame, ended)

    # Its expressions

    async def evaluate(
        self, expressions: Sequence[Expression], values: Values, guards: Sequence[bool] = ()
    ) -> Evaluated:
        """Evaluate in the worker, and tell `to_its_end` that the replay still runs."""
        self._evaluating += 1
        try:
            return await self._expressions.evaluate(expressions, values, guards)
        finally:
            self._evaluating -= 1
            self._evaluated.set()

    # Its effects

    def recorded(self, step_id: str) -> bool:
        return step_id in self._entries

    async def run_json(self, step_id: str, input: Any, function: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return what the journal has; without an entry, never return."""
        entry = self._entries.get(step_id)
        if entry is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError("never")
        self._read += 1
        if not self._read % _YIELD:
            await asyncio.sleep(0)
        value = entry["value"]
        if not entry["ok"]:
            raise ToolError(**{**value, "trace": tuple(value.get("trace") or ())})
        if isinstance(value, dict) and value.get("error", {}).get("transient"):
            self._failed(*step_id.partition("~")[::2])
        return value

    def _failed(self, name: str, attempt: str) -> None:
        """Note the next attempt of a step that failed and is tried again."""
        step, _ = self._visits[name]
        self.seen[step.id].attempt = min(int(attempt or 1) + 1, step.retry.max_attempts)

    tool = agent = None  # never called: only steps without an entry would call them

    async def external_event_key(self, name: str) -> Any:
        return SimpleNamespace(key_id="")

    async def emit_process_event(self, type: str, payload: Any = None) -> None: ...

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...


def _shown(step: dict[str, Any], found: Mapping[str, _Seen], *, over: bool) -> dict[str, Any]:
    """Describe a step. `over`: the enclosing step or run has ended, so a step that was not run is skipped."""
    seen = found.get(step["id"], _Seen("skipped" if over else "to come"))
    below = over or seen.state in ("done", "failed", "skipped")
    return {
        "id": step["id"],
        "type": step["type"],
        "state": seen.state,
        "began": seen.began,
        "ended": seen.ended,
        "visits": seen.visits,
        "attempt": seen.attempt,
        "error": seen.error,
        "on_success": step.get("onSuccess"),
        "on_error": step.get("onError"),
        "condition": text_of(step.get("condition")) or None,
        "skip_if": text_of(step.get("skipIf")) or None,
        "lists": [
            {
                "name": inner.name,
                "times": seen.entered.get(inner.key, 0),
                "steps": [_shown(each, found, over=below) for each in inner.steps],
            }
            for inner in nested_lists(step)
        ],
    }
