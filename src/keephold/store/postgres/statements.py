"""How operations run their statements in a transaction of PostgreSQL's writer.

The rules of the operations are plain functions, because on SQLite nothing is between them and the database. Here they
run in a greenlet. When they need the server, the greenlet hands an awaitable to the task that runs it, and continues
with the result.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

from keephold.store.base import Journaled
from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import SQL, Session
from keephold.store.sql.codec import Row

T = TypeVar("T")


async def bridged(work: Callable[..., T], *arguments: Any) -> T:
    """Call the function. Inside it, `wait_for` may be used."""
    inside = greenlet(work)
    asked = inside.switch(*arguments)
    while not inside.dead:
        try:
            answer = await asked
        except BaseException as error:
            asked = inside.throw(error)
        else:
            asked = inside.switch(answer)
    return cast(T, asked)


def wait_for(awaitable: Awaitable[T]) -> T:
    """Wait in a function that `bridged` has called."""
    outside = getcurrent().parent
    assert outside is not None
    return cast(T, outside.switch(awaitable))


class PostgresStatements:
    """The statements of a session. Transactions are READ COMMITTED: a statement sees what was committed before it.

    An operation locks everything it decides by: the row of a call or of a queue (`dialect.sql`), or a name (`lock`).
    """

    sql: Mapping[str, str] = SQL

    def __init__(self, session: Session, address: Address) -> None:
        self._session, self._address = session, address
        self._removed: set[str] = set()

    def rows(self, query: str, bindings: tuple[Any, ...], /) -> list[Row]:
        return wait_for(self._session.rows(query, bindings))

    run = rows

    def many(self, query: str, each: Iterable[tuple[Any, ...]], /) -> None:
        wait_for(self._session.many(query, list(each)))

    def changes(self) -> int:
        return self._session.changes

    def lock(self, *names: str) -> None:
        self.rows(SQL["lock"], (sorted(self._address.key(f"name {name}") for name in names),))

    def lives(self, owner: str) -> bool:
        """Whether a process was not removed, so that it may still write. The last look may have been wrong about it."""
        if owner not in self._removed and not self.rows(SQL["registered"], (owner,)):
            self._removed.add(owner)
        return owner not in self._removed

    def record_steps(self, ops: Sequence[Journaled], /) -> int:
        return int(self.rows(SQL["record_steps"], steps(ops))[0][0])

    def shrink(self) -> bool:
        return False  # the server does that by itself


def step(op: Journaled) -> tuple[Any, ...]:
    """Return the columns of a journal line."""
    return op.uid, op.fence, op.kind, op.name, op.digest, op.value, op.ok, op.input or None


def steps(ops: Sequence[Journaled]) -> tuple[list[Any], ...]:
    """Return the same of several, as one list for each column."""
    return tuple(map(list, zip(*map(step, ops), strict=True)))
