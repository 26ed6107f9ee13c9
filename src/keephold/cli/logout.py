"""`keephold logout`: end the browser sessions of the dashboard (K9)."""

import asyncio
from typing import TYPE_CHECKING

import click

from keephold.cli.parameters import json_option
from keephold.cli.printing import counted, print_json, time_of_day
from keephold.cli.store import place_of, store_option
from keephold.errors import KeepholdError

if TYPE_CHECKING:
    from keephold.serve.sessions import Session
    from keephold.store.base import Store


@click.command()
@click.argument("SESSION", required=False)
@store_option
@json_option
def logout(session: str | None, store: str | None, as_json: bool) -> None:
    """End the sessions of all browsers that are logged in to the dashboard, or of one.

    SESSION is the id that the dashboard's page `Sessions` shows. If all sessions end, the dashboard also gets a new
    address below `.localhost`. Browsers then need the token again. A running server notices it at once.
    """
    from keephold.store.urls import open_store

    ended = asyncio.run(_end(open_store(place_of(store, acting=True)), session))
    if as_json:
        print_json({"ended": [each.id for each in ended or ()]})
    else:
        click.echo("no browser is logged in" if ended is None else f"ended {counted(len(ended), 'session')}")


async def _end(store: "Store", id: str | None) -> "list[Session] | None":
    """End the sessions, and return them; None: no server has kept any."""
    from keephold.serve.session_places import all_places
    from keephold.serve.sessions import Sessions

    async with all_places(store) as places:
        kept = [Sessions(place=place) for place in places]
        for each in kept:
            await each.refresh()
        known = [session for each in kept for session in each.all()]
        if id is not None and id not in {each.id for each in known}:
            there = "".join(f"\n  {each.id}  {each.browser}, last used {time_of_day(each.used)}" for each in known)
            raise KeepholdError(
                f"there is no session `{id}`" + (f"; there are:{there}" if known else "; no browser is logged in"),
                code="invalid_arguments",
            )
        return [session for each in kept for session in await each.end(id)] if kept else None
