"""Where the browser sessions of a store's servers are kept: a file beside the store, or a row of PostgreSQL's."""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.platforms.flags import O_CLOEXEC, O_NOFOLLOW
from keephold.private_file import NotPrivateError, read_private
from keephold.serve.sessions import Place
from keephold.store.base import Store

_BYTES = 1 << 20
_TRIES, _TRY_SECS = 200, 0.005
"""Tries for the lock of the file."""
_LATELY_SECS = 1.0

_Mark = tuple[int, int, int]


@runtime_checkable
class KeepsBrowserSessions(Store, Protocol):
    """A store for several machines: no file is beside it, so it keeps a document of sessions for each owner."""

    async def browser_owners(self) -> list[str]:
        """Return the owners that have a document."""

    async def browser_sessions(self, owner: str) -> bytes | None:
        """Return the document of an owner."""

    async def keep_browser_sessions(self, owner: str, was: bytes | None, document: bytes, at: float) -> bool:
        """Write the document of an owner, unless it is not `was` any more. Return whether it was written."""


def place_of(store: Store, owner: str) -> Place | None:
    """Return where the sessions of that token's holder are; None if the store ends with its process."""
    if isinstance(store, KeepsBrowserSessions):
        return SessionRow(store, hmac.digest(owner.encode(), b"browser sessions", hashlib.sha256).hex())
    file = _file_of(store)
    return None if file is None else SessionFile(file)


@contextlib.asynccontextmanager
async def all_places(store: Store) -> AsyncIterator[list[Place]]:
    """Yield all places in which servers of a store have kept sessions. The store is not open."""
    if isinstance(store, KeepsBrowserSessions):
        await store.open(lambda _: None)
        try:
            yield [SessionRow(store, owner) for owner in await store.browser_owners()]
        finally:
            await store.close()
        return
    file = _file_of(store)
    if file is None:
        raise KeepholdError(
            "sessions of a server with a `memory:` store are ended on its dashboard, or with the server",
            code="unsupported_store",
        )
    yield [SessionFile(file)] if file.exists() else []


def _file_of(store: Store) -> Path | None:
    path: Path | None = getattr(store, "path", None)
    return None if path is None else path.with_name(f"{path.name}-sessions")


class SessionRow:
    """A row of the store. Each owner has its own, because servers with different tokens may share a store."""

    def __init__(self, store: KeepsBrowserSessions, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._seen: bytes | None = None
        self._seen_at = float("-inf")

    async def read(self, *, lately: bool) -> bytes | None:
        if not lately or time.monotonic() - self._seen_at > _LATELY_SECS:
            self._seen, self._seen_at = await self._store.browser_sessions(self._owner), time.monotonic()
        return self._seen

    async def replace(self, was: bytes | None, document: bytes) -> bool:
        written = await self._store.keep_browser_sessions(self._owner, was, document, time.time())
        self._seen_at = float("-inf")
        return written


class SessionFile:
    """A private file, which is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: _Mark | None = None
        self._seen: bytes | None = None

    def __str__(self) -> str:
        return str(self._path)

    async def read(self, *, lately: bool) -> bytes | None:
        try:
            mark = _mark(self._path.stat())
        except OSError:
            mark = None
        if mark != self._mark:
            self._mark, self._seen = mark, None if mark is None else _content(self._path)
        return self._seen

    async def replace(self, was: bytes | None, document: bytes) -> bool:
        for _ in range(_TRIES):
            with _locked(self._path) as alone:
                if alone:
                    if _content(self._path) != (was or b""):
                        return False
                    self._mark, self._seen = _write(self._path, document), document
                    return True
            await asyncio.sleep(_TRY_SECS)
        raise BlockingIOError(errno.EAGAIN, "another process is changing it")


def _mark(stat: os.stat_result) -> _Mark:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _content(file: Path) -> bytes:
    """Return what the file holds; nothing if others could have read or written it."""
    try:
        return read_private(file, _BYTES)
    except (OSError, NotPrivateError):
        return b""


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Try to keep other processes from changing the file; yield whether they are. The lock counts only on the file that
    is there, not on a replaced one."""
    if not machine.replaces_open_files:
        file = file.with_name(f"{file.name}.lock")
    opened = os.open(file, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o600)
    try:
        yield _holds(opened, file)
    finally:
        os.close(opened)


def _holds(opened: int, file: Path) -> bool:
    try:
        machine.lock(opened)
        return os.fstat(opened).st_ino == file.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _write(file: Path, content: bytes) -> _Mark:
    new = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(content)
        mark = _mark(new.stat())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return mark
