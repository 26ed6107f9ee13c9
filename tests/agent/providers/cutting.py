"""A provider that dies in the middle of a response: after any byte of it, in any way a connection can end."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

from starlette.requests import Request
from starlette.responses import StreamingResponse
from tests.agent.providers.base import Provider
from tests.agent.providers.formats import WIRES
from tests.agent.providers.script import Saying, Script, Step

How = Literal["closed", "chunked", "broken", "reset"]
"""How a connection ends: as a body without length ends, after the last chunk, in the middle of chunks, by a reset. The
first two are a proper end, as far as HTTP can tell."""
HOWS: tuple[How, ...] = ("closed", "chunked", "broken", "reset")


class CuttingProvider(Provider):
    """A server of its own, as no real one ends so badly. `cuts` are taken by the next responses."""

    def __init__(self, format: str, turns: Sequence[Step] | Saying) -> None:
        super().__init__(WIRES[format](), Script(turns))
        self.cuts: list[tuple[int, How]] = []
        self.bodies: list[bytes] = []
        """The whole body of each response."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(name.lower().encode(), value.strip().encode()) for name, value in _fields(head[1:])]
        content = await reader.readexactly(int(dict(headers)[b"content-length"]))

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": content, "more_body": False}

        path = head[0].split()[1].partition("?")[0]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        _, found = self.app.routes[0].matches(scope)
        response = await self._post(Request({**scope, **found}, receive))
        body = bytes(response.body) if not isinstance(response, StreamingResponse) else b""
        if isinstance(response, StreamingResponse):
            body = b"".join([bytes(piece) async for piece in response.body_iterator])  # type: ignore[arg-type]
        self.bodies.append(body)
        until, how = self.cuts.pop(0) if self.cuts else (len(body), "closed")
        kind = response.headers["content-type"]
        framing = "connection: close" if how == "closed" else "transfer-encoding: chunked"
        writer.write(f"HTTP/1.1 {response.status_code} OK\r\ncontent-type: {kind}\r\n{framing}\r\n\r\n".encode())
        sent = body[:until]
        writer.write(sent if how == "closed" else b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b"")
        if how == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        if how == "reset":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _fields(lines: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, colon, value in (line.partition(":") for line in lines) if colon]


@asynccontextmanager
async def cutting(format: str, turns: Sequence[Step] | Saying) -> AsyncIterator[CuttingProvider]:
    provider = CuttingProvider(format, turns)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    async with server:
        yield provider
