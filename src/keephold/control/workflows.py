"""How far a workflow is (W10): its definition with what has become of each step, read off the journal.

The journal has an entry for what has ended, under the name of the step's visit, and nothing for what runs. So the lists
are walked as the engine walks them: each visit that has ended says where the run went on, and the first that has not is
where it is now. No expression is evaluated; which way a choice went is seen from what was recorded below it.

A step is `done`, `failed`, `skipped` (it was passed by, or its list was never entered), `current` or `to come`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

END = "$end"
_AT = "ended at "
"""How the trace of a recorded error begins (`tools/workflow/engine.py`)."""
_NESTED = ("condition", "parallel", "loop", "try_catch", "switch")
_SHOWN = 200
"""Characters of a text of the definition."""


class Workflow(TypedDict):
    """A workflow's definition with what became of each step, and the ids of the current steps."""

    id: str
    name: str
    steps: list[dict[str, Any]]
    current: list[str]


def workflow_json(arguments: Mapping[str, Any], journal: list[dict[str, Any]], *, active: bool, now: float) -> Any:
    """A workflow as JSON: `{"id", "name", "steps", "current"}`.

    A step is `{"id", "type", "state", "began", "ended", "visits", "attempt", "error", "on_success", "on_error",
    "condition", "skip_if", "lists"}`; a list in it `{"name", "steps", "times"}`, `times`: how often it was entered.
    `arguments` and `journal` are the handle's, as `Control.handle` gives them; `active`: it has not stopped.
    """
    entries = {entry["name"]: entry for entry in journal if entry["kind"] == "step"}
    walk = _Walk(entries, active, now)
    start = entries.get("start")
    steps = _steps(arguments.get("steps"))
    walk.through(steps, "", start["value"] if start is not None and start["ok"] else None, begun=start is not None)
    shown = [_shown(step, walk, over=not active) for step in steps]
    return {
        "id": _text(arguments.get("workflowId")),
        "name": _text(arguments.get("name")),
        "steps": shown,
        "current": [id for id, seen in walk.seen.items() if seen.state == "current"],
    }


@dataclass
class _Seen:
    """What is known of a step, over all its visits."""

    state: str = "to come"
    began: float | None = None
    ended: float | None = None
    visits: int = 0
    attempt: int = 1
    error: str | None = None
    entered: dict[str, int] = field(default_factory=dict)
    """By the key of a list in it: how often that was entered."""


@dataclass(frozen=True)
class _End:
    """How a visit ended."""

    state: str
    at: float | None
    error: str | None = None


