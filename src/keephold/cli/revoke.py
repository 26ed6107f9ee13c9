"""`keephold revoke`: make the open keys of a conversation worthless (D3, K5)."""

from typing import Any

import click

from keephold.cli.parameters import NAME
from keephold.cli.printing import counted, one_line, print_json
from keephold.cli.store import Where, opened, run, where_options


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
