"""`keephold send`: what a person sends to a handle that runs, or answers to its question (C6, Q4).

It goes straight to the process that runs the handle, and is never stored on the way. Exit code 0 when it was sent, 1
when the handle did not take it.
"""

import sys
from typing import Any

import click
import msgspec

from keephold.cli.parameters import NAME
from keephold.cli.printing import one_line, print_json, printable
from keephold.cli.store import Where, opened, run, where_options
from keephold.errors import KeepholdError
from keephold.limits import Limits

_NOT_THERE = (
    "handle_not_found",
    "handle_expired",
    "store_unusable",
    "unsupported_store",
    "server_refused",
    "server_unreachable",
)
"""Not refused by a handle: there is none to refuse."""


@click.command()
@click.argument("ID")
@click.argument("TEXT", required=False)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="A key of a terminal, pressed after the text.")
@click.option("--password", is_flag=True, help="Read the text without showing it: for a secret.")
@click.option("--close", is_flag=True, help="Close its input: nothing more will be sent.")
@click.option(
    "--conversation", metavar="C", type=NAME, help="The conversation it is in, if several have one of that id."
)
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def send(
    context: click.Context,
    id: str,
    text: str | None,
    keys: tuple[str, ...],
    password: bool,
    close: bool,
    conversation: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """Send TEXT to the handle of an ID, or a uid; answer its question if one is open.

    TEXT `-` is read from stdin. The answer to a yes-or-no question is yes or no; to one with options, an option or its
    number. A secret is never given as TEXT: the command line of a process can be read by others of this machine.
    """
    if password and text is not None:
        raise click.UsageError("--password reads the text itself; leave TEXT out", context)
    if close and (text is not None or keys or password):
        raise click.UsageError("--close sends nothing else; leave TEXT, --key and --password out", context)
    if text is None and not keys and not password and not close:
        raise click.UsageError("nothing to send: give TEXT, --key, --password or --close", context)
    given = _secret() if password else _stdin() if text == "-" else text
    sent: dict[str, Any] = {"keys": keys, "secret": password}
    if given is not None or close:
        sent["input"] = given
    try:
        reply = run(_send(where, id, conversation, sent))
    except KeepholdError as error:
        if error.code in _NOT_THERE:
            raise
        click.echo(f"Error: {printable(error.message)}", err=True)
        context.exit(1)
    if as_json:
        print_json(reply)
    else:
        _show(reply)


def _secret() -> str:
    """A line that is not shown; where nobody types, a line of stdin."""
    if sys.stdin.isatty():
        answer: str = click.prompt("Secret", hide_input=True, default="", show_default=False, err=True)
        return answer
    return sys.stdin.readline().removesuffix("\n")


def _stdin() -> str:
    limit = Limits().arguments_bytes
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise click.UsageError(f"stdin holds more than {limit} bytes; send less at once")
    return data.decode(errors="surrogateescape")


async def _send(where: Where, id: str, conversation: str | None, sent: dict[str, Any]) -> dict[str, Any]:
    from keephold.turn import attach_protocol as frames

    async with opened(where) as controls:
        (fact,) = await controls.find((id,), conversation)
        want = frames.Want(uid=fact["uid"], want="send", **sent)
        async with controls.talk(fact, want) as talk:
            while True:
                kind, payload = await talk.receive()
                if kind == frames.REPLY:
                    return msgspec.json.decode(payload, type=dict[str, Any])


def _show(reply: dict[str, Any]) -> None:
    """The handle's state, and what it has printed since the assistant last looked."""
    click.echo(f"{one_line(reply['id'])}: {reply['state']}")
    if "question" in reply:
        click.echo(f"  {one_line(reply['question']['text'])} ({one_line(reply['question']['id'])})")
    for key in ("content", "result"):
        if reply.get(key):
            click.echo(printable(reply[key]).rstrip("\n"))
