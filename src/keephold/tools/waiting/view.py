"""A handle as the wait tools show it: its status, its times, its result (W1, W3).

A status is a view of the state: `completed`, `failed`, `timeout`, `pending`. Times are UTC with milliseconds; elapsed
times are floored.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from keephold.handles.handle import Handle
from keephold.handles.state import LONGEST_LABEL, Failure, Ok, PrintedOutput, Progress, Reply, State, Stopped, Waiting
from keephold.store.rows import WAIT_KINDS, status_of
from keephold.text import to_json

TYPES = WAIT_KINDS
"""The kinds of handles that `create_wait_handle` makes."""
STATUSES = ("pending", "completed", "failed", "timeout")

_PARTIAL_BYTES = 1024 * 1024

RenderedText = Callable[[Handle], str]
"""Returns the output or error of a handle, as a model sees it."""


def milliseconds(secs: float) -> int:
    """Return floored milliseconds, corrected for the grain of a float's time of day."""
    return max(0, math.floor(secs * 1000 + 0.001))


def elapsed(ms: int) -> str:
    """Return `250ms`, `3s`, `2m 3s` or `1h 2m 3s` (W3)."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes}m {seconds}s"
    return f"{minutes}m {seconds}s" if minutes else f"{seconds}s"


def number(value: float) -> str:
    """Return a number as it was given: `60000`, not `60000.0`."""
    return str(int(value)) if value == int(value) else str(value)


def operation_ms(state: State, now: float) -> int:
    return milliseconds((state.stopped if isinstance(state, Stopped) else now) - state.created)


def status(handle: Handle) -> str:
    return status_of(handle.state)


def came_to(handle: Handle, text: RenderedText) -> dict[str, Any]:
    """Return the result or error of a handle that has stopped, and nothing for another."""
    state = handle.state
    if not isinstance(state, Stopped):
        return {}
    match state.outcome:
        case Ok(value):
            return {"result": fitting(value)}
        case PrintedOutput():
            return {"result": text(handle)}
        case Reply(result):
            return {"result": result}
        case Failure(message):
            # A command's error is of little use without its output.
            error = {"error": text(handle) if handle.tool.source in ("local", "terminal") else message}
            error |= partial(handle) if handle.kind == "workflow" else {}
            return error | ({"endedBy": state.ended_by} if state.deliberate else {})


def partial(handle: Handle) -> dict[str, Any]:
    """Return the results of a failed workflow's steps: the last line of its output."""
    output = handle.output
    if output is None or not output.total:
        return {}
    said: Any = f"Too long to be shown here. {read_hint(handle.id)}"
    if output.total <= _PARTIAL_BYTES:
        try:
            said = msgspec.json.decode(output.read(0, output.total).data.splitlines()[-1])
        except msgspec.DecodeError:  # not a failed workflow: it was ended while it printed
            return {}
    return {"partialResult": fitting(said)}


def fitting(value: Any, room: int = 12_000) -> Any:
    """Return a value that fits into a reply: one that is too large becomes its JSON text, cut to fit. A reply is always
    JSON.
    """
    encoded = to_json(value)
    if len(encoded) <= room or isinstance(value, str):
        return value
    structure = len(encoded)
    parts = [value]
    for _ in range(room):  # each part takes a byte at least: a comma or a bracket
        if not parts:
            return value if structure <= room else encoded.decode()
        part = parts.pop()
        if isinstance(part, str):
            structure -= len(to_json(part))
        elif isinstance(part, dict | list):
            parts.extend(part.values() if isinstance(part, dict) else part)
    return encoded.decode()


def wants(handle: Handle) -> dict[str, Any]:
    """Return the input that a handle which is blocked on the caller needs (A6)."""
    wanted: dict[str, Any] = {"needsInput": True}
    behind = handle.behind()
    if isinstance(handle.state, Waiting):
        wanted["question"] = handle.state.question
    elif behind is not None:
        wanted["behind"] = behind.id
    return wanted


def progress_of(progress: Progress | None) -> dict[str, Any]:
    """Return `progress`, if it is known."""
    if progress is None:
        return {}
    shown: dict[str, Any] = {"done": progress.done}
    if progress.total is not None:
        shown["total"] = progress.total
    if progress.message is not None:
        shown["message"] = progress.message
    return {"progress": shown}


def read_hint(id: str) -> str:
    """Say how to read output that was cut."""
    return f"Read the rest with read_output {to_json({'id': id}).decode()}; it takes offset, limit and pattern."


# Fields of arguments and replies, as JSON Schema


def text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def label(description: str) -> dict[str, Any]:
    """Return the schema of a text that lists show, many at once."""
    return {"type": "string", "maxLength": LONGEST_LABEL, "description": description}


def one_of(names: Iterable[str], description: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names), "description": description}


def duration(description: str) -> dict[str, Any]:
    """Return the schema of a time in milliseconds."""
    return {"type": "number", "minimum": 0, "maximum": 1e14, "description": description}


TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
TIME = {"type": "string", "description": "UTC."}
TYPE = {"type": "string", "enum": [*TYPES, "tool"]}
STATUS = {"type": "string", "enum": list(STATUSES)}
METADATA = {"type": "object"}
PROGRESS = {
    "type": "object",
    "properties": {"done": {"type": "number"}, "total": {"type": "number"}, "message": TEXT},
    "required": ["done"],
}
_FIELDS: dict[str, dict[str, Any]] = {
    name: schema
    for names, schema in (
        ("success isError hasResult hasError needsInput async dryRun archived", FLAG),
        ("timerActive isPaused timerInitialized", FLAG),
        ("id handleId taskId taskName agentId workflowId name error message label nextCursor", TEXT),
        ("elapsedTime operationElapsedTime waitedTime", TEXT),
        ("elapsedMs operationElapsedMs waitedMs actualDurationMs", COUNT),
        ("count stepCount totalCount completedCount failedCount pendingCount removedCount", COUNT),
        ("startTime endTime", TIME),
        ("result partialResult", {}),
        ("timeout requestedDurationMs", {"type": "number"}),
        ("byStatus byType", {"type": "object", "additionalProperties": COUNT}),
        ("type", TYPE),
        ("status", STATUS),
        ("metadata", METADATA),
        ("progress", PROGRESS),
        ("priority", {"type": "integer"}),
    )
    for name in names.split()
}
"""The JSON Schema of each field that replies have in common."""


def reply(names: str, **own: Any) -> dict[str, Any]:
    """Return the JSON Schema of a reply by the names of its fields; `?` marks an optional one, `own` overrides."""
    fields = names.split()
    plain = [name.rstrip("?") for name in fields]
    required = [name for name in fields if not name.endswith("?")]
    properties = {name: own.get(name, _FIELDS.get(name)) for name in plain}
    return {"type": "object", "properties": properties, "required": required}
