"""How operations run their statements on a connection of SQLite's writer."""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from keephold.store.base import Journaled
from keephold.store.sql.codec import Row
from keephold.store.sqlite.sql import SQL

_RECORD_STEP = SQL["record_step"]
_ADD = {many: f"{SQL['add_event']}{', (?, ?, ?, ?, ?)' * (many - 1)}" for many in (32, 16, 8, 4, 2, 1)}
"""A statement, by how many events it writes."""


class SqliteStatements:
    """The statements of a connection. One transaction writes at a time, so `lock` has nothing to do."""

    __slots__ = ("changes", "many", "run", "total_changes")
    sql: Mapping[str, str] = SQL

    def __init__(self, connection: apsw.Connection) -> None:
        self.run = connection.execute
        self.many = connection.executemany
        self.changes = connection.changes
        self.total_changes = connection.total_changes

    def rows(self, query: str, bindings: tuple[Any, ...], /) -> list[Row]:
        return self.run(query, bindings).fetchall()

    def lock(self, *names: str) -> None:
        pass

    def record_steps(self, ops: Sequence[Journaled], /) -> int:
        before = self.total_changes()
        lines = [(op.kind, op.name, op.digest, op.value, op.ok, op.input or None, op.uid, op.fence) for op in ops]
        if len(lines) == 1:
            self.run(_RECORD_STEP, lines[0])
        else:
            self.many(_RECORD_STEP, lines)
        return self.total_changes() - before

    def add_events(self, rows: Sequence[Row]) -> None:
        """Write events by few statements: each releases the interpreter's lock and waits for it."""
        values = [value for row in rows for value in row]
        first = 0
        for many, statement in _ADD.items():
            while 5 * many <= len(values) - first:
                self.run(statement, tuple(values[first : first + 5 * many]))
                first += 5 * many
