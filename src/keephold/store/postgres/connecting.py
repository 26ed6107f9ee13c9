"""Connections to the server: how they are made, their settings, the named queries, and what errors mean."""

import asyncio
import contextlib
import os
import re
import socket
from functools import lru_cache
from pathlib import Path
from typing import Any

import asyncpg

from keephold.errors import KeepholdError
from keephold.forking import close_in_children
from keephold.store.postgres.address import Address, Server, wrong
from keephold.store.sql import queries
from keephold.store.sql.codec import Row

SQL = queries.queries(Path(__file__).with_name("dialect.sql"))
"""The named queries of the store."""
CONNECT_SECS = 10.0
"""Seconds to wait for servers that do not answer, all of an address together. Less than `GONE_SECS`."""
GONE_SECS = 15
"""Seconds after which a connection that brings no answer counts as lost, on both sides (E6). Without this, a host that
has lost its power would hold its lock for hours."""
OLDEST = 140_000
"""The oldest version of the server that has all we use."""

_SETTINGS = {
    "client_min_messages": "warning",
    "jit": "off",
    "enable_seqscan": "off",  # every query has an index; a plan must not depend on how old the statistics are
    "lock_timeout": "0",  # a role may have one, and a commit that waits for another process would be refused
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": str(1000 * GONE_SECS),
    "idle_in_transaction_session_timeout": str(1000 * GONE_SECS),  # of a process that is stopped in the middle
}

LOST: tuple[type[BaseException], ...] = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server has said that it ends the session, and not ended the connection yet
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
"""Errors of the connection."""
STORAGE: tuple[type[BaseException], ...] = (
    *LOST,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.InternalServerError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
"""All errors that a refused commit did not cause."""
MISTAKEN: tuple[type[BaseException], ...] = (
    asyncpg.ClientConfigurationError,
    asyncpg.CantChangeRuntimeParamError,
    asyncpg.InvalidParameterValueError,
    asyncpg.UndefinedObjectError,
)
"""Errors of a connection whose URL has a parameter, or a value of one, that does not exist."""
AGAIN: tuple[type[BaseException], ...] = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
)
"""Another process was at the same rows: the transaction is to be done again."""
COLLIDED: tuple[type[BaseException], ...] = (asyncpg.UniqueViolationError,)
"""Another process has just added the same row: the transaction is to be done again, and will find it. If it collides
again and again, the commit itself is wrong."""


async def session(address: Address, *, any_server: bool = False, **settings: str) -> "Session":
    """Return a session with our settings, to the first server of the address that takes writes.

    An old primary may answer as a standby after a fail-over, and what it knows is out of date. With `any_server`, a
    server that takes no writes is used if no other answers.
    """
    secs = CONNECT_SECS / len(address.servers)  # for each, so that one that is silent does not keep us from the others
    attempts = [(server, "read-write") for server in address.servers]
    refused: BaseException | None = None
    for server, kind in attempts:
        try:
            async with asyncio.timeout(secs):
                return Session(await _connect(address, server, kind, settings))
        except asyncpg.TargetServerAttributeNotMatched as error:
            refused = refused or error
            if any_server:
                attempts.append((server, "any"))
        except LOST as error:
            refused = error
    assert refused is not None
    raise refused


async def _connect(address: Address, server: Server, kind: str, settings: dict[str, str]) -> "asyncpg.Connection[Any]":
    """Connect to one server. Our settings do not go into the first packet, where pgbouncer refuses them."""
    host, port = server
    try:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            address.dsn, host=host, port=port, statement_cache_size=0, target_session_attrs=kind
        )
    except MISTAKEN as error:
        raise wrong(f"{said(error)} (its parameters are those of asyncpg and settings of the server)") from None
    resume = connection._protocol.resume_writing
    connection.add_termination_listener(lambda _: resume())  # or a long `executemany` would never end
    try:
        own = {"application_name": f"keephold {address.schema}"[:63], "search_path": address.schema}
        chosen = {**_SETTINGS, **own, **settings}
        names = ", ".join(f"set_config('{name}', ${place}, false)" for place, name in enumerate(chosen, 1))
        await connection.execute(f"SELECT {names}", *chosen.values())
    except BaseException:
        connection.terminate()
        raise
    return connection


_MARK = re.compile(r"\?(\d*)")


@lru_cache(maxsize=4096)
def _numbered(query: str) -> str:
    """Return the query with `$1` where it has `?` or `?1`."""
    place = 0

    def mark(found: re.Match[str]) -> str:
        nonlocal place
        place += 1
        return f"${found[1] or place}"

    return _MARK.sub(mark, query)


