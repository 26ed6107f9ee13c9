"""The browser sessions of the owner (K9): their cookies by digest, their end, and the dashboard's own host name.

Browsers send a cookie to every port of the host that set it. A cookie of `127.0.0.1` would therefore reach every page
server of this machine. So the dashboard has a host name of its own, `<name>.localhost`, and the cookie is for that host
only. The name is random, and only holders of the token learn it.

All servers of a store share the sessions: a document, kept in a `SessionPlace`, holds what must outlive a server. A
server reads it for each request of a browser, and replaces it as a whole, unless another process was first. An empty
name in it says that `keephold logout` has ended all sessions. The place is a file beside the store, or a row of
PostgreSQL's.
"""

import asyncio
import contextlib
import errno
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC, O_NOFOLLOW
from keephold.private_file import NotPrivateError, read_private
from keephold.store.base import Store, file_of

LASTS_SECS = 30 * 86_400
"""A session ends when it was not used for this long."""
_RENEW_SECS = 300
"""A use is noted only if the last noted one is older, so that most requests write nothing."""
_TICKET_SECS = 30
"""How old a ticket may be, and how much the clock of a server may be behind that of the one which made it."""
_MOST = 100
"""Sessions, and tickets, at once; the one that was not used for the longest time ends."""
_TRIES = 100
"""How often a change is tried again because other processes were first."""
_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)

_log = logging.getLogger("keephold.serve")
_BYTES = 1 << 20
_LOCK_TRIES, _LOCK_TRY_SECS = 200, 0.005
"""Tries for the lock of the file."""
_LATELY_SECS = 1.0
_Mark = tuple[int, int, int]


class BrowserSession(msgspec.Struct, frozen=True):
    """A browser that is logged in. `digest` is that of its cookie; `begun` and `used` are times of day."""

    id: str
    digest: str
    browser: str
    begun: float
    used: float


class _Ticket(msgspec.Struct, frozen=True):
    """A login on its way from one of the server's names to another, where it becomes a cookie."""

    digest: str
    place: str
    made: float


class _Kept(msgspec.Struct, frozen=True):
    """The document. `owner` ties it to the owner's token: with another token, it is worthless."""

    name: str
    owner: str
    sessions: tuple[BrowserSession, ...] = ()
    tickets: tuple[_Ticket, ...] = ()


_Change = Callable[[_Kept], _Kept]


class SessionPlace(Protocol):
    """Where the document is, for all servers of a store."""

    async def read(self, *, lately: bool) -> bytes | None:
        """Return the document, or None. `lately`: it may be a second old."""

    async def replace(self, was: bytes | None, document: bytes) -> bool:
        """Write the document, unless it is not `was` any more. Raise `OSError` if that cannot be done here, and
        `KeepholdError` if it cannot be done at present."""