class _Walk:
    """Goes where the run went."""

    def __init__(self, entries: Mapping[str, dict[str, Any]], active: bool, now: float) -> None:
        self._entries = entries
        self._below = _below(entries)
        self._active = active
        self._now = now
        self.seen: dict[str, _Seen] = {}

    def through(self, steps: list[dict[str, Any]], prefix: str, began: float | None, *, begun: bool) -> _End | None:
        """Walk a list from its first step; how it ended, None if it has not."""
        places = {step["id"]: place for place, step in enumerate(steps)}
        visits: dict[str, int] = {}
        place, at = 0, began
        while begun and place < len(steps):
            step = steps[place]
            visit = visits[step["id"]] = visits.get(step["id"], 0) + 1
            end = self._visit(step, f"{prefix}{step['id']}:{visit}", at)
            if end is None:
                return None
            at = end.at if end.at is not None else at
            target = _target(step, end)
            if target is None and end.state == "failed" and not _goes_on(step):
                return end
            if target == END:
                break
            place = place + 1 if target is None else places.get(target, len(steps))
        return _End("done", at) if begun else None

    def _visit(self, step: dict[str, Any], name: str, began: float | None) -> _End | None:
        seen = self.seen.setdefault(step["id"], _Seen())
        seen.visits += 1
        seen.began, seen.ended, seen.error = began, None, None
        if step["type"] in _NESTED:
            end = self._nested(step, name, began, seen)
        elif step["type"] == "delay":
            end = self._delay(name)
        else:
            end = self._leaf(step, name, seen)
        if end is None:
            seen.state = "current" if self._active else "failed"
        else:
            seen.state, seen.ended, seen.error = end.state, end.at, end.error
        return end

    def _leaf(self, step: dict[str, Any], name: str, seen: _Seen) -> _End | None:
        seen.attempt = 1
        end = _ended(self._entries.get(name))
        most = _config(step, "retry", {}).get("maxAttempts", 3) if "retry" in _configs(step) else 1
        while end is not None and end.state == "failed" and self._transient(name, seen.attempt):
            if not isinstance(most, int) or seen.attempt >= most:
                break
            seen.attempt += 1
            end = _ended(self._entries.get(f"{name}~{seen.attempt}"))
        return end

    def _transient(self, name: str, attempt: int) -> bool:
        value = self._entries[name if attempt == 1 else f"{name}~{attempt}"]["value"]
        error = value.get("error", value) if isinstance(value, dict) else {}
        return isinstance(error, dict) and bool(error.get("transient"))

    def _delay(self, name: str) -> _End | None:
        """Its one entry says when it began."""
        entry = self._entries.get(name)
        end = _ended(entry)
        if end is None or entry is None or end.state != "done" or end.at is None:
            return end
        ms = entry["value"]["result"]
        due = end.at + (ms / 1000 if isinstance(ms, int | float) else 0)
        return _End("done", due) if due <= self._now or not self._active else None

    def _nested(self, step: dict[str, Any], name: str, began: float | None, seen: _Seen) -> _End | None:
        """A step with lists in it: they are walked, then it is looked whether it has ended."""
        over = self._entries.get(name)
        at = over["value"] if over is not None and isinstance(over["value"], int | float) else None
        if over is not None and not self._entered(name) and ("condition" in step or "skipIf" in step):
            return _End("skipped", at)
        ends = self._rounds(step, name, began, seen) if step["type"] == "loop" else self._inner(step, name, began, seen)
        if over is None:
            return None
        match step["type"], ends:
            case "parallel", _:
                return _End("done", at)
            case "try_catch", [_, caught]:
                ends = [caught]
        failed = next((end for end in ends if end is not None and end.state == "failed"), None)
        return _End("done", at) if failed is None else _End("failed", at, failed.error)

    def _inner(self, step: dict[str, Any], name: str, began: float | None, seen: _Seen) -> list[_End | None]:
        """How the lists of a choice, of branches or of a try have ended, as far as each was entered."""
        ends: list[_End | None] = []
        running = 0
        for inner in _lists(step):
            prefix, before = f"{name}/{inner.key}/", ends[-1] if ends else None
            match step["type"], inner.key:
                case "parallel", _:
                    begun = prefix in self._below or running < _config(step, "concurrency", 8)
                case "try_catch", "try":
                    begun = True
                case "try_catch", _:
                    begun = before is not None and before.state == "failed"
                case _:  # of a choice the list that has left a trace
                    begun = prefix in self._below
            seen.entered[inner.key] = seen.entered.get(inner.key, 0) + begun
            end = self.through(
                inner.steps, prefix, began if step["type"] == "parallel" or before is None else before.at, begun=begun
            )
            running += begun and end is None
            ends.append(end)
        return ends

    def _rounds(self, step: dict[str, Any], name: str, began: float | None, seen: _Seen) -> list[_End | None]:
        """The rounds of a loop: those that left a trace and, if these have ended and it has not, the next."""
        steps = _lists(step)[0].steps
        ends: list[_End | None] = []
        last: _End | None = _End("done", began)
        while (prefix := f"{name}/{len(ends)}/") in self._below:
            last = self.through(steps, prefix, began if last is None else last.at, begun=True)
            ends.append(last)
        if name not in self._entries and last is not None and last.state == "done" and len(ends) < self._items(step):
            ends.append(self.through(steps, f"{name}/{len(ends)}/", last.at, begun=True))
        seen.entered[_EACH] = len(ends)
        return ends

    def _items(self, step: dict[str, Any]) -> float:
        """How many rounds a loop has, if its items are written down; else there may always be one more."""
        items = _config(step, "items", None)
        return len(items) if isinstance(items, list) else math.inf

    def _entered(self, name: str) -> bool:
        return any(place.startswith(f"{name}/") for place in self._below)


_EACH = "each"


@dataclass(frozen=True)
class _List:
    """A list of steps in a step: what its entries are named by, and what it is called."""

    key: str
    name: str
    steps: list[dict[str, Any]]


