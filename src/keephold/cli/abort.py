"""`keephold abort`: stop handles, also those of other processes and parked ones (C7)."""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import NAME, conversation_option, json_lines_option
from keephold.cli.printing import counted, one_line, print_json, printable, progress
from keephold.cli.store import Where, ask, where_options
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.control.base import Controls

_AT_ONCE = 32
_PAGE = 1000


@click.command()
@click.argument("ID", nargs=-1)
@conversation_option
@click.option("--all-in", metavar="C", type=NAME, help="Abort every call of this conversation that has not stopped.")
@where_options
@json_lines_option
@click.pass_context
def abort(
    context: click.Context,
    id: tuple[str, ...],
    conversation: str | None,
    all_in: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Abort the handles of these IDs, or uids.

    Processes get SIGTERM, and SIGKILL if they do not end within their grace period. Their output is kept. A handle that
    has already stopped does not change.
    """
    if bool(id) == (all_in is not None):
        raise click.UsageError("name handles, or a conversation by --all-in", context)
    if all_in is not None and conversation is not None:
        raise click.UsageError("--all-in names the conversation itself; leave --conversation out", context)
    replies = ask(where, lambda controls: _abort(controls, id, conversation, all_in), acting=True)
    for fact, reply in replies:
        if as_json:
            print_json({"uid": fact["uid"], **reply})
        elif "error" in reply:
            click.echo(f"Error: {one_line(fact['id'])}: {printable(reply['error'])}", err=True)
        else:
            click.echo(f"{one_line(fact['id'])}: {_how(fact, reply)}")
    if not replies and not as_json:
        click.echo(f"(nothing runs in {one_line(str(all_in))})")
    context.exit(int(any("error" in reply for _, reply in replies)))


async def _abort(
    controls: "Controls", ids: tuple[str, ...], conversation: str | None, all_in: str | None
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the handles as they were before, each with the reply."""
    facts = await (_live(controls, all_in) if all_in is not None else controls.find(ids, conversation))
    some = asyncio.Semaphore(_AT_ONCE)

    async def end(fact: dict[str, Any]) -> dict[str, Any]:
        async with some:
            try:
                return await controls.abort(fact["uid"])
            except KeepholdError as error:
                if error.code in ("server_unreachable", "server_refused"):
                    raise
                return {"id": fact["id"], "error": error.message, "code": error.code}

    with progress(f"aborting {counted(len(facts), 'handle')}"):
        replies = await asyncio.gather(*map(end, facts))
    return list(zip(facts, replies, strict=True))


async def _live(controls: "Controls", conversation: str) -> list[dict[str, Any]]:
    facts: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = await controls.handles(
            conversation=conversation, state="live", oneshot=True, sort="oldest", after=after, limit=_PAGE
        )
        facts += page["handles"]
        after = page["next"]
        if after is None:
            return facts


def _how(fact: dict[str, Any], reply: dict[str, Any]) -> str:
    if fact["state"] == "stopped":
        return "had stopped already"
    return "aborted" if reply.get("ended_by") == "abort" else "stopped before it could be aborted"