class _Socket:
    """The socket of a connection. Children that are forked do not keep it: the lock of a dead process would last."""

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        transport = getattr(connection, "_transport", None)
        self._raw = None if transport is None else transport.get_extra_info("socket")
        close_in_children(self)

    def close(self) -> None:
        if self._raw is not None and self._raw.fileno() >= 0:
            os.close(self._raw.fileno())

    def watch_out(self) -> None:
        """Have the kernel end the connection if the server does not answer any more."""
        raw = self._raw
        if raw is None or raw.family == getattr(socket, "AF_UNIX", None):
            return
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            options = (("KEEPIDLE", 5), ("KEEPINTVL", 5), ("KEEPCNT", 2), ("USER_TIMEOUT", 1000 * GONE_SECS))
            for option, value in options:
                if hasattr(socket, f"TCP_{option}"):  # macOS has not all of them
                    raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)


class Session:
    """A connection with its prepared statements."""

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self.connection = connection
        self.socket = _Socket(connection)
        self.socket.watch_out()
        self.changes = 0
        """How many rows the last statement has changed."""
        self._prepared: dict[str, Any] = {}
        self._names = 0

    async def rows(self, query: str, bindings: tuple[Any, ...]) -> list[Row]:
        prepared = self._prepared.get(query) or await self._prepare(query)
        found: list[Row] = await prepared.fetch(*bindings)
        count = prepared.get_statusmsg().rpartition(" ")[2]
        self.changes = int(count) if count.isdecimal() else 0
        return found

    async def many(self, query: str, each: list[tuple[Any, ...]]) -> None:
        prepared = self._prepared.get(query) or await self._prepare(query)
        await prepared.executemany(each)

    async def run(self, statement: str) -> None:
        """Run a statement without bindings, such as COMMIT."""
        await self.connection.execute(statement)

    async def _prepare(self, query: str) -> Any:
        if len(self._prepared) >= 500:
            self._prepared.clear()
        self._names += 1  # without a name, the server would parse and plan the query each time
        prepared = await self.connection.prepare(_numbered(query), name=f"keephold_{self._names}")
        self._prepared[query] = prepared
        return prepared

    async def close(self) -> None:
        """Say good-bye to the server, or drop the connection if it does not listen."""
        try:
            await self.connection.close(timeout=2)
        except (Exception, asyncio.CancelledError):
            self.connection.terminate()

    @property
    def closed(self) -> bool:
        return bool(self.connection.is_closed())


async def whose(found: Session) -> tuple[int, Any]:
    """Return the number of the session, and when it began."""
    ((pid, began),) = await found.rows(SQL["this_session"], ())
    return pid, began


def is_lost(error: BaseException, found: Session) -> bool:
    """Whether the connection is lost, so that the server may have done what it was asked, or may still do it."""
    return found.closed or isinstance(error, LOST)


def said(error: BaseException) -> str:
    """Return what an error says, in one line."""
    words = " ".join(str(error).split())
    return words or type(error).__name__


def sentence(address: Address, error: BaseException) -> str:
    """Say what is wrong, and what to do."""
    if isinstance(error, KeepholdError):
        return error.message
    why, what = said(error), f"`{address.name}`"
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return f"{what} refuses the login; see the user in the URL, and the password in PGPASSWORD or ~/.pgpass ({why})"
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return f"{what} does not exist; create the database, or name another one ({why})"
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return f"{what} lacks a right; let the user create and use the schema ({why})"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return f"{what} takes no more connections; raise `max_connections`, or end other clients ({why})"
    if isinstance(error, asyncpg.DiskFullError):
        return f"the disk of {what} is full; free some space on it ({why})"
    if isinstance(error, asyncpg.LockNotAvailableError):
        return f"{what} is busy: another transaction uses its tables; try again later ({why})"
    if isinstance(error, (asyncpg.ReadOnlySQLTransactionError, asyncpg.TargetServerAttributeNotMatched)):
        return f"{what} is read-only: it is a standby, or a fail-over is under way; name all servers in the URL ({why})"
    if isinstance(error, LOST):
        return f"{what} cannot be reached; see that the server runs and that the network leads to it ({why})"
    return f"{what} cannot write: {why}"


def unfit(error: BaseException) -> str:
    """Say why the server does not take a value."""
    if isinstance(error, asyncpg.CharacterNotInRepertoireError):
        return "PostgreSQL keeps no names that contain the character NUL"
    if isinstance(error, asyncpg.ProgramLimitExceededError):
        return f"a name is too long for PostgreSQL; use fewer than 2,000 characters ({said(error)})"
    return f"{type(error).__name__}: {said(error)}"
