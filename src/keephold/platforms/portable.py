"""The portable form of everything that differs between operating systems; `linux.py` overrides it.

It needs POSIX alone. The end of a process is reported by kqueue where that exists, elsewhere by a thread. Processes
other than our own children can be listed only if psutil is installed and can read them (on macOS it comes along).
Without it, a call consists of the process groups that its leader made, and `lists` is False.

`docs/reference/platforms.md` says what is weaker for users; `weaker` lists it for `keephold check`.
"""

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from io import FileIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:  # the guard's program does not need them
    import socket
    from pathlib import Path


FEW = 64
"""Number of processes or threads that may be read at once without blocking the loop too long."""

State = Literal["reading", "password", "raw", "busy", "unknown"]
"""`reading`: a line, with echo. `password`: a line, without echo. `raw`: keys, or something else. `busy`: nothing."""


class Look(NamedTuple):
    """The result of one look at a terminal."""

    state: State
    reader: str | None = None
    """A name for the thread that is blocked in a read of the terminal."""


BUSY, UNKNOWN = Look("busy"), Look("unknown")


class ProcessEndWatch(Protocol):
    """The end of a process, for `loop.add_reader`: readable once the process has ended, also if nobody reaps it."""

    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Group(Protocol):
    """The processes of one call, as far as the operating system groups them. Its methods do not block."""

    @property
    def populated(self) -> bool:
        """Whether a process is in the group, apart from the leader's process group."""

    def kill(self) -> None:
        """Send SIGKILL to every process in the group."""

    def leave(self) -> None:
        """Forget the group, which must be empty."""


