"""The store in a schema of a PostgreSQL database, for any number of processes on any number of machines.

Everything is in tables, outputs included, so that every machine can read it. A runtime has four kinds of connections:
one that writes, one that holds the lock of the process and listens, a few that read, and one that deletes what is old,
which is open only meanwhile. Each is made again when it is lost.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from keephold.errors import KeepholdError
from keephold.listeners import Listeners
from keephold.store.base import Done, Failed, Heard, Op
from keephold.store.postgres.address import Address, address
from keephold.store.postgres.connecting import SQL, STORAGE, Session, sentence, session, whose
from keephold.store.postgres.opening import own_tables, prepare, require_current
from keephold.store.postgres.presence import Presence, Table
from keephold.store.postgres.reads import Readers, Reads
from keephold.store.postgres.writer import Fault, Writer
from keephold.store.sql.queries import unusable
from keephold.store.sql.reads import ReadOnly, refuse
from keephold.store.sql.transaction import Commit, complain, tell

if TYPE_CHECKING:
    from keephold.store.postgres.housekeeping import PostgresHousekeeping

INLINE_OUTPUT = 1 << 40
"""All output goes into the commit."""
BUSY = "5s"
"""How long a vacuum waits for other transactions, a backup for instance. Everything else waits behind it."""

BROWSERS_SECS = 30 * 86_400.0
"""Sessions that no server has changed for this long have expired: a token was replaced, for instance."""


class PostgresStore(Reads):
    """Keeps everything in the schema that the URL names, and makes it if it does not exist.

    `fault` is for tests: the writer calls it with "before" when the statements of a transaction have been run, and with
    "after" when it is committed and no callback has run.
    """

    durable = True
    inline_output = INLINE_OUTPUT
    directory: Path | None = None

    def __init__(self, url: str | Address, *, fault: Fault | None = None) -> None:
        self.address = address(url) if isinstance(url, str) else url
        self.owner = ""
        self._unwritten: str | None = None
        self.on_commit: Listeners[[]] = Listeners()
        self._fault = fault
        self._presence = Presence(self.address)
        self._table = self._presence.table
        self._writer: Writer | None = None
        self._closed: asyncio.Future[None] | None = None
        self._process = 0

    @property
    def trouble(self) -> str | None:
        return self._unwritten or self._presence.trouble

    @property
    def ear(self) -> str:
        return self._presence.ear

    @property
    def on_whisper(self) -> Listeners[[str | None]]:
        return self._presence.on_whisper

    async def whisper(self, ear: str, message: str) -> None:
        with self._explained():
            await self._presence.whisper(ear, message)

    @property
    def commits(self) -> int:
        """Transactions done since the store was opened."""
        return 0 if self._writer is None else self._writer.commits

    def housekeeping(self) -> "PostgresHousekeeping":
        """Return what can be done with the whole store; it need not be open."""
        from keephold.store.postgres.housekeeping import PostgresHousekeeping

        return PostgresHousekeeping(self.address)

    @asynccontextmanager
    async def sole(self) -> AsyncIterator[bool]:
        """Hold the lock under which one process at a time deletes and archives what is old. False: another has it. The
        session of the lock writes the deletions."""
        assert self._writer is not None, "the store is open"
        async with self._session(synchronous_commit="off") as found:
            with self._explained():
                ((alone,),) = await found.rows(SQL["take_lock"], (self.address.key("sole"),))
                who = await whose(found)
            if not alone:
                yield False
                return
            async with self._writer.aside(found, who):
                yield True

    async def vacuum(self) -> None:
        async with self._session(lock_timeout=BUSY) as found:
            with self._explained():
                for table in own_tables():
                    await found.run(f'VACUUM (FULL) "{table}"')

    # The browser sessions of each owner of a dashboard (`serve/sessions.py`)

    async def browser_owners(self) -> list[str]:
        return [owner for (owner,) in await self._rows(SQL["browser_owners"], ())]

    async def browser_sessions(self, owner: str) -> bytes | None:
        rows = await self._rows(SQL["browser_sessions"], (owner,))
        return rows[0][0] if rows else None

    async def keep_browser_sessions(self, owner: str, was: bytes | None, document: bytes, at: float) -> bool:
        async with self._session() as found:
            with self._explained():
                if was is not None:
                    return bool(await found.rows(SQL["replace_browser_sessions"], (document, at, owner, was)))
                await found.rows(SQL["delete_browser_sessions"], (at - BROWSERS_SECS,))
                return bool(await found.rows(SQL["add_browser_sessions"], (owner, document, at)))

    @asynccontextmanager
    async def _session(self, **settings: str) -> AsyncIterator[Session]:
        """A connection of its own."""
        with self._explained():
            found = await session(self.address, any_server=False, **settings)
        try:
            yield found
        finally:
            await found.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (*STORAGE, asyncpg.LockNotAvailableError) as error:
            raise KeepholdError(sentence(self.address, error), code="store_unavailable") from error

    async def open(self, heard: Heard) -> None:
        try:
            first = await session(self.address)
            try:
                await prepare(first, self.address)
                await self._presence.enter(heard)
                try:
                    await require_current(first, self.address)  # others may have upgraded it before this one was there
                except BaseException:
                    await self._presence.leave()
                    raise
            finally:
                await first.close()
        except (*STORAGE, asyncpg.LockNotAvailableError) as error:
            raise unusable(sentence(self.address, error)) from error
        self._process = os.getpid()
        self.owner = self._presence.owner
        self._readers = Readers(self.address)
        self._writer = Writer(self._presence, self._tell, self._fault)
        self._presence.silent = self._give_up
        self._written = asyncio.get_running_loop().create_task(self._writer.run(), name="keephold-postgres")
        self._written.add_done_callback(self._no_more)

    def _give_up(self) -> None:
        assert self._writer is not None and self._readers is not None
        self._writer.give_up()
        self._readers.give_up()

    async def close(self) -> None:
        if self._closed is None:
            if self._writer is None or os.getpid() != self._process:  # a forked child leaves it to its parent
                return
            self._closed = asyncio.ensure_future(self._close(self._writer))
        await asyncio.shield(self._closed)

    async def _close(self, writer: Writer) -> None:
        writer.finish()
        await asyncio.wait([self._written])
        if self._readers is not None:
            await self._readers.close()
        await self._presence.leave()

    def commit(self, ops: Sequence[Op], done: Done, failed: Failed, *, keep: bool = False) -> None:
        if self._writer is None or self._closed is not None or os.getpid() != self._process:
            refuse(failed, "the store is closed")
            return
        self._writer.give(Commit(ops, done, failed, keep))

    async def owners(self) -> list[str]:
        found = await super().owners()
        with self._explained():
            await self._presence.look()
        return found

    def _tell(self, commits: list[Commit], trouble: str | None) -> None:
        self._unwritten = trouble
        tell(commits, self.on_commit)

    def _no_more(self, written: asyncio.Task[None]) -> None:
        """Report that the writer has ended because of a bug; nobody else would notice."""
        if not written.cancelled() and (error := written.exception()):
            self._unwritten = f"writing `{self.address.name}` has ended ({error!r}); close the store and open it again"
            complain(self._unwritten, error)


class ReadOnlyPostgres(ReadOnly, Reads):
    """An existing store that is only read."""

    inline_output = INLINE_OUTPUT
    directory: Path | None = None

    def __init__(self, url: str | Address) -> None:
        self.address = address(url) if isinstance(url, str) else url
        self._table = Table()

    async def open(self, heard: Heard) -> None:
        try:
            first = await session(self.address, any_server=True, default_transaction_read_only="on")
            try:
                await require_current(first, self.address)
                for owner in await self._table.look(first, 0.0):
                    self._table.bury(owner)
            finally:
                await first.close()
        except STORAGE as error:
            raise unusable(sentence(self.address, error)) from error
        self._readers = Readers(self.address, any_server=True)

    async def close(self) -> None:
        if self._readers is not None:
            await self._readers.close()
