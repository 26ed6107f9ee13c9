"""Linux: pidfds show the end of a process, `/proc` shows everything else, and control groups hold calls (`cgroups.py`).

A process whose files in `/proc` cannot be read belongs to another user and is skipped.
"""

import contextlib
import os
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from typing import TYPE_CHECKING

from keephold.platforms import cgroups
from keephold.platforms.portable import BUSY, Group, Look, Portable, ProcessEndWatch, exists, read

if TYPE_CHECKING:  # the guard's program does not need it
    from pathlib import Path

# Positions in /proc/<pid>/stat, counted after the name.
STATE, _GROUP, TERMINAL, _FLAGS, _START, _ENV_START, _ENV_END = 0, 2, 4, 6, 19, 47, 48
_KERNEL_THREAD = 0x00200000
_GONE = (b"Z", b"X")
_LISTENING = "0A"
_TIOCGPTPEER = 0x5441  # opens the other side of a terminal by its master, wherever /dev/pts is


def has_everything() -> bool:
    """Whether this machine has what `Linux` needs: pidfds, and a `/proc` that shows processes."""
    try:
        read("/proc/self/stat")
        os.stat("/proc/self/ns/pid")  # noqa: PTH116
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        return False
    return True


class Linux(Portable):
    name = "linux"
    terminal_line = 4000  # it keeps 4095 bytes of a line that is not ended, and drops the rest
    socket_path = 107
    lists = True
    probes = True
    replaces_servers = True
    weaker = ()

    # Processes

    def modules(self) -> str:
        return ""

    def pids(self) -> Iterable[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (Path.iterdir costs thrice)

    def last_pid(self) -> int:
        return int(read("/proc/loadavg").split()[4])

    def values(self, pid: int, name: str) -> list[str] | None:
        try:
            data = read(f"/proc/{pid}/environ")
        except OSError:
            return []
        if not data:
            return None if _changing_program(pid) else []
        prefix = name.encode() + b"="
        if prefix not in data:
            return []
        return [os.fsdecode(entry[len(prefix) :]) for entry in data.split(b"\0") if entry.startswith(prefix)]

    def group_of(self, pid: int) -> int:
        stat = stat_of(pid)
        return 0 if stat is None or stat[STATE] in _GONE else int(stat[_GROUP])

    def is_stopped(self, pid: int) -> bool:
        stat = stat_of(pid)
        return stat is not None and stat[STATE] in (b"T", b"t")

    def command_of(self, pid: int) -> list[str]:
        try:
            return read(f"/proc/{pid}/cmdline").decode("utf-8", "replace").removesuffix("\0").split("\0")
        except OSError:
            return []

    def started(self, pid: int) -> int:
        stat = stat_of(pid)
        return 0 if stat is None else int(stat[_START])

    def runs(self, pid: int, started: int) -> bool | None:
        stat = stat_of(pid)
        if stat is not None:
            return int(stat[_START]) == started and stat[STATE] not in _GONE
        return None if exists(pid) else False  # it is hidden from us, by the mount options of /proc

    def namespace(self) -> int:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116

    def boot(self) -> str:
        return read("/proc/sys/kernel/random/boot_id").decode().strip()

    def end_of(self, pid: int) -> ProcessEndWatch:
        return FileIO(os.pidfd_open(pid))

    # Groups of processes

    @property
    def cleanup(self) -> str:
        own, why = cgroups.place()
        return f"by mark only: {why}" if own is None else f"by mark and by control group, below {own}"

    def enter(self, mark: str, pid: int) -> Group | None:
        return cgroups.enter(mark, pid)

    def guarded(self, mark: str, pipe: int | None) -> None:
        """The guard finds everything itself."""

    def wait_for_end(self, pipe: int, owner: int, alive: Callable[[], bool]) -> None:
        # A child forked without exec may hold the pipe open, so the owner is watched, too.
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        with contextlib.suppress(OSError):
            poll.register(os.pidfd_open(owner), select.POLLIN)
        if alive():  # checked after the pidfd holds it, otherwise another process could have that pid
            poll.poll()

    def end_groups(self, mark: str) -> None:
        own, _ = cgroups.place()
        if own is not None:
            cgroups.end(own, mark)

    def reap_groups(self, alive: Callable[[str], bool | None]) -> None:
        own, _ = cgroups.place()
        if own is not None:
            cgroups.reap(own, alive)

    # Pipes and input

    def pipe_name(self, fd: int) -> str | None:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115

    def holds(self, pid: int, pipe: str) -> bool:
        try:
            return any(os.readlink(f"/proc/{pid}/fd/{fd}") == pipe for fd in os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH115, PTH208
        except OSError:
            return False

    def enlarge_pipe(self, fd: int, size: int) -> None:
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)

    def reopen(self, fd: int, flags: int) -> int:
        return os.open(f"/proc/self/fd/{fd}", flags)

    def path_of(self, fd: int) -> int | None:
        return os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC)

    def reads_pipe(self, leader: int, fd: int) -> bool | None:
        from keephold.platforms.linux_probe import reading_pipe

        return reading_pipe(leader, f"pipe:[{os.fstat(fd).st_ino}]")

    def move(self, source: int, target: int, size: int, place: int) -> int | None:
        return os.splice(source, target, size, offset_dst=place)

    # Terminals

    def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, terminal: int
    ) -> tuple[int, Callable[[], int]]:
        from keephold.platforms.linux_spawn import spawn

        pid = spawn(argv, env, cwd, os.ttyname(terminal))
        return pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def look(self, master: int, slave: int, leader: int) -> Look:
        from keephold.platforms.linux_probe import look

        return BUSY if self.has_input(slave) else look(master, slave, leader)

    def may_come_back(self, reader: str) -> bool:
        try:
            return read(f"{reader}/syscall").startswith(b"running")
        except OSError:
            return False

    def has_input(self, fd: int) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def other_side(self, master: int) -> int:
        import fcntl

        return fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)

    # Files and memory

    def sync_data(self, fd: int) -> None:
        os.fdatasync(fd)

    def file_system(self, place: "Path") -> str:
        best, found = -1, ""
        with contextlib.suppress(OSError):
            for line in read("/proc/self/mountinfo").decode("utf-8", "replace").splitlines():
                before, _, after = line.partition(" - ")
                point = type(place)(before.split()[4].encode().decode("unicode_escape"))
                if len(point.parts) >= best and place.is_relative_to(point):
                    best, found = len(point.parts), after.split()[0]
        return found

    def lock_holders(self, inode: int, byte: int | None) -> Iterator[int]:
        # A process in a pid namespace that cannot be seen from here is not named. Files are compared by their inode
        # alone: some file systems show another device there than `stat` does. The kernel lists locks a page at a time
        # and finds its place again by counting, so a lock that is released meanwhile can hide another: look again.
        return iter(_lock_holders(inode, byte) or _lock_holders(inode, byte) or _lock_holders(inode, byte))

    def listener(self, port: int) -> int | None:
        sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
        return next((pid for pid in self.pids() if any(self.holds(pid, each) for each in sockets)), None)

    def shared_memory(self, name: str, size: int) -> int:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        return descriptor

    def memory_reader(self) -> Callable[[], int]:
        statm, page = os.open("/proc/self/statm", os.O_RDONLY), os.sysconf("SC_PAGE_SIZE")
        return lambda: int(os.pread(statm, 32, 0).split(maxsplit=1)[0]) * page  # its address space

    def environment_area(self) -> tuple[int, int] | None:
        stat = stat_of(os.getpid())
        return None if stat is None else (int(stat[_ENV_START]), int(stat[_ENV_END]))


def _changing_program(pid: int) -> bool:
    """Whether a process without environment is in the middle of execve, and not a zombie, a kernel thread, or bare.

    Between the old program and the new one, the address space has no environment: its end is at 0.
    """
    stat = stat_of(pid)
    if stat is None or stat[STATE] in _GONE or int(stat[_FLAGS]) & _KERNEL_THREAD:
        return False
    return int(stat[_ENV_END]) == 0


def _lock_holders(inode: int, byte: int | None) -> list[int]:
    found = []
    for line in read("/proc/locks").decode().splitlines():
        _, kind, _, how, *rest = line.split()
        if how != "WRITE" or len(rest) != 4 or rest[1].rpartition(":")[2] != str(inode):
            continue
        pid, _, first, last = rest
        if kind == "FLOCK" if byte is None else kind == "POSIX" and first == last == str(byte):
            found.append(int(pid))
    return found


def stat_of(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat after the name; None if the process does not exist."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in read(table).decode().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                    yield cells[9]
