"""How a SQLite store reads: point queries on a connection of the loop's own, and scans in a thread."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

from keephold.errors import KeepholdError
from keephold.store.sockets import STREAM
from keephold.store.sql.codec import Row
from keephold.store.sql.reads import SqlReads, findable
from keephold.store.sqlite.processes import Owners
from keephold.store.sqlite.sql import SQL
from keephold.store.sqlite.threads import Scanner


class Reads(SqlReads):
    """All reads of `SqliteStore` and `ReadOnlyStore`."""

    sql = SQL
    _reading: apsw.Connection | None = None
    _scanner: Scanner
    _owners: Owners | None = None
    directory: Path | None

    def alive(self, owner: str) -> bool:
        return self._owners is not None and self._owners.alive(owner)

    def stream(self, owner: str) -> str | None:
        """Return where the runtime of an owner listens for streams; None if unknown."""
        bell = "" if self._owners is None else self._owners.bell(owner)
        return bell + STREAM if bell else None

    async def used_bytes(self) -> int:
        facts = ("page_count", "freelist_count", "page_size")
        pages, free, size = [(await self._rows(f"PRAGMA {each}", ()))[0][0] for each in facts]
        return int((pages - free) * size)

    async def _rows(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        if self._reading is None:
            raise _not_open()
        given = tuple(bindings)
        try:
            return self._reading.execute(query, given).fetchall()
        except UnicodeEncodeError:
            return self._reading.execute(query, tuple(map(findable, given))).fetchall()
        except apsw.Error as error:
            raise _unreadable(error) from error

    async def _scanned(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        """Run a query that looks at very many rows in a thread, so that the loop is not blocked."""
        if self._reading is None:
            raise _not_open()
        try:
            return await self._scanner.rows(query, map(findable, bindings))
        except apsw.Error as error:
            raise _unreadable(error) from error


def _not_open() -> KeepholdError:
    return KeepholdError("the store is not open", code="store_unavailable")


def _unreadable(error: apsw.Error) -> KeepholdError:
    return KeepholdError(
        f"the store cannot be read: {error}; see that its file and its disk are there", code="store_unavailable"
    )
