"""Time as a picture: the states of one handle, and the calls of a turn with who waited for whom.

Everything is computed from events and facts, in seconds; `lanes` converts to the picture's coordinates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keephold.tools.waiting import WAITING

Fact = Mapping[str, Any]

MOST = 60
"""The most calls of a turn that are drawn; the newest, if there are more."""
NAMES, CHART, ROW = 200.0, 760.0, 30.0
"""Sizes: the column of names, the width of the chart, the height of a row."""
_HEAD = 26.0
_GAP = 18.0
"""Room above the serial lane, for its title."""
_LEAST = 3.0
"""The least width of a stretch, so that it stays visible."""
_STEPS = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400,
)  # fmt: skip


@dataclass(frozen=True)
class Stretch:
    """A period that a handle spent `pending`, `running`, `waiting` or `parked`."""

    state: str
    start: float
    end: float


@dataclass(frozen=True)
class Moment:
    """Something that happened to a handle, in words."""

    at: float
    shape: str
    """The icon before it."""
    what: str
    more: str = ""


def stretches(events: Sequence[Fact], fact: Fact, now: float) -> list[Stretch]:
    """Return the periods of a handle from its creation to its end or now; without events, from its facts."""
    end = fact["stopped"] if fact["stopped"] is not None else now
    changes = [(fact["created"], "pending")]
    if fact["started"] is not None:
        changes.append((fact["started"], "running"))
    for event in events:
        state = event["type"].removeprefix("handle.")
        if state in ("running", "waiting", "parked") and event["type"].startswith("handle."):
            changes.append((event["at"], state))
        elif event["type"] == "handle.created" and event["data"].get("state") == "running":
            changes.append((event["at"], "running"))
    if fact["state"] == "waiting" and fact.get("asked") is not None and not events:
        changes.append((fact["asked"], "waiting"))
    changes.sort(key=lambda change: change[0])
    found: list[Stretch] = []
    for (start, state), (until, _) in zip(changes, [*changes[1:], (end, "")], strict=True):
        if found and found[-1].state == state:
            found[-1] = Stretch(state, found[-1].start, max(start, min(until, end)))
        elif min(until, end) > start or len(changes) == 1:
            found.append(Stretch(state, start, max(start, min(until, end))))
    return found or [Stretch("running", fact["created"], max(end, fact["created"]))]


def moments(events: Sequence[Fact], fact: Fact) -> list[Moment]:
    """Return what happened to a handle, oldest first. Consecutive steps become one line."""
    found: list[Moment] = []
    steps: list[Fact] = []
    asked = False
    for event in events:
        if event["type"] == "handle.stepped":
            steps.append(event)
            continue
        found += _steps(steps)
        steps = []
        moment = _moment(event, asked=asked)
        asked = event["type"] == "handle.waiting" or (asked and event["type"] != "handle.running")
        if moment is not None:
            found.append(moment)
    found += _steps(steps)
    kinds = {event["type"] for event in events}
    if "handle.created" not in kinds:
        found.insert(0, Moment(fact["created"], "pending", "Created"))
        if fact["started"] is not None and "handle.running" not in kinds:
            found.insert(1, Moment(fact["started"], "running", "Started"))
    if fact["stopped"] is not None and "handle.stopped" not in kinds:
        found.append(_stopped(fact["stopped"], fact))
    return found


def _steps(events: Sequence[Fact]) -> list[Moment]:
    if not events:
        return []
    failed = sum(not event["data"].get("ok", True) for event in events)
    names = ", ".join(str(event["data"].get("name", "")) for event in events[-3:])
    what = "A step was recorded" if len(events) == 1 else f"{len(events)} steps were recorded"
    shown = names if len(events) <= 3 else f"… {names}"
    return [Moment(events[-1]["at"], "failed" if failed else "done", what, shown)]


def _moment(event: Fact, *, asked: bool) -> Moment | None:
    at, data = event["at"], event["data"]
    match event["type"]:
        case "handle.created":
            return Moment(at, "pending", "Created", "started at once" if data.get("state") == "running" else "")
        case "handle.running":
            return Moment(at, "running", "Answered, resumed" if asked else "Started")
        case "handle.waiting":
            return Moment(at, "waiting", "Asked", str(data.get("question") or ""))
        case "handle.parked":
            return Moment(at, "parked", "Parked", "waits for an outside result")
        case "handle.ready":
            return Moment(at, "running", "Ready")
        case "handle.attempt":
            return _attempt(at, data)
        case "handle.stopped":
            return _stopped(at, data)
        case "key.opened":
            return Moment(at, "keys", "Waits for an event", f"{data.get('name') or data.get('kind')}")
        case "key.resolved":
            return Moment(at, "keys", "Outside result arrived", str(data.get("status") or ""))
        case "key.revoked":
            return Moment(at, "keys", "Its key was revoked")
        case "notification.delivered":
            return Moment(at, "notifications", "Model notified", str(data.get("message") or ""))
    return None


def _attempt(at: float, data: Fact) -> Moment:
    """The event has the number of the attempt that comes next."""
    number = data.get("attempt", 2)
    if data.get("next_at"):
        return Moment(at, "failed", f"Attempt {number - 1} failed", f"attempt {number} after a pause")
    return Moment(at, "running", f"Attempt {number}")


def _stopped(at: float, data: Fact) -> Moment:
    if data.get("ok"):
        return Moment(at, "done", "Stopped", "done")
    by = data.get("ended_by")
    return Moment(at, "failed" if by == "self" else "ended", "Stopped", str(data.get("code") or by or ""))


# The calls of a turn


@dataclass(frozen=True)
class Bar:
    """A stretch, or a whole wait, in the picture's coordinates."""

    state: str
    x: float
    width: float


