"""`keephold abort`: end handles, whoever runs them, and those that wait for somebody outside (C7).

Exit code 0 when all of them have stopped, 1 when one of them could not be ended.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import NAME
from keephold.cli.printing import counted, going_on, one_line, print_json, printable
from keephold.cli.store import Where, opened, run, where_options
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.control.base import Controls

_AT_ONCE = 32
_PAGE = 1000


@click.command()
@click.argument("ID", nargs=-1)
@click.option(
    "--conversation", metavar="C", type=NAME, help="The conversation they are in, if several have one of that id."
)
@click.option("--all-in", metavar="C", type=NAME, help="Everything of that conversation that has not stopped.")
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.pass_context
def abort(
    context: click.Context,
    id: tuple[str, ...],
    conversation: str | None,
    all_in: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """End the handles of these IDs, or uids.

    Processes get SIGTERM, and SIGKILL if they do not end within their grace. What they printed is kept. A handle that
    has stopped already stays as it is.
    """
    if bool(id) == (all_in is not None):
        raise click.UsageError("name handles, or a conversation by --all-in", context)
    if all_in is not None and conversation is not None:
        raise click.UsageError("--all-in names the conversation itself; leave --conversation out", context)
    replies = run(_abort(where, id, conversation, all_in))
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
    where: Where, ids: tuple[str, ...], conversation: str | None, all_in: str | None
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The handles as they were, each with the reply."""
    async with opened(where, acting=True) as controls:
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

        with going_on(f"ending {counted(len(facts), 'handle')}"):
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
