"""The file `<uid>.kept` beside the output of a kept process: who keeps it, until when, and how it ended.

Its keeper writes it at the start, when the last runtime leaves, when one comes back, and at the exit. So the end of a
process is known after its keeper has exited, and other processes can read it. Each change is a line of JSON with the
fields that it concerns: a line counts once it is whole, and appending one is cheaper than replacing a file, which
ext4 writes to the disk at once. It need not survive a loss of power, as the processes do not.
"""

import errno
import hashlib
import os
import socket
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from keephold.platforms import machine
from keephold.platforms.portable import read
from keephold.tools import marks
from keephold.tools.keeper.files import content

_MACHINE = "/etc/machine-id"
_LARGEST = 16 << 20
"""Bytes of a record: hundreds of thousands of changes."""


class KeptExit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a kept process ended."""

    code: int | None
    signal: int | None
    total: int
    """Bytes that it printed in all."""
    at: float
    reason: str = ""
    """Why it was ended, in words; empty: by itself, or by an abort."""
    causes: tuple[bytes, ...] = ()
    """The causes of the last input that it got."""


class KeptRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One kept process."""

    uid: str
    host: str
    machine: str = ""
    """A name for the machine, because two can have the same name for hosts; empty: it has none."""
    boot: str
    keeper: str
    """The mark of its keeper."""
    socket: str
    """The path at which the keeper listens."""
    since: float
    until: float | None = None
    """When it will be ended; None while a runtime has it."""
    keep_secs: float
    terminal: tuple[int, int] | None = None
    """The first size of its terminal (rows, columns), if it has one."""
    stdin: bool = False
    head: int
    ring: int
    ahead: int
    exit: KeptExit | None = None

    @property
    def where(self) -> Literal["here", "other host", "gone"]:
        """Say where it runs, if it does: its keeper lives here, may live on another host, or is certainly gone."""
        if self.host != socket.gethostname() or (self.machine and machine_id() and self.machine != machine_id()):
            return "other host"
        if self.boot != boot_id() or marks.owner_alive(self.keeper) is False:
            return "gone"
        return "here"


@cache
def machine_id() -> str:
    """Return a name for this machine that lasts, made from `/etc/machine-id`, which is not to be shown; empty without
    one."""
    try:
        found = read(_MACHINE).strip()
    except OSError:
        return ""
    return hashlib.sha256(b"keephold" + found).hexdigest()[:16] if found else ""


@cache
def boot_id() -> str:
    """Return a name for the time since this machine was started; empty: unknown."""
    return machine.boot()


def record_file(directory: Path, uid: str) -> Path:
    return directory / f"{uid}.kept"


def read_record(directory: Path, uid: str) -> KeptRecord | None:
    """Return the record of a kept process; None if there is none that makes sense, such as another's."""
    try:
        data = content(str(record_file(directory, uid)), _LARGEST)
        fields: dict[str, Any] = {}
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            fields |= msgspec.json.decode(line, type=dict[str, Any])
        record = msgspec.convert(fields, KeptRecord)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    return record if record.uid == uid else None


def begin_record(directory: Path, record: KeptRecord) -> None:
    """Begin the record of a process, before it is started. Raises `OSError`."""
    _write(directory, record.uid, os.O_CREAT | os.O_TRUNC, msgspec.to_builtins(record))


def change_record(directory: Path, uid: str, **fields: object) -> None:
    """Change these fields of a record. Raises `OSError`, also if it was removed because the store has the end."""
    _write(directory, uid, os.O_APPEND, msgspec.to_builtins(fields))


def _write(directory: Path, uid: str, flags: int, fields: dict[str, Any]) -> None:
    line = msgspec.json.encode(fields) + b"\n"
    file = os.open(record_file(directory, uid), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    try:
        size = os.fstat(file).st_size
        if os.write(file, line) < len(line):
            os.ftruncate(file, size)  # or the next line would continue this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
