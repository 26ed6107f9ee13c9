"""How a PostgreSQL store reads: on a few connections of its own, which are made when they are needed."""

import asyncio
from collections.abc import Iterable
from typing import Any

import asyncpg

from keephold.errors import KeepholdError
from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import LOST, SQL, STORAGE, Session, sentence, session, unfit
from keephold.store.postgres.opening import own_tables
from keephold.store.postgres.presence import Table
from keephold.store.sql.codec import Row
from keephold.store.sql.reads import SqlReads, findable

READERS = 4
"""Connections for reading at most."""
SAMPLE = 1000
"""Pages of a table from which its use is estimated."""
_ROW = 28
"""Bytes that each row takes besides its values."""


class Readers:
    """Connections that cannot write. A running store reads where it writes: a standby may lack its newest commits."""

    def __init__(self, address: Address, *, any_server: bool = False) -> None:
        self._address, self._any_server = address, any_server
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._free = asyncio.Semaphore(READERS)
        self.closed = False

    async def rows(self, query: str, bindings: tuple[Any, ...]) -> list[Row]:
        """Return the query's rows. A connection that was lost since it was last used is replaced."""
        async with self._free:
            while self._idle:
                found = self._idle.pop()
                try:
                    return await self._read(found, query, bindings)
                except LOST:
                    continue
            return await self._read(await self._connect(), query, bindings)

    async def _connect(self) -> Session:
        return await session(self._address, any_server=self._any_server, default_transaction_read_only="on")

    async def _read(self, found: Session, query: str, bindings: tuple[Any, ...]) -> list[Row]:
        self._busy.add(found)
        try:
            rows = await found.rows(query, bindings)
        except BaseException:
            found.connection.terminate()
            raise
        finally:
            self._busy.discard(found)
        if self.closed:
            await found.close()
        else:
            self._idle.append(found)
        return rows

    def give_up(self) -> None:
        """Drop all connections: the server does not answer."""
        for found in (*self._idle, *self._busy):
            found.connection.terminate()

    async def close(self) -> None:
        self.closed = True
        while self._idle:
            await self._idle.pop().close()


class Reads(SqlReads):
    """All reads of `PostgresStore` and `ReadOnlyPostgres`."""

    sql = SQL
    address: Address
    _readers: Readers | None = None
    _table: Table

    def alive(self, owner: str) -> bool:
        return self._table.alive(owner)

    def stream(self, owner: str) -> str | None:
        """Return where the runtime of an owner listens for streams; None if that is not on this machine."""
        return self._table.stream(owner)

    async def used_bytes(self) -> int:
        """An estimate: how much the rows in some pages of each table take. The size of a table does not say it, because
        the server keeps the space of deleted rows."""
        used = 0.0
        for table, pages, columns in await self._rows(SQL["pages"], (own_tables(),)):
            share = min(100.0, 100.0 * SAMPLE / max(pages, 1))
            sizes = " + ".join(f'coalesce(pg_column_size("{column}"), 0)' for column in columns)
            query = f'SELECT count(*), coalesce(sum({sizes}), 0) FROM "{table}" TABLESAMPLE SYSTEM (?)'
            ((rows, size),) = await self._rows(query, (share,))
            used += (int(size) + _ROW * rows) * 100.0 / share
        return int(used)

    async def disk_bytes(self) -> int:
        ((size,),) = await self._rows(SQL["disk_bytes"], ())
        return int(size)

    async def _rows(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        if self._readers is None or self._readers.closed:
            raise KeepholdError("the store is not open", code="store_unavailable")
        given = tuple(findable(each, "\0") for each in bindings)
        try:
            return await self._readers.rows(query, given)
        except asyncpg.DataError as error:
            raise KeepholdError(f"this cannot be looked for: {unfit(error)}", code="not_storable") from error
        except STORAGE as error:
            raise KeepholdError(
                f"the store cannot be read at present: {sentence(self.address, error)}", code="store_unavailable"
            ) from error

    _scanned = _rows
