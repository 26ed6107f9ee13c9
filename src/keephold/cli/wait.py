"""`keephold wait`: until handles have stopped, whoever runs them (A2, A3, L3).

Exit code 0 when they have, 1 when one of them failed or was aborted, 124 when the time was up first.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import NAME
from keephold.cli.printing import going_on, one_line, print_json, tell, terminal_width
from keephold.cli.store import Where, opened, run, where_options
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.control.base import Controls

_TIMED_OUT = 124
_LOOK_SECS = 1.0
"""How often is looked whether the processes live that run them: nothing rings when one dies."""
_WIDTH = 200
"""Columns of a line where there is no terminal to fit."""


def _seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (value >= 0 and math.isfinite(value)):
        raise click.BadParameter("a number of seconds, 0 or more", context, parameter)
    return value


@click.command()
@click.argument("ID", nargs=-1, required=True)
@click.option("--any", "any_of_them", is_flag=True, help="Until one of them has stopped; otherwise all.")
@click.option("--timeout", metavar="SECS", type=float, callback=_seconds, help="How long at most; 0 looks and returns.")
@click.option(
    "--conversation", metavar="C", type=NAME, help="The conversation they are in, if several have one of that id."
)
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def wait(
    context: click.Context,
    id: tuple[str, ...],
    any_of_them: bool,
    timeout: float | None,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Wait until the handles of these IDs, or uids, have stopped.

    Of each a line is printed: how it ended, and the last line of its result, or of what it printed. --json has all of
    the result.
    """
    waited = run(_wait(where, id, any_of_them, timeout, conversation, whole=as_json))
    if as_json:
        print_json(waited)
    else:
        for entry in (*waited["completed"], *waited["pending"]):
            click.echo(_line(entry))
    failed = any(entry["is_error"] or "ended_by" in entry for entry in waited["completed"])
    context.exit(_TIMED_OUT if "timed_out" in waited else int(failed))


async def _wait(
    where: Where,
    ids: tuple[str, ...],
    any_of_them: bool,
    timeout: float | None,
    conversation: str | None,
    *,
    whole: bool,
) -> dict[str, Any]:
    async with opened(where, acting=True) as controls:
        facts = await controls.find(ids, conversation)
        open_ones = [fact for fact in facts if fact["state"] != "stopped"]
        async with _telling_who_is_gone(controls, open_ones):
            with going_on(f"waiting for {_named(open_ones)}"):
                waited = await controls.wait_for(facts, any=any_of_them, timeout=timeout)
        if not whole:
            await _look_up(controls, facts, waited["completed"])
        return waited


@asynccontextmanager
async def _telling_who_is_gone(controls: "Controls", facts: list[dict[str, Any]]) -> AsyncIterator[None]:
    """Say whose process is gone: now, and while the block lasts."""
    told: set[tuple[str, int]] = set()
    _tell(facts, told)
    looking = asyncio.create_task(_look(controls, {fact["uid"] for fact in facts}, told))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _look(controls: "Controls", uids: set[str], told: set[tuple[str, int]]) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECS)
        for uid in tuple(uids):
            with suppress(KeepholdError):  # what is wrong is told by the wait itself
                (fact,) = await controls.find((uid,), None)
                _tell((fact,), told)
                if fact["state"] == "stopped":
                    uids.discard(uid)


def _tell(facts: Iterable[dict[str, Any]], told: set[tuple[str, int]]) -> None:
    """Say it once of each, and again if a process that has gone on with it, which is another attempt, goes too."""
    for fact in facts:
        attempt = fact["uid"], fact["attempt"]
        if fact["owner"] == "gone" and attempt not in told:
            told.add(attempt)
            tell(f"{one_line(fact['id'])}: the process that ran it is gone, and no other has gone on with it yet")


async def _look_up(controls: "Controls", facts: list[dict[str, Any]], completed: list[dict[str, Any]]) -> None:
    """What the assistant has read already is no part of a result any more, and is still the end of what was printed."""
    for entry in completed:
        bearing = [fact["uid"] for fact in facts if fact["id"] == entry["id"]]
        if not entry["result"] and len(bearing) == 1:
            output = (await controls.handle(bearing[0]))["output"]
            entry["result"] = "" if output is None else output["tail"]


def _named(facts: list[dict[str, Any]]) -> str:
    return f"`{one_line(facts[0]['id'], 40)}`" if len(facts) == 1 else f"{len(facts)} handles"


def _line(entry: dict[str, Any]) -> str:
    id = one_line(entry["id"])
    if entry["state"] != "stopped":
        return f"{id}: {entry['state']}{', parked' if 'parked' in entry else ''}"
    how, result = "error" if entry["is_error"] else entry.get("ended_by", "ok"), _last_line(entry["result"])
    return one_line(f"{id}: {how}: {result}" if result else f"{id}: {how}", terminal_width() or _WIDTH)


def _last_line(result: Any) -> str:
    """The last line that says something; a value that is no text is one line."""
    lines = result.splitlines() if isinstance(result, str) else [one_line(result)]
    return next((line for line in reversed(lines) if any(each.isalnum() for each in line)), "")
