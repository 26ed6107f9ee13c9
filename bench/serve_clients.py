"""Who calls in the benchmarks of `keephold serve`: connections that cost next to nothing, so that the server is timed.

`Plain` has one request under way at a time, on a connection that stays open. `Stream` hears an event stream and notes
how much has come.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TypeVar

from bench.serve_servers import TOKEN

_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
_P = TypeVar("_P", bound=asyncio.Protocol)


class Plain(asyncio.Protocol):
    """Sends a request and gives its status and its body."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._expected = -1
        self._reply: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport

    async def complete(self, key: str) -> int:
        """Resolve what the key stands for; the status."""
        body = b'{"status":"ok","payload":1}'
        status, _ = await self.request(f"POST /complete/{key}", f"Content-Length: {len(body)}", body)
        return status

    async def get(self, path: str) -> bytes:
        """A page, that there must be."""
        status, body = await self.request(f"GET {path}", "Accept: */*")
        assert status == 200, (path, status, body[:200])
        return body

    async def request(self, line: str, header: str, body: bytes = b"") -> tuple[int, bytes]:
        self._reply = asyncio.get_running_loop().create_future()
        head = f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n{header}\r\n\r\n"
        self._transport.write(head.encode() + body)
        return await self._reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._expected < 0 and (end := self._received.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._received, 0, end)
            assert found is not None, bytes(self._received[:end])
            self._expected = end + 4 + int(found[1])
            self._body = end + 4
        if len(self._received) == self._expected:
            status, body = int(self._received[9:12]), bytes(self._received[self._body :])
            self._received.clear()
            self._expected = -1
            assert self._reply is not None
            self._reply.set_result((status, body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error or ConnectionError("the server has closed the connection"))


TOLD = b"event: key.resolved"
"""The event that tells of a completion."""


class Stream(asyncio.Protocol):
    """Hears all events, and counts them; that is all it does with them."""

    def __init__(self, heard: Callable[[float], None] | None = None) -> None:
        """`heard` gets the time at which the event of a completion has come."""
        self._heard = heard
        self._last = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.events = 0
        self.told = 0
        """How many completions it has heard of."""
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(
            f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        at = perf_counter()
        if not self.opened.done() and b"\r\n\r\n" in data:
            assert data.startswith(b"HTTP/1.1 200"), data[:200]
            self.opened.set_result(None)
        joined = self._last + data  # what is looked for may have come in two pieces
        told = joined.count(TOLD)
        self.events += joined.count(b"\nevent: ") - self._last.count(b"\nevent: ")
        self.told += told
        self._last = joined[1 - len(TOLD) :]
        if told and self._heard is not None:
            self._heard(at)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if not self.opened.done():
            self.opened.set_exception(error or ConnectionError("the server has closed the connection"))


@asynccontextmanager
async def connected(port: int, count: int, make: Callable[[], _P]) -> AsyncIterator[list[_P]]:
    """Open `count` connections."""
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(make, "127.0.0.1", port) for _ in range(count)]
    try:
        yield [protocol for _, protocol in pairs]
    finally:
        for transport, _ in pairs:
            transport.abort()
