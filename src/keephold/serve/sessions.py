"""The browser sessions of the owner (K9): their cookies by digest, their end, and the dashboard's own host name.

Browsers send a cookie to every port of the host that set it. A cookie of `127.0.0.1` would therefore reach every page
server of this machine. So the dashboard has a host name of its own, `<name>.localhost`, and the cookie is for that host
only. The name is random, and only holders of the token learn it.

The file beside the store holds what must outlive the server. Processes change it one at a time and replace it as a
whole. An empty name in it says that `keephold logout` has ended all sessions.
"""

import contextlib
import errno
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from keephold.errors import KeepholdError

LASTS_SECS = 30 * 86_400
"""A session ends when it was not used for this long."""
_RENEW_SECS = 300
"""A use is noted only if the last noted one is older, so that most requests write nothing."""
_TICKET_SECS = 30
_MOST = 100
"""Sessions, and tickets, at once; the one that was not used for the longest time ends."""
_BYTES = 1 << 20
_TRIES, _PATIENT_TRIES, _TRY_SECS = 3, 200, 0.005
"""Tries for the lock: of a server, which does not pause between them because its loop would stop, and of a command."""
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


class Session(msgspec.Struct, frozen=True):
    """A browser that is logged in. `digest` is that of its cookie; `begun` and `used` are times of day."""

    id: str
    digest: str
    browser: str
    begun: float
    used: float


class _Kept(msgspec.Struct, frozen=True):
    """The file's content. `owner` ties it to the owner's token: with another token, it is worthless."""

    name: str
    owner: str
    sessions: tuple[Session, ...] = ()


_Mark = tuple[int, int, int]
_Change = Callable[[Iterable[Session]], Iterable[Session]]


def sessions_file(store: Path | None) -> Path | None:
    """Return the file of a store's sessions; None if the store is not a file."""
    return None if store is None else store.with_name(f"{store.name}-sessions")


