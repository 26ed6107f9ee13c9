"""Two ends of a wire in one process, or one end and bare descriptors, for tests."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from keephold.acp.wire import Id, Params, Peer


@dataclass
class Heard:
    """What an end was told, in order."""

    messages: list[tuple[str, str, Params, Id]] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def notification(self, method: str, params: Params) -> None:
        self.messages.append(("notification", method, params, None))
        self.more.set()

    def request(self, method: str, params: Params, id: Id) -> None:
        self.messages.append(("request", method, params, id))
        self.more.set()

    async def until(self, count: int) -> None:
        """Return when that many have come."""
        while len(self.messages) < count:
            self.more.clear()
            await self.more.wait()


@dataclass
class Bare:
    """The other end, by hand: what is sent are bytes, what is received are decoded lines."""

    socket: socket.socket
    rest: bytes = b""

    def send(self, *messages: Any) -> None:
        lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in messages]
        self.socket.sendall(b"".join(line + b"\n" for line in lines))

    async def receive(self) -> Any:
        """The next line."""
        while b"\n" not in self.rest:
            piece = await asyncio.get_running_loop().sock_recv(self.socket, 65536)
            assert piece, "the connection was closed"
            self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)


@asynccontextmanager
async def bare(heard: Heard | None = None, **options: Any) -> AsyncIterator[tuple[Peer, Bare]]:
    """A peer on a socket, and the other end of it."""
    heard = heard or Heard()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    callbacks: dict[str, Any] = {"on_request": heard.request, "on_notification": heard.notification}
    peer = Peer(ours.fileno(), ours.fileno(), **(callbacks | options))
    peer.start()
    try:
        yield peer, Bare(theirs)
    finally:
        await peer.close()
        ours.close()
        theirs.close()


@asynccontextmanager
async def pair(heard: Heard, **options: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """Two peers over two pipes; the second one is told to `heard`, if the options do not say otherwise."""
    read_a, write_b = os.pipe()
    read_b, write_a = os.pipe()
    callbacks: dict[str, Any] = {"on_request": heard.request, "on_notification": heard.notification}
    first, second = Peer(read_a, write_a), Peer(read_b, write_b, **(callbacks | options))
    first.start()
    second.start()
    try:
        yield first, second
    finally:
        await first.close()
        await second.close()
        for fd in (read_a, write_a, read_b, write_b):
            os.close(fd)
