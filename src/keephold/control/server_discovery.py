"""Find the server that runs on a store, for `keephold mcp` (M3).

A client that starts `keephold mcp` ends it on exit, together with everything it ran. If a server runs on the store,
the command only forwards bytes between its client and the server, so spawned handles survive the client.

A file beside the store is the note of a `keephold serve`; each background server (`cli/background.py`) has one, too,
with its name. A note counts only for the same configuration and conversation, and only if a server of this user
listens at its socket: a repository or another user of the machine may have put files beside the store. The first line
tells the server the directory and conversation of the client. Imports are kept light, because a client waits for them.
"""

import contextlib
import errno
import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK
from keephold.private_file import is_ours

_PIECE = 1 << 16
_NOTE_BYTES = 1 << 16
_CONNECT_SECS = 5.0
"""How long a server that is stopped may keep a client waiting for its place in the queue."""


def announce(store: Path, path: str, config: Path | None, conversation: str | None, name: str = "") -> None:
    """Write beside the store that a server listens at that socket. `conversation` is the one that was named for it,
    `name` that of a background server."""
    conversations = ["", "mcp"] if conversation is None else [conversation]
    said = {"socket": path, "config": _named(config), "conversations": conversations, "pid": os.getpid()}
    import tempfile  # slow to import

    # Renamed, so that the note is whole, and that a link in its place is replaced and not followed.
    descriptor, new = tempfile.mkstemp(prefix=f".{store.name}-", dir=store.parent)
    with os.fdopen(descriptor, "w") as file:
        json.dump(said, file)
    Path(new).replace(note_of(store, name))


def withdraw(store: Path, path: str, name: str = "") -> None:
    """Remove this server's note; keep one that another server has written since."""
    if _read(store, name).get("socket") == path:
        note_of(store, name).unlink(missing_ok=True)


def connect(store: Path, config: Path | None, conversation: str | None, name: str = "") -> socket.socket | None:
    """Connect to the server that runs on that store with that configuration; None if there is none."""
    match _read(store, name):
        case {"config": known, "conversations": list(conversations), "socket": str(path)}:
            if known != _named(config) or (conversation or "") not in conversations or not is_ours(path):
                return None
        case _:
            return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECS)
        connection.connect(path)
        connection.sendall(json.dumps({"cwd": str(Path.cwd()), "conversation": conversation}).encode() + b"\n")
        connection.settimeout(None)
    except OSError:
        connection.close()
        return None
    return connection


def open_own(path: Path, flags: int) -> int:
    """Open a file beside the store. Raise `OSError` if it is a link, a pipe or another user's."""
    descriptor = os.open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0o600)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != machine.user():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "This is not a file of yours", str(path))
    return descriptor


def pass_on(connection: socket.socket) -> None:
    """Forward bytes between standard input and output and the connection until the server closes it."""
    with connection:
        # A thread for each direction: a client may write many requests before it reads the first answer.
        threading.Thread(target=_pass_input, args=(connection,), daemon=True).start()
        while data := connection.recv(_PIECE):
            _write(data)


def _pass_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other thread sees that the server has left
        while data := os.read(0, _PIECE):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _named(config: Path | None) -> str:
    return "" if config is None else str(config.resolve())


def note_of(store: Path, name: str) -> Path:
    """Return the file of a server's note."""
    return store.with_name(f"{store.name}-server{name and f'-{name}'}")


def _read(store: Path, name: str) -> dict[str, Any]:
    try:
        with os.fdopen(open_own(note_of(store, name), os.O_RDONLY), "rb") as file:
            said = json.loads(file.read(_NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