class Sessions:
    """The sessions of one owner, shared by all servers on a store."""

    def __init__(
        self, owner: str | None = None, file: Path | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        """Without a `file`, sessions end with the process. Without `owner`, they can be listed and ended only."""
        self._owner = None if owner is None else owner.encode()
        self._file = file
        self._now = now
        self._mark: _Mark | None = None
        self._read: _Kept | None = None
        self._tickets: dict[str, tuple[str, float]] = {}

    @property
    def token(self) -> str:
        """Return the owner's token, for a browser that is logged in and copies it to a client."""
        return "" if self._owner is None else self._owner.decode()

    @property
    def name(self) -> str:
        """Return the label of the dashboard's host name."""
        return self._kept().name

    def all(self) -> list[Session]:
        """Return the sessions that have not ended, the last used first."""
        return sorted(self._valid(self._kept()), key=lambda session: -session.used)

    def begin(self, agent: str) -> str:
        """Begin a session for a browser with this `User-Agent`. Return its cookie."""
        cookie, now = secrets.token_urlsafe(32), self._now()
        begun = Session(secrets.token_hex(4), _digest(cookie), browser_of(agent), now, now)
        self._try_to_change(lambda sessions: [begun, *sessions])
        return cookie

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, unless it has ended."""
        digest = _digest(cookie)
        return next((each for each in self.all() if hmac.compare_digest(each.digest, digest)), None)

    def renew(self, session: Session) -> bool:
        """Note that a session is used. Return whether that was due, and its cookie should be sent again."""
        if self._now() - session.used < _RENEW_SECS:
            return False
        used = msgspec.structs.replace(session, used=self._now())
        self._try_to_change(lambda sessions: [used if each.id == session.id else each for each in sessions])
        return True

    def end(self, id: str | None = None) -> list[Session]:
        """End this session; without an id, all of them, and change the host name. Return those that ended. Raise
        `KeepholdError` if they would be back after a restart."""
        ended = [each for each in self.all() if id is None or each.id == id]
        try:
            self._change(lambda sessions: [each for each in sessions if id not in (None, each.id)], renamed=id is None)
        except OSError as error:
            raise KeepholdError(
                f"ended until the server restarts, because {self._file} cannot be written: {error.strerror}; "
                "try again, or remove it",
                code="store_unavailable",
            ) from None
        return ended

    # Tickets carry a login from one of the server's names to another, where it becomes a cookie.

    def ticket(self, place: str) -> str:
        """Return a ticket that begins a session once, within seconds; the browser then goes to `place`."""
        now = self._now()
        live = [(name, each) for name, each in self._tickets.items() if 0 <= now - each[1] < _TICKET_SECS]
        ticket = secrets.token_urlsafe(32)
        self._tickets = dict([*live[1 - _MOST :], (_digest(ticket), (place, now))])
        return ticket

    def redeem(self, ticket: str) -> str | None:
        """Use up a ticket. Return its place, or None if it is none or too old."""
        place, made = self._tickets.pop(_digest(ticket), ("", -1.0))
        return place if made >= 0 and 0 <= self._now() - made < _TICKET_SECS else None

    # The file

    def _valid(self, kept: _Kept) -> list[Session]:
        oldest = self._now() - LASTS_SECS
        return [each for each in kept.sessions if each.used > oldest]

    def _kept(self) -> _Kept:
        self._refresh()
        if self._read is None:
            if self._owner is None:
                return _Kept("", "")
            self._try_to_change(lambda sessions: sessions)
            assert self._read is not None
        return self._read

    def _refresh(self) -> None:
        """Read the file if another process has changed it. A damaged file does not end sessions; a missing one does."""
        if self._file is None:
            return
        try:
            mark = _mark(self._file.stat())
        except OSError:
            mark = None
        if mark != self._mark:
            self._mark, found = mark, self._decode(_content(self._file))
            if found is not None or mark is None:
                self._read = found if found is not None and found.name else None

    def _change(self, change: _Change, *, renamed: bool = False) -> None:
        """Replace the sessions; `renamed`: and the name. Raise `OSError` if that is not kept."""
        kept: _Kept | None = None
        try:
            with _locked(self._file, patient=self._owner is None):
                self._refresh()
                kept = self._changed(change, renamed)
                if self._file is not None:
                    self._mark = _write(self._file, msgspec.json.encode(kept))
        finally:
            self._read = kept or self._changed(change, renamed)

    def _try_to_change(self, change: _Change) -> None:
        try:
            self._change(change)
        except OSError as error:
            _log.warning("browser sessions end with this server, because %s: %s", self._file, error.strerror)

    def _changed(self, change: _Change, renamed: bool) -> _Kept:
        kept = self._read or self._new()
        latest = sorted(change(self._valid(kept)), key=lambda session: -session.used)
        return msgspec.structs.replace(self._new() if renamed else kept, sessions=tuple(latest[:_MOST]))

    def _new(self) -> _Kept:
        name = "" if self._owner is None else f"keephold-{secrets.token_hex(16)}"
        return _Kept(name, self._tie(name))

    def _tie(self, name: str) -> str:
        return "" if self._owner is None else hmac.new(self._owner, name.encode(), hashlib.sha256).hexdigest()

    def _decode(self, content: bytes) -> _Kept | None:
        try:
            kept = msgspec.json.decode(content, type=_Kept)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        known = self._owner is None or not kept.name or hmac.compare_digest(kept.owner, self._tie(kept.name))
        return kept if known else None


def browser_of(agent: str) -> str:
    """Return the name of a browser, from our own list: what a client says of itself is never shown."""
    browser = next((name for part, name in _BROWSERS if part in agent), None)
    system = next((name for part, name in _SYSTEMS if part in agent), None)
    return "unknown browser" if browser is None else f"{browser} on {system}" if system else browser


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _mark(stat: os.stat_result) -> _Mark:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _content(file: Path) -> bytes:
    """Return what the file holds; nothing if others could have read or written it."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
            return b"" if os.fstat(opened.fileno()).st_mode & 0o077 else opened.read(_BYTES)
    except OSError:
        return b""


@contextlib.contextmanager
def _locked(file: Path | None, *, patient: bool) -> Iterator[None]:
    """Keep other processes from changing the file. The lock counts only on the file that is there, not on a replaced
    one. Raise `OSError` instead of waiting for a process that was stopped in the middle."""
    if file is None:
        yield
        return
    for _ in range(_PATIENT_TRIES if patient else _TRIES):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if _holds(opened, file):
                yield
                return
        finally:
            os.close(opened)
        if patient:
            time.sleep(_TRY_SECS)
    raise BlockingIOError(errno.EAGAIN, "another process is changing it")


def _holds(opened: int, file: Path) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