class Portable:
    """The machine, as every POSIX system has it."""

    name = "portable"
    terminal_line = 1000
    """Bytes of an unfinished line that a terminal certainly keeps: macOS has room for 1024."""
    socket_path = 103
    """How many bytes the path of a socket may have: on macOS one less than 104."""
    probes = False
    """Whether the machine tells if a program reads its input."""
    replaces_servers = False
    """Whether a server can hand its sockets over to its successor."""
    no_programs = ""
    """Why no program can be run: commands, terminals, servers, agents, workers. Empty: they can."""
    has_sockets = True
    """Whether processes reach each other by Unix sockets, so that several can have one SQLite store open."""
    replaces_open_files = True
    """Whether a file that is open can be renamed, replaced and removed."""

    def __init__(self) -> None:
        self._guards: dict[str, int] = {}
        self._groups: dict[int, str] = {}

    # Processes

    @property
    def lists(self) -> bool:
        """Whether all processes of the machine can be listed, with the marks in their environments."""
        return self._psutil is not None

    @cached_property
    def _psutil(self) -> Any:
        try:
            import psutil

            return psutil if os.getpid() in psutil.pids() else None
        except Exception:  # it is not installed, or finds no /proc
            return None

    def modules(self) -> str:
        """Return the directory of the modules that a program without site-packages needs; empty: it needs none."""
        found = getattr(self._psutil, "__file__", None)
        return "" if found is None else os.path.dirname(os.path.dirname(found))  # noqa: PTH120

    def pids(self) -> Iterable[int]:
        """Return the pid of every process; none if they cannot be listed."""
        return self._psutil.pids() if self.lists else ()

    def last_pid(self) -> int | None:
        """Return the newest pid: nothing was forked after the process that has it. None: unknown."""
        return None

    def values(self, pid: int, name: str) -> list[str] | None:
        """Return the values of a variable in the environment of a process, as it was started. None while the process
        is just changing its program."""
        value = self._of(pid, lambda process: process.environ().get(name), None)
        return [] if value is None else [value]

    def _of(self, pid: int, ask: Callable[[Any], Any], unknown: Any) -> Any:
        """Return what psutil says of a process, or `unknown`."""
        if not self.lists:
            return unknown
        try:
            return ask(self._psutil.Process(pid))
        except (self._psutil.Error, OSError):
            return unknown

    def group_of(self, pid: int) -> int:
        """Return the process group of a process that still runs, else 0."""
        try:
            group = os.getpgid(pid)
        except OSError:
            return 0
        return 0 if self._status(pid) in ("zombie", "dead") else group

    def is_stopped(self, pid: int) -> bool:
        """Whether a process was stopped by a signal, as far as that is known."""
        return self._status(pid) in ("stopped", "tracing-stop")

    def _status(self, pid: int) -> str:
        if not self.lists:
            return ""
        try:
            return str(self._psutil.Process(pid).status())
        except self._psutil.NoSuchProcess:
            return "dead"
        except (self._psutil.Error, OSError):
            return ""

    def command_of(self, pid: int) -> list[str]:
        """Return the words of a process's command line; none if they are unknown."""
        return list(self._of(pid, lambda process: process.cmdline(), ()))

    def started(self, pid: int) -> int:
        """Return when a process was started, for `runs`; 0: unknown."""
        return int(self._of(pid, lambda process: process.create_time(), 0) * 1000)

    def runs(self, pid: int, started: int) -> bool | None:
        """Whether the process that was started at that time still runs; None: unknown."""
        if not exists(pid):
            return False
        found = self.started(pid)
        if not found or not started:
            return None
        # psutil computes the time from that of the boot, which changes when the clock is set.
        return abs(found - started) <= 2000 and self._status(pid) not in ("zombie", "dead")

    def namespace(self) -> int:
        """Return the number of our pid namespace: a pid means something only together with it."""
        return 0

    def boot(self) -> str:
        """Return a name for the time since this machine was started; empty: unknown."""
        return ""

    def end_of(self, pid: int) -> ProcessEndWatch:
        """Return the end of a process, to be closed. Raises `ProcessLookupError`, or `OSError` if there is no room."""
        if not hasattr(select, "kqueue"):
            return _ThreadEnd(pid)
        try:
            return _kqueue_end(pid)
        except ProcessLookupError:  # kqueue does not know a zombie, either
            return _ended()

    def after_fork(self, in_child: Callable[[], None]) -> None:
        """Call this in every child that is forked without `exec`."""
        os.register_at_fork(after_in_child=in_child)

    def on_signal(self, name: str, call: "Callable[[int], object]") -> Callable[[], object]:
        """Call this in the running loop with the number of the signal, if the system has one of that name. Return what
        ends that. Raises `RuntimeError` in a thread that gets no signals."""
        import asyncio

        loop, number = asyncio.get_running_loop(), getattr(signal, name, None)
        if number is None:
            return lambda: None
        loop.add_signal_handler(number, call, number)
        return lambda: loop.remove_signal_handler(number)

    # Groups of processes

    def enter(self, mark: str, pid: int) -> Group | None:
        """Put the leader of a call into a group of the call."""
        self._groups[pid] = mark
        self._tell(b"+%d\n", pid)
        return _Noted(self, pid)

    def forget(self, pid: int) -> None:
        """Nothing is left of this leader's process group."""
        self._tell(b"-%d\n", pid)
        self._groups.pop(pid, None)

    def guarded(self, mark: str, pipe: int | None) -> None:
        """A guard reads from this pipe, and learns the process groups of the calls below the mark. None: it is gone."""
        self._guards.pop(mark, None)
        if pipe is not None:
            os.set_blocking(pipe, False)
            self._guards[mark] = pipe
            for pid in self._groups:
                self._tell(b"+%d\n", pid)

    def _tell(self, note: bytes, pid: int) -> None:
        mark = self._groups.get(pid, "")
        for guard, pipe in self._guards.items():
            if mark.startswith(f"{guard}/"):
                with contextlib.suppress(OSError):  # the guard has died, or does not read
                    os.write(pipe, note % pid)

    def wait_for_end(self, pipe: int, owner: int, alive: Callable[[], bool]) -> None:
        """In a guard: return when nobody has the pipe open for writing, or the owner, our parent, has died. `alive`
        says whether the owner has not died before."""
        rest, parent = b"", os.getppid() if alive() else 0
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while (waits := os.getppid() == parent) or poll.poll(0):
            if waits and not poll.poll(500):
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                return
            *notes, rest = (rest + data).split(b"\n")
            for note in notes:
                if note.startswith(b"+"):
                    self._groups[int(note)] = ""
                else:
                    self._groups.pop(-int(note), None)

    def end_groups(self, mark: str) -> None:
        """Kill everything in the groups of a runtime's calls; may block. In a guard, those that it knows."""
        for pid, whose in list(self._groups.items()):
            if not whose or whose.startswith(f"{mark}/"):
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)

    def reap_groups(self, alive: Callable[[str], bool | None]) -> None:
        """Kill everything in the groups of dead runtimes."""

    # Pipes and input

    def pipe_name(self, fd: int) -> str | None:
        """Return a name by which `holds` knows a pipe; None: it cannot."""
        return None

    def holds(self, pid: int, pipe: str) -> bool:
        """Whether a process has the pipe open."""
        return False

    def enlarge_pipe(self, fd: int, size: int) -> None:
        """Enlarge a pipe to this number of bytes, if that can be done."""

    def reopen(self, fd: int, flags: int) -> int:
        """Open the file of a descriptor once more, with flags of its own. Raises `OSError`."""
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    def path_of(self, fd: int) -> int | None:
        """Return a descriptor for `reopen` that keeps no end of the pipe open; None: there is no such thing."""
        return None

    def reads_pipe(self, leader: int, fd: int) -> bool | None:
        """Whether a process of the tree is blocked reading the pipe as its standard input; None: unknown."""
        return None

    def move(self, source: int, target: int, size: int, place: int) -> int | None:
        """Move bytes from a pipe to this place of a file without copying; None: it cannot be done."""
        return None

    # Terminals

    def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, terminal: int
    ) -> tuple[int, Callable[[], int]]:
        """Start a program in a session of its own that has this terminal; return its pid, and what reaps it and
        returns its exit code, or its signal as a negative number. Raises `OSError` or `ValueError`."""
        import subprocess
        import warnings

        if not argv:
            raise ValueError("argv must not be empty")
        with warnings.catch_warnings():
            # The child only makes a few system calls. The other way, `posix_spawn`, cannot take a terminal on macOS.
            warnings.simplefilter("ignore", DeprecationWarning)
            started = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                preexec_fn=_take_terminal,
            )  # fmt: skip
        return started.pid, started.wait

    def look(self, master: int, slave: int, leader: int) -> Look:
        """Whether the program in the foreground of a terminal, whose session has this leader, waits for input.

        By the modes of the terminal alone: without echo, a line is taken for a password that is being read.
        """
        import termios

        if self.has_input(slave):
            return BUSY
        flags = termios.tcgetattr(slave)[3]
        if not flags & termios.ICANON:
            return Look("raw")
        return UNKNOWN if flags & termios.ECHO else Look("password", "")

    def may_come_back(self, reader: str) -> bool:
        """Whether a reader that does not read may only have been interrupted."""
        return False

    def has_input(self, fd: int) -> bool:
        """Whether there is something to read: of a terminal in line mode, a whole line."""
        try:
            return bool(select.select([fd], [], [], 0)[0])  # poll(2) of macOS does not know terminals
        except ValueError:  # a number too large for select(2)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(0))

    def other_side(self, master: int) -> int:
        """Open the program's side of a terminal. Raises `OSError`."""
        return os.open(_name_of_terminal(master), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)

    # Files, memory, sockets

    def user(self) -> int:
        """Return the number of our user, as `st_uid` has it."""
        return os.geteuid()

    def is_private(self, facts: os.stat_result) -> bool:
        """Whether nobody but the owner can read or write a file, by the result of `stat`."""
        return not facts.st_mode & 0o077

    def lock(self, fd: int, *, shared: bool = False, wait: bool = False) -> None:
        """Lock a file until it is closed. Raises `BlockingIOError` if another has locked it and this does not wait."""
        import fcntl

        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))

    def unlock(self, fd: int) -> None:
        """Release the lock of a file."""
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_directory(self, path: "Path", *, wait: bool = False) -> int:
        """Return a descriptor that holds the lock of a directory, which is not a link. Raises as `lock` does."""
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self.lock(opened, wait=wait)
        except BaseException:
            os.close(opened)
            raise
        return opened

    def remove_directory(self, path: "Path", release: Callable[[], object]) -> None:
        """Remove a directory with everything in it, and then release its lock: without one, others may remove it."""
        import shutil

        shutil.rmtree(path, ignore_errors=True)
        release()

    def sync_directory(self, path: "Path") -> None:
        """Return when the names in a directory are on the disk."""
        opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)

    def read_at(self, fd: int, size: int, place: int) -> bytes:
        """Read at most this number of bytes from this place of a file."""
        return os.pread(fd, size, place)

    def write_at(self, fd: int, data: "bytes | memoryview", place: int) -> int:
        """Write to this place of a file; return how many bytes were written."""
        return os.pwrite(fd, data, place)

    def most_files(self) -> int:
        """Return how many descriptors this process may have open, after raising that number as far as possible."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            with contextlib.suppress(OSError, ValueError):  # macOS names a higher limit than it grants
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                return hard
        return soft

    def sync_data(self, fd: int) -> None:
        """Return when the data of a file is on the disk."""
        import fcntl

        full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: `fsync` leaves the data in the disk's own cache
        if full is not None:
            with contextlib.suppress(OSError):  # a file system that does not know it
                fcntl.fcntl(fd, full)
                return
        os.fsync(fd)

    def file_system(self, place: "Path") -> str:
        """Return the type of the file system that holds the path; empty: unknown."""
        return ""

    def lock_holders(self, inode: int, byte: int | None) -> Iterator[int]:
        """Yield the processes that hold the lock of a file: that of `flock`, or the record lock on this byte."""
        return iter(())

    def listener(self, port: int) -> int | None:
        """Return the process that listens on a TCP port; None: unknown."""
        return None

    def shared_memory(self, name: str, size: int) -> int:
        """Return the descriptor of memory for `mmap` that other processes can get."""
        import tempfile

        with tempfile.TemporaryFile(prefix=name) as file:
            file.truncate(size)
            return os.dup(file.fileno())

    def limit_memory(self, size: int) -> None:
        """Limit the address space of this process, if the system does that: macOS does not."""
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

    def memory_reader(self) -> Callable[[], int]:
        """Return a function that returns how many bytes this process has: here, the most it ever had."""
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def environment_area(self) -> tuple[int, int] | None:
        """Return the addresses of the environment that other processes can read, if it can be overwritten."""
        return None

    def peer(self, connection: "socket.socket") -> tuple[int, int]:
        """Return the pid and the user of the other side of a Unix socket."""
        import socket
        import struct

        if hasattr(socket, "SO_PEERCRED"):
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return pid, uid
        _, uid = struct.unpack_from("=II", connection.getsockopt(0, 1, 76))  # SOL_LOCAL, LOCAL_PEERCRED
        return connection.getsockopt(0, 2), uid  # LOCAL_PEERPID

    # Weaknesses

    @property
    def cleanup(self) -> str:
        """Say how the processes of a call are found when it ends (R2)."""
        return "by mark and by process group" if self.lists else "by process group only: psutil is not installed"

    @property
    def weaker(self) -> Sequence[str]:
        """Say what is weaker here than on Linux."""
        unseen = " and overwrote its environment" if self.lists else ""
        return (
            f"a descendant of a command that left its process group{unseen} is not ended with its call",
            "whether a command reads its input is unknown; a terminal without echo counts as a password prompt",
            "`keephold serve --replace` is refused",
            "the environment that keephold was started with, secrets included, can be read by its user's processes",
        )


def exists(pid: int) -> bool:
    """Whether a process exists, if only as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


