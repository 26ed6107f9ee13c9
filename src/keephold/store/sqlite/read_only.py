"""The same store for somebody who only looks: nothing is written, and no place among the owners is taken.

So it can be looked at while its disk is full, and whoever lists handles waits for no writer.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import apsw

from keephold.errors import KeepholdError
from keephold.listeners import Listeners
from keephold.store.base import Done, Failed, Heard, Op
from keephold.store.sqlite import opening
from keephold.store.sqlite.owners import Owners
from keephold.store.sqlite.reads import Reads
from keephold.store.sqlite.store import SqliteStore
from keephold.store.sqlite.threads import Scanner, in_thread


class ReadOnlyStore(Reads):
    """The store in the file at `path`, which is there. It is told of no change."""

    durable = True
    inline_output = SqliteStore.inline_output
    owner = ""
    trouble: str | None = None
    on_commit: Listeners[[]] = Listeners()

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self.directory: Path | None = self.path.with_name(f"{self.path.name}-output")
        self._owners = Owners(self.path.with_name(f"{self.path.name}-owners"))

    async def open(self, heard: Heard) -> None:
        self._reading = await self._connect()
        if self._reading is None:  # of an earlier version: bringing it up to date is writing
            store = SqliteStore(self.path)
            await store.open(heard)
            await store.close()
            self._reading = await self._connect()
        self._scanner = Scanner(asyncio.get_running_loop(), self.path)

    async def _connect(self) -> apsw.Connection | None:
        connecting = in_thread(asyncio.get_running_loop(), lambda: _connected(self.path))
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(self._let_go)
            raise

    def _let_go(self, connecting: "asyncio.Future[apsw.Connection | None]") -> None:
        """Nobody waits for it any more."""
        if not connecting.cancelled() and connecting.exception() is None and (connection := connecting.result()):
            connection.close(True)
            opening.disclaim(self.path)

    async def close(self) -> None:
        connection, self._reading = self._reading, None
        if connection is not None:
            await self._scanner.close()
            connection.close(True)
            opening.disclaim(self.path)

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        error = KeepholdError("the store was opened to be looked at; nothing was written", code="store_unavailable")
        asyncio.get_running_loop().call_soon(failed, error)


def _connected(path: Path) -> apsw.Connection | None:
    """A connection that reads; None if the schema is an earlier one."""
    opening.claim(path)
    with contextlib.ExitStack() as undo:
        undo.callback(opening.disclaim, path)
        with opening.explained(path):
            connection = opening.reader(path)
            undo.callback(lambda: connection.close(True))
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if opening.is_of_today(connection, path):
                undo.pop_all()
                return connection
    return None
