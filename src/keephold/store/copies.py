"""Copies of a store in one file: a tar of members and, as the last one, a list of them with their digests.

A copy that was cut off has no list. The members are the database and the output files of SQLite (`sqlite/backups.py`),
or the rows of PostgreSQL's tables (`postgres/copying.py`).
"""

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC

_LIST = "keephold.json"
_PART = 1 << 20


class Table(msgspec.Struct, frozen=True):
    """A table of PostgreSQL in a copy."""

    columns: list[str]
    rows: int


class Contents(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last member of a copy."""

    format: int
    schema: int
    made_at: float
    members: dict[str, str]
    """SHA-256 in hexadecimal, by name."""
    tables: dict[str, Table] = {}
    broken: list[str] = []
    """Rules that the rows of these tables violated when they were copied."""


class Kind(msgspec.Struct, frozen=True):
    """Copies of one kind of store."""

    store: str
    fits: Callable[[str], bool]
    """Whether a member of this name belongs into them."""


class Copy:
    """A copy that is being made."""

    def __init__(self, directory: Path, opened: IO[bytes]) -> None:
        self.directory = directory
        """For files that are needed meanwhile."""
        self.contents: Contents | None = None
        self._digests: dict[str, str] = {}
        self._tar = tarfile.open(fileobj=opened, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 (see `finish`)

    def add(self, name: str, path: Path, at: float) -> None:
        with path.open("rb") as file:
            hashing = _Hashing(file)
            self._tar.addfile(_member(name, path.stat().st_size, at), hashing)
            self._digests[name] = hashing.digest.hexdigest()

    def finish(self, schema: int, made_at: float, **more: Any) -> Contents:
        """Write the list."""
        self.contents = Contents(1, schema, made_at, self._digests, **more)
        said = msgspec.json.encode(self.contents)
        self._tar.addfile(_member(_LIST, len(said), made_at), io.BytesIO(said))
        self._tar.close()
        return self.contents


@contextlib.contextmanager
def writing(kind: Kind, file: Path, *, force: bool) -> Iterator[Copy]:
    """Make a copy, whole or not at all. It is read again before it gets its name."""
    if file.exists() and not force:
        raise refused(f"`{file}` exists; name another file, or replace it with --force")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as beside:
            new = Path(beside) / "new.tar"
            with os.fdopen(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_CLOEXEC, 0o600), "w+b") as opened:
                copy = Copy(Path(beside), opened)
                yield copy
                opened.flush()
                os.fsync(opened.fileno())
                opened.seek(0)
                if read_copy(kind, opened) != copy.contents:
                    raise refused(f"`{file}` was not written: the disk returned other bytes than it was given")
            _place(new, file, force=force)
    except ConnectionError:  # of the store
        raise
    except OSError as error:
        raise refused(f"`{file}` was not written: {error.strerror or error}; see the disk and its directory") from error


def _place(new: Path, file: Path, *, force: bool) -> None:
    if force:
        new.replace(file)
    else:
        try:
            os.link(new, file)  # which never replaces anything
        except FileExistsError:
            raise refused(f"`{file}` was made by another program meanwhile; name another file") from None
    machine.sync_directory(file.parent)


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


def read_copy(kind: Kind, opened: IO[bytes], into: Path | None = None) -> Contents:
    """Read a copy, and write its members into a directory. Raises `KeepholdError` if it is not a whole copy."""
    digests: dict[str, str] = {}
    contents: Contents | None = None
    try:
        with tarfile.open(fileobj=opened, mode="r:") as tar:
            for member in tar:
                name = member.name
                data = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                ours = name == _LIST or kind.fits(name)
                if data is None or name in digests or contents is not None or not ours:
                    raise refused(
                        f"`{name!s:.100}` does not belong into a backup of a {kind.store} store; name another file"
                    )
                if name == _LIST:
                    contents = msgspec.json.decode(data.read(), type=Contents)
                else:
                    digests[name] = _take(data, None if into is None else into / name)
    except (tarfile.TarError, EOFError, msgspec.MsgspecError) as error:
        raise refused(f"it is not a backup of a store, or damaged ({error}); name another file") from error
    if contents is None:
        raise refused("it is not a backup of a store, or it was cut off; name another file")
    if contents.format != 1:
        raise refused(f"it has format {contents.format}, this keephold knows 1; use a newer keephold")
    if contents.members != digests:
        raise damaged()
    return contents


def _take(data: IO[bytes], path: Path | None) -> str:
    """Write one member, and return its digest."""
    hashing: Any = _Hashing(data)
    if path is None:
        while hashing.read(_PART):
            pass
    else:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_CLOEXEC, 0o600), "wb") as file:
            shutil.copyfileobj(hashing, file, _PART)
            file.flush()
            os.fsync(file.fileno())
    digest: str = hashing.digest.hexdigest()
    return digest


def damaged() -> KeepholdError:
    return refused("it is damaged: its contents are not those that were written; use another backup")


def refused(why: str) -> KeepholdError:
    return KeepholdError(why, code="invalid_arguments")


@contextlib.contextmanager
def restoring(file: Path, place: str) -> Iterator[None]:
    """Say of errors that nothing was restored."""
    try:
        yield
    except KeepholdError as error:
        raise KeepholdError(f"nothing was restored from `{file}`: {error.message}", code=error.code) from error
    except OSError as error:
        why = f"`{error.filename or place}`: {error.strerror or error}"
        raise KeepholdError(f"nothing was restored from `{file}`: {why}", code="invalid_arguments") from error
