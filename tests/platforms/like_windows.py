"""Makes this interpreter look like that of Windows, as far as Linux can.

`look_like_windows` removes the modules and names that Python has on Unix alone, and replaces what Windows has and Linux
does not. Files behave as there: an open one cannot be renamed, replaced or removed, a new name must be free, a
directory cannot be opened, modes and owners say nothing, and a file that was opened as text carries no bytes. The event
loop lacks what that of the Proactor lacks: readers, writers, signals and Unix sockets. Paths stay those of Linux.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

ONLY_UNIX = {
    "os": "O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_NOCTTY O_SYNC O_DSYNC O_PATH O_TMPFILE O_NOATIME O_ASYNC "
    "O_DIRECT O_NDELAY getuid geteuid getgid getegid getgroups getgrouplist getpgid getpgrp getsid getpriority getres "
    "setuid seteuid setgid setegid setgroups setpgid setpriority setre setsid initgroups fork forkpty killpg nice "
    "register_at_fork posix_spawn wait3 wait4 waitid P_ WIF WE WS WT WCO WN WU sched_ SCHED_ chown fchown lchown "
    "chroot fchdir fchmod mkfifo "
    "mknod major minor makedev pathconf fpathconf statvfs fstatvfs sync fdatasync lockf openpty pipe2 posix_f preadv "
    "pread pwrite readv writev sendfile splice SPLICE_ set_blocking get_blocking tcgetpgrp tcsetpgrp ttyname ctermid "
    "uname confstr sysconf getloadavg getrandom memfd_create MFD_ eventfd EFD_ pidfd_open copy_file_range unshare "
    "setns getxattr setxattr listxattr removexattr environb getenvb supports_dir_fd EX_ RTLD_ ST_",
    "socket": "AF_UNIX AF_NETLINK AF_PACKET AF_VSOCK SO_PEERCRED SO_PASSCRED SO_REUSEPORT SOCK_NONBLOCK SOCK_CLOEXEC "
    "SCM_ CMSG_ MSG_DONTWAIT MSG_NOSIGNAL MSG_CMSG_CLOEXEC send_fds recv_fds TCP_USER_TIMEOUT TCP_QUICKACK",
    "signal": "SIGHUP SIGKILL SIGUSR SIGCHLD SIGCLD SIGCONT SIGSTOP SIGTSTP SIGTT SIGPIPE SIGALRM SIGQUIT SIGWINCH "
    "SIGPROF SIGVTALRM SIGIO SIGPOLL SIGPWR SIGRT SIGSTKFLT SIGSYS SIGTRAP SIGURG SIGXCPU SIGXFSZ SIGBUS SIG_BLOCK "
    "SIG_UNBLOCK SIG_SETMASK pthread_ setitimer getitimer ITIMER_ alarm pause sigwait sigtimedwait sigpending "
    "siginterrupt pidfd_send_signal",
    "select": "poll POLL epoll EPOLL",
}
"""Names of modules, and of families of them, that Python has on Linux and not on Windows."""
NO_MODULES = "fcntl termios tty pty resource pwd grp spwd nis crypt syslog readline curses"
BINARY = 1 << 30


def look_like_windows() -> None:
    os.environ["KEEPHOLD_PLATFORM"] = "windows"
    real = {name: getattr(os, name) for name in ("open", "read", "write", "stat", "lstat", "fstat", "statvfs")}
    any_os: Any = os
    any_os.O_BINARY = BINARY
    _files(real)
    import select

    _remove(select, ONLY_UNIX["select"])  # before `selectors`, which everything below imports, finds them
    import asyncio
    import fcntl
    import shutil
    import signal
    import socket
    import subprocess

    for package in ("mcp.server.stdio", "textual.app"):  # they ask for the name of the system, which is that of Linux
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
    programs: Any = subprocess  # it needs Unix to start a program at all, and is kept as it was
    programs.os, programs.signal = SimpleNamespace(**vars(os)), SimpleNamespace(**vars(signal))
    pair, family = socket.socketpair, socket.AF_UNIX
    for module in (os, socket, signal):
        _remove(module, ONLY_UNIX[module.__name__])
    any_os.kill = _not_there("os.kill ends the process on Windows with any number")
    any_os.supports_dir_fd = set()
    files: Any = shutil
    files.disk_usage = lambda path: SimpleNamespace(free=real["statvfs"](path).f_bavail)
    files._use_fd_functions = False
    sockets: Any = socket
    sockets.socketpair = lambda *given: pair(family)
    signals: Any = signal
    signals.SIGBREAK = 21
    for name in ("open_unix_connection", "start_unix_server"):
        delattr(asyncio, name)
    sys.modules["msvcrt"] = _msvcrt(fcntl)
    for name in NO_MODULES.split():
        sys.modules[name] = None  # type: ignore[assignment]
    _like_proactor(asyncio)


def _remove(module: ModuleType, names: str) -> None:
    for name in [name for name in dir(module) if name.startswith(tuple(names.split()))]:
        delattr(module, name)


def _files(real: dict[str, Callable[..., Any]]) -> None:
    """Give files the behaviour of Windows."""
    text: set[int] = set()
    any_os: Any = os

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if os.path.isdir(path):  # noqa: PTH112
            raise PermissionError(13, "Permission denied", path)
        number: int = real["open"](path, flags & ~BINARY, mode, **more)
        (text.discard if flags & BINARY else text.add)(number)
        return number

    def binary(name: str) -> Callable[..., Any]:
        def call(number: int, *given: Any) -> Any:
            assert number not in text or number < 3, f"os.{name} of a file that was opened as text"
            return real[name](number, *given)

        return call

    def facts(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> os.stat_result:
            found = real[name](*given, **named)
            mode = found.st_mode | (0o777 if found.st_mode & 0o040000 else 0o666)
            times = {each: getattr(found, each) for each in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")}
            times |= {each: getattr(found, each) for each in ("st_atime", "st_mtime", "st_ctime")}
            return os.stat_result((mode, *found[1:4], 0, 0, *found[6:10]), times)

        return call

    def closed(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def call(*paths: Any, **named: Any) -> Any:
            for path in paths:
                if _is_open(os.path.realpath(path)):
                    raise PermissionError(13, "The process cannot access the file: it is being used", path)
            if name == "rename" and os.path.exists(paths[1]):  # noqa: PTH110
                raise FileExistsError(17, "Cannot create a file when that file already exists", paths[1])
            return function(*paths, **named)

        return call

    fdopen = os.fdopen

    def made(number: int, *given: Any, **named: Any) -> Any:
        text.discard(number)
        return fdopen(number, *given, **named)

    any_os.open, any_os.fdopen = opened, made
    any_os.read, any_os.write = binary("read"), binary("write")
    any_os.stat, any_os.lstat, any_os.fstat = facts("stat"), facts("lstat"), facts("fstat")
    for name in ("rename", "replace", "unlink", "remove"):
        setattr(os, name, closed(name))


def _is_open(path: str) -> bool:
    """Whether this process has the file open."""
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if os.readlink(f"/proc/self/fd/{number}") == path:  # noqa: PTH115
                return True
        except OSError:
            continue
    return False


def _msvcrt(fcntl: ModuleType) -> ModuleType:
    """Return the module, with locks of a range of bytes that belong to one opening of the file."""
    import struct

    module = ModuleType("msvcrt")
    made: Any = module
    made.LK_UNLCK, made.LK_LOCK, made.LK_NBLCK, made.LK_RLCK, made.LK_NBRLCK = range(5)
    kernel: Any = fcntl

    def locking(number: int, mode: int, size: int) -> None:
        assert mode in (made.LK_UNLCK, made.LK_NBLCK)
        kind = kernel.F_UNLCK if mode == made.LK_UNLCK else kernel.F_WRLCK
        place = os.lseek(number, 0, os.SEEK_CUR)
        try:
            kernel.fcntl(number, kernel.F_OFD_SETLK, struct.pack("hhqqixxxx", kind, os.SEEK_SET, place, size, 0))
        except OSError as error:
            raise PermissionError(13, "Permission denied") from error

    made.locking = locking
    return module


def _not_there(why: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        raise NotImplementedError(why)

    return call


def _like_proactor(asyncio: Any) -> None:
    names = "add_reader add_writer add_signal_handler remove_signal_handler create_unix_server create_unix_connection"
    missing = {name: _not_there(f"the Proactor loop has no {name}") for name in names.split()}
    loop = type("LikeProactor", (asyncio.SelectorEventLoop,), missing)
    policy = type("Policy", (asyncio.DefaultEventLoopPolicy,), {"_loop_factory": loop})
    asyncio.set_event_loop_policy(policy())
