"""Opening a store's file: check what it is, whether this process may use it, and whether its schema is known. Nothing
is changed before that.

If a process opens a file with `open` and closes it, POSIX releases all locks that SQLite holds on that file in the
process, and another process could then remove the WAL. So a file that this process has open already is not examined
again.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw

from keephold.errors import KeepholdError
from keephold.forking import leak_in_children
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC
from keephold.private_file import remove_sockets
from keephold.store.sql.listing import compare
from keephold.store.sql.queries import check_schema, unusable
from keephold.store.sqlite.processes import Bell, Owners, Turnstile, holder, owners_of, stopped_writer
from keephold.store.sqlite.statements import APPLICATION_ID, SQL, migrations

BUSY_MS = 5000
INLINE_OUTPUT = 65_536
"""Bytes of output that are kept in the database; more is in a file."""
_MAGIC = b"SQLite format 3\0"
_REMOTE = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
)

_ADVICE = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space on its disk, or have your quota raised",
    errno.EMFILE: "let this process open more files (`ulimit -n`)",
    errno.ENFILE: "end programs that have many files open",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST),
        "name a file in a directory that you may write to",
    ),
}
"""Advice by error number."""

_ours: Counter[Path] = Counter()
_inherited: set[Path] = set()
"""Files that the process from which this one was forked has open. SQLite would believe that this process holds the
locks which that one holds."""
_ours_lock = threading.Lock()


def _in_child() -> None:
    global _ours_lock
    _inherited.update(+_ours)
    _ours.clear()
    _ours_lock = threading.Lock()  # another thread may have held it


machine.after_fork(_in_child)


def connect(path: Path) -> apsw.Connection:
    """Return a connection that commits to the disk."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=200)
    leak_in_children(connection)
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.execute("PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -8000")
        connection.wal_autocheckpoint(0)  # the writer does it, on its thread: it takes a while
    except BaseException:
        connection.close(True)
        raise
    return connection


def reader(path: Path) -> apsw.Connection:
    """Return a connection that cannot write."""
    connection = connect(path)
    connection.execute("PRAGMA query_only = ON")
    connection.create_scalar_function("holds", compare, 2, deterministic=True)
    return connection


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the system and of SQLite into errors for the reader."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise unusable(
            f"store `{path}` is damaged ({error}); restore it from a backup, or name another file"
        ) from error
    except apsw.BusyError as error:
        locked = f"store `{path}` is locked by another program; end that program's transaction"
        raise unusable(stopped_writer(path) or locked) from error
    except apsw.Error as error:
        why = f"the disk is full; free some space on it ({error})" if is_full(path, error) else str(error)
        raise unusable(f"store `{path}` cannot be opened: {why}") from error
    except UnicodeEncodeError as error:
        raise unusable(f"the path of the store is not UTF-8, as SQLite wants it: {str(path)!a}") from error
    except OSError as error:
        at, advice = error.filename or path, _ADVICE.get(error.errno or 0, "see the disk and the directory it is in")
        raise unusable(f"store `{path}` cannot be opened: `{at}`: {error.strerror or error}; {advice}") from error


def claim(path: Path) -> None:
    """Note that this process has the file open. Raises, having changed nothing, if the file is not a store."""
    if path in _inherited:
        raise unusable(
            f"this process was forked from one that has store `{path}` open, and cannot open it; start the process "
            'before the store is opened, or with the start method "spawn" of multiprocessing'
        )
    with _ours_lock:
        if not _ours[path]:
            with explained(path):
                _examine(path)
        _ours[path] += 1


def disclaim(path: Path) -> None:
    """Undo `claim`. Call it when all connections are closed."""
    with _ours_lock:
        _ours[path] -= 1


def _examine(path: Path) -> None:
    place = next(parent for parent in (path, *path.parents) if parent.exists())
    if (kind := machine.file_system(place)) in _REMOTE:
        raise unusable(f"store `{path}` is on a network file system ({kind}), where locks fail; put it on a local disk")
    try:
        facts = path.stat()
    except FileNotFoundError:
        _check_alone(path)
        return
    if stat.S_ISDIR(facts.st_mode):
        raise unusable(f"store `{path}` is a directory; name a file")
    if not stat.S_ISREG(facts.st_mode):
        raise unusable(f"store `{path}` is not a regular file; name one, or one that does not exist yet")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        raise unusable(
            f"store `{path}` needs to be readable and writable, and so does its directory; see its permissions"
        )
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        _check_alone(path)
    elif not header.startswith(_MAGIC) or len(header) < 100:
        raise unusable(f"store `{path}` is not a SQLite database; name another file, or one that does not exist yet")
    elif int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise unusable(f"store `{path}` is a SQLite database of another program; name another file")
    elif _wal_is_cut(path):
        raise unusable(
            f"store `{path}` is incomplete: its newest changes were in `{path}-wal`, which was removed or cut; put "
            f"that file back, restore a backup, or remove `{path}-shm` to continue with what is left"
        )


