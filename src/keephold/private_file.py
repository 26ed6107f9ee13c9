"""Files and sockets that belong to one user: small JSON files (the record of trusted files, logins, sessions), and the
Unix sockets of a process, one name with several suffixes in a directory of the user.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from keephold.errors import KeepholdError
from keephold.platforms import machine
from keephold.platforms.unix import O_NOFOLLOW, O_NONBLOCK


class NotPrivateError(Exception):
    """Another user can read or write the file."""


def read_private(file: Path, limit: int) -> bytes:
    """Return at most `limit` bytes of the file. Raise `NotPrivateError`, or `OSError` if it cannot be read."""
    with os.fdopen(os.open(file, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK), "rb") as opened:
        info = os.fstat(opened.fileno())
        if info.st_uid != machine.user() or not machine.is_private(info):
            raise NotPrivateError(str(file))
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return opened.read(limit)


def replace_private(file: Path, value: Any) -> None:
    """Replace the file, whole or not at all; only its owner can read it."""
    new = file.with_name(f"{file.name}.{os.urandom(8).hex()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            json.dump(value, written)
            written.flush()
            os.fsync(written.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


# Sockets


def is_ours(path: str) -> bool:
    """Return whether only this user can have put a socket there."""
    try:
        found, above = Path(path).lstat(), Path(path).parent.lstat()
    except (OSError, ValueError):
        return False
    private = stat.S_ISDIR(above.st_mode) and not above.st_mode & 0o077
    return stat.S_ISSOCK(found.st_mode) and private and found.st_uid == above.st_uid == machine.user()


STREAM = ".s"
"""The suffix of a process's second socket, for its streams."""
HANDOVER = ".h"
"""The suffix of the socket at which a server can be replaced."""
SUFFIXES = (STREAM, ".m", HANDOVER)
"""Those of all sockets of a process but its bell. `.m` is for `keephold mcp` (`mcp/socket.py`)."""


def socket_directory(name: str) -> Path:
    """Return the user's own directory for sockets whose names are as long as this one."""
    import tempfile  # a command that reads a store does not come here

    runtime, own = os.environ.get("XDG_RUNTIME_DIR"), f"keephold-{machine.user()}"
    places = [Path(runtime) / "keephold"] if runtime else []
    places += [Path(tempfile.gettempdir()) / own, Path("/tmp") / own]
    found = next((place for place in places if len(os.fsencode(place / name)) <= machine.socket_path), places[-1])
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = found.lstat()
    if not found.is_dir() or found.is_symlink() or facts.st_uid != machine.user() or facts.st_mode & 0o077:
        raise KeepholdError(
            f"`{found}` must be a directory of yours that nobody else can enter (mode 0700); remove it, "
            "or set XDG_RUNTIME_DIR to a directory that is yours",
            code="store_unusable",
        )
    return found


def remove_sockets(path: str) -> None:
    """Remove all sockets of a dead process; `path` is that of its bell."""
    for suffix in ("", *SUFFIXES):
        Path(path + suffix).unlink(missing_ok=True)