@dataclass(frozen=True)
class Row:
    """A call and its position."""

    fact: Fact
    y: float
    bars: tuple[Bar, ...]
    waits: bool
    """It waits for other calls."""
    asked: bool
    """It waits for the user's permission."""


@dataclass(frozen=True)
class Blocked:
    """A waiter and the handle it waits for; `open`: it still waits."""

    x: float
    y: float
    to: float
    waiter: str
    id: str
    open: bool


@dataclass(frozen=True)
class Lanes:
    """The picture of a turn."""

    width: float
    height: float
    rows: tuple[Row, ...]
    blocked: tuple[Blocked, ...]
    ticks: tuple[tuple[float, str], ...]
    left_out: int
    serial: float | None
    """Position of the serial lane, below its title, if there is one."""
    start: float
    end: float
    """Time at the right edge."""
    zoomed: bool = False


def lanes(calls: Sequence[Fact], went: Mapping[str, Sequence[Stretch]], now: float, zoom: int = 1) -> Lanes | None:
    """Draw calls on one time axis, live ones first; None if there are none. `went` has the stretches of each call by
    uid. `zoom` is the factor by which the axis is longer."""
    shown = sorted(calls[-MOST:], key=lambda fact: (bool(fact.get("serial")), fact["stopped"] is not None))
    if not shown:
        return None
    start: float = min(fact["created"] for fact in shown)
    end = max(*(_end(fact, now) for fact in shown), start + 0.001)
    scale = CHART * zoom / (end - start)

    def x(at: float) -> float:
        return round(NAMES + float(at - start) * scale, 1)

    rows = []
    for at, fact in enumerate(shown):
        given = went.get(fact["uid"]) or stretches((), fact, now)
        bars = tuple(Bar(each.state, x(each.start), _wide(x(each.end) - x(each.start))) for each in given)
        asked = any(each["by"] == "permission" for each in fact.get("held_up") or ())
        y = _HEAD + ROW * at + (_GAP if fact.get("serial") else 0)
        rows.append(Row(fact, y, bars, fact["tool"] in WAITING, asked))
    places = {row.fact["id"]: row for row in rows}
    blocked = tuple(
        Blocked(
            x(_released(row.fact, places[id].fact, now)),
            row.y,
            places[id].y,
            row.fact["tool"],
            id,
            row.fact["stopped"] is None and places[id].fact["stopped"] is None,
        )
        for row in rows
        for id in row.fact["waits_on"]
        if id in places and places[id] is not row
    )
    serial = next((row.y for row in rows if row.fact.get("serial")), None)
    ticks = tuple((x(start + at), label) for at, label in _ticks(end - start, 6 * zoom))
    height = rows[-1].y + ROW + 8
    width = NAMES + CHART * zoom + 16
    return Lanes(width, height, tuple(rows), blocked, ticks, len(calls) - len(shown), serial, start, end, zoom > 1)


def _end(fact: Fact, now: float) -> float:
    return now if fact["stopped"] is None else float(fact["stopped"])


def _released(waiter: Fact, target: Fact, now: float) -> float:
    """Return when a wait stopped waiting for a handle: at the handle's end, within the wait's own time."""
    return min(max(_end(target, now), float(waiter["created"])), _end(waiter, now))


def _wide(width: float) -> float:
    return round(max(width, _LEAST), 1)


def _ticks(length: float, most: int) -> list[tuple[float, str]]:
    """Return about `most` round times, or fewer, within that many seconds."""
    step = next((step for step in _STEPS if length / step <= most), _STEPS[-1] * math.ceil(length / most / _STEPS[-1]))
    return [(number * step, _label(number * step)) for number in range(math.floor(length / step) + 1)]


def _label(seconds: float) -> str:
    if seconds < 1:
        return "0" if seconds == 0 else f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}" if seconds % size == 0 else f"{seconds / size:.1f} {unit}"
    return f"{seconds:g} s"
