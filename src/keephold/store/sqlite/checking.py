"""Whether a store is whole: SQLite's own check of the file, then what must always hold of its rows and output files.

Everything is read in one transaction, so a runtime that writes meanwhile does not matter.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from keephold.store.housekeeping import Problem
from keephold.store.sql.checking import INVARIANTS, MANY, more, violations
from keephold.store.sqlite.processes import Owners

_YOUNG_SECS = 60.0
"""An output file that was written to this recently may belong to a handle that is not written yet."""


def problems(connection: apsw.Connection, output: Path, owners: Owners | None) -> list[Problem]:
    """Check a store of this keephold's schema. `owners`: those of a store in use; a copy has none."""
    connection.execute("BEGIN")
    try:
        found = file_problems(connection)
        for rule, query in () if found else INVARIANTS.items():
            found += violations(rule, connection.execute(query).fetchall())
        if not found or found[0].rule != "sqlite":
            found += [*_missing_files(connection, output), *_orphans(connection, output)]
            found += [] if owners is None else _displaced(connection, owners)
        return found
    finally:
        connection.execute("ROLLBACK")


def file_problems(connection: apsw.Connection) -> list[Problem]:
    """Return what SQLite itself finds, which works for any schema."""
    told = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({MANY})").fetchall()]
    return [Problem("sqlite", f"SQLite: {' '.join(each.split())}; restore a backup") for each in told if each != "ok"]


def _missing_files(connection: apsw.Connection, output: Path) -> list[Problem]:
    rows = connection.execute(
        "SELECT h.uid, o.file FROM outputs o JOIN handles h ON h.number = o.handle WHERE o.file IS NOT NULL"
    )
    missing = [(uid, file) for uid, file in rows if not (output / file).is_file()]
    return [
        Problem("missing_output", f"the output of handle `{uid}` is missing: there is no file `{output / file}`; put "
        "it back from a backup, or live without it")
        for uid, file in missing[:MANY]
    ] + more("missing_output", missing)  # fmt: skip


def _orphans(connection: apsw.Connection, output: Path) -> list[Problem]:
    known = "SELECT 1 FROM handles WHERE uid = ?1 UNION ALL SELECT 1 FROM outputs WHERE file = ?1"
    orphans = [
        file
        for file in _files(output)
        if not connection.execute(f"{known} UNION ALL SELECT 1 FROM litter WHERE file = ?1", (file.name,)).fetchall()
    ]
    return [
        Problem("orphaned_output", f"output file `{file}` belongs to no handle; `keephold gc` deletes it when it is an "
        "hour old")
        for file in orphans[:MANY]
    ] + more("orphaned_output", orphans)  # fmt: skip


def _files(output: Path) -> Iterator[Path]:
    try:
        for file in output.iterdir():
            try:
                if file.is_file() and time.time() - file.stat().st_mtime > _YOUNG_SECS:
                    yield file
            except FileNotFoundError:  # just deleted
                continue
    except FileNotFoundError:
        return


def _displaced(connection: apsw.Connection, owners: Owners) -> list[Problem]:
    rows = connection.execute(
        "SELECT owner, count(*) FROM handles h WHERE owner IS NOT NULL AND stopped_at IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM owners o WHERE o.owner = h.owner) GROUP BY owner"
    ).fetchall()
    return [
        Problem("displaced_owner", f"process `{owner}` is alive and runs {count} calls, but other processes took it "
        "for dead, so nothing it does is recorded; restart it")
        for owner, count in rows
        if owners.alive(str(owner))
    ]  # fmt: skip