_INDEX = (14, 16), (16, 20), (96, 100)
"""Where the index of a WAL says how large a page is, how many there are, and how many are in the database already."""


def _wal_is_cut(path: Path) -> bool:
    """Whether the WAL is shorter than its index says, which a process that was killed has left; SQLite would make a new
    index of the rest. An index from before the machine started proves nothing: it may have reached the disk late."""
    with contextlib.suppress(OSError):
        index = Path(f"{path}-shm")
        if index.stat().st_mtime < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
            return False
        with index.open("rb") as file:
            head = file.read(100)
        if len(head) < 100 or not head[12]:
            return False
        size, last, written_back = (int.from_bytes(head[at:end], sys.byteorder) for at, end in _INDEX)
        needed = 32 + last * (24 + (65536 if size == 1 else size))
        wal = Path(f"{path}-wal")
        return last > written_back and needed > (wal.stat().st_size if wal.exists() else 0)
    return False


def _check_alone(path: Path) -> None:
    """Refuse a database that is missing while its journal exists: SQLite would apply that journal to a new database."""
    for end in ("-wal", "-journal"):
        left = Path(f"{path}{end}")
        if _holds(left) and not _holds(path):  # or another process has made it meanwhile
            raise unusable(f"store `{path}` is gone but `{left}` is there; put the database back, or remove that file")


def _holds(file: Path) -> bool:
    """Whether the file exists and is not empty."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False


def is_older(path: Path) -> bool:
    """Whether an older keephold has made the file. Raises if a newer one has upgraded it. Leaves the file, and the WAL
    of a crashed process, as they are."""
    if not path.exists() or not path.stat().st_size:
        return False
    wal = Path(f"{path}-wal")
    with explained(path):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(BUSY_MS)
            if wal.exists() and wal.stat().st_size:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            found = version(connection, path)
            connection.execute(SQL["newest_secret"]).fetchall()
            return found < max(migrations())
        finally:
            connection.close(True)


def refuse_living(path: Path, owners: Owners, what: str) -> None:
    """Raise if another process has the store open."""
    if living := owners.living():
        who = ", ".join(holder(str(owners.directory / owner)) or f"owner {owner}" for owner in living)
        raise unusable(f"store `{path}` is in use by process {who}; end it, because a store in use cannot be {what}")


def prepare(path: Path) -> apsw.Connection:
    """Make the file if it does not exist, upgrade its schema, and connect. Call it in the turnstile."""
    with explained(path):
        if not path.exists() or not path.stat().st_size:
            _create(path)
        connection = connect(path)
        try:
            if connection.pragma("journal_mode", "wal") != "wal":
                raise unusable(
                    f"store `{path}`: its file system cannot do what SQLite's WAL needs; put it on a local disk"
                )
            _migrate(connection, path)
        except BaseException:
            connection.close(True)
            raise
    return connection


def _create(path: Path) -> None:
    """Make the file under another name first, so that a crash leaves nothing that looks like a broken store."""
    new = path.with_name(f"{path.name}.new")  # no other process makes one: this one is in the turnstile
    _remove(new)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_CLOEXEC, 0o600))  # secrets live in it
    try:
        connection = apsw.Connection(str(new), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.pragma("synchronous", "full")
            connection.pragma("auto_vacuum", "incremental")  # first of all: later it would be ignored
            connection.pragma("application_id", APPLICATION_ID)
            _migrate(connection, path)
            connection.execute(SQL["add_secret"], (os.urandom(4).hex(), os.urandom(32), time.time()))
            connection.pragma("journal_mode", "wal")
        finally:
            connection.close()
        new.replace(path)  # which may exist, and be empty
        machine.sync_directory(path.parent)
    finally:
        _remove(new)


def _remove(database: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        Path(f"{database}{end}").unlink(missing_ok=True)


def version(connection: apsw.Connection, path: Path) -> int:
    """Return the schema's number; raise if a newer keephold made it."""
    return check_schema(str(path), int(connection.pragma("user_version")), max(migrations()))


