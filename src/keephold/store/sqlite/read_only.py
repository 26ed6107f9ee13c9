"""A SQLite store that is only read: it writes nothing and registers no owner.

So it works while the disk is full, and a command that lists handles does not wait for a writer.
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
from keephold.store.sqlite.processes import owners_of
from keephold.store.sqlite.reads import Reads
from keephold.store.sqlite.threads import Scanner, in_thread


class ReadOnlyStore(Reads):
    """The store in the existing file at `path`. It does not hear of changes."""

    durable = True
    inline_output = opening.INLINE_OUTPUT
    owner = ""
    trouble: str | None = None
    on_commit: Listeners[[]] = Listeners()

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

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        error = KeepholdError("the store was opened read-only; nothing was written", code="store_unavailable")
        asyncio.get_running_loop().call_soon(failed, error)


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
