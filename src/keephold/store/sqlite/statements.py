"""The SQL of SQLite's store: named queries, the schema as numbered migrations, and how the writer's operations run
statements on its connection."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw

from keephold.store.base import Journaled
from keephold.store.sql import queries
from keephold.store.sql.codec import Row

_HERE = Path(__file__).parent

APPLICATION_ID = 0x686C6466
"""The application id in the header of every store: `hldf`."""

SQL = queries.queries(_HERE / "dialect.sql")


def migrations() -> dict[int, str]:
    """Return the schema: by number, in order, the script that leads to it from the one before."""
    return queries.migrations(_HERE / "schema")


_RECORD_STEP = SQL["record_step"]
_ADD = {many: f"{SQL['add_event']}{', (?, ?, ?, ?, ?)' * (many - 1)}" for many in (32, 16, 8, 4, 2, 1)}
"""A statement, by how many events it writes."""

_SPARE = 4096
"""Unused pages that a file keeps for what is written next; and a quarter of all."""
_RETURNED = 128
"""Pages that one transaction returns to the disk."""


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

    def lives(self, owner: str) -> bool:
        return False  # a lock that the kernel has released is never taken again

    def shrink(self) -> bool:
        """Return some unused pages to the disk, if much of the file is unused; return whether there are more. A file
        that keephold made before it did this keeps its pages until `keephold gc --vacuum`."""
        free, pages = (self._number(f"PRAGMA {each}") for each in ("freelist_count", "page_count"))
        if free <= max(_SPARE, pages // 4):
            return False
        self.rows(f"PRAGMA incremental_vacuum({_RETURNED})", ())
        return self._number("PRAGMA freelist_count") < free

    def _number(self, query: str) -> int:
        return int(self.rows(query, ())[0][0])

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
