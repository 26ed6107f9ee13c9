"""Requests as bytes, for what no client library sends: odd request lines, heads in pieces, bodies without end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served


class Answer(NamedTuple):
    """What came back; a connection that was closed without a word has status 0."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


@asynccontextmanager
async def connection(server: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send(
    server: Served,
    target: str | bytes,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    token: bool = True,
    body: bytes = b"",
) -> Answer:
    """One request with exactly that target."""
    given = {"Host": f"127.0.0.1:{server.port}", "Connection": "close"}
    if token:
        given["Authorization"] = f"Bearer {TOKEN}"
    if body or method == "POST":
        given["Content-Length"] = str(len(body))
    given |= headers or {}
    raw = target.encode() if isinstance(target, str) else target
    head = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in given.items())
    async with connection(server) as (reader, writer):
        writer.write(method.encode() + b" " + raw + b" HTTP/1.1\r\n" + head + b"\r\n" + body)
        async with asyncio.timeout(PATIENCE):
            return parse(await reader.read())


def parse(raw: bytes) -> Answer:
    """An answer that ended with its connection."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Answer(
        int(first.split(" ")[1]) if first else 0, [(name.lower(), value.strip()) for name, _, value in pairs], body
    )


async def entered(server: Served, path: str = "/") -> str:
    """The cookie of a browser that has opened the printed address and followed it, with its attributes."""
    answered = await send(server, f"{path}?token={TOKEN}", token=False)
    assert answered.status == 303
    (location,) = answered.all("location")
    there = urlsplit(location)
    assert there.netloc == server.host and TOKEN not in location
    at_home = {"Host": there.netloc, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answered = await send(server, f"{there.path}?{there.query}", headers=at_home, token=False)
    assert answered.status == 200 and answered.all("refresh") == [f"0; url={path}"]
    (cookie,) = answered.all("set-cookie")
    return cookie
