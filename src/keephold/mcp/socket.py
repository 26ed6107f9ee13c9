"""Serve MCP over a Unix socket, for `keephold mcp` beside a running server (`control/server_discovery.py`)."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from mcp.server.stdio import stdio_server

from keephold.control.server_discovery import announce, withdraw
from keephold.forking import close_in_children
from keephold.mcp.hosts import HOST, Host
from keephold.mcp.server import Server
from keephold.store.base import Store, file_of
from keephold.turn.owner_connection import socket_of


async def listening_for_commands(
    server: Server, store: Store, config: Path | None, name: str = ""
) -> "Listening | None":
    """Open the socket by which `keephold mcp` reaches this server; None on a store that only this process can open."""
    path, at = file_of(store), socket_of(store, store.owner)
    if path is None or at is None:
        return None
    listening = Listening(server, f"{at.removesuffix('.s')}.m", name)
    await listening.open(path, config)
    return listening


class Listening:
    """The socket of a server."""

    def __init__(self, server: Server, path: str, name: str = "") -> None:
        """`name` is that of a background server."""
        self._server = server
        self._path = path
        self._name = name
        self._store: Path | None = None
        self._listening: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def open(self, store: Path, config: Path | None) -> None:
        """Listen, and announce the socket beside the store."""
        limit = self._server.runtime.limits.line_bytes
        self._listening = await asyncio.start_unix_server(self._connected, sock=_bound(self._path), limit=limit)
        self._store = store
        announce(store, self._path, config, self._server.conversation, self._name)

    @property
    def clients(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    def withdraw(self) -> None:
        """Take no more clients."""
        if self._listening is not None and self._store is not None:
            self._listening.close()
            Path(self._path).unlink(missing_ok=True)
            withdraw(self._store, self._path, self._name)

    async def close(self) -> None:
        self.withdraw()
        for task in tuple(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        task.add_done_callback(lambda _: writer.close())  # also if it is cancelled before it begins

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lowlevel = self._server._lowlevel_server
        try:
            HOST.set(_host(await reader.readline()))
            async with stdio_server(cast(Any, _lines(reader)), cast(Any, _Writer(writer))) as (received, sent):
                await lowlevel.run(received, sent, lowlevel.create_initialization_options())
        except* (ConnectionError, ValueError):  # the client has left, or sent a line that is wrong or over the limit
            pass


def _host(line: bytes) -> Host:
    """Return the client that the first line describes (`control/server_discovery.py`)."""
    match json.loads(line):
        case {"cwd": str(cwd), "conversation": None | str() as conversation}:
            return Host(cwd, conversation)
    raise ValueError("the first line describes no client")


def _bound(path: str) -> socket.socket:
    Path(path).unlink(missing_ok=True)
    bound = close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    bound.bind(path)
    Path(path).chmod(0o600)
    return bound


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield a client's lines."""
    async for line in reader:
        yield line.decode("utf-8", "replace")


class _Writer:
    """Write to a client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        self._writer.write(text.encode())

    async def flush(self) -> None:
        await self._writer.drain()
