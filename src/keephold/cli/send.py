"""`keephold send`: send input to a running handle, or answer its question (C6, Q4).

The input goes directly to the process that runs the handle, and is never stored on the way.
"""

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from keephold.cli.parameters import conversation_option, json_option, text_of_stdin
from keephold.cli.printing import one_line, printable, tell
from keephold.cli.store import Where, look, where_options
from keephold.control.base import Looking
from keephold.errors import KeepholdError
from keephold.limits import Limits

_NO_HANDLE = (
    "handle_not_found",
    "handle_expired",
    "store_unusable",
    "unsupported_store",
    "server_refused",
    "server_unreachable",
)
"""Errors that come before any handle is reached; exit code 2, not 1."""


@click.command()
@click.argument("ID")
@click.argument("TEXT", required=False)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Press this key after the text; may be repeated.")
@click.option("--password", is_flag=True, help="Read a secret text without showing it.")
@click.option("--close", is_flag=True, help="Close the input of the program.")
@conversation_option
@where_options
@json_option
def send(
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

    ID may also be that of a question in `keephold requests`. TEXT `-` is read from stdin. The answer to a yes-or-no
    question is yes or no; to one with options, an option or its number; to a form, a JSON object. Do not give a secret
    as TEXT: other users of this machine can read the command line of a process.
    """
    if password and text is not None:
        raise click.UsageError("--password reads the text itself; leave TEXT out")
    if close and (text is not None or keys or password):
        raise click.UsageError("--close sends nothing else; leave TEXT, --key and --password out")
    if text is None and not keys and not password and not close:
        raise click.UsageError("nothing to send: give TEXT, --key, --password or --close")
    given = _secret() if password else text_of_stdin(Limits().arguments_bytes) if text == "-" else text
    sent: dict[str, Any] = {"keys": keys, "secret": password}
    if given is not None or close:
        sent["input"] = given
    try:
        reply = look(where, lambda looking: _send(looking, id, conversation, sent))
    except KeepholdError as error:
        if error.code in _NO_HANDLE:
            raise
        click.echo(f"Error: {printable(error.message)}", err=True)
        sys.exit(1)
    tell(reply, _lines(reply), as_json=as_json)


def _secret() -> str:
    """Read a line without echo; without a terminal, a line of stdin."""
    if sys.stdin.isatty():
        answer: str = click.prompt("Secret", hide_input=True, default="", show_default=False, err=True)
        return answer
    return sys.stdin.readline().removesuffix("\n")


async def _send(looking: Looking, id: str, conversation: str | None, sent: dict[str, Any]) -> dict[str, Any]:
    from keephold.turn import attach_protocol as frames

    try:
        (fact,) = await looking.find((id,), conversation)
    except KeepholdError as error:
        if error.code != "handle_not_found":
            raise
        fact, sent = await _of_request(looking, id, sent, error)
    for each in fact.get("held_up", ()):
        if each["by"] == "permission":
            raise KeepholdError(
                f"`{one_line(fact['id'])}` has not started: it waits for your permission. `keephold allow "
                f"{one_line(each['name'] or 'ID')}` starts it, `keephold deny` refuses it; nothing was sent",
                code="not_running",
            )
    async with looking.talk(fact, frames.Want(uid=fact["uid"], want="send", **sent)) as talk:
        while True:
            kind, payload = await talk.receive()
            if kind == frames.REPLY and isinstance(payload, bytes):
                return msgspec.json.decode(payload, type=dict[str, Any])


async def _of_request(
    looking: Looking, id: str, sent: dict[str, Any], unknown: KeepholdError
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the handle of an open request, and the input as the answer to its question alone."""
    try:
        request = await looking.request(id)
    except KeepholdError:
        raise unknown from None
    question = request.get("question")
    if question is None:
        raise KeepholdError(
            f"`{one_line(id)}` is not a question; decide it with `keephold allow` or `keephold deny`",
            code=unknown.code,
        )
    (fact,) = await looking.find((request["handle"],), None)
    return fact, {**sent, "answers": question["key"] or question["id"]}


def _lines(reply: dict[str, Any]) -> Iterator[str]:
    """Yield the handle's state, and its output since the model last read it."""
    yield f"{one_line(reply['id'])}: {reply['state']}"
    if "question" in reply:
        yield f"  {one_line(reply['question']['text'])} ({one_line(reply['question']['id'])})"
    yield from (printable(reply[key]).rstrip("\n") for key in ("content", "result") if reply.get(key))
