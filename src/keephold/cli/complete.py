"""`keephold complete`: bring what a call waits for from outside (D4, D5, D8). The key is all the authority there is.

Exit code 0 when it was accepted, 3 when somebody was first, 4 for a key that opens nothing: forged, tampered, revoked
and never issued are told alike.

`keephold revoke`: make the open keys of a conversation worthless (D3, K5).
"""

import sys
from typing import Any

import click
import msgspec

from keephold.cli.parameters import NAME
from keephold.cli.printing import counted, one_line, print_json
from keephold.cli.store import Where, opened, run, where_options

EXIT_CODES = {"accepted": 0, "already_resolved": 3, "unknown_or_revoked": 4}
_WAYS = ("--ok JSON", "--error CODE MESSAGE", "--timeout", "--cancelled")


@click.command()
@click.argument("KEY")
@click.option("--ok", metavar="JSON", help="It went well; the result. `-` reads it from stdin.")
@click.option("--error", nargs=2, metavar="CODE MESSAGE", help="It failed.")
@click.option("--timeout", is_flag=True, help="It took too long.")
@click.option("--cancelled", is_flag=True, help="It will not be done.")
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def complete(
    context: click.Context,
    key: str,
    ok: str | None,
    error: tuple[str, str] | None,
    timeout: bool,
    cancelled: bool,
    where: Where,
    as_json: bool,
) -> None:
    """Complete the call, or bring the event, that KEY stands for.

    The command line of a process can be read by others of this machine. If they must not have the key, let KEY be `-`
    and write it to stdin, on a line of its own.
    """
    if sum((ok is not None, error is not None, timeout, cancelled)) != 1:
        raise click.UsageError(f"say how it ended, by one of {', '.join(_WAYS)}", context)
    given = _stdin() if "-" in (key, ok) else ""
    if key == "-":
        key, _, given = given.partition("\n")
        key = key.strip()
    resolution: dict[str, Any]
    if ok is not None:
        resolution = {"status": "ok", "payload": _value(given if ok == "-" else ok, context)}
    elif error is not None:
        resolution = {"status": "err", "payload": {"code": error[0], "message": error[1]}}
    else:
        resolution = {"status": "timeout" if timeout else "cancelled"}
    outcome, place = run(_resolve(where, key, resolution))
    _show(outcome, as_json)
    if outcome["status"] == "unknown_or_revoked" and not as_json:
        click.echo(f"(looked in {place})", err=True)
    context.exit(EXIT_CODES[outcome["status"]])


async def _resolve(where: Where, key: str, resolution: dict[str, Any]) -> tuple[dict[str, Any], str]:
    async with opened(where, acting=True) as controls:
        return await controls.complete(key, resolution), controls.place


def _stdin() -> str:
    from keephold.limits import Limits

    limit = Limits().line_bytes
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise click.UsageError(f"stdin holds more than {limit} bytes")
    return data.decode(errors="surrogateescape")


def _value(text: str, context: click.Context) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        said = "is not UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
        raise click.UsageError(f"--ok takes JSON; a text needs quotes: --ok '\"done\"' ({said})", context) from None


def _show(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"outcome": outcome["status"], "terminal": outcome["terminal"]})
    elif outcome["status"] == "already_resolved":
        click.echo(f"{outcome['status']}: {one_line(outcome['terminal'])}")
    else:
        click.echo(outcome["status"])


@click.command()
@click.argument("CONVERSATION", type=NAME)
@where_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def revoke(conversation: str, where: Where, as_json: bool) -> None:
    """Revoke all open keys of a CONVERSATION. Calls that are parked on one are stopped: nobody could complete them."""
    revoked = run(_revoke(where, conversation))
    if as_json:
        print_json(revoked)
    else:
        click.echo(f"{counted(revoked['revoked'], 'key')} of {one_line(conversation)} revoked")


async def _revoke(where: Where, conversation: str) -> dict[str, Any]:
    async with opened(where, acting=True) as controls:
        return await controls.revoke(conversation)
