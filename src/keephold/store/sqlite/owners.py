"""Who lives (E6): each process that has a store open holds a lock on a file of its own, which the kernel lets go of
when the process ends, however it ends. No clock is asked. The file says where the process hears its bell: two
processes need not agree on an environment to find each other.

A lock file comes into being under another name and gets its own only when it is locked, so nobody can take a new owner
for a dead one. Looking takes a shared lock: two that look at one dead owner at once both see that it is dead.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

_NEW = ".new-"


class Owners:
    """The directory of lock files beside the store, and our own lock in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.me = secrets.token_hex(8)
        self._lock = -1

    def enter(self, bell: str = "") -> None:
        """Take our lock, and say where our bell is."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        new, own = self.directory / f"{_NEW}{self.me}", self.directory / self.me
        while self._lock < 0:
            lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.ftruncate(lock, 0)
                os.write(lock, os.fsencode(bell))
                new.rename(own)
            except FileNotFoundError:  # swept up before we had it locked
                os.close(lock)
            except BaseException:
                os.close(lock)
                raise
            else:
                self._lock = lock

    def leave(self) -> None:
        """Let go of our lock. From here on we are dead to the others."""
        if self._lock >= 0:
            (self.directory / self.me).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def alive(self, owner: str) -> bool:
        return owner == self.me or _locked(self.directory / owner)

    def bell(self, owner: str) -> str:
        """Where an owner hears; empty if that is not known."""
        return _bell(self.directory / owner)

    def bells(self) -> list[str]:
        """Where everyone whose file is there, but us, hears."""
        files = [file for file in self.directory.iterdir() if file.name != self.me and not file.name.startswith(_NEW)]
        return [bell for bell in map(_bell, files) if bell]

    def sweep(self) -> dict[str, str]:
        """Remove the files of the dead, and say whose they were, and where they heard."""
        dead = {}
        for file in list(self.directory.iterdir()):
            if file.name != self.me and not _locked(file):
                dead[file.name.removeprefix(_NEW)] = _bell(file)
                file.unlink(missing_ok=True)
        return dead


def _bell(file: Path) -> str:
    try:
        return os.fsdecode(file.read_bytes())
    except OSError:  # it has just gone
        return ""


def _locked(file: Path) -> bool:
    try:
        lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        return True
    finally:
        os.close(lock)
