"""Opening a store on a server: check what is there, and make or upgrade its schema, which is numbered migrations."""

import re
import secrets
import time
from pathlib import Path

from keephold.store.housekeeping import Owner
from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import OLDEST, SQL, Session
from keephold.store.postgres.presence import place_of
from keephold.store.sql import queries
from keephold.store.sql.queries import check_schema, unusable

BUSY = "2s"
"""How long a change of the whole schema waits for other transactions, because all processes wait behind it."""
_MADE = re.compile(r"^CREATE (TABLE|FUNCTION) (\w+)", re.MULTILINE)


def migrations() -> dict[int, str]:
    """Return the schema: by number, in order, the script that leads to it from the one before."""
    return queries.migrations(Path(__file__).with_name("schema"))


def own_tables() -> list[str]:
    """Return the names of the store's tables."""
    return [name for kind, name in made() if kind == "TABLE"]


def made() -> list[tuple[str, str]]:
    """Return everything that the scripts make: TABLE or FUNCTION, and its name. The schema may have more."""
    return [pair for script in migrations().values() for pair in _MADE.findall(script)]


async def prepare(found: Session, address: Address) -> None:
    """Make the schema if it does not exist, and upgrade it: all of it or nothing, one process at a time."""
    await check_server(found, address)
    async with found.connection.transaction():
        version = await lock_schema(found, address)
        if 0 < version < max(migrations()):
            await exclude_others(found, address, "upgraded, as `keephold store migrate` does after a backup")
        await upgrade(found, version, max(migrations()))
        if version == 0:
            await found.rows(SQL["add_secret"], (secrets.token_hex(4), secrets.token_bytes(32), time.time()))


async def lock_schema(found: Session, address: Address) -> int:
    """Let no other process make or upgrade the schema until the transaction ends. Returns its version, 0 if it is
    new."""
    await found.rows(SQL["lock"], ([address.key("schema")],))
    await found.run(f'CREATE SCHEMA IF NOT EXISTS "{address.schema}"')
    await found.run("CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)")
    return await _version(found, address)


async def living(found: Session) -> list[Owner]:
    """Return the processes that have the store open."""
    present = await found.rows(SQL["present"], ())
    return [Owner(owner, place_of(place).command()) for owner, place, held in present if held]


async def exclude_others(found: Session, address: Address, what: str) -> None:
    """Refuse if a process has the store open, and remove those that were. Those that open it meanwhile wait until the
    transaction ends; one that comes back finds that it was removed."""
    await _refuse_living(found, address, what)  # first: all processes wait for what waits for the lock
    await found.run(f"SET LOCAL lock_timeout = '{BUSY}'")
    await found.run("LOCK TABLE owners IN ACCESS EXCLUSIVE MODE")
    await _refuse_living(found, address, what)
    await remove_owners(found)


async def _refuse_living(found: Session, address: Address, what: str) -> None:
    if others := await living(found):
        who = ", ".join(owner.process or f"owner {owner.id}" for owner in others)
        raise unusable(f"`{address.name}` is in use by process {who}; end it, because a store in use cannot be {what}")


async def remove_owners(found: Session) -> None:
    """Remove all processes, and what ends with them."""
    for (owner,) in await found.rows(SQL["counted_owners"], ()):
        for query in ("remove_owner", "remove_requests", "remove_posts"):
            await found.rows(SQL[query], (owner,))


async def upgrade(found: Session, version: int, newest: int) -> None:
    """Lead the schema from one version to another."""
    for number, script in migrations().items():
        if version < number <= newest:
            await found.run(script)
    await found.run("DELETE FROM schema_version")
    await found.rows("INSERT INTO schema_version (version) VALUES (?)", (newest,))


async def check_server(found: Session, address: Address) -> None:
    """Raise `KeepholdError` if the server or its database lacks something that we use."""
    ((version, encoding),) = await found.rows(
        "SELECT current_setting('server_version_num'), current_setting('server_encoding')", ()
    )
    if int(version) < OLDEST:
        raise unusable(f"`{address.name}` runs version {int(version) // 10_000}; use {OLDEST // 10_000} or newer")
    if encoding != "UTF8":
        raise unusable(f"`{address.name}` keeps text as {encoding}; create a database with the encoding UTF8")


async def require_store(found: Session, address: Address) -> int:
    """Return the version of the schema; raise `KeepholdError` if there is no store, or one of a newer keephold."""
    await check_server(found, address)
    ((exists,),) = await found.rows("SELECT to_regclass(?) IS NOT NULL", (f'"{address.schema}".schema_version',))
    if not exists:
        raise unusable(f"`{address.name}` holds no store; name another database or schema, or open a runtime first")
    return await _version(found, address)


async def require_current(found: Session, address: Address) -> None:
    """Raise `KeepholdError` if the schema is not the one that this keephold makes."""
    check_schema(address.name, await require_store(found, address), max(migrations()), current=True)


async def _version(found: Session, address: Address) -> int:
    rows = await found.rows("SELECT version FROM schema_version", ())
    return check_schema(address.name, int(rows[0][0]) if rows else 0, max(migrations()))
