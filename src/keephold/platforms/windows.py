"""Windows: functions, stores, HTTP and MCP. Programs are not run as tools: that needs process groups and terminals.

One process at a time opens a SQLite store for writing, because processes that share a store find each other by Unix
sockets. Files are locked by `msvcrt`, on a byte that no file here reaches: a locked byte cannot be read by others.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from keephold.platforms.portable import Portable
from keephold.platforms.unix import O_CLOEXEC

_BYTE = 0x7FFF0000
"""The byte that is locked. `msvcrt` counts in 32 bits."""
_TRY_SECS = 0.01
_LOCK_FILE = ".lock"


class Windows(Portable):
    name = "windows"
    no_programs = "keephold does not run programs on Windows; use a function, an MCP server with a `url`, or WSL"
    has_sockets = False
    replaces_open_files = False

    def __init__(self) -> None:
        super().__init__()
        self._moving = threading.Lock()

    # Processes: none is ours, and `os.kill` would end any process, with every number

    @property
    def lists(self) -> bool:
        return False

    def group_of(self, pid: int) -> int:
        return 0

    def runs(self, pid: int, started: int) -> bool | None:
        return None

    def after_fork(self, in_child: Callable[[], None]) -> None:
        pass

    def end_groups(self, mark: str) -> None:
        pass

    def on_signal(self, name: str, call: Callable[[int], object]) -> Callable[[], object]:
        if not hasattr(signal, name):
            return lambda: None
        loop = asyncio.get_running_loop()

        def heard(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(call, number)

        number = getattr(signal, name)
        try:
            before = signal.signal(number, heard)
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        return lambda: signal.signal(number, before or signal.SIG_DFL)

    # Files

    def user(self) -> int:
        return 0  # as `st_uid` always is

    def is_private(self, facts: os.stat_result) -> bool:
        return True  # the mode does not tell; the user's directory is closed to others by its access control list

    def lock(self, fd: int, *, shared: bool = False, wait: bool = False) -> None:
        while not self._locked(fd, "LK_NBLCK"):
            if not wait:
                raise BlockingIOError(errno.EAGAIN, "another process has locked the file")
            time.sleep(_TRY_SECS)

    def unlock(self, fd: int) -> None:
        self._locked(fd, "LK_UNLCK")

    def _locked(self, fd: int, how: str) -> bool:
        msvcrt: Any = import_module("msvcrt")
        with self._at(fd, _BYTE):
            try:
                msvcrt.locking(fd, getattr(msvcrt, how), 1)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EDEADLK):
                    raise
                return False
        return True

    def lock_directory(self, path: Path, *, wait: bool = False) -> int:
        lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | O_CLOEXEC, 0o600)
        try:
            self.lock(lock, wait=wait)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def remove_directory(self, path: Path, release: Callable[[], object]) -> None:
        release()  # an open file cannot be removed; nor can that of a process which takes the lock now
        shutil.rmtree(path, ignore_errors=True)

    def sync_data(self, fd: int) -> None:
        os.fsync(fd)

    def sync_directory(self, path: Path) -> None:
        pass  # NTFS keeps a journal of names

    def read_at(self, fd: int, size: int, place: int) -> bytes:
        with self._at(fd, place):
            return os.read(fd, size)

    def write_at(self, fd: int, data: "bytes | memoryview", place: int) -> int:
        with self._at(fd, place):
            return os.write(fd, data)

    @contextlib.contextmanager
    def _at(self, fd: int, place: int) -> Iterator[None]:
        with self._moving:
            before = os.lseek(fd, 0, os.SEEK_CUR)
            os.lseek(fd, place, os.SEEK_SET)
            try:
                yield
            finally:
                os.lseek(fd, before, os.SEEK_SET)

    def most_files(self) -> int:
        return 8192  # that of the C library; sockets do not count there

    # Weaknesses

    @property
    def cleanup(self) -> str:
        return "none: programs are not run as tools"

    @property
    def weaker(self) -> Sequence[str]:
        return (
            "commands, terminals and other programs as tools are refused: use functions, or MCP servers over HTTP",
            "one process at a time opens a SQLite store for writing; others read it, or use `--server`",
            "whether other users can read the store and the token is not checked",
            "`keephold serve --replace` is refused",
        )