class _Noted:
    """The group of a call that its guard knows: the leader's process group, and nothing else."""

    __slots__ = ("_machine", "_pid")

    populated = False

    def __init__(self, machine: Portable, pid: int) -> None:
        self._machine, self._pid = machine, pid

    def kill(self) -> None:
        """The process group gets its signals from the session."""

    def leave(self) -> None:
        self._machine.forget(self._pid)


def _kqueue_end(pid: int) -> ProcessEndWatch:
    kernel: Any = select
    queue: Any = kernel.kqueue()
    once = kernel.KQ_EV_ADD | kernel.KQ_EV_ONESHOT
    try:
        queue.control([kernel.kevent(pid, kernel.KQ_FILTER_PROC, once, kernel.KQ_NOTE_EXIT)], 0, 0)
    except OSError:
        queue.close()
        raise
    return queue  # type: ignore[no-any-return]


def _ended() -> ProcessEndWatch:
    """Return the end of a process that has ended already."""
    read, write = os.pipe()
    os.close(write)
    return FileIO(read)


class _ThreadEnd:
    __slots__ = ("_closed", "_read")

    def __init__(self, pid: int) -> None:
        import threading

        self._closed = False
        self._read, write = os.pipe()
        thread = threading.Thread(target=self._wait, args=(pid, write), daemon=True, name=f"keephold-end-of-{pid}")
        try:
            thread.start()
        except RuntimeError as error:
            os.close(write)
            os.close(self._read)
            raise OSError(errno.EAGAIN, str(error)) from error

    def _wait(self, pid: int, write: int) -> None:
        while not self._closed:
            try:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                break
            except ChildProcessError:  # it is not ours: nothing reports its end
                if not exists(pid):
                    break
                time.sleep(0.01)
        with contextlib.suppress(OSError):
            os.write(write, b".")  # closing would not do: a fork may have the descriptor, too
        os.close(write)

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        self._closed = True
        os.close(self._read)


def _take_terminal() -> None:
    """In a child that is about to become a program: let nothing be ignored or blocked, and take the terminal."""
    import fcntl
    import termios

    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _name_of_terminal(master: int) -> str:
    """Return the path of the program's side."""
    import fcntl

    if hasattr(os, "ptsname"):  # Python 3.13
        return str(os.ptsname(master))
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.ioctl(master, 0x40807453, bytes(128)).partition(b"\0")[0])  # TIOCPTYGNAME
    number = int.from_bytes(fcntl.ioctl(master, 0x80045430, bytes(4)), sys.byteorder)  # TIOCGPTN
    return f"/dev/pts/{number}"


def read(path: str) -> bytes:
    """Read a whole file of /proc, at a third of the cost of `open`."""
    fd = os.open(path, os.O_RDONLY)
    try:
        data = b""
        while part := os.read(fd, 65536):  # a list such as /proc/locks comes a page at a time, for any size asked for
            data += part
        return data
    finally:
        os.close(fd)
