"""The file `<uid>.kept` beside the output of a kept process: who keeps it, until when, and how it ended.

Its keeper replaces it at the start, when the last runtime leaves, when one comes back, and at the exit. So the end of a
process is known after its keeper has exited, and other processes can read it. It need not survive a loss of power, as
the processes do not: it is not synced.
"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Literal

import msgspec

from keephold.tools import marks

_BOOT = "/proc/sys/kernel/random/boot_id"
_LONGEST = 1 << 16


class KeptExit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a kept process ended."""

    code: int | None
    signal: int | None
    total: int
    """Bytes that it printed in all."""
    at: float
    reason: str = ""
    """Why it was ended, in words; empty: by itself, or by an abort."""
    stderr: bytes = b""
    """The last bytes of its stderr, if that is apart from its output."""


class KeptRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One kept process."""

    uid: str
    host: str
    boot: str
    keeper: str
    """The mark of its keeper."""
    socket: str
    """The path at which the keeper listens."""
    pid: int = 0
    """The pid of the process; 0 until it is started."""
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
        if self.host != socket.gethostname():
            return "other host"
        if self.boot != boot_id() or marks.owner_alive(self.keeper) is False:
            return "gone"
        return "here"


def boot_id() -> str:
    """Return a name for the time since this machine was started."""
    return marks.read(_BOOT).decode().strip()


def record_file(directory: Path, uid: str) -> Path:
    return directory / f"{uid}.kept"


def read_record(directory: Path, uid: str) -> KeptRecord | None:
    """Return the record of a kept process; None if there is none that makes sense."""
    try:
        with record_file(directory, uid).open("rb") as file:
            return msgspec.json.decode(file.read(_LONGEST), type=KeptRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_record(directory: Path, record: KeptRecord) -> None:
    """Replace the record, whole or not at all. Raises `OSError`."""
    file = record_file(directory, record.uid)
    new = str(file) + ".new"  # its keeper alone writes it
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(record))
        os.replace(new, file)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)  # noqa: PTH108
        raise
