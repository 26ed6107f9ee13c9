"""`keephold gc`: delete now what retention would delete later, and files that a crash has left (S5)."""

from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import age, json_option
from keephold.cli.printing import byte_size, counted, print_json, progress, time_of_day
from keephold.cli.store import Where, ask, where_options

if TYPE_CHECKING:
    from keephold.control.base import Controls


@click.command()
@click.option(
    "--before", metavar="AGE", callback=age, help="Delete what is older: `12h`, `30d`. Default: the retention period."
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@click.option("--vacuum", is_flag=True, help="Then shrink the store's file. Writers wait until that is done.")
@where_options
@json_option
@click.pass_context
def gc(context: click.Context, before: float | None, dry_run: bool, vacuum: bool, where: Where, as_json: bool) -> None:
    """Delete handles that stopped long ago, old events, and files that belong to no handle.

    Handles of conversations with an open turn stay, unless the process of that turn has died. Transcripts stay as well;
    `keephold forget` deletes one.
    """
    if dry_run and vacuum:
        raise click.UsageError("--dry-run changes nothing; leave --vacuum out", context)

    async def collect(controls: "Controls") -> dict[str, Any]:
        with progress("deleting what is old"):
            return await controls.collect(older_than=before, dry_run=dry_run, vacuum=vacuum)

    freed = ask(where, collect, acting=True)
    if as_json:
        print_json(freed)
    else:
        _show(freed)


def _show(freed: dict[str, Any]) -> None:
    click.echo(
        f"{'would delete' if freed['dry_run'] else 'deleted'} what is older than {time_of_day(freed['before'])}:"
    )
    click.echo(f"  {counted(freed['handles'], 'handle')}, {counted(freed['calls'], 'one-shot call')}")
    click.echo(f"  about {byte_size(freed['row_bytes'])} in rows, {byte_size(freed['output_bytes'])} in output files")
    click.echo(f"  {counted(freed['events'], 'event')}")
    click.echo(f"  {counted(freed['files'], 'file')} of no handle, {counted(freed['file_bytes'], 'byte')}")
    if freed["bytes"]:
        click.echo(f"the store's file is {counted(freed['bytes'], 'byte')} smaller")
