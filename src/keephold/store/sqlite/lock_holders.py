"""Which process holds a lock, and whether it runs. Where the machine does not tell, nobody is found."""

import contextlib
import os
from pathlib import Path

from keephold.platforms import machine
from keephold.store.housekeeping import pid_and_command

WRITE_BYTE = 120
"""The byte of the `-shm` file that SQLite locks for the time of a write transaction."""


def stopped_holder(file: str, byte: int | None = None) -> str | None:
    """Return pid and command of the stopped process that holds the lock of a file: that of `flock`, or the record lock
    on this byte. None if it runs, or nobody is found."""
    return holder(file, byte, stopped=True)


def holder(file: str, byte: int | None = None, *, stopped: bool = False) -> str | None:
    """Return pid and command of the process that holds the lock of a file, as `stopped_holder` does; None if nobody is
    found. `stopped`: only if it is stopped."""
    with contextlib.suppress(OSError, ValueError):
        for pid in machine.lock_holders(os.stat(file).st_ino, byte):  # noqa: PTH116
            if not stopped or machine.is_stopped(pid):
                return pid_and_command(pid)
    return None


def stopped_writer(store: Path) -> str | None:
    """Say which process was stopped in the middle of a transaction, so that nobody else can write."""
    holder = stopped_holder(f"{store}-shm", WRITE_BYTE)
    return None if holder is None else f"process {holder} was stopped while it wrote to `{store}`; {advice(holder)}"


def advice(holder: str) -> str:
    """Say how to continue or end a stopped process."""
    pid = holder.partition(" ")[0]
    return f"continue it with `kill -CONT {pid}`, or end it with `kill -9 {pid}`"
