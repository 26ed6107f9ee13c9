"""`keephold conversations`: all there are, and what goes on in them. `keephold forget`: let go of what was said."""

import time
from collections.abc import Sequence
from typing import Any

import click

from keephold.cli.parameters import NAME
from keephold.cli.printing import counted, one_line, print_json, relative, table
from keephold.cli.store import Where, opened, run, where_options

_HEAD = ("CONVERSATION", "TITLE", "HANDLES", "LIVE", "TURN", "CHANGED")


@click.command()
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=1000, help="At most so many, by name.")
@click.option("--after", metavar="C", help="Only those whose names come after this one.")
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def conversations(limit: int, after: str | None, where: Where, as_json: bool) -> None:
    """List the conversations that have handles, turns or a transcript, by name."""
    listed, more, place = run(_list(where, after, limit))
    if as_json:
        for each in listed:
            print_json(each)
    else:
        _show(listed, place if after is None else f"{place} after `{one_line(after)}`")
    if more:
        click.echo(f"These are the first {limit}; there are more, see --after and --limit.", err=True)


async def _list(where: Where, after: str | None, limit: int) -> tuple[list[dict[str, Any]], bool, str]:
    listed: list[dict[str, Any]] = []
    async with opened(where) as controls:
        while True:
            page = await controls.conversations(after=after, limit=min(200, limit - len(listed)))
            listed += page["conversations"]
            after = page["next"]
            if after is None or len(listed) >= limit:
                return listed, after is not None, controls.place


def _show(listed: Sequence[dict[str, Any]], place: str) -> None:
    now = time.time()
    rows: list[tuple[str, ...]] = [_HEAD]
    for each in listed:
        changed = "-" if each["updated"] is None else relative(each["updated"], now)
        rows.append(
            (
                one_line(each["id"]),
                one_line(each["title"] or "-", 60),
                str(each["handles"]),
                str(each["live"]),
                _turn(each),
                changed,
            )
        )
    head, *cells = table(rows, shrinking=(0, 1, 4, 5))
    click.echo("  ".join(head).rstrip())
    for row, each in zip(cells, listed, strict=True):
        if each["turn_open"]:
            row[4] = click.style(row[4], fg="red" if each.get("owner") == "gone" else "green")
        click.echo("  ".join(row).rstrip())
    if not listed:
        click.echo(f"{click.style('note', fg='yellow')}: (nothing in {place})")


def _turn(each: dict[str, Any]) -> str:
    if not each["turn_open"]:
        return "-"
    return "open, owner gone" if each.get("owner") == "gone" else "open"


@click.command()
@click.argument("CONVERSATION", type=NAME)
@click.option("--yes", is_flag=True, help="Do not ask.")
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def forget(conversation: str, yes: bool, where: Where, as_json: bool) -> None:
    """Let go of what was said in a CONVERSATION, for ever.

    Its handles stay until their retention is over.
    """
    if not yes:
        asked = f"Everything that was said in {one_line(conversation)} will be gone for ever. Go on?"
        click.confirm(asked, abort=True, err=True)
    forgotten = run(_forget(where, conversation))
    if as_json:
        print_json(forgotten)
    else:
        click.echo(f"{counted(forgotten['lines'], 'line')} of {one_line(conversation)} forgotten")


async def _forget(where: Where, conversation: str) -> dict[str, Any]:
    async with opened(where, acting=True) as controls:
        return await controls.forget(conversation)
