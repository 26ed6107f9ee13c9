"""The rows of `keephold top`: facts in, cells out, without a terminal. Handles that need an answer come first. Texts of
tools and models come out without the controls that a terminal would obey (K4)."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from keephold.cli.printing import duration, one_line, state_words
from keephold.control.handle_json import held_up_text

Fact = dict[str, Any]

SORTS = ("urgent", "newest", "oldest", "tool", "id")
HEAD = ("STATE", "ID", "TOOL", "CONVERSATION", "TIME", "LAST")
FADES_SECS = 20.0
"""How long a stopped handle stays visible, unless all stopped ones are shown."""
FAILED, FAILED_SECS = 12, 900.0
"""How many failed handles are visible from the start, and how long they stay."""

_NEEDS_YOU, _ORPHANED, _RUNS, _QUEUED, _PARKED, _OVER = range(6)
_COLOURS = ("bold yellow", "red", "green", "", "cyan", "dim")
_WIDEST = {"STATE": 24, "ID": 28, "TOOL": 20, "CONVERSATION": 24, "TIME": 7}
_SHRINKING = ("STATE", "ID", "TOOL", "CONVERSATION")
_NARROWEST = 8
_LAST_LEAST = 20


class Row(NamedTuple):
    """A line of the table. `key` is a handle's uid, `request:` and a request's id, or `group:` and a name."""

    key: str
    cells: tuple[str, ...]
    style: str


def rank(fact: Fact) -> int:
    """Return how urgent it is: lower is more urgent."""
    if fact["state"] == "stopped":
        return _OVER
    if fact["state"] == "waiting" or fact.get("request"):
        return _NEEDS_YOU
    if fact["owner"] == "gone" and not fact.get("kept"):
        return _ORPHANED
    if fact["parked"]:
        return _PARKED
    return _QUEUED if fact["state"] == "pending" else _RUNS


def has_failed(fact: Fact) -> bool:
    """Return whether a spawned handle has failed. An abort was somebody's wish."""
    return fact["state"] == "stopped" and fact["stateful"] and fact["ok"] is False and fact["ended_by"] != "abort"


def has_faded(fact: Fact, now: float) -> bool:
    """Return whether a handle stopped so long ago that it is not shown, unless all stopped ones are."""
    return fact["stopped"] is not None and fact["stopped"] < now - (FAILED_SECS if has_failed(fact) else FADES_SECS)


def matches(fact: Fact, text: str) -> bool:
    """Return whether the filter matches its id, tool or uid, as in the store."""
    return not text or any(text in fact[key] for key in ("id", "tool", "uid"))


def ordered(facts: Iterable[Fact], sort: str, *, grouped: bool) -> list[Fact]:
    """Sort the facts, those that need an answer first; with `grouped`, keep conversations together."""
    found = sorted(facts, key=lambda fact: (rank(fact) != _NEEDS_YOU, *_key(fact, sort), fact["uid"]))
    if not grouped:
        return found
    places: dict[str, int] = {}
    for fact in found:  # conversations are in the order of their first facts
        places.setdefault(fact["conversation"], len(places))
    return sorted(found, key=lambda fact: places[fact["conversation"]])


def _key(fact: Fact, sort: str) -> tuple[Any, ...]:
    match sort:
        case "newest":
            return (-fact["created"],)
        case "oldest":
            return (fact["created"],)
        case "tool":
            return (fact["tool"], fact["id"])
        case "id":
            return (fact["id"],)
    urgency = rank(fact)
    return (urgency, fact["created"] if urgency == _NEEDS_YOU else -fact["created"])


def rows(facts: Sequence[Fact], lines: dict[str, str], now: float, *, grouped: bool) -> list[Row]:
    """Return the table, in the order of the facts. `lines` has the last lines of output by uid."""
    shown: list[Row] = []
    group: str | None = None
    for fact in facts:
        if grouped and fact["conversation"] != group:
            group = fact["conversation"]
            shown.append(Row(f"group:{group}", ("", one_line(group), "", "", "", ""), "bold"))
        shown.append(Row(fact["uid"], cells(fact, lines.get(fact["uid"], ""), now), _COLOURS[rank(fact)]))
    return shown


def cells(fact: Fact, line: str, now: float) -> tuple[str, ...]:
    state = fact["request"]["kind"] if fact.get("request") else state_words({**fact, "held_up": ()}, now)
    began = fact["started"] or fact["created"]
    spent = (fact["stopped"] or now) - began
    last = one_line(latest(fact, line))
    return (state, one_line(fact["id"]), one_line(fact["tool"]), one_line(fact["conversation"]), duration(spent), last)


def latest(fact: Fact, line: str) -> str:
    """Return the latest text: the question, the error, why it waits, the progress, or the last line of output."""
    request, question = fact.get("request"), fact.get("question")
    if request:
        return (
            f"may it {request['action'] or 'run'}?" if request["kind"] == "permission" else "may its result be shown?"
        )
    if question:
        return f"? {question['text']}"
    if fact["state"] == "stopped":
        return fact.get("message") or line
    if fact.get("held_up"):
        return ", ".join(held_up_text(each) for each in fact["held_up"])
    return _progress(fact.get("progress")) or line or fact.get("last_line") or ""


def _progress(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return ""
    done, total, message = progress["done"], progress["total"], progress["message"]
    share = "" if done is None else f"{done:g}/{total:g}" if total else f"{done:g}"
    return " ".join(part for part in (share, message) if part)


def widths(shown: Sequence[Row], room: int) -> list[int]:
    """Return the widths of the columns, so that they fit; the last one takes the rest."""
    asked = {name: max([len(name), *(len(row.cells[at]) for row in shown)]) for at, name in enumerate(HEAD)}
    found = {name: min(asked[name], _WIDEST[name]) for name in HEAD[:-1]}
    padding = 2 * len(HEAD)
    while sum(found.values()) + padding + _LAST_LEAST > room:
        widest = max(_SHRINKING, key=lambda name: found[name])
        if found[widest] <= _NARROWEST:
            break
        found[widest] -= 1
    left = room - sum(found.values()) - padding
    return [*(found[name] for name in HEAD[:-1]), max(left, _NARROWEST)]


def request_fact(request: dict[str, Any]) -> Fact:
    """Return an open request, which may have no handle yet, as a row of the table."""
    return {
        "uid": f"request:{request['id']}",
        "id": request["handle_id"] or "-",
        "tool": request["tool"],
        "conversation": request["conversation"],
        "state": "pending",
        "parked": False,
        "owner": None,
        "created": request["since"],
        "started": None,
        "stopped": None,
        "request": request,
    }
