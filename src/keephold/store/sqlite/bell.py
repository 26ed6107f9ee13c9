"""Wake-up calls between the processes of one store: a datagram says which rows have changed, by what they are named.

Rows are the truth and a ring is only a hint: a bell that nobody answers or that is full is passed over, and a sweep
elsewhere mends it. Sockets live in the user's runtime directory, because a path beside the store can be too long for
one; each owner's lock file says where its bell is.
"""

import asyncio
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from keephold.errors import KeepholdError
from keephold.store.base import Heard
from keephold.store.sqlite.owners import Owners

_LONGEST = 4096
"""Bytes of a datagram; what would be longer says only that something has changed."""
_ANYTHING = b"*"
_BETWEEN = "\0"
"""Names of conversations may have spaces in them."""
_SETTLED = 50_000_000
"""Nanoseconds. A directory that changed less long ago may change again without a newer time."""


_PATH_BYTES = 107
"""How long the path of a socket may be."""
STREAM = ".s"
"""A process has a second socket, for its streams; it is called as its bell, and this."""


def directory(name: str) -> Path:
    """The user's own place for sockets of names as long as this one."""
    runtime, own = os.environ.get("XDG_RUNTIME_DIR"), f"keephold-{os.getuid()}"
    places = [Path(runtime) / "keephold"] if runtime else []
    places += [Path(tempfile.gettempdir()) / own, Path("/tmp") / own]
    found = next((place for place in places if len(os.fsencode(place / name)) <= _PATH_BYTES), places[-1])
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = found.lstat()
    if not found.is_dir() or found.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise KeepholdError(
            f"`{found}` must be a directory of yours that nobody else can enter (mode 0700); remove it, "
            "or set XDG_RUNTIME_DIR to a directory that is yours",
            code="store_unusable",
        )
    return found


class Bell:
    """Our bell, and the ways to the others'. `listen`, `deafen` are for the loop's thread, `ring` for the writer's."""

    def __init__(self, store: Path, owners: Owners) -> None:
        name = f"{hashlib.sha256(os.fsencode(store)).hexdigest()[:16]}-{owners.me}"
        self.path = str(directory(name + STREAM) / name)
        self._owners, self._directory = owners, str(owners.directory)
        self._bells: list[str] = []
        self._listed_at = -1
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._socket.bind(self.path)
            Path(self.path).chmod(0o600)
        except OSError as error:
            self._socket.close()
            raise KeepholdError(
                f"no socket can be made at `{self.path}` ({error}); set XDG_RUNTIME_DIR to another directory of yours",
                code="store_unusable",
            ) from error

    def listen(self, loop: asyncio.AbstractEventLoop, heard: Heard) -> None:
        self._loop, self._heard = loop, heard
        loop.add_reader(self._socket, self._answer)

    def deafen(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop = None

    def close(self) -> None:
        self._socket.close()
        Path(self.path).unlink(missing_ok=True)

    def ring(self, changed: Iterable[str]) -> None:
        """Tell every other process what has changed."""
        try:
            changed_at = os.stat(self._directory).st_mtime_ns  # noqa: PTH116 (after every commit)
        except OSError:
            return
        if changed_at != self._listed_at:
            settled = time.time_ns() - changed_at > _SETTLED
            try:
                self._bells = self._owners.bells()
            except OSError:
                return
            self._listed_at = changed_at if settled else -1
        if not self._bells:
            return
        told = _BETWEEN.join(changed).encode("utf-8", "replace")
        if len(told) > _LONGEST:
            told = _ANYTHING
        for bell in self._bells:
            try:
                self._socket.sendto(told, bell)
            except (OSError, ValueError):  # nobody there, or it has more to read than it can: rows are the truth
                continue

    def _answer(self) -> None:
        told: set[str] = set()
        anything = False
        for _ in range(64):  # then let the loop do something else
            try:
                datagram = self._socket.recv(_LONGEST)
            except OSError:
                break
            anything |= datagram == _ANYTHING
            told.update(datagram.decode("utf-8", "replace").split(_BETWEEN))
        if anything:
            self._heard(None)
        elif told:
            self._heard(frozenset(told))
