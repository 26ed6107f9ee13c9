"""`keephold retry`: repeat a call that failed or was ended (R8)."""

from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import conversation_option, json_option
from keephold.cli.printing import one_line, print_json
from keephold.cli.store import Where, ask, where_options

if TYPE_CHECKING:
    from keephold.control.base import Controls


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

    async def retried(controls: "Controls") -> dict[str, Any]:
        (fact,) = await controls.find((id,), conversation)
        return await controls.retry(fact["uid"])

    made = ask(where, retried, acting=True)
    if as_json:
        print_json(made)
    else:
        click.echo(f"{one_line(made['id'])}: repeated as uid {made['uid']}")
