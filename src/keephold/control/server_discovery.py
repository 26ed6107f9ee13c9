"""Which server runs on a store, and the way to it for `keephold mcp` (M3).

A client that starts `keephold mcp` ends it when it goes, and with it whatever it ran. Where a server runs anyway, the
command only passes bytes between its client and the server: what was spawned stays there.

Which server that is, a file beside the store says. It is believed only if it is about the same configuration and
conversation; a socket that nobody listens at is as good as none. Nothing heavy is imported: a client waits for it.
"""

import json
import os
import select
import socket
from pathlib import Path
from typing import Any

_PIECE = 1 << 16


def announce(store: Path, path: str, config: Path, conversation: str) -> None:
    """Say beside the store that a server listens at that socket."""
    said = {"socket": path, "config": str(config.resolve()), "conversation": conversation}
    with os.fdopen(os.open(_file(store), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(said, file)


def withdraw(store: Path, path: str) -> None:
    """It listens no more; what another server has said since stays."""
    if _read(store).get("socket") == path:
        _file(store).unlink(missing_ok=True)


def connect(store: Path, config: Path, conversation: str) -> socket.socket | None:
    """A connection to the server that runs on that store with that configuration; None: there is none."""
    said = _read(store)
    if said.get("config") != str(config.resolve()) or said.get("conversation") != conversation:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(said["socket"])
    except (OSError, TypeError, KeyError):
        connection.close()
        return None
    return connection


def pass_on(connection: socket.socket) -> None:
    """Pass bytes between standard input and output and the connection, until the server has no more to say."""
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


def _file(store: Path) -> Path:
    return store.with_name(f"{store.name}-server")


def _read(store: Path) -> dict[str, Any]:
    try:
        said = json.loads(_file(store).read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
