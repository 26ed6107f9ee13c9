"""Looking after the whole store. `keephold store` checks, copies, restores and upgrades it, rotates its secret, and
reads its archive. `keephold gc` deletes now what retention would delete later, and files that a crash has left (S5)."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import NAME, age, config_unasked, json_lines_option, json_option
from keephold.cli.printing import byte_size, counted, one_line, print_json, progress, table_lines, tell, time_of_day
from keephold.cli.store import Where, act, place_of, store_option, to_look_after, where_options, without_tools
from keephold.control.base import Controls
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.store.housekeeping import StoreInfo

_FILE = click.Path(path_type=Path, dir_okay=False)


class _InOrder(click.Group):
    """Lists its commands in the order of this file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, no_args_is_help=False)
def store() -> None:
    """Inspect, check, back up, restore and upgrade the store, or give it a new secret.

    Only `restore` and `migrate` need the store for themselves. The others work beside a running server.
    """


@store.command(short_help="Show size, rows, schema, secrets, processes.")
@store_option
@json_option
def info(store: str | None, as_json: bool) -> None:
    """Show the store's size, rows, schema, secrets, and the processes that have it open."""
    facts = to_look_after(store).info()
    tell(facts, table_lines(_described(facts)), as_json=as_json)


def _described(facts: "StoreInfo") -> list[tuple[str, str]]:
    newest = "" if facts.schema == facts.newest_schema else f"; this keephold has {facts.newest_schema}, see `migrate`"
    age = "none" if facts.oldest is None else f"{time_of_day(facts.oldest)} to {time_of_day(facts.newest or 0.0)}"
    free = "" if facts.free_bytes is None else f", {byte_size(facts.free_bytes)} of it free"
    return [
        ("store", one_line(facts.store)),
        ("schema", f"{facts.schema}{newest}"),
        ("size", f"{byte_size(facts.bytes)}{free}"),
        ("output", f"{counted(facts.output_files, 'file')}, {byte_size(facts.output_bytes)}"),
        ("handles made", age),
        *(("process", one_line(owner.process or owner.id)) for owner in facts.owners),
        *(
            ("secret", f"{secret.id}, made {time_of_day(secret.at)}, {counted(secret.open_keys, 'open key')}")
            for secret in facts.secrets
        ),
        *((f"rows of {table}", str(count)) for table, count in facts.rows.items()),
    ]


@store.command(short_help="Check file, rows and output files.")
@store_option
@json_option
def check(store: str | None, as_json: bool) -> None:
    """Check that the store is whole: the file, its rows, and its output files. Changes nothing.

    The exit code is 1 if there are problems.
    """
    found = to_look_after(store).check()
    if as_json:
        print_json({"problems": found})
    else:
        for each in found:
            click.echo(one_line(each.says))
        click.echo("no problems" if not found else counted(len(found), "problem"), err=bool(found))
    sys.exit(1 if found else 0)


