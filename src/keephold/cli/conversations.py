"""`keephold conversations`: list all conversations. `keephold forget`: delete the transcript of one."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from keephold.cli.parameters import NAME, json_lines_option, json_option
from keephold.cli.printing import counted, note, one_line, relative, table_lines, tell, tell_each
from keephold.cli.store import Where, act, look, where_options
from keephold.control.base import Looking

_HEAD = ("CONVERSATION", "TITLE", "HANDLES", "LIVE", "TURN", "CHANGED")
_COLOURS = {"open": "green", "open, owner gone": "red"}


@click.command()
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=1000, help="List at most N. Default: 1000.")
@click.option("--after", metavar="C", help="List only conversations whose names come after this one.")
@where_options
@json_lines_option
def conversations(limit: int, after: str | None, where: Where, as_json: bool) -> None:
    """List the conversations that have handles, turns or a transcript, by name."""

    async def page(looking: Looking) -> tuple[dict[str, Any], str]:
        return await looking.conversations(after=after, limit=limit), looking.place

    found, place = look(where, page)
    listed = found["conversations"]
    lines = _lines(listed, place if after is None else f"{place} after `{one_line(after)}`")
    tell_each(listed, lines, as_json=as_json)
    if found["next"] is not None:
        click.echo(f"These are the first {limit}; there are more, see --after and --limit.", err=True)


def _lines(listed: Sequence[dict[str, Any]], place: str) -> Iterator[str]:
    now = time.time()
    rows: list[tuple[str, ...]] = [_HEAD]
    for each in listed:
        changed = "-" if each["updated"] is None else relative(each["updated"], now)
        turn = "-" if not each["turn_open"] else "open, owner gone" if each.get("owner") == "gone" else "open"
        title = one_line(each["title"] or "-", 60)
        rows.append((one_line(each["id"]), title, str(each["handles"]), str(each["live"]), turn, changed))
    colours = [None, *(_COLOURS.get(row[4]) for row in rows[1:])]
    yield from table_lines(rows, shrinking=(0, 1, 4, 5), column=4, colours=colours)
    if not listed:
        yield note(f"(nothing in {place})")


@click.command()
@click.argument("CONVERSATION", type=NAME)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@where_options
@json_option
def forget(conversation: str, yes: bool, where: Where, as_json: bool) -> None:
    """Delete the transcript and the title of a CONVERSATION. This cannot be undone.

    Its handles stay until their retention period ends.
    """
    if not yes:
        asked = f"Delete the transcript of {one_line(conversation)}? This cannot be undone."
        click.confirm(asked, abort=True, err=True)
    forgotten = act(where, lambda controls: controls.forget(conversation))
    tell(forgotten, f"{counted(forgotten['lines'], 'line')} of {one_line(conversation)} forgotten", as_json=as_json)
