"""`keephold ps`: list the calls that have not stopped, of all processes (L1, R1). It changes nothing."""

import shlex
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import NAME, json_lines_option
from keephold.cli.printing import counted, duration, one_line, print_json, relative, state_words, table
from keephold.cli.store import Where, ask, where_options

if TYPE_CHECKING:
    from keephold.control.base import Controls

_LIVE = ("pending", "running", "waiting")
_HEAD = ("ID", "TOOL", "STATE", "CONVERSATION", "AGE", "DEADLINE")
_COLOURS = {"waiting": "yellow", "running": "green"}
_EXAMINED = 100
"""Calls without an owner that are examined one by one for the notes."""


@click.command()
@click.option("--conversation", metavar="C", type=NAME, help="List only the calls of this conversation.")
@click.option("--all", "everything", is_flag=True, help="List stopped handles as well, until they are deleted.")
@click.option("--state", type=click.Choice([*_LIVE, "stopped", "parked"]), help="List only calls in this state.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=1000, help="List at most the oldest N. Default: 1000."
)
@where_options
@json_lines_option
def ps(conversation: str | None, everything: bool, state: str | None, limit: int, where: Where, as_json: bool) -> None:
    """List the calls that have not stopped: spawned handles, and one-shot calls as `call:<label>`."""
    states = (state,) if state else ("live", "stopped") if everything else ("live",)
    listed, more, notes, place = ask(where, lambda controls: _list(controls, conversation, states, limit))
    if not listed:
        kind = f"{state or 'live'} call" if state or not everything else "call"
        notes = [f"(no {kind}{'' if conversation is None else f' of `{one_line(conversation)}`'} in {place})"]
    if as_json:
        for fact in listed:
            print_json(fact)
    else:
        _show(listed, notes)
    if more:
        click.echo(f"These are the oldest {limit}; there are more, see --limit.", err=True)


async def _list(
    controls: "Controls", conversation: str | None, states: Sequence[str], limit: int
) -> tuple[list[dict[str, Any]], bool, list[str], str]:
    """Return the calls, whether there are more, notes on calls without an owner, and the name of the store."""
    found: list[dict[str, Any]] = []
    more = False
    for state in states:  # stopped one-shot calls are never listed
        page = await controls.handles(
            conversation=conversation, state=state, oneshot=state != "stopped", sort="oldest", limit=limit
        )
        found += page["handles"]
        more |= page["next"] is not None
    if len(states) > 1:
        found.sort(key=lambda fact: fact["uid"])  # a uid begins with the time
    listed = found[:limit]
    orphans = [fact for fact in listed if fact["owner"] == "gone" and not fact.get("kept")]
    return listed, more or len(found) > limit, await _notes(controls, orphans), controls.place


async def _notes(controls: "Controls", orphans: Sequence[dict[str, Any]]) -> list[str]:
    """Say how calls whose owner is gone can be resumed: by a process with their tool (R1), or with their turn (B9)."""
    tools: Counter[str] = Counter()
    conversations: Counter[str] = Counter()
    for fact in orphans[:_EXAMINED]:
        if (await controls.handle(fact["uid"]))["waits_for_resume"]:
            conversations[fact["conversation"]] += 1
        else:
            tools[fact["tool"]] += 1
    tools.update(fact["tool"] for fact in orphans[_EXAMINED:])
    nobody = "the owner is gone, and no process that has this tool has resumed it; start one"
    return [f"{counted(count, 'call')} of `{one_line(tool)}`: {nobody}" for tool, count in tools.items()] + [
        f"{counted(count, 'call')} of a batch of `{one_line(name)}` that was never answered: the program that began "
        f"it, or `keephold turn --conversation {shlex.quote(one_line(name))} --resume`, can resume the turn"
        for name, count in conversations.items()
    ]


def _show(listed: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    now = time.time()
    rows: list[tuple[str, ...]] = [_HEAD]
    for fact in listed:
        texts = (fact["id"], fact["tool"], state_words(fact, now), fact["conversation"])
        deadline = "-" if fact["deadline"] is None else relative(fact["deadline"], now)
        rows.append((*(one_line(text) for text in texts), duration(now - fact["created"]), deadline))
    head, *cells = table(rows, shrinking=(0, 1, 2, 3))
    click.echo("  ".join(head).rstrip())
    for row, fact in zip(cells, listed, strict=True):
        lost = fact["owner"] == "gone" and not fact.get("kept")
        colour = "red" if lost or fact["ok"] is False else _COLOURS.get(fact["state"])
        row[2] = click.style(row[2], fg=colour)
        click.echo("  ".join(row).rstrip())
    for note in notes:
        click.echo(f"{click.style('note', fg='yellow')}: {note}")
