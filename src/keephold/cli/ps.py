"""`keephold ps`: list the calls that have not stopped, of all processes (L1, R1). It changes nothing."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from keephold.cli.parameters import NAME, age, json_lines_option
from keephold.cli.printing import counted, duration, note, one_line, relative, state_words, table_lines, tell_each
from keephold.cli.store import Where, look, where_options
from keephold.control.base import Looking

_LIVE = ("pending", "running", "waiting")
_HEAD = ("ID", "TOOL", "STATE", "CONVERSATION", "AGE", "DEADLINE")
_MOST = 1000
_COLOURS = {"waiting": "yellow", "running": "green"}
_REASON = 200
"""The longest reason, in columns."""
_EXAMINED = 100
"""Calls without an owner that are examined one by one for the notes."""
_GONE = (
    "the owner is gone; a `keephold serve`, or another program with this tool, resumes it within seconds; "
    "if none runs, start one"
)
_ON_ENGINE = (
    "the front end is gone; another `keephold serve` resumes it within seconds; "
    "if none runs, start one, a worker is not enough"
)


@click.command()
@click.option("--conversation", metavar="C", type=NAME, help="List only the calls of this conversation.")
@click.option("-a", "--all", "everything", is_flag=True, help="List stopped handles as well, until they are deleted.")
@click.option("--state", type=click.Choice([*_LIVE, "stopped", "parked"]), help="List only calls in this state.")
@click.option("--failed", is_flag=True, help="List only stopped handles that have failed.")
@click.option("--tool", metavar="TOOL", type=NAME, help="List only calls of this tool.")
@click.option("--since", metavar="AGO", callback=age, help="List only calls made in this time: 90s, 15m, 2h, 7d.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1),
              help="List at most the newest N. Default: 1000; with --json and -q, all.")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print only uids, one a line.")
@where_options
@json_lines_option
def ps(
    conversation: str | None,
    everything: bool,
    state: str | None,
    failed: bool,
    tool: str | None,
    since: float | None,
    limit: int | None,
    quiet: bool,
    where: Where,
    as_json: bool,
) -> None:
    """List the calls that have not stopped, newest first: spawned handles, and one-shot calls as `call:<label>`."""
    if failed and (state or everything):
        raise click.UsageError("--failed lists stopped handles only; leave --state and --all out")
    state = "failed" if failed else state
    states = (state,) if state else ("live", "stopped") if everything else ("live",)
    begins = None if since is None else time.time() - since
    asked = {"conversation": conversation, "tool": tool, "since": begins}
    most = limit or (2**53 if as_json or quiet else _MOST)
    listed, more, notes, place = look(where, lambda looking: _list(looking, asked, states, most))
    if not listed:
        kind = f"{state or 'live'} call" if state or not everything else "call"
        of = [f" of `{one_line(each)}`" for each in (tool, conversation) if each is not None]
        notes = [f"(no {kind}{''.join(of)} in {place})"]
    tell_each(listed, (fact["uid"] for fact in listed) if quiet else _lines(listed, notes), as_json=as_json)
    if more:
        click.echo(f"These are the newest {most}; there are more, see --limit.", err=True)


async def _list(
    looking: Looking, asked: dict[str, Any], states: Sequence[str], limit: int
) -> tuple[list[dict[str, Any]], bool, list[str], str]:
    """Return the calls, whether there are more, notes on calls without an owner, and the name of the store."""
    found: list[dict[str, Any]] = []
    more = False
    for state in states:  # stopped one-shot calls are never listed
        stopped = state in ("stopped", "failed")
        page = await looking.handles(**asked, state=state, oneshot=not stopped, limit=limit)
        found += page["handles"]
        more |= page["next"] is not None
    if len(states) > 1:
        found.sort(key=lambda fact: str(fact["uid"]), reverse=True)  # a uid begins with the time
    listed = found[:limit]
    orphans = [fact for fact in listed if fact["owner"] == "gone" and not fact.get("kept")]
    return listed, more or len(found) > limit, await _notes(looking, orphans), looking.place


async def _notes(looking: Looking, orphans: Sequence[dict[str, Any]]) -> list[str]:
    """Say how calls whose owner is gone can be resumed: by a process with their tool (R1), or with their turn (B9)."""
    from keephold.store.rows import ENGINE_AT

    tools: Counter[tuple[str, str]] = Counter()
    conversations: Counter[str] = Counter()
    for fact in orphans[:_EXAMINED]:
        found = await looking.handle(fact["uid"])
        if found["waits_for_resume"]:
            conversations[fact["conversation"]] += 1
        else:
            tools[fact["tool"], _ON_ENGINE if ENGINE_AT in found["metadata"] else _GONE] += 1
    tools.update((fact["tool"], _GONE) for fact in orphans[_EXAMINED:])
    return [f"{counted(count, 'call')} of `{one_line(tool)}`: {why}" for (tool, why), count in tools.items()] + [
        f"{counted(count, 'call')} of a batch of `{one_line(name)}` that was never answered: the program that began "
        f"it, or `keephold turn --conversation {shlex.quote(one_line(name))} --resume`, can resume the turn"
        for name, count in conversations.items()
    ]


def _reason(fact: dict[str, Any]) -> str:
    """Return why a handle has failed."""
    return "" if fact["ok"] is not False else one_line(fact["message"] or fact["code"] or "", _REASON)


def _lines(listed: Sequence[dict[str, Any]], notes: Sequence[str]) -> Iterator[str]:
    now = time.time()
    why = any(_reason(fact) for fact in listed)
    rows: list[tuple[str, ...]] = [(*_HEAD, "REASON") if why else _HEAD]
    colours: list[str | None] = [None]
    for fact in listed:
        texts = (fact["id"], fact["tool"], state_words(fact, now), fact["conversation"])
        deadline = "-" if fact["deadline"] is None else relative(fact["deadline"], now)
        reason = (_reason(fact),) if why else ()
        rows.append((*(one_line(text) for text in texts), duration(now - fact["created"]), deadline, *reason))
        lost = fact["owner"] == "gone" and not fact.get("kept")
        colours.append("red" if lost or fact["ok"] is False else _COLOURS.get(fact["state"]))
    shrinking = (0, 1, 2, 3, 6) if why else (0, 1, 2, 3)
    yield from table_lines(rows, shrinking, column=2, colours=colours)
    yield from map(note, notes)
