"""The progress of a workflow (W10): its definition with the state of each step.

`_Fold` follows the definition through the journal. The journal has the end of each visit of a step. For a step with
lists, it has the begin instead, with the list that was chosen or the number of lists. So nothing is evaluated. In each
list, the step after the last one that has ended is current.

A step is `done`, `failed`, `skipped` (by its condition, or because its list was not entered), `current` or `to come`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, TypedDict

from keephold.tools.workflow.definition import EACH, END, Retry, config_of, nested_lists, steps_of, text_of
from keephold.tools.workflow.engine import ENDED_AT, STOPPED
from keephold.tools.workflow.frame import timed_out


class Workflow(TypedDict):
    """A workflow's definition with the state of each step, and the ids of the current steps."""

    id: str
    name: str
    steps: list[dict[str, Any]]
    current: list[str]


def workflow_json(
    arguments: Mapping[str, Any], journal: Iterable[dict[str, Any]], *, active: bool, now: float
) -> Workflow:
    """Describe a workflow.

    A step is `{"id", "type", "state", "began", "ended", "visits", "attempt", "error", "on_success", "on_error",
    "condition", "skip_if", "lists"}`; a list in it `{"name", "steps", "times"}`, `times`: how often it was entered.
    `arguments` and `journal` are the handle's, as JSON; `active`: it has not stopped. If it has, `now` is when.
    """
    fold, steps = _Fold(journal, now), steps_of(arguments.get("steps"))
    if "start" in fold.values:
        began = fold.values["start"]["at"]
        fold.follow(steps, "", began, began + (arguments.get("timeoutMs") or math.inf) / 1000)
    return {
        "id": text_of(arguments.get("workflowId")),
        "name": text_of(arguments.get("name")),
        "steps": [fold.shown(step, over=not active) for step in steps],
        "current": fold.current,
    }


@dataclass
class _Visit:
    """The last visit of a step, as it is shown."""

    state: str = "to come"
    began: float | None = None
    ended: float | None = None
    visits: int = 0
    attempt: int = 1
    error: str | None = None


