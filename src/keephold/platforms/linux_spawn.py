"""Starts a program in a terminal without fork, on Linux.

`posix_spawn` opens the terminal by name after it has made the session, which makes it the controlling terminal. The
program starts as from a login: no signal is ignored or blocked and no other descriptor is open. `posix_spawn` knows no
working directory. For another one, `sh` changes to it and becomes the program; its errors are checked before, so that
they are reported in the same words.
"""

import errno
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_SHIM = ("/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh")


def spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, terminal: str) -> int:
    """Start a program in the terminal of this path and return its pid, or raise `OSError` or `ValueError`."""
    if not argv:
        raise ValueError("argv must not be empty")
    if cwd is None or _is_here(cwd):
        program = _find(argv[0], env, "")
    else:
        program = _SHIM[0]
        _check(Path(_find(argv[0], env, cwd)), argv[0])
        argv = (*_SHIM, str(Path(cwd).absolute()), *argv)
    return os.posix_spawn(
        program,
        tuple(argv),
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
            *_closing(),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_SIGNALS,
    )


def _is_here(cwd: str) -> bool:
    """Whether a directory is the current one; raises if it does not exist or may not be entered."""
    try:
        return os.path.samestat(os.stat(f"{cwd}/."), os.stat("."))  # noqa: PTH116 (a Path would drop the dot)
    except OSError as error:
        raise OSError(error.errno, error.strerror, cwd) from error


def _find(program: str, env: Mapping[str, str], cwd: str) -> str:
    """Return the file of a program's name: from PATH, or a path relative to the working directory."""
    if "/" in program:
        return str(Path(cwd, program)) if cwd else program
    reason = errno.ENOENT
    for directory in os.get_exec_path(env):
        path = os.path.join(cwd, directory, program)  # noqa: PTH118 (a Path for each directory costs more than all else)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
                continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # a directory that may not be entered: the next one may have it
            reason = errno.EACCES
            continue
        if os.access(path, os.X_OK):
            return path
        reason = errno.EACCES
    raise OSError(reason, os.strerror(reason), program)


def _check(path: Path, program: str) -> None:
    """Raise the error that executing the file would raise: a shell would print it, or run the file as a script."""
    reason = 0
    if not path.exists():
        reason = errno.ENOENT
    elif not path.is_file() or not os.access(path, os.X_OK):
        reason = errno.EACCES
    elif os.access(path, os.R_OK):  # a file may be executable and not readable
        with path.open("rb") as file:
            start = file.read(256)
        interpreter = start[2:].split(b"\n")[0].split()
        if not start.startswith((b"#!", b"\x7fELF")):
            reason = errno.ENOEXEC
        elif start.startswith(b"#!") and interpreter and not Path(os.fsdecode(interpreter[0])).exists():
            reason = errno.ENOENT
    if reason:
        raise OSError(reason, os.strerror(reason), program)


def _closing() -> list[tuple[int, int]]:
    """Return what closes the descriptors that a child would inherit: those we were started with may not be
    close-on-exec."""
    if (close_from := getattr(os, "POSIX_SPAWN_CLOSEFROM", None)) is not None:  # Python 3.13, with glibc
        return [(close_from, 3)]
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.append((os.POSIX_SPAWN_CLOSE, fd))
        except OSError:
            continue  # the one that the listing itself used
    return found