def _lists(step: Mapping[str, Any]) -> list[_List]:
    """The lists in a step."""
    config = _configs(step)
    match step["type"]:
        case "condition":
            return [_List(key, key, _steps(config[key])) for key in ("then", "else") if config.get(key) is not None]
        case "parallel":
            branches = config.get("branches")
            found = branches if isinstance(branches, list) else []
            return [_List(str(at), f"branch {at + 1}", _steps(each)) for at, each in enumerate(found)]
        case "loop":
            return [_List(_EACH, "for each item", _steps(config.get("steps")))]
        case "try_catch":
            return [_List(key, key, _steps(config.get(key))) for key in ("try", "catch")]
        case "switch":
            cases = config.get("cases")
            given = [each for each in cases if isinstance(each, Mapping)] if isinstance(cases, list) else []
            found_cases = [
                _List(str(at), f"= {_text(each.get('equals'))}", _steps(each.get("steps")))
                for at, each in enumerate(given)
            ]
            default = config.get("default")
            return found_cases + ([] if default is None else [_List("default", "otherwise", _steps(default))])
    return []


def _steps(given: Any) -> list[dict[str, Any]]:
    """The steps of a list that can be shown: a call with wrong arguments has a handle, too."""
    if not isinstance(given, list):
        return []
    return [
        each for each in given if isinstance(each, dict) and all(isinstance(each.get(k), str) for k in ("id", "type"))
    ]


def _shown(step: dict[str, Any], walk: _Walk, *, over: bool) -> dict[str, Any]:
    """A step with all that is known of it. `over`: whoever is around has ended, so what was not run will not be."""
    seen = walk.seen.get(step["id"], _Seen("skipped" if over else "to come"))
    if over and seen.state == "to come":
        seen.state = "skipped"
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
        "condition": _text(step.get("condition")) or None,
        "skip_if": _text(step.get("skipIf")) or None,
        "lists": [
            {
                "name": inner.name,
                "times": seen.entered.get(inner.key, 0),
                "steps": [_shown(each, walk, over=below) for each in inner.steps],
            }
            for inner in _lists(step)
        ],
    }


def _ended(entry: dict[str, Any] | None) -> _End | None:
    """How a visit of a step without lists ended; None: it has not."""
    match entry:
        case None:
            return None
        case {"ok": False, "value": value}:
            trace = value.get("trace") or ("",)
            at = float(trace[0].removeprefix(_AT)) if trace[0].startswith(_AT) else None
            return _End("failed", at, value.get("message"))
        case {"value": {"error": error, "at": at}}:
            return _End("failed", at, error.get("message"))
        case {"value": {"cut": _, "at": at}}:
            return _End("failed", at, "it was stopped: the time was up")
        case {"value": {"at": at}}:
            return _End("done", at)
        case {"value": int() | float() as at}:
            return _End("skipped", float(at))
    return _End("done", None)


def _target(step: Mapping[str, Any], end: _End) -> str | None:
    """Where the run jumps after a visit; None: nowhere."""
    target = step.get({"done": "onSuccess", "failed": "onError"}.get(end.state, ""))
    return target if isinstance(target, str) and target else None


def _goes_on(step: Mapping[str, Any]) -> bool:
    return bool(step.get("onError")) or _config(step, "continueOnError", False) is True


def _below(entries: Mapping[str, Any]) -> frozenset[str]:
    """Every beginning of a name that ends with `/`: the lists that have left a trace."""
    return frozenset(place for name in entries for place in _beginnings(name))


def _beginnings(name: str) -> Iterator[str]:
    at = name.find("/")
    while at >= 0:
        yield name[: at + 1]
        at = name.find("/", at + 1)


def _configs(step: Mapping[str, Any]) -> Mapping[str, Any]:
    config = step.get("config")
    return config if isinstance(config, Mapping) else {}


def _config(step: Mapping[str, Any], key: str, default: Any) -> Any:
    value = _configs(step).get(key, default)
    return default if value is None else value


def _text(value: Any) -> str:
    """A text of the definition, or an expression's."""
    if isinstance(value, Mapping) and isinstance(value.get("cel"), str):
        value = value["cel"]
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
