"""How the processes that share a store find, wake and queue for each other.

- `Owners`: each process holds a lock on a file of its own, which the kernel releases when the process ends, however it
  ends (E6). No clock is read. The file says where the process listens for wake-ups, so that two processes need not have
  the same environment. A lock file is made under another name and renamed when it is locked, so that nobody takes a new
  owner for a dead one. Looking takes a shared lock: two processes that look at one dead owner both see that it is dead.
- `Bell`: a datagram names the rows that have changed. Rows are the truth and a ring is a hint: a full or unanswered
  bell is skipped, and a sweep makes up for it. Sockets are in the user's runtime directory, because a path beside the
  store can be too long for a socket.
- `Turnstile`: two locked files at which the writers of all processes queue. SQLite has no queue for its write lock: a
  waiting process sleeps and tries again, and a busy process, which is awake when its own transaction ends, takes the
  lock every time. So a writer takes the gate, then the turn, leaves the gate, writes, and leaves the turn. The next
  writer stands in the gate, and the busy one has to queue behind it. A process that is stopped there (SIGSTOP) is
  passed. That is safe: the turnstile makes writers take turns, and SQLite's own lock excludes them.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from keephold.errors import KeepholdError
from keephold.forking import Descriptor, close_in_children
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from keephold.private_file import STREAM, socket_directory
from keephold.store.base import Heard
from keephold.store.housekeeping import pid_and_command

_NEW = ".new-"
_ALONE = ".alone"
_OWNERS = "-owners"


class Owners:
    """The directory of lock files beside the store, and this process's own lock in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.me = os.urandom(8).hex()
        self._lock: Descriptor | None = None
        self._alone: Descriptor | None = None

    def enter(self, bell: str = "") -> None:
        """Take the lock, and write down where this process listens."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if not machine.has_sockets:
            self._be_alone()
        new, own = self.directory / f"{_NEW}{self.me}", self.directory / self.me
        if not machine.replaces_open_files:
            new = own  # nobody else sweeps: this process is alone
        while self._lock is None:
            lock = Descriptor(os.open(new, os.O_RDWR | os.O_CREAT | O_CLOEXEC, 0o600))
            try:
                machine.lock(lock.fileno(), wait=True)
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), os.fsencode(bell))
                if new != own:
                    new.rename(own)
            except FileNotFoundError:  # removed by a sweep before it was locked
                lock.close()
            except BaseException:
                lock.close()
                raise
            else:
                self._lock = lock
        if not _locked(own):
            self.leave()
            raise KeepholdError(
                f"the file system of `{self.directory}` ignores locks: a second lock of one file was granted; put the "
                "store on a local disk",
                code="store_unusable",
            )

    def _be_alone(self) -> None:
        """Refuse a second process where processes cannot wake each other."""
        self._alone = Descriptor(os.open(self.directory / _ALONE, os.O_RDWR | os.O_CREAT | O_CLOEXEC, 0o600))
        try:
            machine.lock(self._alone.fileno())
        except BlockingIOError:
            self._alone.close()
            raise KeepholdError(
                f"another process has `{self.directory.name.removesuffix(_OWNERS)}` open, and on this system one "
                "process at a time writes to a SQLite store; end that process, name it by --server if it is a server, "
                "or use a PostgreSQL store",
                code="store_unavailable",
            ) from None

    def leave(self) -> None:
        """Release the lock: from now on other processes see this one as dead."""
        if self._lock is not None:
            self._lock.close()  # first: Windows removes no open file
            self._lock = None
            (self.directory / self.me).unlink(missing_ok=True)
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def displaced(self) -> bool:
        """Whether the lock file was removed or replaced: other processes take this one for dead."""
        if self._lock is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._lock.fileno()), (self.directory / self.me).stat())
        except OSError:
            return True

    def alive(self, owner: str) -> bool:
        return owner == self.me or _locked(self.directory / owner)

    def living(self) -> list[str]:
        """Return the other processes that have the store open."""
        try:
            names = sorted(file.name for file in self.directory.iterdir() if not file.name.startswith("."))
        except FileNotFoundError:
            return []
        return [name for name in names if name != self.me and _locked(self.directory / name)]

    def bell(self, owner: str) -> str:
        """Return where an owner listens; empty if unknown."""
        return _bell(self.directory / owner)

    def bells(self) -> list[str]:
        """Return where every other process listens."""
        files = [file for file in self.directory.iterdir() if file.name != self.me and not file.name.startswith(".")]
        return [bell for bell in map(_bell, files) if bell]

    def sweep(self) -> dict[str, str]:
        """Remove the files of dead processes. Returns their ids and where they listened."""
        dead = {}
        for file in list(self.directory.iterdir()):
            if file.name not in (self.me, _ALONE) and not _locked(file):
                dead[file.name.removeprefix(_NEW)] = _bell(file)
                file.unlink(missing_ok=True)
        return dead


def owners_of(store: Path) -> Owners:
    """Return the owners of a store, without entering it."""
    return Owners(store.with_name(store.name + _OWNERS))


def _bell(file: Path) -> str:
    try:
        opened = os.open(file, os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    except OSError:  # the file was just removed, or is a link
        return ""
    try:
        return os.fsdecode(os.read(opened, _LONGEST))
    except OSError:  # it is a pipe, or a directory
        return ""
    finally:
        os.close(opened)


def _locked(file: Path) -> bool:
    try:
        lock = os.open(file, os.O_RDWR | O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with contextlib.suppress(BlockingIOError):
            machine.lock(lock, shared=True)
            return False
        return True
    finally:
        os.close(lock)


_LONGEST = 4096
"""Bytes of a datagram; a longer one says only that something has changed."""
_ANYTHING = b"*"
_BETWEEN = "\0"
"""A separator: names of conversations may have spaces in them."""
_SETTLED = 50_000_000
"""Nanoseconds. A directory that changed less long ago may change again without a newer time."""


class Bell:
    """This process's bell, and how to ring others. Call `listen` and `deafen` on the loop's thread, `ring` on the
    writer's."""

    def __init__(self, store: Path, owners: Owners) -> None:
        name = f"{hashlib.sha256(os.fsencode(store)).hexdigest()[:16]}-{owners.me}"
        self._owners, self._directory = owners, str(owners.directory)
        self._bells: list[str] = []
        self._listed_at = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self.path = ""
        if machine.has_sockets:
            self._bind(str(socket_directory(name + STREAM) / name))

    def _bind(self, path: str) -> None:
        self.path = path
        self._socket = close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.setblocking(False)
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
        if self.path:
            self._loop, self._heard = loop, heard
            loop.add_reader(self._socket, self._answer)

    def deafen(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop = None

    def close(self) -> None:
        if self.path:
            self._socket.close()
            Path(self.path).unlink(missing_ok=True)

    def ring(self, changed: Iterable[str]) -> None:
        """Tell every other process what has changed."""
        if not self.path:
            return
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
            except (OSError, ValueError):  # no process listens, or it has more to read than fits: rows are the truth
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


PATIENCE = 5.0
"""Seconds that a writer waits for the others."""
_LOOK_SECS = 0.05
"""Seconds between two looks at the process that is waited for."""


class Turnstile:
    """One writer's position in the queue. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[Descriptor] = []
        try:
            for end in ("-gate", "-turn"):
                opened = os.open(f"{path}{end}", os.O_RDWR | os.O_CREAT | O_CLOEXEC, 0o600)
                self._files.append(Descriptor(opened))
        except BaseException:
            self.close()
            raise
        self._gate, self._turn = (file.fileno() for file in self._files)

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Wait for the turn, for at most `PATIENCE`, or pass a process that is stopped."""
        if self.enter_now():
            return
        gate, until = self._gate, time.monotonic() + PATIENCE
        self._wait(gate, "-gate", until)
        try:
            self._wait(self._turn, "-turn", until)
        finally:
            machine.unlock(gate)

    def enter_now(self) -> bool:
        """Take the turn if no writer is before this one; return whether it did."""
        gate = self._gate
        try:
            machine.lock(gate)
        except BlockingIOError:
            return False
        try:
            machine.lock(self._turn)
            return True
        except BlockingIOError:
            return False
        finally:
            machine.unlock(gate)

    def leave(self) -> None:
        """Let the next writer in."""
        machine.unlock(self._turn)

    def _wait(self, lock: int, end: str, until: float) -> None:
        """Poll, because nothing would end a blocking `flock` if the other process is stopped in the middle."""
        pause, look = 0.00005, time.monotonic() + _LOOK_SECS
        while True:
            try:
                machine.lock(lock)
                return
            except BlockingIOError:
                now = time.monotonic()
            if now > look or now > until:
                look, holder = now + _LOOK_SECS, stopped_holder(f"{self._path}{end}")
                if holder is not None and self._path.exists():  # making the store is for one process at a time
                    return
                if now > until:
                    raise self._not_free(holder)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.001)

    def _not_free(self, stopped: str | None) -> KeepholdError:
        who = f"another process has been writing to `{self._path}` for {PATIENCE:g} s; wait, or end it"
        if stopped is not None:
            who = f"process {stopped} was stopped while it made `{self._path}`; {advice(stopped)}"
        return KeepholdError(who, code="store_unavailable")

    def close(self) -> None:
        while self._files:
            self._files.pop().close()


# Who holds a lock

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
