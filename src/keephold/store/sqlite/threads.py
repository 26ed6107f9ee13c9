"""Work in threads of their own, so that the loop is not blocked. A thread of the loop's pool would stay when the work
is done."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from keephold.store.sql.codec import Row
from keephold.store.sqlite.opening import reader

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
                    connection = connection or reader(self._path)
                    found = connection.execute(query, bindings).fetchall()
                except Exception as error:
                    _tell(self._loop, future, future.set_exception, error)
                else:
                    _tell(self._loop, future, future.set_result, found)
        finally:
            if connection is not None:
                connection.close(True)
