"""`keephold show`: print everything that is stored of one handle; its open keys only with `--keys` (K5)."""

import time
from collections.abc import Iterator
from typing import Any

import click

from keephold.cli.parameters import conversation_option, json_option
from keephold.cli.printing import (
    one_line,
    printable,
    relative,
    state_words,
    table_lines,
    tell,
    terminal_width,
    time_of_day,
)
from keephold.cli.store import Where, look, where_options
from keephold.control.base import Looking
from keephold.handles.form import described_fields
from keephold.text import isolated

_TAIL_LINES = 20
_VALUE = 200
"""Columns of a value if stdout is not a terminal."""
_INDENT = 16


@click.command()
@click.argument("ID")
@conversation_option
@where_options
@click.option("--keys", is_flag=True, help="Print its open keys, too. Anyone who has a key can resolve its wait.")
@json_option
def show(id: str, conversation: str | None, where: Where, keys: bool, as_json: bool) -> None:
    """Show the newest handle of an ID, or the one of a uid."""

    async def read(looking: Looking) -> dict[str, Any]:
        (fact,) = await looking.find((id,), conversation)
        return await looking.handle(fact["uid"], keys=keys)

    found = look(where, read)
    tell(found, _lines(found, time.time()), as_json=as_json)


def _lines(found: dict[str, Any], now: float) -> Iterator[str]:
    yield click.style(one_line(found["id"]), bold=True)
    width = terminal_width()
    room = _VALUE if width is None else max(20, width - _INDENT)
    for title, text in _facts(found, now):
        value = one_line(text, room)
        yield f"  {title:<{_INDENT - 2}}{value if width is None else isolated(value)}"
    yield from _section("waits", [_wait_cells(wait) for wait in found["waits"]])
    if found.get("keys"):
        yield "keys"
        for name, key in found["keys"].items():
            yield f"  {one_line(name)}  {key}"  # never cut: the user copies it
    entries, count = found["journal"], found["journal_entries"]
    title = "journal" if len(entries) == count else f"journal, the last {len(entries)} of {count}"
    yield from _section(title, [_entry_cells(entry) for entry in entries])
    events = found["process_events"]
    title = "events" if not events or events[0]["sequence"] == 1 else f"events, the last {len(events)}"
    yield from _section(title, [_event_cells(event) for event in events])
    if found["output"] is not None:
        yield from _tail(found["output"])


def _section(title: str, rows: list[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield title
        yield from table_lines([("", *row) for row in rows], shrinking=range(1, len(rows[0]) + 1))


def _wait_cells(wait: dict[str, Any]) -> tuple[str, ...]:
    how = "revoked" if wait["revoked"] else "open" if wait["resolution"] is None else wait["resolution"]
    return wait["kind"], one_line(wait["name"] or "-"), f"key_id {wait['key_id']}", one_line(how, _VALUE)


def _entry_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    value = entry["value"] if entry["ok"] else entry["value"]["message"]
    return entry["kind"], one_line(entry["name"]), "ok" if entry["ok"] else "error", one_line(value, _VALUE)


def _event_cells(event: dict[str, Any]) -> tuple[str, ...]:
    payload = "" if event["payload"] is None else one_line(event["payload"], _VALUE)
    return str(event["sequence"]), time_of_day(event["at"]), one_line(event["type"]), payload


def _facts(found: dict[str, Any], now: float) -> Iterator[tuple[str, Any]]:
    yield "state", state_words(found, now)
    yield "tool", found["tool"]
    yield "conversation", found["conversation"]
    yield "call", f"{found['call_id'] or '-'}, batch {found['batch']} of turn {found['turn']}"
    yield "uid", found["uid"]
    for title in ("created", "started", "asked", "stopped", "deadline", "next_attempt_at"):
        at = found[title]
        if at is not None:
            yield title.removesuffix("_at").replace("_", " "), f"{time_of_day(at)} ({relative(at, now)})"
    yield from _ownership(found)
    if found.get("kept"):
        yield from _kept(found["kept"], now)
    for title, usual in (("attempt", 1), ("kind", "tool"), ("priority", 0), ("resources", [])):
        if found[title] != usual:
            yield title, found[title]
    if found["metadata"]:
        from keephold.store.rows import user_metadata

        if metadata := user_metadata(found["metadata"]):
            yield "metadata", metadata
    if found.get("allowed_by") is not None:
        from keephold.control.handle_json import allowed_text

        yield "allowed by", allowed_text(found["allowed_by"])
    if found["deaths"]:
        turn = "; it waits for its turn" if found["standing"] == "queued" and found["state"] != "stopped" else ""
        yield "deaths", f"{found['deaths']}, of the processes that ran it{turn}"
    if found["holds_up"]:
        yield "holds up", ", ".join(each["id"] for each in found["holds_up"])
    for title in ("retry_of", "retried_by"):
        if found[title] is not None:
            yield title.replace("_", " "), found[title]
    yield "arguments", found["arguments"]
    if found["question"] is not None:
        yield from _question(found["question"])
    if found["outcome"] is not None:
        yield from _end(found)


def _question(question: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the question and its possible answers: all that `keephold send` needs."""
    yield "question", f"{question['text']} ({question['id']})"
    for at, line in enumerate(answer_lines(question)):
        yield "" if at else "answer", line
    if question["default"] is not None:
        yield "default", question["default"]


def answer_lines(question: dict[str, Any]) -> Iterator[str]:
    """Yield the answers that a question accepts; nothing if it is any text."""
    kind = question["answer_type"]
    if question["secret"]:
        yield "a secret: keephold send --password"
    elif kind == "Boolean":
        yield "yes or no"
    elif isinstance(kind, dict) and "Select" in kind:
        for number, option in enumerate(kind["Select"]["options"], 1):
            yield f"{number}: {option}"
    elif isinstance(kind, dict) and "Form" in kind:
        yield "a JSON object with these fields"
        yield from described_fields(kind["Form"])


def _ownership(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if found["parked"]:
        yield "owner", "nobody: it waits for its completion from outside"
    elif found.get("suspended"):
        yield "owner", "its engine: it only waits, and no worker has it"
    elif found["owner"] == "alive":
        yield "owner", "a process that lives"
    elif found["owner"] == "gone" and not found.get("kept"):
        yield "owner", "gone, and no other process has resumed it"
    if found.get("ui"):
        yield "workflow", found["ui"]


def _kept(kept: dict[str, Any], now: float) -> Iterator[tuple[str, str]]:
    if kept["until"] is None:
        yield "kept", f"on {kept['host']}: its process survives the one that runs it"
    else:
        yield "kept", f"on {kept['host']}, without a runtime since {time_of_day(kept['since'])}"
        yield "", f"until {time_of_day(kept['until'])} ({relative(kept['until'], now)}), then it is ended"


def _end(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    match found["outcome"]:
        case {"type": "error", "code": code, "message": message, "trace": trace}:
            yield "error", f"{code}: {message}"
            yield from (("", line) for line in trace)
        case {"type": "reply", "model": text, "is_error": failed}:
            yield "error" if failed else "ok", text
        case {"type": "ok", "value": value}:
            yield "ok", value
        case _:
            yield "ok", "what it printed"
    ended = [found["ended_by"]]
    ended += [f"{key.replace('_', ' ')} {found[key]}" for key in ("exit_code", "signal") if found[key] is not None]
    yield "ended by", ", ".join(ended)


def _tail(output: dict[str, Any]) -> Iterator[str]:
    yield f"output, the end of {output['bytes']} bytes"
    for line in printable(output["tail"]).rstrip("\n").split("\n")[-_TAIL_LINES:]:
        yield f"  {line}"