def require_current(connection: apsw.Connection, path: Path) -> None:
    """Raise `KeepholdError` if the schema is not the one that this keephold makes."""
    check_schema(str(path), int(connection.pragma("user_version")), max(migrations()), current=True)


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """Apply the migrations that are newer than the file, all of them or none."""
    if version(connection, path) == max(migrations()):
        return
    scripts = migrations()
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = version(connection, path)
        for number, script in scripts.items():
            if number > found:
                connection.execute(script)
        connection.pragma("user_version", max(scripts))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_no_links(path: Path) -> None:
    """Refuse links beside the store: the files that they lead to would be taken for ours, and written or removed."""
    for end in ("output", "owners", "gate", "turn", "wal", "shm", "journal"):
        beside = path.with_name(f"{path.name}-{end}")
        if beside.is_symlink():
            raise unusable(
                f"`{beside}` is a link, and what it leads to would be overwritten or deleted as a part of the store; "
                "remove the link, or move the whole store to where it leads"
            )


class StoreFiles:
    """The open files of a store. Opening and closing them may wait for other processes and for the disk."""

    def __init__(self, path: Path, output: Path) -> None:
        self.path = path
        with ExitStack() as taken:
            with explained(path):
                check_no_links(path)
            claim(path)
            taken.callback(disclaim, path)
            older = is_older(path)
            with explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self.turnstile = Turnstile(path)
                taken.callback(self.turnstile.close)
                output.mkdir(mode=0o700, exist_ok=True)
                self.owners = owners_of(path)
                self.bell = Bell(path, self.owners)
                taken.callback(self.bell.close)
                taken.callback(self.owners.leave)
                with self.turnstile:
                    if older and is_older(path):
                        refuse_living(path, self.owners, "upgraded, as `keephold store migrate` does after a backup")
                    self.owners.enter(self.bell.path)  # now: another one that upgrades would take this one for older
                    self.connection = prepare(path)
                    taken.callback(lambda: self.connection.close(True))
                    self._register(self.connection)
                self.reading = reader(path)
                taken.callback(lambda: self.reading.close(True))
            self._taken = taken.pop_all()

    def _register(self, connection: apsw.Connection) -> None:
        """Register this process as an owner, and remove dead ones."""
        swept = self.owners.sweep()
        connection.execute("BEGIN IMMEDIATE")
        dead = set(swept) | {str(owner) for (owner,) in connection.execute(SQL["counted_owners"])}
        dead = {owner for owner in dead if not self.owners.alive(owner)}
        for owner in dead:
            connection.execute(SQL["remove_owner"], (owner,))
            connection.execute(SQL["remove_requests"], (owner,))
            connection.execute(SQL["remove_posts"], (owner,))
        connection.execute(SQL["add_owner"], (self.owners.me,))
        connection.execute("COMMIT")
        for bell in filter(None, swept.values()):
            remove_sockets(bell)

    def reconnect(self) -> None:
        """Replace a connection that failed."""
        self.connection.close(True)
        self.connection = connect(self.path)

    def close(self) -> None:
        """Close everything, in reverse order. Call it when nobody uses the connections any more."""
        self._taken.close()


# Errors that mean that the store cannot write

_CAUSES: dict[type[Exception], str] = {
    apsw.FullError: "the disk of `{path}` is full; free some space on it",
    apsw.BusyError: "another program keeps `{path}` locked; end that program's transaction",
    apsw.LockedError: "another program keeps `{path}` locked; end that program's transaction",
    apsw.ReadOnlyError: "`{path}` cannot be written any more; see the permissions of the file and its directory",
    apsw.CantOpenError: "`{path}` cannot be opened any more; see that the file and its directory are there",
    apsw.CorruptError: "`{path}` is damaged; stop, and restore it from a backup",
    apsw.NotADBError: "`{path}` is damaged; stop, and restore it from a backup",
    apsw.IOError: "reading or writing `{path}` failed; see the disk it is on",
}
STORAGE: tuple[type[Exception], ...] = (
    *_CAUSES,
    apsw.NoMemError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.InternalError,
    apsw.SQLError,  # another program has changed the schema
    apsw.ConnectionClosedError,
    OSError,
    MemoryError,
)
"""Errors that the failed commit did not cause."""


def sentence(path: Path, error: BaseException) -> str:
    """Say what is wrong, and what to do."""
    if isinstance(error, KeepholdError):
        return error.message
    said = str(error) or type(error).__name__
    cause = next((text for kind, text in _CAUSES.items() if isinstance(error, kind)), None)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = _CAUSES[apsw.FullError]
    if cause is None:
        return f"writing `{path}` failed: {said}"
    return f"{cause.format(path=path)} ({said})"


def is_full(path: Path, error: apsw.Error) -> bool:
    """Whether an error of SQLite means that the disk is full. Some of them say only that writing failed."""
    if isinstance(error, apsw.FullError):
        return True
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return False
    return isinstance(error, apsw.IOError | apsw.CantOpenError) and not free


def lost(path: Path) -> str:
    return (
        f"this process has lost `{path}`: its lock file in `{path.name}-owners` or the database itself was removed or "
        "replaced, and other processes take over its calls. Nothing that it does from now on is recorded; restart it"
    )
