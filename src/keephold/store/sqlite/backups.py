"""Copies of a SQLite store, which are the database and the output files that it refers to; and whether a store is
whole.

The database is copied by SQLite's backup API in one read transaction, which keeps no writer waiting. An output file
that is referred to does not change any more, but retention may delete it. So the files get second names (hard links)
before the database is read: a file that the copy refers to is either among those, or was made since and is still there.

A check runs SQLite's own check of the file, then looks for what must always hold of the rows and the output files.
Everything is read in one transaction, so a runtime that writes meanwhile does not matter.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import apsw
import msgspec

from keephold.store import copies
from keephold.store.copies import Contents, damaged, refused
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


# Copies

LINKS = ".backup-"
"""Prefix of the directory for the second names of output files, in the store's output directory."""
_PAGES = 4096
"""Pages that are copied at once; then Ctrl-C is heard."""
_TRIES = 3
_LEFT_SECS = 86_400.0
_DATABASE, _OUTPUT = "keephold.db", "output/"
_NAME = re.compile(r"\w[\w.-]{0,200}")


def is_output_name(name: str) -> bool:
    """Return whether a file of this name is in the output directory itself."""
    return _NAME.fullmatch(name) is not None


def _is_ours(name: str) -> bool:
    return name == _DATABASE or (name.startswith(_OUTPUT) and is_output_name(name.removeprefix(_OUTPUT)))


_KIND = copies.Kind("SQLite", _is_ours)


def write_copy(
    source: apsw.Connection, output: Path, file: Path, *, current: bool, force: bool
) -> tuple[Contents, list[Problem]]:
    """Copy a store into `file`, complete or not at all. `current`: it has this keephold's schema, and its rows are
    checked, too."""
    with copies.writing(_KIND, file, force=force) as copy, _second_names(output) as links:
        database = copy.directory / _DATABASE
        made, found = _copied(source, output, links, database, current=current)
        for name, path in [(_DATABASE, database), *((f"{_OUTPUT}{name}", links / name) for name in made.files)]:
            copy.add(name, path, made.at)
        return copy.finish(made.schema, made.at), found


def read_copy(opened: IO[bytes], into: Path) -> Contents:
    """Read a copy, and write its members into a directory. Raises `KeepholdError` if it is not a whole copy."""
    contents = copies.read_copy(_KIND, opened, into)
    if _DATABASE not in contents.members:
        raise damaged()
    return contents


@contextlib.contextmanager
def _second_names(output: Path) -> Iterator[Path]:
    """Give every output file a second name for as long as the block runs."""
    output.mkdir(mode=0o700, exist_ok=True)
    for left in output.glob(f"{LINKS}*"):  # of a backup that was killed
        if time.time() - left.stat().st_mtime > _LEFT_SECS:
            shutil.rmtree(left, ignore_errors=True)
    links = Path(tempfile.mkdtemp(prefix=LINKS, dir=output))
    try:
        for entry in os.scandir(output):
            if entry.is_file(follow_symlinks=False):
                _link(Path(entry.path), links)
        yield links
    finally:
        shutil.rmtree(links, ignore_errors=True)


def _link(file: Path, links: Path) -> bool:
    """Return whether the file exists, and now has a second name or a copy there."""
    try:
        os.link(file, links / file.name)
    except FileExistsError:
        pass
    except FileNotFoundError:
        return False
    except OSError:  # the file system has no hard links
        try:
            shutil.copyfile(file, links / file.name)
        except FileNotFoundError:
            return False
    return True


def _copied(
    source: apsw.Connection, output: Path, links: Path, database: Path, *, current: bool
) -> tuple["_Made", list[Problem]]:
    """Copy and check the database; again, if output that it refers to was deleted meanwhile."""
    for attempt in range(_TRIES):
        database.unlink(missing_ok=True)
        schema, at = _snapshot(source, database), time.time()
        connection = apsw.Connection(str(database))
        try:
            wanted = [str(file) for (file,) in connection.execute("SELECT file FROM outputs WHERE file IS NOT NULL")]
            there = [file for file in wanted if _link(output / file, links) or (links / file).exists()]
            if len(there) == len(wanted) or attempt == _TRIES - 1:
                found = problems(connection, links, None) if current else file_problems(connection)
                damaged = [each for each in found if each.rule == "sqlite"]
                if damaged:
                    raise refused(f"nothing was written: the store is damaged. {damaged[0].says}")
                # Files of running calls are linked, too: they are orphans only in the copy.
                found = [each for each in found if each.rule != "orphaned_output"]
                return _Made(schema, at, there), found
        finally:
            connection.close()
    raise AssertionError("the last attempt returns")


class _Made(msgspec.Struct, frozen=True):
    schema: int
    at: float
    files: list[str]


def _snapshot(source: apsw.Connection, database: Path) -> int:
    """Copy the database as it is at one moment. Returns its schema."""
    target = apsw.Connection(str(database))
    source.execute("BEGIN")
    try:
        schema = int(source.pragma("user_version"))  # the transaction reads from here on
        with target.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(_PAGES)
    finally:
        source.execute("ROLLBACK")
        target.close()
    return schema
