"""`keephold store` for a PostgreSQL store: facts, checks, copies and upgrades, without a runtime."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import IO, Any, TypeVar

import asyncpg

from keephold.store.copies import Contents, restoring
from keephold.store.housekeeping import Backup, Migrated, Problem, Restored, Secret, StoreInfo
from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import SQL, STORAGE, Session, sentence, session
from keephold.store.postgres.copying import load, problems, read_contents, tables, write_copy
from keephold.store.postgres.opening import (
    check_server,
    exclude_others,
    living,
    lock_schema,
    made,
    migrations,
    require_store,
    upgrade,
)
from keephold.store.rows import made_at
from keephold.store.sql.queries import described, unusable

T = TypeVar("T")
_SETTINGS = {"enable_seqscan": "on", "idle_in_transaction_session_timeout": "0"}
"""Whole tables are read, and a slow disk here must not end the session."""


class PostgresHousekeeping:
    """The operations on the store in one schema, which this process need not have open."""

    def __init__(self, address: Address) -> None:
        self._address = address

    # Looking

    def info(self) -> StoreInfo:
        return self._run(self._info())

    async def _info(self) -> StoreInfo:
        async with self._reading() as (found, schema):
            rows = {table: await _number(found, f'SELECT count(*) FROM "{table}"') for table in await tables(found)}
            ((oldest, newest),) = await found.rows("SELECT min(uid), max(uid) FROM handles", ())
            return StoreInfo(
                store=self._address.name,
                schema=schema,
                newest_schema=max(migrations()),
                bytes=await _number(found, SQL["disk_bytes"]),
                free_bytes=None,
                output_files=0,
                output_bytes=0,
                rows=rows,
                oldest=None if oldest is None else made_at(oldest),
                newest=None if newest is None else made_at(newest),
                owners=await living(found),
                secrets=[Secret(id, at, keys) for id, at, keys in await found.rows(SQL["open_keys"], ())],
            )

    def check(self) -> list[Problem]:
        return self._run(self._check())

    async def _check(self) -> list[Problem]:
        async with self._reading() as (found, schema):
            if schema == max(migrations()):
                return await problems(found)
            return [Problem("schema", "the store has the schema of an older keephold, so nothing was checked; upgrade "
                            "it with `keephold store migrate`")]  # fmt: skip

    # Copies

    def backup(self, file: Path, *, force: bool) -> Backup:
        schema, broken = self._run(self._backup(file, force=force))
        return Backup(
            file=str(file),
            store=self._address.name,
            schema=schema,
            bytes=file.stat().st_size,
            output_files=0,
            problems=broken,
        )

    async def _backup(self, file: Path, *, force: bool) -> tuple[int, list[Problem]]:
        async with self._reading() as (found, schema):
            return schema, await write_copy(found, self._address, schema, file, force=force)

    def restore(self, file: Path, *, force: bool) -> Restored:
        with restoring(file, self._address.name), file.open("rb") as opened:
            contents = read_contents(opened)
            self._run(self._restore(opened, contents, force=force))
        return Restored(
            store=self._address.name,
            schema=contents.schema,
            made_at=contents.made_at,
            output_files=0,
        )

    async def _restore(self, opened: IO[bytes], contents: Contents, *, force: bool) -> None:
        async with self._connected() as found, self._alone(found, "restored") as version:
            await check_server(found, self._address)
            if version:
                await self._refuse_filled(found, force=force)
                for kind, name in made():
                    await found.run(f'DROP {kind} IF EXISTS "{name}" CASCADE')
            await upgrade(found, 0, contents.schema)
            await load(found, self._address, opened, contents)

    async def _refuse_filled(self, found: Session, *, force: bool) -> None:
        if not force and await _number(found, "SELECT count(*) FROM (SELECT 1 FROM handles LIMIT 1) AS first"):
            raise unusable(
                f"`{self._address.name}` has handles; name another schema with `?schema=` in --store, or replace them "
                "with --force, after a backup"
            )

    # Upgrades

    def migrate(self, backup: Path | None) -> Migrated:
        return self._run(self._migrate(backup))

    async def _migrate(self, backup: Path | None) -> Migrated:
        async with self._reading() as (_, was):
            scripts = {number: script for number, script in migrations().items() if number > was}
        if not scripts:
            return Migrated(store=self._address.name, was=was, schema=was, steps=[], backup=None)
        async with self._connected() as found:
            async with self._alone(found, "upgraded"):
                pass  # before a backup is made for nothing
            file = backup or Path(f"{self._address.schema}.schema-{was}.tar")
            await self._backup(file, force=False)
            async with self._alone(found, "upgraded") as version:
                await upgrade(found, version, max(scripts))
        return Migrated(
            store=self._address.name, was=was, schema=max(scripts), steps=described(scripts), backup=str(file)
        )

    # Connections

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run(work)
        except (*STORAGE, asyncpg.LockNotAvailableError) as error:
            raise unusable(sentence(self._address, error)) from error

    @contextlib.asynccontextmanager
    async def _connected(self, *, any_server: bool = False, **settings: str) -> AsyncIterator[Session]:
        found = await session(self._address, any_server=any_server, **_SETTINGS, **settings)
        try:
            yield found
        finally:
            await found.close()

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[tuple[Session, int]]:
        """Yield a session that sees the store of any known schema as it is at one moment, and that schema."""
        async with (
            self._connected(any_server=True, default_transaction_read_only="on") as found,
            found.connection.transaction(isolation="repeatable_read"),
        ):
            yield found, await require_store(found, self._address)

    @contextlib.asynccontextmanager
    async def _alone(self, found: Session, what: str) -> AsyncIterator[int]:
        """Begin a transaction, and yield the version of the schema. Refuse if a process has the store open. Those that
        open it meanwhile wait."""
        async with found.connection.transaction():
            version = await lock_schema(found, self._address)
            if version:
                await exclude_others(found, self._address, what)
            yield version


async def _number(found: Session, query: str) -> int:
    ((number,),) = await found.rows(query, ())
    return int(number)
