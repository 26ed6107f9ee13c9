"""`keephold abort` and `keephold retry`: end calls, and repeat one that failed or was ended (R8)."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import click

from keephold.cli.parameters import NAME, conversation_option, json_lines_option, json_option
from keephold.cli.printing import counted, one_line, print_json, printable, progress, tell
from keephold.cli.store import Where, act, where_options
from keephold.control.base import Controls
from keephold.errors import KeepholdError

_AT_ONCE = 32


@click.command()
@click.argument("ID", nargs=-1)
@conversation_option
@click.option("--all-in", metavar="C", type=NAME, help="Abort every call of this conversation that has not stopped.")
@where_options
@json_lines_option
def abort(
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
        raise click.UsageError("name handles, or a conversation by --all-in")
    if all_in is not None and conversation is not None:
        raise click.UsageError("--all-in names the conversation itself; leave --conversation out")
    replies = act(where, lambda controls: _abort(controls, id, conversation, all_in))
    for fact, reply in replies:
        if as_json:
            print_json({"uid": fact["uid"], **reply})
        elif "error" in reply:
            click.echo(f"Error: {one_line(fact['id'])}: {printable(reply['error'])}", err=True)
        else:
            click.echo(f"{one_line(fact['id'])}: {_how(fact, reply)}")
    if not replies and not as_json:
        click.echo(f"(nothing runs in {one_line(str(all_in))})")
    sys.exit(int(any("error" in reply for _, reply in replies)))


async def _abort(
    controls: Controls, ids: tuple[str, ...], conversation: str | None, all_in: str | None
) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Return the handles as they were before, each with the reply."""
    if all_in is None:
        facts = await controls.find(ids, conversation)
    else:
        live = await controls.handles(conversation=all_in, state="live", oneshot=True, sort="oldest", limit=2**53)
        facts = live["handles"]
    some = asyncio.Semaphore(_AT_ONCE)

    async def end(fact: dict[str, Any]) -> Mapping[str, Any]:
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


def _how(fact: dict[str, Any], reply: Mapping[str, Any]) -> str:
    if fact["state"] == "stopped":
        return "had stopped already"
    return "aborted" if reply.get("ended_by") == "abort" else "stopped before it could be aborted"


@click.command()
@click.argument("ID")
@conversation_option
@where_options
@json_option
def retry(id: str, conversation: str | None, where: Where, as_json: bool) -> None:
    """Repeat the call of an ID, or uid, that failed or was ended.

    A new handle of the same id starts with the same arguments and the same idempotency key. After a crash loop it has a
    copy of the journal, so recorded steps are not repeated. A process that has the tool starts it within seconds, or
    when it is started itself.
    """

    async def retried(controls: Controls) -> Mapping[str, Any]:
        (fact,) = await controls.find((id,), conversation)
        return await controls.retry(fact["uid"])

    made = act(where, retried)
    tell(made, f"{one_line(made['id'])}: repeated as uid {made['uid']}", as_json=as_json)
