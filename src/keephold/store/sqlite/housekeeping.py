"""`keephold store` for a SQLite store: facts, checks, copies and upgrades, without a runtime."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.store.copies import restoring
from keephold.store.housekeeping import Backup, Migrated, Owner, Problem, Restored, Secret, StoreInfo
from keephold.store.rows import made_at
from keephold.store.sql.queries import described
from keephold.store.sqlite import opening
from keephold.store.sqlite.backups import file_problems, is_output_name, problems, read_copy, write_copy
from keephold.store.sqlite.processes import Turnstile, holder, owners_of
from keephold.store.sqlite.statements import APPLICATION_ID, migrations


class SqliteHousekeeping:
    """The operations on the store in one file, which this process need not have open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._output = path.with_name(f"{path.name}-output")
        self._owners = owners_of(path)

    # Looking

    def info(self) -> StoreInfo:
        with self._reading() as connection:
            connection.execute("BEGIN")
            tables = [
                str(name)
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
                )
            ]
            rows = {name: _number(connection, f'SELECT count(*) FROM "{name}"') for name in tables}
            oldest, newest = connection.execute("SELECT min(uid), max(uid) FROM handles").fetchall()[0]
            secrets: list[tuple[Any, ...]] = connection.execute(
                "SELECT id, at, (SELECT count(*) FROM waits w WHERE w.secret_id = s.id AND resolution IS NULL "
                "AND NOT revoked) FROM secrets s ORDER BY number"
            ).fetchall()
            page = _number(connection, "PRAGMA page_size")
            free, schema = _number(connection, "PRAGMA freelist_count"), _number(connection, "PRAGMA user_version")
            connection.execute("ROLLBACK")
        files = [entry.stat().st_size for entry in _files(self._output)]
        return StoreInfo(
            store=str(self._path),
            schema=schema,
            newest_schema=max(migrations()),
            bytes=disk_bytes(self._path),
            free_bytes=free * page,
            output_files=len(files),
            output_bytes=sum(files),
            rows=rows,
            oldest=None if oldest is None else made_at(str(oldest)),
            newest=None if newest is None else made_at(str(newest)),
            owners=[Owner(owner, self._process(owner)) for owner in self._owners.living()],
            secrets=[Secret(str(id), float(at), int(keys)) for id, at, keys in secrets],
        )

    def check(self) -> list[Problem]:
        with self._reading() as connection:
            if _number(connection, "PRAGMA user_version") == max(migrations()):
                return problems(connection, self._output, self._owners)
            older = Problem("schema", "the store has the schema of an older keephold, so only its file was checked; "
                            "upgrade it with `keephold store migrate`")  # fmt: skip
            return [*file_problems(connection), older]

    def _process(self, owner: str) -> str | None:
        return holder(str(self._owners.directory / owner))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        """Connect to the store of any known schema, without changing anything."""
        opening.claim(self._path)
        try:
            with opening.explained(self._path):
                connection = opening.reader(self._path)
                try:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                    opening.version(connection, self._path)
                    yield connection
                finally:
                    connection.close(True)
        finally:
            opening.disclaim(self._path)

    # Copies

    def backup(self, file: Path, *, force: bool) -> Backup:
        with self._reading() as connection:
            current = opening.version(connection, self._path) == max(migrations())
            contents, found = write_copy(connection, self._output, file, current=current, force=force)
        return Backup(
            file=str(file),
            store=str(self._path),
            schema=contents.schema,
            bytes=file.stat().st_size,
            output_files=len(contents.members) - 1,
            problems=found,
        )

    def restore(self, file: Path, *, force: bool) -> Restored:
        path = self._path
        with opening.explained(path):
            opening.check_no_links(path)
            path.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_existing(force=force)
        with (
            restoring(file, str(path)),
            tempfile.TemporaryDirectory(prefix=f"{path.name}.restore-", dir=path.parent) as beside,
        ):
            with file.open("rb") as opened:
                contents = read_copy(opened, Path(beside))
            _check_database(Path(beside) / "keephold.db", file)
            with self._alone("restored"):
                self._refuse_existing(force=force)
                self._replace(Path(beside))
        return Restored(
            store=str(path),
            schema=contents.schema,
            made_at=contents.made_at,
            output_files=len(contents.members) - 1,
        )

    def _refuse_existing(self, *, force: bool) -> None:
        if self._path.exists() and not force:
            raise KeepholdError(
                f"store `{self._path}` exists; name another by --store, or replace it with --force, after a backup",
                code="invalid_arguments",
            )
        if self._path.exists():
            opening.claim(self._path)  # raises if the file is not a store
            opening.disclaim(self._path)

    def _replace(self, new: Path) -> None:
        """Put a store in place. A crash leaves the old one or the new one, perhaps with output of no handle, which
        `keephold gc` deletes."""
        self._output.mkdir(mode=0o700, exist_ok=True)
        kept = {file.name for file in _files(new / "output")}
        for file in _files(new / "output"):
            Path(file.path).replace(self._output / file.name)
        machine.sync_directory(self._output)
        if self._path.exists():
            _write_back(self._path)
            for end in ("-wal", "-shm"):  # the old WAL must not be applied to the new database
                Path(f"{self._path}{end}").unlink(missing_ok=True)
        (new / "keephold.db").replace(self._path)
        machine.sync_directory(self._path.parent)
        for entry in _files(self._output):
            if entry.name not in kept:
                Path(entry.path).unlink(missing_ok=True)

    # Upgrades

    def migrate(self, backup: Path | None) -> Migrated:
        with self._reading() as connection:
            was = opening.version(connection, self._path)
        scripts = {number: script for number, script in migrations().items() if number > was}
        if not scripts:
            return Migrated(store=str(self._path), was=was, schema=was, steps=[], backup=None)
        with self._alone("upgraded"):
            pass  # before a backup is made for nothing
        file = backup or self._path.with_name(f"{self._path.name}.schema-{was}.tar")
        self.backup(file, force=False)
        opening.claim(self._path)
        try:
            with self._alone("upgraded"):
                opening.prepare(self._path).close(True)
        finally:
            opening.disclaim(self._path)
        steps = described(scripts)
        return Migrated(store=str(self._path), was=was, schema=max(scripts), steps=steps, backup=str(file))

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Refuse if a process has the store open. Those that open it meanwhile wait."""
        turnstile = Turnstile(self._path)
        try:
            with turnstile:
                opening.refuse_living(self._path, self._owners, what)
                yield
        finally:
            turnstile.close()


def _check_database(database: Path, file: Path) -> None:
    try:
        connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            if int(connection.pragma("application_id")) != APPLICATION_ID:
                raise KeepholdError(f"the database in `{file}` is that of another program", code="invalid_arguments")
            opening.version(connection, database)
            if found := file_problems(connection):
                raise KeepholdError(f"`{file}` is damaged: {found[0].says}", code="invalid_arguments")
            _check_names(connection)
        finally:
            connection.close()
    except apsw.Error as error:
        raise KeepholdError(f"the database in `{file}` is damaged: {error}", code="invalid_arguments") from error


def _check_names(connection: apsw.Connection) -> None:
    """Raise `KeepholdError` if rows name files outside of the output directory: a runtime would read or delete them."""
    names = "SELECT file FROM outputs WHERE file IS NOT NULL UNION ALL SELECT file FROM litter"
    for (name,) in connection.execute(names):
        if not is_output_name(str(name)):
            why = f"it names `{name!s:.100}`, which is not the name of an output file; use another backup"
            raise KeepholdError(why, code="invalid_arguments")


def _write_back(path: Path) -> None:
    """Move all of a store that will be replaced into its database, so that nothing of it is lost if this is cut off."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(opening.BUSY_MS)
        connection.execute("PRAGMA journal_mode = DELETE")
    except apsw.BusyError as error:
        raise KeepholdError(f"another program reads `{path}`; end it first", code="store_unusable") from error
    except (apsw.CorruptError, apsw.NotADBError):  # then it cannot be saved
        pass
    finally:
        connection.close(True)


def _number(connection: apsw.Connection, query: str) -> int:
    rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    return int(rows[0][0])


def _files(directory: Path) -> "list[os.DirEntry[str]]":
    try:
        return [entry for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def disk_bytes(path: Path) -> int:
    """Return how many bytes the file of a store takes, with the file that is written first."""
    return sum(_size(Path(f"{path}{end}")) for end in ("", "-wal"))


def rewrite(path: Path) -> None:
    """Rewrite the file of a store without unused space. Writers wait meanwhile."""
    connection, turnstile = opening.connect(path), Turnstile(path)
    try:
        with turnstile:
            connection.pragma("auto_vacuum", "incremental")  # for a file that was made without it
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.Error as error:
        raise KeepholdError(
            f"store `{path}` could not be vacuumed: {error}; it is as it was. It takes as much room on the disk again",
            code="store_unavailable",
        ) from error
    finally:
        turnstile.close()
        connection.close(True)
