"""Opening a store on a server: check what is there, and make or upgrade its schema."""

import secrets
import time

from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import OLDEST, Session, unusable
from keephold.store.postgres.sql import SQL, migrations


async def prepare(found: Session, address: Address) -> None:
    """Make the schema if it does not exist, and upgrade it: all of it or nothing, one process at a time."""
    await check_server(found, address)
    async with found.connection.transaction():
        version = await lock_schema(found, address)
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
    version, newest = await require_store(found, address), max(migrations())
    if version < newest:
        raise unusable(
            f"`{address.name}` has schema {version} of an older keephold; this command only reads, and changed "
            "nothing. End the programs that use the store, then upgrade it to schema "
            f"{newest} with `keephold store migrate`"
        )


async def _version(found: Session, address: Address) -> int:
    rows = await found.rows("SELECT version FROM schema_version", ())
    version, newest = rows[0][0] if rows else 0, max(migrations())
    if version > newest:
        raise unusable(
            f"store `{address.name}` has schema {version}, this keephold knows {newest}; use a newer keephold"
        )
    return int(version)
