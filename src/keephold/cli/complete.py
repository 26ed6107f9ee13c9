"""`keephold complete`: resolve a parked call or an awaited event by its key (D4, D5, D8), which is the only authority
needed. `keephold revoke`: invalidate the open keys of a conversation (D3, K5)."""

import sys
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from keephold.cli.parameters import NAME, json_option, text_of_stdin
from keephold.cli.printing import counted, one_line, tell
from keephold.cli.store import Where, act, where_options
from keephold.control.base import Controls
from keephold.limits import Limits

EXIT_CODES = {"accepted": 0, "already_resolved": 3, "unknown_or_revoked": 4}
_WAYS = ("--ok JSON", "--error CODE MESSAGE", "--timeout", "--cancelled")


@click.command()
@click.argument("KEY")
@click.option("--ok", metavar="JSON", help="Complete it with this result; `-` reads the result from stdin.")
@click.option("--error", nargs=2, metavar="CODE MESSAGE", help="Report that it failed.")
@click.option("--timeout", is_flag=True, help="Report that it took too long.")
@click.option("--cancelled", is_flag=True, help="Report that it was cancelled.")
@where_options
@json_option
def complete(
    key: str,
    ok: str | None,
    error: tuple[str, str] | None,
    timeout: bool,
    cancelled: bool,
    where: Where,
    as_json: bool,
) -> None:
    """Complete the call, or send the event, that KEY stands for.

    Other users of this machine can read the command line of a process. If they must not have the key, give `-` as KEY
    and write the key to stdin, on a line of its own.
    """
    if sum((ok is not None, error is not None, timeout, cancelled)) != 1:
        raise click.UsageError(f"say how it ended, by one of {', '.join(_WAYS)}")
    given = text_of_stdin(Limits().line_bytes) if "-" in (key, ok) else ""
    if key == "-":
        key, _, given = given.partition("\n")
        key = key.strip()
    resolution: dict[str, Any]
    if ok is not None:
        resolution = {"status": "ok", "payload": _value(given if ok == "-" else ok)}
    elif error is not None:
        resolution = {"status": "err", "payload": {"code": error[0], "message": error[1]}}
    else:
        resolution = {"status": "timeout" if timeout else "cancelled"}

    async def complete(controls: Controls) -> tuple[Mapping[str, Any], str]:
        return await controls.complete(key, resolution), controls.place

    outcome, place = act(where, complete)
    status, terminal = outcome["status"], outcome["terminal"]
    text = f"{status}: {one_line(terminal)}" if status == "already_resolved" else status
    tell({"outcome": status, "terminal": terminal}, text, as_json=as_json)
    if status == "unknown_or_revoked" and not as_json:
        click.echo(f"(looked in {place})", err=True)
    sys.exit(EXIT_CODES[status])


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        said = "is not UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
        raise click.UsageError(f"--ok takes JSON; a text needs quotes: --ok '\"done\"' ({said})") from None


@click.command()
@click.argument("CONVERSATION", type=NAME)
@where_options
@json_option
def revoke(conversation: str, where: Where, as_json: bool) -> None:
    """Revoke all open keys of a CONVERSATION. Calls parked on one are stopped: nobody could complete them."""
    revoked = act(where, lambda controls: controls.revoke(conversation))
    tell(revoked, f"{counted(revoked['revoked'], 'key')} of {one_line(conversation)} revoked", as_json=as_json)
