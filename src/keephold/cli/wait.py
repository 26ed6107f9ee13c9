"""`keephold wait`: wait until handles of any process have stopped, printed a line or are ready (A2, A3, A9, L3)."""

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import click

from keephold.cli.parameters import conversation_option, json_option
from keephold.cli.printing import one_line, print_above_progress, progress, tell, terminal_width
from keephold.cli.store import Where, act, where_options
from keephold.control.base import Controls
from keephold.errors import KeepholdError

_TIMED_OUT = 124
_LOOK_SECS = 1.0
"""Interval of checks whether the owners live: a process that dies notifies nobody."""
_WIDTH = 200
"""Columns of a line if stdout is not a terminal."""


def _seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (value >= 0 and math.isfinite(value)):
        raise click.BadParameter("a number of seconds, 0 or more", context, parameter)
    return value


def _conditions(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    read = []
    for value in values:
        id, equals, pattern = value.partition("=")
        if not (id and equals and pattern):
            raise click.BadParameter(f"{value!r} is not ID=REGEX, such as server='listening on'", context, parameter)
        read.append((id, pattern))
    return tuple(read)


@click.command()
@click.argument("ID", nargs=-1)
@click.option("--any", "any_of_them", is_flag=True, help="Wait until one of the IDs has stopped. Default: all.")
@click.option(
    "--output",
    metavar="ID=REGEX",
    multiple=True,
    callback=_conditions,
    help="Wait until a line of the handle's output matches (RE2 syntax), or it has stopped. May be repeated.",
)
@click.option("--ready", metavar="ID", multiple=True, help="Wait until the handle is ready, or has stopped.")
@click.option("--timeout", metavar="SECS", type=float, callback=_seconds, help="Wait at most this long; 0 only looks.")
@conversation_option
@where_options
@json_option
def wait(
    id: tuple[str, ...],
    any_of_them: bool,
    output: tuple[tuple[str, str], ...],
    ready: tuple[str, ...],
    timeout: float | None,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Wait until the handles of these IDs, or uids, have stopped. With --output and --ready, wait for more.

    For each handle, one line is printed: how it ended, and the last line of its result or output. --json prints the
    whole result.
    """

    named = tuple(dict.fromkeys((*id, *(each for each, _ in output), *ready)))
    if not named:
        raise click.UsageError("Name a handle: ID, --output ID=REGEX or --ready ID.")

    async def wait(controls: Controls) -> Mapping[str, Any]:
        facts = await controls.find(named, conversation)
        uids = {each: fact["uid"] for each, fact in zip(named, facts, strict=True)}
        stops = [uids[each] for each in dict.fromkeys(id)]
        live = [fact for fact in facts if fact["state"] != "stopped"]
        async with _reporting_lost_owners(controls, live):
            with progress(f"waiting for {_named(live)}"):
                waited = await controls.wait(
                    all=() if any_of_them else stops,
                    any=stops if any_of_them else (),
                    output=[{"id": uids[each], "pattern": pattern} for each, pattern in output],
                    ready=[uids[each] for each in ready],
                    timeout=timeout,
                )
        if not as_json:
            await _add_output(controls, facts, waited["completed"])
        return waited

    waited = act(where, wait)
    tell(waited, map(_line, (*waited["completed"], *waited["pending"])), as_json=as_json)
    failed = any(entry["is_error"] or "ended_by" in entry for entry in waited["completed"])
    sys.exit(_TIMED_OUT if "timed_out" in waited else int(failed))


@asynccontextmanager
async def _reporting_lost_owners(controls: Controls, facts: list[dict[str, Any]]) -> AsyncIterator[None]:
    """Report which handles have lost their process: now, and while the block runs."""
    reported: set[tuple[str, int]] = set()
    _report(facts, reported)
    looking = asyncio.create_task(_look(controls, {fact["uid"] for fact in facts}, reported))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _look(controls: Controls, uids: set[str], reported: set[tuple[str, int]]) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECS)
        for uid in tuple(uids):
            with suppress(KeepholdError):  # the wait itself reports errors
                (fact,) = await controls.find((uid,), None)
                _report((fact,), reported)
                if fact["state"] == "stopped":
                    uids.discard(uid)


def _report(facts: Iterable[dict[str, Any]], reported: set[tuple[str, int]]) -> None:
    """Report each attempt once: a process that resumed the handle can be lost as well."""
    for fact in facts:
        attempt = fact["uid"], fact["attempt"]
        if fact["owner"] == "gone" and attempt not in reported:
            reported.add(attempt)
            kept = fact.get("kept")
            left = "the process that ran it is gone, and no other has resumed it yet"
            if kept:
                left = f"it is kept on {one_line(kept['host'])}, and no runtime has taken it back yet"
            print_above_progress(f"{one_line(fact['id'])}: {left}")


async def _add_output(controls: Controls, facts: list[dict[str, Any]], completed: list[dict[str, Any]]) -> None:
    """Give results that the model has already read the end of the handle's output."""
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
        details = "".join(f", {word}" for word in ("parked", "ready") if word in entry)
        matched = f": {entry['matched']}" if "matched" in entry else ""
        return one_line(f"{id}: {entry['state']}{details}{matched}", terminal_width() or _WIDTH)
    how, result = "error" if entry["is_error"] else entry.get("ended_by", "ok"), _last_line(entry["result"])
    return one_line(f"{id}: {how}: {result}" if result else f"{id}: {how}", terminal_width() or _WIDTH)


def _last_line(result: Any) -> str:
    """Return the last line with a letter or digit; a value that is not text is one line."""
    lines = result.splitlines() if isinstance(result, str) else [one_line(result)]
    return next((line for line in reversed(lines) if any(each.isalnum() for each in line)), "")
