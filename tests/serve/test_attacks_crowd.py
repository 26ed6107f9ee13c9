"""Too much of everything: a body of a gigabyte, ten thousand connections that are slow (K6)."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.serve.serving import TOKEN, Served, served
from tests.serve.wire import connection, parse, send
from tests.soak import tries

GIGABYTE = 1 << 30
CHUNK = bytes(1 << 20)
MOST_GROWTH = 64 << 20
"""Bytes by which the server may grow while it refuses: a limit of 16 MiB, and copies of it."""
SLOW = tries(3_000, soak=10_000)
NEEDED = SLOW + 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("crowd")) as server:
        yield server


@contextmanager
def many_descriptors() -> Iterator[int]:
    """As many connections as this machine allows, up to ten thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, NEEDED), hard), hard))
    try:
        yield min(SLOW, hard - 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def flood(server: Served, head: str, *, chunked: bool) -> tuple[int, int]:
    """Send a gigabyte behind that head, as long as the server takes it: the status, and how much was sent."""
    async with connection(server) as (reader, writer):
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {GIGABYTE}"
        lines = [head, f"Host: 127.0.0.1:{server.port}", f"Authorization: Bearer {TOKEN}", length]
        kind = "x-www-form-urlencoded" if " /do/" in head else "json"
        lines += [f"Content-Type: application/{kind}", "Accept: application/json, text/event-stream"]
        lines.append(f"Origin: {server.base}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        answer = asyncio.create_task(_read_head(reader))
        piece = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK) if chunked else CHUNK
        sent = 0
        try:
            while sent < GIGABYTE and not answer.done():
                writer.write(piece)
                async with asyncio.timeout(PATIENCE):
                    await writer.drain()
                sent += len(CHUNK)
                await asyncio.sleep(0)  # or what has arrived is not seen before all is sent
        except ConnectionError:
            pass
        async with asyncio.timeout(PATIENCE):
            return parse(await answer).status, sent


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "in chunks"])
@pytest.mark.parametrize(
    "line",
    [
        "POST /complete/key HTTP/1.1",
        "POST /mcp HTTP/1.1",
        "POST /api/wait HTTP/1.1",
        "POST /api/handles/x/apply HTTP/1.1",
        "POST /do/requests/x HTTP/1.1",
        "GET /api/handles HTTP/1.1",
    ],
)
async def test_K6_a_gigabyte_is_refused_before_it_has_come(server: Served, line: str, chunked: bool) -> None:
    before = server.memory()
    status, sent = await flood(server, line, chunked=chunked)
    assert status in (0, 200, 400, 404, 413) and (status != 200 or line.startswith("GET"))
    assert sent < GIGABYTE // 4
    assert server.memory() - before < MOST_GROWTH
    assert (await send(server, "/healthz", token=False)).status == 200


async def test_K6_thousands_of_slow_connections_keep_nobody_out(tmp_path: Path) -> None:
    """Half of them say nothing, the others begin a request and go on with it slowly. All are cut in the end."""
    with many_descriptors() as count, served(tmp_path) as server:
        async with AsyncExitStack() as stack:
            streams = []
            for number in range(count):
                reader, writer = await stack.enter_async_context(connection(server))
                if number % 2:
                    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
                streams.append((reader, writer))
            assert (await send(server, "/healthz", token=False)).status == 200
            assert (await send(server, "/api/handles")).status == 200
            async with asyncio.timeout(2 * PATIENCE):
                await asyncio.gather(*(_until_cut(number, *stream) for number, stream in enumerate(streams)))
        assert (await send(server, "/api/handles")).status == 200


async def _until_cut(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say a byte every now and then, until the server has closed the connection."""
    cut = asyncio.ensure_future(_closed(reader))
    while not cut.done():
        await asyncio.wait([cut], timeout=2)
        if number % 2 and not cut.done():
            writer.write(b"x")


async def _closed(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read()
