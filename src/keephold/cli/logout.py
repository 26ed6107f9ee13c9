"""`keephold logout`: end the browser sessions of the dashboard (K9)."""

import click

from keephold.cli.parameters import json_option
from keephold.cli.printing import counted, print_json, time_of_day
from keephold.cli.store import place_of, store_option
from keephold.errors import KeepholdError


@click.command()
@click.argument("SESSION", required=False)
@store_option
@json_option
def logout(session: str | None, store: str | None, as_json: bool) -> None:
    """End the sessions of all browsers that are logged in to the dashboard, or of one.

    SESSION is the id that the dashboard's page `Sessions` shows. If all sessions end, the dashboard also gets a new
    address below `.localhost`. Browsers then need the token again. A running server notices it at once.
    """
    from keephold.serve.sessions import Sessions, sessions_file
    from keephold.store.urls import open_store

    file = sessions_file(getattr(open_store(place_of(store, acting=True)), "path", None))
    if file is None:
        raise KeepholdError(
            "sessions of a server whose store is not a file are ended on its dashboard, or with the server",
            code="unsupported_store",
        )
    sessions = Sessions(file=file)
    known = sessions.all()
    if session is not None and session not in {each.id for each in known}:
        there = "".join(f"\n  {each.id}  {each.browser}, last used {time_of_day(each.used)}" for each in known)
        raise KeepholdError(
            f"there is no session `{session}`" + (f"; there are:{there}" if known else "; no browser is logged in"),
            code="invalid_arguments",
        )
    ended = sessions.end(session) if file.exists() else None
    if as_json:
        print_json({"ended": [each.id for each in ended or ()]})
    else:
        click.echo("no browser is logged in" if ended is None else f"ended {counted(len(ended), 'session')}")
