"""How a SQLite store reads: point queries on a connection of the loop's own, and scans in a thread.

Work that would block the loop runs in threads of its own: a thread of the loop's pool would stay when the work is done.
`ReadOnlyStore` writes nothing and registers no owner. So it works while the disk is full, and a command that lists
handles does not wait for a writer.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from keephold.errors import KeepholdError
from keephold.private_file import STREAM
from keephold.store.base import Heard
from keephold.store.sql.codec import Row
from keephold.store.sql.reads import ReadOnly, SqlReads, findable
from keephold.store.sqlite import opening
from keephold.store.sqlite.processes import Owners, owners_of
from keephold.store.sqlite.statements import SQL

T = TypeVar("T")


def in_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run the work in a thread that ends with it."""
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            _tell(loop, future, future.set_exception, error)
        else:
            _tell(loop, future, future.set_result, result)

    threading.Thread(target=run, name="keephold-sqlite", daemon=True).start()
    return future


def _tell(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], settle: Callable[..., None], value: object
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits
        loop.call_soon_threadsafe(lambda: None if future.cancelled() else settle(value))


Asked = tuple[asyncio.Future[list[Row]], str, tuple[Any, ...]]


class Scanner:
    """Runs scans one after another. Its connection and thread exist from the first scan on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._asked: SimpleQueue[Asked | None] = SimpleQueue()
        self._ended: asyncio.Future[None] | None = None

    async def rows(self, query: str, bindings: Iterable[Any]) -> list[Row]:
        """Return the query's rows. Raises `apsw.Error`."""
        if self._ended is None:
            self._ended = in_thread(self._loop, self._run)
        future: asyncio.Future[list[Row]] = self._loop.create_future()
        self._asked.put((future, query, tuple(bindings)))
        return await future

    async def close(self) -> None:
        """Finish pending scans, then close."""
        if self._ended is not None:
            self._asked.put(None)
            await self._ended

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        try:
            while asked := self._asked.get():
                future, query, bindings = asked
                if future.cancelled():  # the caller was cancelled
                    continue
                try:
                    connection = connection or opening.reader(self._path)
                    found = connection.execute(query, bindings).fetchall()
                except Exception as error:
                    _tell(self._loop, future, future.set_exception, error)
                else:
                    _tell(self._loop, future, future.set_result, found)
        finally:
            if connection is not None:
                connection.close(True)


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


class ReadOnlyStore(ReadOnly, Reads):
    """The store in the existing file at `path`, which is only read."""

    inline_output = opening.INLINE_OUTPUT

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self.directory: Path | None = self.path.with_name(f"{self.path.name}-output")
        self._owners = owners_of(self.path)

    async def open(self, heard: Heard) -> None:
        connecting = in_thread(asyncio.get_running_loop(), lambda: _connected(self.path))
        try:
            self._reading = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(self._abandon)
            raise
        self._scanner = Scanner(asyncio.get_running_loop(), self.path)

    def _abandon(self, connecting: asyncio.Future[apsw.Connection]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            connecting.result().close(True)
            opening.disclaim(self.path)

    async def close(self) -> None:
        connection, self._reading = self._reading, None
        if connection is not None:
            await self._scanner.close()
            connection.close(True)
            opening.disclaim(self.path)


def _connected(path: Path) -> apsw.Connection:
    """Return a connection that reads. An older schema is refused: upgrading it would be a write, and would take the
    store away from an older keephold that may be using it."""
    opening.claim(path)
    with contextlib.ExitStack() as undo:
        undo.callback(opening.disclaim, path)
        with opening.explained(path):
            connection = opening.reader(path)
            undo.callback(lambda: connection.close(True))
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            opening.require_current(connection, path)
            undo.pop_all()
            return connection
