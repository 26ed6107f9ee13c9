"""`holdfast ps`: what is going on in a store, whoever runs it (L1, R1). It only looks."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.printing import duration, one_line, print_json, relative, table
from holdfast.cli.records import facts, standing, waits_for_resume
from holdfast.cli.store import place_of, reading, run, store_option
from holdfast.store.base import Record, Store

_LIVE = ("pending", "running", "waiting")
_HEAD = ("ID", "TOOL", "STATE", "CONVERSATION", "AGE", "DEADLINE")
_COLOURS = {"waiting": "yellow", "running": "green"}


@click.command()
@click.option("--conversation", metavar="C", help="Only those of this conversation.")
@click.option("--all", "everything", is_flag=True, help="Also handles that have stopped and are still kept.")
@click.option("--state", type=click.Choice([*_LIVE, "stopped", "parked"]), help="Only those in this state.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=1000, help="At most so many, oldest first.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def ps(
    conversation: str | None, everything: bool, state: str | None, limit: int, store: str | None, as_json: bool
) -> None:
    """List the calls that have not stopped: spawned handles, and one-shot calls as `call:<label>`."""
    states = (state,) if state else (*_LIVE, "stopped") if everything else _LIVE
    listed, more, notes = run(_look(store, conversation, states, limit))
    if as_json:
        for fact in listed:
            print_json(fact)
    else:
        _show(listed, notes)
    if more:
        click.echo(f"These are the oldest {limit}; there are more, see --limit.", err=True)


async def _look(
    url: str | None, conversation: str | None, states: Sequence[str], limit: int
) -> tuple[list[dict[str, Any]], bool, list[str]]:
    """What is listed, whether there would be more, and what is to be said of calls that nobody goes on with."""
    records: list[Record] = []
    async with reading(url) as store:
        for state in states:
            parked, name = (True, None) if state == "parked" else (None, state)
            stateful = True if state == "stopped" else None  # one-shot calls that are over are nothing to see
            records += await store.handles(
                conversation=conversation, state=name, parked=parked, stateful=stateful, limit=limit + 1
            )
        records.sort(key=lambda record: (record.state.created, record.turn, record.batch, record.position))
        listed = [facts(store, record) for record in records[:limit]]
        orphans = [record for record, fact in zip(records, listed, strict=False) if fact["owner"] == "gone"]
        notes = await _notes(store, orphans) if records else [f"(nothing in {place_of(store)})"]
        return listed, len(records) > limit, notes


async def _notes(store: Store, orphans: Sequence[Record]) -> list[str]:
    """R1: calls whose owner is gone stay until somebody comes who has their tool, or resumes their turn (B9)."""
    tools: Counter[str] = Counter()
    conversations: Counter[str] = Counter()
    for record in orphans:
        if await waits_for_resume(store, record):
            conversations[record.conversation] += 1
        else:
            tools[record.tool] += 1
    return [
        f"{_calls(count)} of `{one_line(tool)}`: the owner is gone, and no process that has this tool has gone on with "
        "it; start one"
        for tool, count in tools.items()
    ] + [
        f"{_calls(count)} of a batch of `{one_line(name)}` that was never answered: the program that began it, or "
        f"`holdfast turn --conversation {one_line(name)} --resume`, can go on with the turn"
        for name, count in conversations.items()
    ]


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _show(listed: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    now = time.time()
    rows: list[tuple[str, ...]] = [_HEAD]
    for fact in listed:
        texts = (fact["id"], fact["tool"], standing(fact, now), fact["conversation"])
        deadline = "-" if fact["deadline"] is None else relative(fact["deadline"], now)
        rows.append((*(one_line(text) for text in texts), duration(now - fact["created"]), deadline))
    head, *cells = table(rows, shrinking=(0, 1, 2, 3))
    click.echo("  ".join(head).rstrip())
    for row, fact in zip(cells, listed, strict=True):
        colour = "red" if fact["owner"] == "gone" or fact["ok"] is False else _COLOURS.get(fact["state"])
        row[2] = click.style(row[2], fg=colour)
        click.echo("  ".join(row).rstrip())
    for note in notes:
        click.echo(f"{click.style('note', fg='yellow')}: {note}")
