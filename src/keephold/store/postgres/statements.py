"""How operations run their statements in a transaction of PostgreSQL's writer: in a greenlet (`bridge.py`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keephold.store.base import Journaled
from keephold.store.postgres.address import Address
from keephold.store.postgres.bridge import wait_for
from keephold.store.postgres.connecting import Session
from keephold.store.postgres.sql import SQL
from keephold.store.sql.codec import Row


class PostgresStatements:
    """The statements of a session. Transactions are READ COMMITTED: a statement sees what was committed before it.

    An operation locks everything it decides by: the row of a call or of a queue (`dialect.sql`), or a name (`lock`).
    """

    sql: Mapping[str, str] = SQL

    def __init__(self, session: Session, address: Address) -> None:
        self._session, self._address = session, address

    def rows(self, query: str, bindings: tuple[Any, ...], /) -> list[Row]:
        return wait_for(self._session.rows(query, bindings))

    run = rows

    def many(self, query: str, each: Iterable[tuple[Any, ...]], /) -> None:
        wait_for(self._session.many(query, list(each)))

    def changes(self) -> int:
        return self._session.changes

    def lock(self, *names: str) -> None:
        self.rows(SQL["lock"], (sorted(self._address.key(f"name {name}") for name in names),))

    def record_steps(self, ops: Sequence[Journaled], /) -> int:
        return int(self.rows(SQL["record_steps"], steps(ops))[0][0])


def step(op: Journaled) -> tuple[Any, ...]:
    """Return the columns of a journal line."""
    return op.uid, op.fence, op.kind, op.name, op.digest, op.value, op.ok, op.input or None


def steps(ops: Sequence[Journaled]) -> tuple[list[Any], ...]:
    """Return the same of several, as one list for each column."""
    return tuple(map(list, zip(*map(step, ops), strict=True)))
