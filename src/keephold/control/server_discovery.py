"""Find the server that runs on a store, for `keephold mcp` (M3).

A client that starts `keephold mcp` ends it on exit, together with everything it ran. If a server runs on the store,
the command only forwards bytes between its client and the server, so spawned handles survive the client.

A file beside the store is the note of a `keephold serve`; each background server (`cli/background.py`) has one, too,
with its name. A note counts only for the same configuration and conversation, and only if a server listens at its
socket. The first line tells the server the directory and conversation of the client. Imports
are kept light, because a client waits for them.
"""

import json
import os
import select
import socket
from pathlib import Path
from typing import Any

_PIECE = 1 << 16


def announce(store: Path, path: str, config: Path | None, conversation: str | None, name: str = "") -> None:
    """Write beside the store that a server listens at that socket. `conversation` is the one that was named for it,
    `name` that of a background server."""
    conversations = ["", "mcp"] if conversation is None else [conversation]
    said = {"socket": path, "config": _named(config), "conversations": conversations, "pid": os.getpid()}
    with os.fdopen(os.open(_file(store, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(said, file)


def withdraw(store: Path, path: str, name: str = "") -> None:
    """Remove this server's note; keep one that another server has written since."""
    if _read(store, name).get("socket") == path:
        _file(store, name).unlink(missing_ok=True)


def connect(store: Path, config: Path | None, conversation: str | None, name: str = "") -> socket.socket | None:
    """Connect to the server that runs on that store with that configuration; None if there is none."""
    said = _read(store, name)
    if said.get("config") != _named(config) or (conversation or "") not in said.get("conversations", ()):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(said["socket"])
        connection.sendall(json.dumps({"cwd": str(Path.cwd()), "conversation": conversation}).encode() + b"\n")
    except (OSError, TypeError, KeyError):
        connection.close()
        return None
    return connection


def pass_on(connection: socket.socket) -> None:
    """Forward bytes between standard input and output and the connection until the server closes it."""
    reading = [0, connection.fileno()]
    with connection:
        while True:
            ready, _, _ = select.select(reading, [], [])
            if connection.fileno() in ready:
                data = connection.recv(_PIECE)
                if not data:
                    return
                _write(data)
            if 0 in ready:
                data = os.read(0, _PIECE)
                if data:
                    connection.sendall(data)
                else:
                    reading.remove(0)
                    connection.shutdown(socket.SHUT_WR)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _named(config: Path | None) -> str:
    return "" if config is None else str(config.resolve())


def _file(store: Path, name: str) -> Path:
    return store.with_name(f"{store.name}-server{name and f'-{name}'}")


def _read(store: Path, name: str) -> dict[str, Any]:
    try:
        said = json.loads(_file(store, name).read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
