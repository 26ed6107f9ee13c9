"""What `keephold check` looks at beside the configuration: who may read what is secret, and whether a port is free.

Each finding says what is wrong and what gets it right. Nothing is changed, and no port is kept.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

_LISTENING = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_SHOWN = 80
"""Characters of another program's command line."""


# Permissions


def permission_problems(store: Path, *, own_directory: bool) -> Iterator[str]:
    """What is wrong with the store's file, the token beside it, and their directory. `own_directory`: it is there for
    the store alone, and nobody else has any business in it."""
    directory = store.parent
    if not directory.is_dir():
        if not own_directory:
            yield f"there is no directory {directory} for the store; make it, or write another `[store] url`"
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield f"{directory} may not be written to, and the store needs files in it: chmod u+rwx {directory}"
    mode = directory.stat().st_mode
    if own_directory and mode & 0o077:
        yield f"{directory} is open to other users of this machine: chmod 700 {directory}"
    elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{directory} may be written to by anybody, who could replace the store: chmod o-w {directory}"
    yield from _file_problems(store, "the store", "outputs and the secret that keys are signed with are in it")
    yield from _file_problems(Path(f"{store}-token"), "the token", "whoever has it may do everything")


def _file_problems(path: Path, what: str, why: str) -> Iterator[str]:
    try:
        mode = path.stat().st_mode
    except OSError:  # there is none, or it is not to be seen, which the directory's problem says
        return
    if mode & 0o077:
        yield f"{what} {path} may be read or written by other users ({why}): chmod 600 {path}"
    if not os.access(path, os.R_OK | os.W_OK):
        yield f"{what} {path} may not be read and written by you: chmod u+rw {path}"


# Ports


def port_trouble(host: str, port: int) -> tuple[str, bool] | None:
    """Why nothing could listen there, and whether it is a `keephold` that already does; None if it is free."""
    try:
        with socket.create_server((host, port), family=_family(host)):
            return None
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        where = f"port {port} of {host}"
        if number == errno.EADDRINUSE:
            by, ours = _listener(port)
            return f"{where} is taken{by}; end that, or write another port", ours
        if number == errno.EACCES:
            return f"{where} may not be used by you: those below 1024 need privileges; write a higher one", False
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"{where} cannot be listened on ({reason}); write an address of this machine", False


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listener(port: int) -> tuple[str, bool]:
    """Who listens on the port, as the end of a sentence, and whether it is a keephold. Others' processes are hidden."""
    inodes = set(_inodes(port))
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            line = " ".join(word for word in words if word)
            shown = "".join(each for each in line if each.isprintable())[:_SHOWN]
            ours = any(Path(word).name == "keephold" and after in ("serve", "mcp") for word, after in pairwise(words))
            return f" by process {process.name} ({shown})", ours
    return " by a process of another user", False


def _inodes(port: int) -> Iterator[str]:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{cells[9]}]"


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(str(descriptor.readlink()) in inodes for descriptor in (process / "fd").iterdir())
    except OSError:  # another user's, or gone
        return False
