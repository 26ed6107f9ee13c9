"""Copies of a PostgreSQL store: the rows of each table as the server's COPY sends them, compressed.

All tables are read in one REPEATABLE READ transaction, which keeps no writer waiting. A copy can be restored to any
database and schema. It belongs to no process there: the processes of the original may still be alive.
"""

import gzip
import re
import tarfile
import time
from pathlib import Path
from typing import IO

import asyncpg
from msgspec.structs import astuple

from keephold.store import copies
from keephold.store.copies import Contents, Table, damaged, refused
from keephold.store.housekeeping import Problem
from keephold.store.postgres.address import Address
from keephold.store.postgres.connecting import SQL, Session
from keephold.store.postgres.opening import migrations, own_tables, remove_owners
from keephold.store.sql.checking import INVARIANTS, violations

_MEMBER = re.compile(r"tables/(\w{1,63})\.gz")
_KIND = copies.Kind("PostgreSQL", lambda name: _MEMBER.fullmatch(name) is not None)
_RULES = {rule: query for rule, query in INVARIANTS.items() if rule != "missing_events"}
"""The number of an event is lost when its transaction is rolled back."""


async def tables(found: Session) -> dict[str, list[str]]:
    """Return the tables of the store, in order, and their columns."""
    columns: dict[str, list[str]] = {}
    for table, column in await found.rows(SQL["columns"], (own_tables(),)):
        columns.setdefault(table, []).append(column)
    return columns


async def problems(found: Session) -> list[Problem]:
    """Check the rows of a store of this keephold's schema."""
    return [each for rule, query in _RULES.items() for each in violations(rule, await found.rows(query, ()))]


async def write_copy(found: Session, address: Address, schema: int, file: Path, *, force: bool) -> list[Problem]:
    """Copy a store into `file`, complete or not at all, and return its problems. The session is in a transaction that
    reads one moment."""
    copied: dict[str, Table] = {}
    with copies.writing(_KIND, file, force=force) as copy:
        at = time.time()
        for table, columns in (await tables(found)).items():
            part = copy.directory / f"{table}.gz"
            with gzip.open(part, "wb", compresslevel=6) as packed:
                done = await found.connection.copy_from_table(
                    table, schema_name=address.schema, columns=columns, format="binary", output=packed
                )
            copied[table] = Table(columns, int(done.split()[-1]))
            copy.add(f"tables/{table}.gz", part, at)
            part.unlink()
        broken = await problems(found) if schema == max(migrations()) else []
        rules = sorted({each.rule for each in broken})
        copy.finish(schema, at, tables=copied, broken=rules)
    return broken


def read_contents(opened: IO[bytes]) -> Contents:
    """Read all of a copy. Raises `KeepholdError` if it is not whole."""
    contents = copies.read_copy(_KIND, opened)
    if set(contents.members) != {f"tables/{table}.gz" for table in contents.tables}:
        raise damaged()
    if contents.schema > max(migrations()):
        raise refused(f"it has schema {contents.schema}, this keephold knows {max(migrations())}; use a newer keephold")
    return contents


async def load(found: Session, address: Address, opened: IO[bytes], contents: Contents) -> None:
    """Fill the tables of a new schema of that version, and check that nothing is missing. The session is in a
    transaction."""
    if await tables(found) != {name: table.columns for name, table in contents.tables.items()}:
        raise refused(f"its tables are not those of schema {contents.schema}; use another backup")
    for table in contents.tables:  # triggers count rows; the counts are in the copy
        await found.run(f'ALTER TABLE "{table}" DISABLE TRIGGER USER')
        await found.run(f'DELETE FROM "{table}"')  # a schema begins with some rows
    opened.seek(0)
    with tarfile.open(fileobj=opened, mode="r:") as tar:
        for member in tar:
            data, name = tar.extractfile(member), _MEMBER.fullmatch(member.name)
            if name is None or data is None:
                continue
            columns, rows = astuple(contents.tables[name[1]])
            try:
                with gzip.open(data) as packed:
                    done = await found.connection.copy_to_table(
                        name[1], schema_name=address.schema, columns=columns, format="binary", source=packed
                    )
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, EOFError, gzip.BadGzipFile) as error:
                raise refused(f"table `{name[1]}` is damaged: {error}; use another backup") from error
            if int(done.split()[-1]) != rows:
                raise damaged()
    await found.run(SQL["renumber"])
    for table in contents.tables:
        await found.run(f'ALTER TABLE "{table}" ENABLE TRIGGER USER')
    await remove_owners(found)
    if "browsers" in contents.tables:  # a session that has ended since must not be back
        await found.run("DELETE FROM browsers")
    if contents.schema == max(migrations()):
        for each in await problems(found):
            if each.rule not in contents.broken:
                raise refused(f"the restored rows are wrong: {each.says}")