@store.command()
@click.argument("FILE", type=_FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@store_option
@json_option
def backup(file: Path, force: bool, store: str | None, as_json: bool) -> None:
    """Copy the store and its output into FILE, a tar. Other processes can write meanwhile.

    The copy is checked before the command succeeds. It contains the secrets of the store.
    """
    done = to_look_after(store).backup(file, force=force)
    size = f"{byte_size(done.bytes)}, {counted(done.output_files, 'output file')}, checked"
    tell(done, f"{one_line(str(file))}: {size}", as_json=as_json)
    if done.problems and not as_json:
        click.echo(
            f"note: the store has {counted(len(done.problems), 'problem')}; see `keephold store check`", err=True
        )


@store.command()
@click.argument("FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--force", is_flag=True, help="Replace the store if it exists. Its contents are lost.")
@store_option
@json_option
def restore(file: Path, force: bool, store: str | None, as_json: bool) -> None:
    """Make the store from FILE, which `keephold store backup` wrote. No process may have the store open.

    Restoring rewinds state: keys that were used since reopen, and unfinished calls of the copy are recovered.
    """
    keeping = to_look_after(store, acting=True, missing=True)
    _refuse_kept(store)
    done = keeping.restore(file, force=force)
    when, files = time_of_day(done.made_at), counted(done.output_files, "output file")
    tell(done, f"{one_line(done.store)}: as it was at {when}, schema {done.schema}, {files}", as_json=as_json)


def _refuse_kept(store: str | None) -> None:
    """Raise `KeepholdError` if processes of the store are kept here: a restore would delete their output (R7)."""
    from keephold.store import open_store
    from keephold.tools.keeper.record import read_record

    directory = open_store(place_of(store, acting=True)).directory
    for file in () if directory is None else directory.glob("*.kept"):
        record = read_record(file.parent, file.stem)
        if record is not None and record.exit is None and record.where == "here":
            raise KeepholdError(
                f"nothing was restored: the process of handle `{record.uid}` is kept here; its output would be lost; "
                "start a server on the store and abort the handle first",
                code="store_unusable",
            )


@store.command()
@click.option("--backup", metavar="FILE", type=_FILE, help="Write the backup here. Default: STORE.schema-N.tar.")
@store_option
@json_option
def migrate(backup: Path | None, store: str | None, as_json: bool) -> None:
    """Back up a store of an older version, then upgrade its schema. No process may have the store open."""
    done = to_look_after(store, acting=True).migrate(backup)
    lines = [f"{one_line(done.store)} has schema {done.schema}, the newest; nothing was changed"]
    if done.backup is not None:
        upgraded = f"{one_line(done.store)}: upgraded from schema {done.was} to {done.schema}"
        lines = [f"backup: {one_line(done.backup)}", *done.steps, upgraded]
    tell(done, lines, as_json=as_json)


@store.command()
@store_option
@json_option
def rotate(store: str | None, as_json: bool) -> None:
    """Sign new keys with a new secret. Older keys stay valid until they are used, revoked or expire.

    Running servers use the new secret from their next key on.
    """

    async def rotated() -> str:
        async with without_tools(store) as runtime:
            return await runtime.rotate_secret()

    id = asyncio.run(rotated())
    left = sum(secret.open_keys for secret in to_look_after(store).info().secrets if secret.id != id)
    text = f"new keys are signed with secret {id}; {counted(left, 'open key')} of older secrets can still be used"
    tell({"secret": id, "older_keys": left}, text, as_json=as_json)


@store.command(short_help="List archived handles.")
@click.argument("DIR", required=False, type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--since", metavar="AGE", callback=age, help="List only handles that stopped since then: `12h`, `30d`.")
@click.option("--conversation", metavar="C", type=NAME, help="List only those of this conversation.")
@click.option("--tool", metavar="T", help="List only those of this tool.")
@json_lines_option
def archive(dir: Path | None, since: float | None, conversation: str | None, tool: str | None, as_json: bool) -> None:
    """List the handles that were archived before they were deleted, by the month in which they stopped.

    DIR is the archive. Default: [store] archive of the keephold.toml found here.
    """
    from keephold.store.archive import archived

    kept = (
        line
        for line in archived(dir or _archive_here(), since=0.0 if since is None else time.time() - since)
        if conversation in (None, line["conversation"]) and tool in (None, line["tool"])
    )
    if as_json:  # as they are read: an archive may be long
        for line in kept:
            print_json(line)
        return
    rows: list[tuple[str, ...]] = [("STOPPED", "CONVERSATION", "ID", "TOOL", "STATUS", "RESULT")]
    for line in kept:
        names = (one_line(line[key]) for key in ("conversation", "id", "tool", "status"))
        said = one_line(line.get("error", line.get("result", "-")), 60)
        rows.append((time_of_day(line["stopped"]), *names, said))
    click.echo("\n".join(table_lines(rows, shrinking=(1, 2, 3, 5))))


def _archive_here() -> Path:
    from keephold.config.build import archive_directory

    directory = archive_directory(config_unasked(None)[0])
    if directory is None:
        raise KeepholdError(
            "no archive is named; name its directory, or set [store] archive in a trusted keephold.toml",
            code="invalid_arguments",
        )
    return directory


@click.command()
@click.option(
    "--before", metavar="AGE", callback=age, help="Delete what is older: `12h`, `30d`. Default: the retention period."
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@click.option("--vacuum", is_flag=True, help="Then return unused space to the disk. Writers wait until that is done.")
@where_options
@json_option
def gc(before: float | None, dry_run: bool, vacuum: bool, where: Where, as_json: bool) -> None:
    """Delete handles that stopped long ago, old events, and files that belong to no handle.

    Handles of conversations with an open turn stay, unless the process of that turn has died. Transcripts stay as well;
    `keephold forget` deletes one.
    """
    if dry_run and vacuum:
        raise click.UsageError("--dry-run changes nothing; leave --vacuum out")

    async def collect(controls: Controls) -> Mapping[str, Any]:
        with progress("deleting what is old"):
            return await controls.collect(older_than=before, dry_run=dry_run, vacuum=vacuum)

    freed = act(where, collect)
    tell(freed, _freed_words(freed), as_json=as_json)


def _freed_words(freed: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'would delete' if freed['dry_run'] else 'deleted'} what is older than {time_of_day(freed['before'])}:"
    yield f"  {counted(freed['handles'], 'handle')}, {counted(freed['calls'], 'one-shot call')}"
    yield f"  about {byte_size(freed['row_bytes'])} in rows, {byte_size(freed['output_bytes'])} in output files"
    yield f"  {counted(freed['events'], 'event')}"
    yield f"  {counted(freed['files'], 'file')} of no handle, {counted(freed['file_bytes'], 'byte')}"
    if freed["bytes"]:
        yield f"the store is {counted(freed['bytes'], 'byte')} smaller"
