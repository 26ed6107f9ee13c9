"""`keephold gc`: let go now of what retention lets go of anyway, and of what a crash has left (S5)."""

import re
from typing import Any

import click

from keephold.cli.printing import counted, going_on, print_json, time_of_day
from keephold.cli.store import Where, opened, run, where_options

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_OLDEST = 100 * 365 * 86_400
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = _AGE.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter("an age such as `90s`, `30m`, `12h` or `7d`", context, parameter)
    seconds = float(found[1]) * _UNITS[found[2] or "s"]
    if seconds > _OLDEST:
        raise click.BadParameter("an age of 100 years at most", context, parameter)
    return seconds


@click.command()
@click.option(
    "--before", metavar="AGE", callback=_age, help="What is older than this: `12h`, `30d`. Default: the retention."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and let nothing go.")
@click.option(
    "--vacuum", is_flag=True, help="Then make the store's file smaller. Whoever writes to it waits meanwhile."
)
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def gc(context: click.Context, before: float | None, dry_run: bool, vacuum: bool, where: Where, as_json: bool) -> None:
    """Let go of handles that stopped long ago, of old events, and of files that belong to nothing.

    Handles of conversations with an open turn stay, and so does what was said: `keephold forget` is for that.
    """
    if dry_run and vacuum:
        raise click.UsageError("--dry-run changes nothing; leave --vacuum out", context)
    freed = run(_collect(where, before, dry_run=dry_run, vacuum=vacuum))
    if as_json:
        print_json(freed)
    else:
        _show(freed)


async def _collect(where: Where, before: float | None, *, dry_run: bool, vacuum: bool) -> dict[str, Any]:
    async with opened(where, acting=True) as controls:
        with going_on("letting go of what is old"):
            return await controls.collect(older_than=before, dry_run=dry_run, vacuum=vacuum)


def _show(freed: dict[str, Any]) -> None:
    click.echo(f"{'would go' if freed['dry_run'] else 'gone'}, of what is older than {time_of_day(freed['before'])}:")
    click.echo(f"  {counted(freed['handles'], 'handle')}, {counted(freed['calls'], 'one-shot call')}")
    click.echo(f"  {counted(freed['events'], 'event')}")
    click.echo(f"  {counted(freed['files'], 'file')} of no handle, {counted(freed['file_bytes'], 'byte')}")
    if freed["bytes"]:
        click.echo(f"the store's file is {counted(freed['bytes'], 'byte')} smaller")
