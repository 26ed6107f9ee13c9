"""The two transports of `mcp`, with keephold's additions.

A program's process has the runtime's mark, so that it always dies with us (R2). Its standard error is read, so that it
never blocks, and its end is kept for errors. Over HTTP no read times out, because a call may take days; TCP's keepalive
detects a peer that disappeared.
"""

import asyncio
import codecs
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import signature
from typing import Any, TextIO
from urllib.request import getproxies

import httpx2
from anyio import EndOfStream
from anyio.abc import ObjectReceiveStream
from mcp.client._transport import TransportStreams
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from keephold.tools.environment import passed
from keephold.tools.guard import Guard
from keephold.tools.remote.server import McpServer

_KEPT = 2000


class Stderr:
    """The standard error of one program."""

    def __init__(self) -> None:
        self._tail = b""
        self._write: TextIO | None = None

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """Yield the file to give to the program, and read from it until the block is left."""
        loop = asyncio.get_running_loop()
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._write = os.fdopen(write, "w")
        loop.add_reader(read, self._look, read)
        try:
            yield self._write
        finally:
            self.started()
            loop.remove_reader(read)
            self._look(read)  # the last lines are often the only ones
            os.close(read)

    def started(self) -> None:
        """The program has its own descriptor by now."""
        if self._write is not None:
            self._write.close()
            self._write = None

    @property
    def last_words(self) -> str:
        """Return the last printed line, or nothing."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _look(self, read: int) -> None:
        try:
            while part := os.read(read, 65536):
                self._tail = (self._tail + part)[-_KEPT:]
        except BlockingIOError:
            return
        asyncio.get_running_loop().remove_reader(read)  # it has closed it


_PROBE_SECS = 3.0
_LARGEST_EVENT = 100 << 20
"""Bytes of one message over HTTP: the default size of a kept output."""
_SIZES: dict[str, Any] = {"max_sse_event_size": _LARGEST_EVENT}
if "max_sse_event_size" not in signature(streamable_http_client).parameters:
    _SIZES = {}  # before mcp 2.3, which introduced a limit
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", 0x10), 30),  # macOS calls it TCP_KEEPALIVE
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


_LINES = "keephold_utf8_lines"


class _Lines(codecs.BufferedIncrementalDecoder):
    """UTF-8, decoded in whole lines. `mcp` searches all that it has of a line again with each chunk: a result of 30 MB
    took 42 s, in which nothing else came over the connection."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._parts: list[bytes] = []

    def decode(self, input: Any, final: bool = False) -> str:
        lines, end, rest = bytes(input).rpartition(b"\n")
        if not end:
            self._parts.append(rest)
            return ""
        whole, self._parts = b"".join((*self._parts, lines, end)), [rest]
        return whole.decode("utf-8", self.errors)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    utf8 = codecs.lookup("utf-8")
    return (
        codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=_Lines, name=_LINES) if name == _LINES else None
    )


codecs.register(_find_codec)


@asynccontextmanager
async def on_pipes(
    server: McpServer, guard: Guard, errors: Stderr, ended: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    """Start the server's program and end it when the block is left. `ended` is called if it exits by itself."""
    guard.ensure()
    program, *args = server.command
    parameters = StdioServerParameters(
        command=program,
        args=args,
        env={**passed(server.pass_env), **server.env, **guard.environ(f"mcp-{server.name}")},
        cwd=server.cwd,
        encoding=_LINES,
        encoding_error_handler="replace",  # an invalid byte of UTF-8 costs a character, not the connection
    )
    with errors.open() as file:
        async with stdio_client(parameters, errlog=file) as (read, write):
            errors.started()
            yield _Watched(read, ended), write


@asynccontextmanager
async def over_http(
    server: McpServer, refused: Callable[[int], None], no_login: Callable[[str], None]
) -> AsyncIterator[TransportStreams]:
    """Connect to the server at its address. `refused` gets the status of every HTTP error, `no_login` the reason why
    the user's login cannot be used.
    """
    assert server.url is not None
    auth = None
    if server.login is not None:
        from keephold.tools.remote.auth import StoredLogin  # only few servers need it

        auth = StoredLogin(server.name, server.login, no_login)

    async def look(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            refused(response.status_code)

    # Every running call holds a connection, so their number must not be limited here.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    # A transport of our own would bypass a configured proxy.
    own = None if getproxies() else httpx2.AsyncHTTPTransport(limits=limits, socket_options=_KEEPALIVE)
    client = httpx2.AsyncClient(
        headers=dict(server.headers),
        auth=auth,
        timeout=httpx2.Timeout(server.timeout_secs, read=None, pool=None),
        limits=limits,
        transport=own,
        event_hooks={"response": [look]},
    )
    reading = streamable_http_client(server.url, http_client=client, **_SIZES)
    async with client, reading as streams:
        yield streams


async def speaks_only_sse(server: McpServer) -> bool:
    """Return whether the address answers as the old HTTP+SSE transport does: with an event that names another one."""
    assert server.url is not None
    client = httpx2.AsyncClient(headers={**server.headers, "Accept": "text/event-stream"})
    try:
        async with asyncio.timeout(_PROBE_SECS), client, client.stream("GET", server.url) as response:
            first = await anext(response.aiter_lines(), "")
    except (httpx2.HTTPError, TimeoutError, OSError):
        return False
    return first.replace(" ", "") == "event:endpoint"


class _Watched(ObjectReceiveStream[SessionMessage | Exception]):
    """A read stream that reports its end: the session above it would not."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    async def receive(self) -> SessionMessage | Exception:
        try:
            message: SessionMessage | Exception = await self._stream.receive()
        except EndOfStream:
            self._ended()
            raise
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()
