"""The Unix sockets of a process that has a store open: in a directory of its user, one name with several suffixes."""

import os
from pathlib import Path

from keephold.errors import KeepholdError
from keephold.platforms import machine

STREAM = ".s"
"""The suffix of a process's second socket, for its streams."""
HANDOVER = ".h"
"""The suffix of the socket at which a server can be replaced."""
SUFFIXES = (STREAM, ".m", HANDOVER)
"""Those of all sockets of a process but its bell. `.m` is for `keephold mcp` (`mcp/socket.py`)."""


def directory(name: str) -> Path:
    """Return the user's own directory for sockets whose names are as long as this one."""
    import tempfile  # a command that reads a store does not come here

    runtime, own = os.environ.get("XDG_RUNTIME_DIR"), f"keephold-{machine.user()}"
    places = [Path(runtime) / "keephold"] if runtime else []
    places += [Path(tempfile.gettempdir()) / own, Path("/tmp") / own]
    found = next((place for place in places if len(os.fsencode(place / name)) <= machine.socket_path), places[-1])
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = found.lstat()
    if not found.is_dir() or found.is_symlink() or facts.st_uid != machine.user() or facts.st_mode & 0o077:
        raise KeepholdError(
            f"`{found}` must be a directory of yours that nobody else can enter (mode 0700); remove it, "
            "or set XDG_RUNTIME_DIR to a directory that is yours",
            code="store_unusable",
        )
    return found


def remove_sockets(path: str) -> None:
    """Remove all sockets of a dead process; `path` is that of its bell."""
    for suffix in ("", *SUFFIXES):
        Path(path + suffix).unlink(missing_ok=True)
