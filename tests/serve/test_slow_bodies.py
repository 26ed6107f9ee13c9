"""How long the body of a request may take, in virtual time (K6)."""

import asyncio
import logging

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send
from tests.patience import PATIENCE, until
from tests.serve.application import TOKEN, application
from uvicorn.server import ServerState

from keephold.serve import server as server_module
from keephold.serve.server import BODY_SECS, MIB_SECS, SlowClientProtocol
from keephold.testing import VirtualClock

MIB = 1 << 20


class Wire(asyncio.Transport):
    """A connection without a socket, so that time is virtual."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class App:
    """Reads the body, and says how much came; or begins its response before that."""

    def __init__(self, *, early: bool = False) -> None:
        self.early = early
        self.left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            if self.early:
                await StreamingResponse(request.stream())(scope, receive, send)
            else:
                await PlainTextResponse(str(len(await request.body())))(scope, receive, send)
        except ClientDisconnect:
            self.left = True


def connected(app: App) -> tuple[SlowClientProtocol, Wire]:
    config = uvicorn.Config(app, log_level="critical", ws="none", timeout_keep_alive=75)
    config.load()
    protocol, wire = SlowClientProtocol(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    return protocol, wire


def head(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length


async def trickle(protocol: SlowClientProtocol, wire: Wire, piece: bytes, every: float, count: int) -> int:
    """Send pieces until the server has enough: how many it took."""
    for number in range(count):
        if wire.closed:
            return number
        protocol.data_received(piece)
        await asyncio.sleep(every)
    return count


@pytest.mark.parametrize("chunked", [False, True])
async def test_K6_a_body_that_trickles_is_refused_when_its_time_is_over(clock: VirtualClock, chunked: bool) -> None:
    """Each byte comes in time; until now, that was all that counted, and the connection was kept for ever."""
    app = App()
    protocol, wire = connected(app)
    begin = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" if chunked else head(1000)
    protocol.data_received(begin)
    taken = await trickle(protocol, wire, b"1\r\nx\r\n" if chunked else b"x", BODY_SECS / 10, 1000)
    assert taken <= 11
    assert wire.sent.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and b"connection: close" in wire.sent.lower()
    assert wire.closed and not wire.aborted, "it is told so"
    await until(lambda: app.left)


async def test_K6_a_large_body_gets_the_time_it_needs(clock: VirtualClock) -> None:
    protocol, wire = connected(App())
    protocol.data_received(head(16 * MIB))
    assert await trickle(protocol, wire, bytes(MIB), MIB_SECS, 16) == 16
    assert wire.sent.startswith(b"HTTP/1.1 200 OK") and wire.sent.endswith(b"%d" % (16 * MIB))
    protocol.data_received(head(1) + b"x")  # the next request begins a time of its own
    await until(lambda: wire.sent.endswith(b"\r\n\r\n1"))
    protocol.data_received(head(16 * MIB))
    assert await trickle(protocol, wire, bytes(MIB // 8), 2 * MIB_SECS / 8, 128) < 128, "half as fast is too slow"
    assert b"HTTP/1.1 408" in wire.sent


async def test_K6_a_pause_is_limited_too_and_a_begun_response_is_cut(clock: VirtualClock) -> None:
    protocol, wire = connected(App())
    protocol.data_received(head(16 * MIB) + bytes(10 * MIB))
    await asyncio.sleep(BODY_SECS + 1)
    assert wire.closed and wire.sent.startswith(b"HTTP/1.1 408")
    app = App(early=True)
    protocol, wire = connected(app)
    protocol.data_received(head(1000) + b"x")
    assert await trickle(protocol, wire, b"x", BODY_SECS / 10, 1000) <= 11
    assert wire.sent.startswith(b"HTTP/1.1 200 OK") and wire.aborted
    protocol.connection_lost(None)
    await until(lambda: app.left)


@pytest.mark.parametrize("path", ["/mcp", "/api/wait", "/do/keys/revoke", "/complete/key", "/login", "/api/talks/x"])
async def test_K6_every_address_has_the_limit_and_no_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    monkeypatch.setattr(server_module, "BODY_SECS", 0.1)
    async with application() as served, asyncio.timeout(PATIENCE):
        logger = logging.getLogger("uvicorn.error")
        monkeypatch.setattr(logger, "level", logging.ERROR)
        logger.addHandler(caplog.handler)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        kind = "application/x-www-form-urlencoded" if path.startswith(("/do", "/login")) else "application/json"
        lines = [f"POST {path} HTTP/1.1", f"Host: localhost:{served.port}", f"Authorization: Bearer {TOKEN}"]
        lines += [f"Origin: http://localhost:{served.port}", f"Content-Type: {kind}", "Content-Length: 100"]
        lines += ["Accept: application/json, text/event-stream", "", "x"]
        writer.write("\r\n".join(lines).encode())
        assert (await reader.readline()) in (b"HTTP/1.1 408 Request Timeout\r\n", b"HTTP/1.1 404 Not Found\r\n")
        writer.close()
        async with served.client() as http:
            assert (await http.get("/healthz")).status_code == 200
        logger.removeHandler(caplog.handler)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
