"""Starting a program in a session of its own with a terminal as its controlling one, without fork.

`posix_spawn` opens the terminal by name after it has made the session, which is what makes it the controlling terminal.
The program starts as from a login: no signal is ignored or blocked, whatever ours are, and no other descriptor is open.

`posix_spawn` knows no working directory. Where it is not ours, `sh` changes to it and becomes the program; what would
go wrong there is found out before, so that it is told in the same words.
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
    """Start it and return its pid, or raise `OSError` or `ValueError`. `terminal` is the path of the device."""
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
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()),
            (os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_SIGNALS,
    )


def _is_here(cwd: str) -> bool:
    """Whether a directory is the one we are in; raises if there is none, or it may not be entered."""
    try:
        return os.path.samestat(os.stat(f"{cwd}/."), os.stat("."))  # noqa: PTH116 (a Path would drop the dot)
    except OSError as error:
        raise OSError(error.errno, error.strerror, cwd) from error


def _find(program: str, env: Mapping[str, str], cwd: str) -> str:
    """The file that a program's name means: what is in PATH, or a path from the working directory on."""
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
    """Raise what executing the file would raise: a shell would print it, or run whatever is in the file as a script."""
    reason = 0
    if not path.exists():
        reason = errno.ENOENT
    elif not path.is_file() or not os.access(path, os.X_OK):
        reason = errno.EACCES
    elif os.access(path, os.R_OK):  # one may execute what one may not read
        with path.open("rb") as file:
            start = file.read(256)
        interpreter = start[2:].split(b"\n")[0].split()
        if not start.startswith((b"#!", b"\x7fELF")):
            reason = errno.ENOEXEC
        elif start.startswith(b"#!") and interpreter and not Path(os.fsdecode(interpreter[0])).exists():
            reason = errno.ENOENT
    if reason:
        raise OSError(reason, os.strerror(reason), program)


def _inheritable() -> list[int]:
    """Descriptors that a child would get: what we were started with has not been made ours alone by anybody."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            continue  # the one that the listing itself used
    return found