class _Fold:
    """Follows the steps of a definition as far as their journal goes."""

    def __init__(self, journal: Iterable[dict[str, Any]], now: float) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        """Values of the journal, by name."""
        self._now = now
        self.current: list[str] = []
        self._visits: dict[str, _Visit] = {}
        self._entered: Counter[tuple[str, str]] = Counter()
        """How often each list was entered, by the id of its step and its key."""
        self._lists: dict[str, dict[str, None]] = {}
        """By the name of a visit: the keys of its lists with entries. Journals of earlier versions have no begins."""
        for entry in journal:
            if entry["kind"] != "step":
                continue
            name, value = entry["name"], entry["value"]
            if not entry["ok"]:  # it ended the run
                value = {"at": float(value["trace"][0].removeprefix(ENDED_AT)), "error": {**value, "transient": False}}
            elif not isinstance(value, dict):  # an earlier version: the end of a step that was skipped or has lists
                value = {"at": value, "skipped": None}
            self.values[name] = value
            self._now = max(self._now, value.get("at", now))  # the process that runs it may have another clock
            while "/" in name:
                name, _, key = name.rpartition("/")[0].rpartition("/")
                self._lists.setdefault(name, {})[key] = None

    def follow(
        self, steps: list[dict[str, Any]], prefix: str, began: float, due: float
    ) -> tuple[float, str | None] | None:
        """Follow the steps of a list, until the deadline `due`. Return when it ended and its error, or None."""
        places = {step["id"]: at for at, step in enumerate(steps)}
        visits: Counter[str] = Counter()
        position = 0
        while position < len(steps):
            step = steps[position]
            id = step["id"]
            visits[id] += 1
            visit = self._visits[id] = _Visit("current", began, visits=self._visits.get(id, _Visit()).visits + 1)
            self._visit(step, f"{prefix}{id}:{visits[id]}", visit, began, due)
            if visit.ended is None:
                if due <= self._now:
                    visit.state, visit.ended, visit.error = "failed", due, STOPPED
                return None
            began, target = visit.ended, step.get({"done": "onSuccess", "failed": "onError"}.get(visit.state, ""))
            if visit.error is not None and not target and config_of(step).get("continueOnError") is not True:
                return began, f"step `{id}` failed: {visit.error}"
            position = len(steps) if target == END else places[target] if target else position + 1
        return began, None

    def _visit(self, step: dict[str, Any], name: str, visit: _Visit, began: float, due: float) -> None:
        value = self.values.get(name, {})
        count = value.get("lists")
        keys = list(self._lists.get(name, ())) if count is None else [str(at) for at in range(count)]
        if "list" in value:
            keys = [value["list"]]
        if not keys:
            self._leaf(step, name, visit, due)
            return
        asked, ms, loop = self.values.get(f"{name}?"), config_of(step).get("timeoutMs") or 0, step["type"] == "loop"
        own = math.inf if asked is None else asked["at"] + ms / 1000
        lists = {inner.key: inner.steps for inner in nested_lists(step)}
        free = [began] * value.get("at_once", len(keys))  # since when each task that runs lists is free
        ends, error = [], None
        for key in keys:
            if not free:
                break
            of = EACH if loop else key
            self._entered[step["id"], of] += 1
            end = self.follow(lists[of], f"{name}/{key}/", heappop(free), min(own, due))
            ends.append(end)
            if end is None:
                continue
            if end[1] and key == "try":
                keys[1:] = ["catch"]
            elif step["type"] != "parallel":
                error = error or (f"item {key}: {end[1]}" if loop and end[1] else end[1])
            if not (error and loop and value.get("at_once") == 1):
                heappush(free, end[0])
        if value and None not in ends:
            visit.ended, visit.error = max(end[0] for end in ends if end), error
        elif own < due and own <= self._now:
            visit.ended, visit.error = own, timed_out(ms / 1000).message
        else:
            return
        visit.state = "done" if visit.error is None else "failed"

    def _leaf(self, step: dict[str, Any], name: str, visit: _Visit, due: float) -> None:
        config, value = config_of(step), self.values.get(name)
        retry, limit = config.get("retry"), config.get("timeoutMs") or math.inf
        most = (retry.get("maxAttempts") or Retry().max_attempts) if isinstance(retry, Mapping) else 1
        while value and value.get("error", {}).get("transient") and visit.attempt < most:
            visit.attempt += 1
            value = self.values.get(f"{name}~{visit.attempt}")
        if value is None:
            return
        if value.get("cut", name) != name:
            return  # the deadline of an enclosing step
        delay = value.get("result", 0) if step["type"] == "delay" else 0
        ended = value["at"] + min(delay, limit) / 1000
        if delay and ended > min(due, self._now):
            return
        late = "cut" in value or delay > limit
        visit.error = timed_out(limit / 1000).message if late else value.get("error", {}).get("message")
        visit.state = "failed" if visit.error else "skipped" if "skipped" in value else "done"
        visit.ended = ended

    def shown(self, step: dict[str, Any], *, over: bool) -> dict[str, Any]:
        """Describe a step. `over`: the enclosing step or run has ended."""
        visit = self._visits.get(step["id"], _Visit())
        if over:
            visit.state = {"to come": "skipped", "current": "failed"}.get(visit.state, visit.state)
        elif visit.state == "current":
            self.current.append(step["id"])
        below = over or visit.state in ("done", "failed", "skipped")
        return {
            "id": step["id"],
            "type": step["type"],
            **vars(visit),
            "on_success": step.get("onSuccess"),
            "on_error": step.get("onError"),
            "condition": text_of(step.get("condition")) or None,
            "skip_if": text_of(step.get("skipIf")) or None,
            "lists": [
                {
                    "name": inner.name,
                    "times": self._entered[step["id"], inner.key],
                    "steps": [self.shown(each, over=below) for each in inner.steps],
                }
                for inner in nested_lists(step)
            ],
        }
