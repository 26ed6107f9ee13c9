"""Copies of a store in one file: a tar of the database, the output files that it refers to, and a list of both.

The database is copied by SQLite's backup API in one read transaction, which keeps no writer waiting. An output file
that is referred to does not change any more, but retention may delete it. So the files get second names (hard links)
before the database is read: a file that the copy refers to is either among those, or was made since and is still there.

The list of members with their digests is the last member: a copy that was cut off has none.
"""

import contextlib
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import apsw
import msgspec

from keephold.errors import KeepholdError
from keephold.store.housekeeping import Problem
from keephold.store.sqlite.checking import file_problems, problems

LINKS = ".backup-"
"""Prefix of the directory for the second names of output files, in the store's output directory."""
_PAGES = 4096
"""Pages that are copied at once; then Ctrl-C is heard."""
_TRIES = 3
_LEFT_SECS = 86_400.0
_PART = 1 << 20
_DATABASE, _OUTPUT, _LIST = "keephold.db", "output/", "keephold.json"
_NAME = re.compile(r"\w[\w.-]{0,200}")


class Contents(msgspec.Struct, frozen=True):
    """The last member of a copy."""

    format: int
    schema: int
    made_at: float
    members: dict[str, str]
    """SHA-256 in hexadecimal, by name."""


def write_copy(
    source: apsw.Connection, output: Path, file: Path, *, current: bool, force: bool
) -> tuple[Contents, list[Problem]]:
    """Copy a store into `file`, complete or not at all. `current`: it has this keephold's schema, and its rows are
    checked, too."""
    if file.exists() and not force:
        raise _refused(f"`{file}` exists; name another file, or replace it with --force")
    try:
        with ExitStack() as stack:
            beside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent)))
            links = stack.enter_context(_second_names(output))
            copy, found = _copied(source, output, links, beside / _DATABASE, current=current)
            new = beside / "new.tar"
            with os.fdopen(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b") as opened:
                contents = _write(opened, beside / _DATABASE, links, copy)
                opened.flush()
                os.fsync(opened.fileno())
                opened.seek(0)
                if read_copy(opened) != contents:
                    raise _refused(f"`{file}` was not written: the disk returned other bytes than it was given")
            _place(new, file, force=force)
    except OSError as error:
        raise _refused(
            f"`{file}` was not written: {error.strerror or error}; see the disk and its directory"
        ) from error
    return contents, found


def _place(new: Path, file: Path, *, force: bool) -> None:
    if force:
        new.replace(file)
    else:
        try:
            os.link(new, file)  # which never replaces anything
        except FileExistsError:
            raise _refused(f"`{file}` was made by another program meanwhile; name another file") from None
    sync_directory(file.parent)


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
) -> tuple["_Copy", list[Problem]]:
    """Copy and check the database; again, if output that it refers to was deleted meanwhile."""
    for attempt in range(_TRIES):
        database.unlink(missing_ok=True)
        schema, made_at = _snapshot(source, database), time.time()
        connection = apsw.Connection(str(database))
        try:
            wanted = [str(file) for (file,) in connection.execute("SELECT file FROM outputs WHERE file IS NOT NULL")]
            there = [file for file in wanted if _link(output / file, links) or (links / file).exists()]
            if len(there) == len(wanted) or attempt == _TRIES - 1:
                found = problems(connection, links, None) if current else file_problems(connection)
                damaged = [each for each in found if each.rule == "sqlite"]
                if damaged:
                    raise _refused(f"nothing was written: the store is damaged. {damaged[0].says}")
                # Files of running calls are linked, too: they are orphans only in the copy.
                found = [each for each in found if each.rule != "orphaned_output"]
                return _Copy(schema, made_at, there), found
        finally:
            connection.close()
    raise AssertionError("the last attempt returns")


class _Copy(msgspec.Struct, frozen=True):
    schema: int
    made_at: float
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


def _write(opened: IO[bytes], database: Path, links: Path, copy: _Copy) -> Contents:
    digests: dict[str, str] = {}
    with tarfile.open(fileobj=opened, mode="w", format=tarfile.PAX_FORMAT) as tar:
        members = [(_DATABASE, database), *((f"{_OUTPUT}{name}", links / name) for name in copy.files)]
        for name, path in members:
            with path.open("rb") as file:
                hashing = _Hashing(file)
                tar.addfile(_member(name, path.stat().st_size, copy.made_at), hashing)
                digests[name] = hashing.digest.hexdigest()
        contents = Contents(1, copy.schema, copy.made_at, digests)
        said = msgspec.json.encode(contents)
        tar.addfile(_member(_LIST, len(said), copy.made_at), io.BytesIO(said))
    return contents


def _member(name: str, size: int, at: float) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(at)
    return member


class _Hashing:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def read_copy(opened: IO[bytes], into: Path | None = None) -> Contents:
    """Read a copy, and write its members into a directory. Raises `KeepholdError` if it is not a whole copy."""
    digests: dict[str, str] = {}
    contents: Contents | None = None
    try:
        with tarfile.open(fileobj=opened, mode="r:") as tar:
            for member in tar:
                name = member.name
                data = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                if data is None or name in digests or contents is not None or not _is_ours(name):
                    raise _refused(f"`{name!s:.100}` does not belong into a backup of a store; name another file")
                if name == _LIST:
                    contents = msgspec.json.decode(data.read(), type=Contents)
                else:
                    digests[name] = _take(data, None if into is None else into / name)
    except (tarfile.TarError, EOFError, msgspec.MsgspecError) as error:
        raise _refused(f"it is not a backup of a store, or damaged ({error}); name another file") from error
    if contents is None:
        raise _refused("it is not a backup of a store, or it was cut off; name another file")
    if contents.format != 1:
        raise _refused(f"it has format {contents.format}, this keephold knows 1; use a newer keephold")
    if contents.members != digests or _DATABASE not in digests:
        raise _refused("it is damaged: its contents are not those that were written; use another backup")
    return contents


def _is_ours(name: str) -> bool:
    return name in (_DATABASE, _LIST) or (name.startswith(_OUTPUT) and is_output_name(name.removeprefix(_OUTPUT)))


def is_output_name(name: str) -> bool:
    """Return whether a file of this name is in the output directory itself."""
    return _NAME.fullmatch(name) is not None


def _take(data: IO[bytes], path: Path | None) -> str:
    """Write one member, and return its digest."""
    hashing: Any = _Hashing(data)
    if path is None:
        while hashing.read(_PART):
            pass
    else:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            shutil.copyfileobj(hashing, file, _PART)
            file.flush()
            os.fsync(file.fileno())
    digest: str = hashing.digest.hexdigest()
    return digest


def sync_directory(directory: Path) -> None:
    """Make sure that new names in a directory are on the disk."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _refused(why: str) -> KeepholdError:
    return KeepholdError(why, code="invalid_arguments")
