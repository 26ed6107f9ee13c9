"""Small JSON files (the record of trusted files, logins, sessions) and sockets that only their user can have made."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from keephold.platforms import machine
from keephold.platforms.flags import O_NOFOLLOW, O_NONBLOCK


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


def is_ours(path: str) -> bool:
    """Return whether only this user can have put a socket there."""
    try:
        found, above = Path(path).lstat(), Path(path).parent.lstat()
    except (OSError, ValueError):
        return False
    private = stat.S_ISDIR(above.st_mode) and not above.st_mode & 0o077
    return stat.S_ISSOCK(found.st_mode) and private and found.st_uid == above.st_uid == machine.user()
