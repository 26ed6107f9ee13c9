"""Access to a server: the owner's token in its private file (K1), and `keephold logout`, which ends the browser
sessions of the dashboard (K9)."""

import asyncio
import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keephold.cli.parameters import LEAST, is_token, json_option, text_of
from keephold.cli.printing import counted, tell, time_of_day
from keephold.cli.store import SQLITE, default_store, place_of, store_option
from keephold.errors import ConfigError, KeepholdError
from keephold.platforms import machine

if TYPE_CHECKING:
    from keephold.serve.sessions import BrowserSession
    from keephold.store.base import Store


def token_file(store: "Store") -> Path:
    """Return the private file of the owner's token: beside the store, or beside the user's own for one in memory."""
    from keephold.store.base import file_of

    return Path(f"{file_of(store) or default_store(make=True).removeprefix(SQLITE)}-token").absolute()


def owner_token(file: Path) -> str:
    """Return the owner's token from its file, which is made if it is missing."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        if not file.exists():  # linked when complete: another server may start at the same time
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(f"{secrets.token_urlsafe(32)}\n")
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
            new.unlink()
    except OSError as error:
        raise ConfigError([f"no token can be kept at {file}: {error.strerror}; set KEEPHOLD_TOKEN instead"]) from None
    if not machine.is_private(file.stat()):
        raise ConfigError([f"{file} can be read by others, who could use the server: chmod 600 it, or remove it"])
    token = text_of(file, "the file of the owner's token").strip()
    if len(token) < LEAST or not is_token(token):
        raise ConfigError([f"{file} has no token of at least {LEAST} characters; remove it, and a new one is made"])
    return token


@click.command()
@click.argument("SESSION", required=False)
@store_option
@json_option
def logout(session: str | None, store: str | None, as_json: bool) -> None:
    """End the sessions of all browsers that are logged in to the dashboard, or of one.

    SESSION is the id that the dashboard's page `Sessions` shows. If all sessions end, the dashboard also gets a new
    address below `.localhost`. Browsers then need the token again. A running server notices it at once.
    """
    from keephold.store import open_store

    ended = asyncio.run(_end(open_store(place_of(store, acting=True)), session))
    text = "no browser is logged in" if ended is None else f"ended {counted(len(ended), 'session')}"
    tell({"ended": [each.id for each in ended or ()]}, text, as_json=as_json)


async def _end(store: "Store", id: str | None) -> "list[BrowserSession] | None":
    """End the sessions, and return them; None: no server has kept any."""
    from keephold.serve.sessions import Sessions, all_places

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