class Sessions:
    """The sessions of one owner, shared by all servers on a store.

    `name`, `all` and `find` answer from what was read last: `refresh` first.
    """

    def __init__(
        self, owner: str | None = None, place: SessionPlace | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        """Without a `place`, sessions end with the process. Without `owner`, they can be listed and ended only."""
        self._owner = None if owner is None else owner.encode()
        self._place = place
        self._now = now
        self._document: bytes | None = None
        """As it is at its place."""
        self._read = None if place is not None else self._new()

    @property
    def token(self) -> str:
        """Return the owner's token, for a browser that is logged in and copies it to a client."""
        return "" if self._owner is None else self._owner.decode()

    @property
    def name(self) -> str:
        """Return the label of the dashboard's host name."""
        return "" if self._read is None else self._read.name

    def all(self) -> list[BrowserSession]:
        """Return the sessions that have not ended, the last used first."""
        return [] if self._read is None else self._valid(self._read)

    def find(self, cookie: str) -> BrowserSession | None:
        """Return the session of a cookie, unless it has ended."""
        digest = self._digest("cookie", cookie)
        return next((each for each in self.all() if hmac.compare_digest(each.digest, digest)), None)

    async def refresh(self, *, lately: bool = False) -> None:
        """Learn what other processes have changed; `lately`: up to a second ago. Raise `KeepholdError` if that is not
        known at present."""
        await self._look(lately=lately)
        if self._read is None and self._owner is not None:
            await self._try_to_change(lambda kept: kept)

    async def begin(self, agent: str) -> str:
        """Begin a session for a browser with this `User-Agent`. Return its cookie."""
        cookie, now = secrets.token_urlsafe(32), self._now()
        begun = BrowserSession(secrets.token_hex(4), self._digest("cookie", cookie), browser_of(agent), now, now)
        await self._try_to_change(lambda kept: replace(kept, sessions=(begun, *kept.sessions)))
        return cookie

    async def renew(self, session: BrowserSession) -> bool:
        """Note that a session is used. Return whether that was due, and its cookie should be sent again."""
        if self._now() - session.used < _RENEW_SECS:
            return False
        used = replace(session, used=self._now())

        def note(kept: _Kept) -> _Kept:
            return replace(kept, sessions=tuple(used if each.id == used.id else each for each in kept.sessions))

        await self._try_to_change(note)
        return True

    async def end(self, id: str | None = None) -> list[BrowserSession]:
        """End this session; without an id, all of them, and change the host name. Return those that ended. Raise
        `KeepholdError` if they have not ended, or would be back after a restart."""
        ended: list[BrowserSession] = []

        def remove(kept: _Kept) -> _Kept:
            ended[:] = [each for each in kept.sessions if id in (None, each.id)]
            left = tuple(each for each in kept.sessions if each not in ended)
            return self._new() if id is None else replace(kept, sessions=left)

        try:
            await self._change(remove)
        except OSError as error:
            raise KeepholdError(
                f"ended until the server restarts, because {self._place} cannot be written: {error.strerror}; "
                "try again, or remove it",
                code="store_unavailable",
            ) from None
        return ended

    async def ticket(self, place: str) -> str:
        """Return a ticket that begins a session once, within seconds; the browser then goes to `place`."""
        ticket = secrets.token_urlsafe(32)
        made = _Ticket(self._digest("ticket", ticket), place, self._now())
        await self._try_to_change(lambda kept: replace(kept, tickets=(*kept.tickets, made)))
        return ticket

    async def redeem(self, ticket: str) -> str | None:
        """Use up a ticket. Return its place, or None if the ticket is invalid, used or too old."""
        digest, places = self._digest("ticket", ticket), list[str]()

        def use_up(kept: _Kept) -> _Kept:
            places[:] = [each.place for each in kept.tickets if hmac.compare_digest(each.digest, digest)]
            return replace(kept, tickets=tuple(each for each in kept.tickets if each.digest != digest))

        await self._try_to_change(use_up)
        return places[0] if places else None

    # The document

    def _valid(self, kept: _Kept) -> list[BrowserSession]:
        oldest = self._now() - LASTS_SECS
        return sorted((each for each in kept.sessions if each.used > oldest), key=lambda session: -session.used)

    def _fresh(self, kept: _Kept) -> _Kept:
        """Return it without what has ended by itself."""
        tickets = tuple(each for each in kept.tickets if abs(self._now() - each.made) < _TICKET_SECS)
        return replace(kept, sessions=tuple(self._valid(kept)[:_MOST]), tickets=tickets[-_MOST:])

    async def _look(self, *, lately: bool = False) -> None:
        """Read the document if it has changed. A damaged one does not end sessions; a missing one does."""
        if self._place is None:
            return
        document = await self._place.read(lately=lately)
        if document != self._document:
            self._document, found = document, self._decode(document or b"")
            if found is not None or document is None:
                self._read = found if found is not None and found.name else None

    async def _change(self, change: _Change) -> None:
        """Change the document. Raise `OSError` if only this process knows the change, `KeepholdError` if none does."""
        for _ in range(_TRIES):
            await self._look()
            kept = self._fresh(change(self._fresh(self._read or self._new())))
            document = msgspec.json.encode(kept)
            try:
                if document == self._document or await self._replace(document):
                    self._document, self._read = document, kept
                    return
            except OSError:
                self._read = kept
                raise
        raise KeepholdError("too many processes change the browser sessions; try again", code="store_unavailable")

    async def _replace(self, document: bytes) -> bool:
        return self._place is None or await self._place.replace(self._document, document)

    async def _try_to_change(self, change: _Change) -> None:
        try:
            await self._change(change)
        except OSError as error:
            _log.warning("browser sessions end with this server, because %s: %s", self._place, error.strerror)

    def _new(self) -> _Kept:
        name = "" if self._owner is None else f"keephold-{secrets.token_hex(16)}"
        return _Kept(name, self._digest("name", name))

    def _digest(self, kind: str, secret: str) -> str:
        """Return what is kept of a secret. Only holders of the token can make it, and that of one kind is of no use as
        another: to write the document is not enough to begin a session."""
        return hmac.digest(self._owner or b"", f"{kind} {secret}".encode("utf-8", "replace"), hashlib.sha256).hex()

    def _decode(self, document: bytes) -> _Kept | None:
        try:
            kept = msgspec.json.decode(document, type=_Kept)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        known = self._owner is None or not kept.name or hmac.compare_digest(kept.owner, self._digest("name", kept.name))
        return kept if known else None


def browser_of(agent: str) -> str:
    """Return the name of a browser, from our own list: what a client says of itself is never shown."""
    browser = next((name for part, name in _BROWSERS if part in agent), None)
    system = next((name for part, name in _SYSTEMS if part in agent), None)
    return "unknown browser" if browser is None else f"{browser} on {system}" if system else browser


# Places


@runtime_checkable
class KeepsBrowserSessions(Store, Protocol):
    """A store for several machines: no file is beside it, so it keeps a document of sessions for each owner."""

    async def browser_owners(self) -> list[str]:
        """Return the owners that have a document."""

    async def browser_sessions(self, owner: str) -> bytes | None:
        """Return the document of an owner."""

    async def keep_browser_sessions(self, owner: str, was: bytes | None, document: bytes, at: float) -> bool:
        """Write the document of an owner, unless it is not `was` any more. Return whether it was written."""


def place_of(store: Store, owner: str) -> SessionPlace | None:
    """Return where the sessions of that token's holder are; None if the store ends with its process."""
    if isinstance(store, KeepsBrowserSessions):
        return SessionRow(store, hmac.digest(owner.encode(), b"browser sessions", hashlib.sha256).hex())
    file = _file_of(store)
    return None if file is None else SessionFile(file)


@contextlib.asynccontextmanager
async def all_places(store: Store) -> AsyncIterator[list[SessionPlace]]:
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
    path = file_of(store)
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
        for _ in range(_LOCK_TRIES):
            with _locked(self._path) as alone:
                if alone:
                    if _content(self._path) != (was or b""):
                        return False
                    self._mark, self._seen = _write(self._path, document), document
                    return True
            await asyncio.sleep(_LOCK_TRY_SECS)
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
