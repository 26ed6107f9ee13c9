"""Errors that mean that the store cannot write, and the sentences for them."""

import errno
import shutil
from pathlib import Path

import apsw

from keephold.errors import KeepholdError

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


def lost(path: Path) -> KeepholdError:
    return KeepholdError(
        f"this process has lost `{path}`: its lock file in `{path.name}-owners` or the database itself was removed or "
        "replaced, and other processes take over its calls. Nothing that it does from now on is recorded; restart it",
        code="lease_lost",
    )
