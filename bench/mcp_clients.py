"""Who calls in the MCP benchmarks: the SDK's client, and a plain one that costs next to nothing.

The SDK's client is what one has, and takes longer than a bare server. The plain one writes a request of 2026-07-28 into
a connection that stays open and reads the reply, so that what is timed is the server.
"""

import asyncio
import itertools
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from mcp import Client
from mcp_types import TextContent

from bench.gaps import TURN, Times

VERSION = "2026-07-28"
Kind = Literal["sdk", "plain"]


class Caller(Protocol):
    """Somebody who calls tools."""

    async def call(self, name: str, **arguments: Any) -> str:
        """The text of the answer."""
        ...


class Sdk:
    """The SDK's client, connected."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, name: str, **arguments: Any) -> str:
        answer = await self._client.call_tool(name, arguments)
        (content,) = answer.content
        assert isinstance(content, TextContent) and not answer.is_error, answer
        return content.text


class Plain(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._ids = itertools.count(1)
        self._received = b""
        self._reply: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport

    async def call(self, name: str, **arguments: Any) -> str:
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(_request(self._host, next(self._ids), name, arguments))
        answer = json.loads(await self._reply)
        assert not answer["result"]["isError"], answer
        text: str = answer["result"]["content"][0]["text"]
        return text

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, ended, body = self._received.partition(b"\r\n\r\n")
        if ended and len(body) == int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            self._received = b""
            assert self._reply is not None
            self._reply.set_result(body)

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error or ConnectionError("the server has closed the connection"))


def _request(host: str, id: int, name: str, arguments: dict[str, Any]) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()
    head = [
        "POST /mcp HTTP/1.1",
        f"Host: {host}",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        f"MCP-Protocol-Version: {VERSION}",
        "Mcp-Method: tools/call",
        f"Mcp-Name: {name}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


@asynccontextmanager
async def connected(kind: Kind, target: Any) -> AsyncIterator[Caller]:
    """Open a client of a URL; the SDK's client takes other targets as well."""
    if kind == "sdk":
        async with Client(target, mode=VERSION) as client:
            yield Sdk(client)
        return
    address = urlsplit(target)
    loop = asyncio.get_running_loop()
    transport, plain = await loop.create_connection(
        lambda: Plain(address.netloc), address.hostname or "", address.port or 0
    )
    try:
        yield plain
    finally:
        transport.close()


class Calling:
    """A tool called again and again, with a pause before each call, which is timed."""

    def __init__(self, caller: Caller, name: str, arguments: dict[str, Any], pause: float = 0.0) -> None:
        self._caller, self._name, self._arguments = caller, name, arguments
        self._pause = pause

    async def __call__(self, times: Times) -> None:
        for _ in range(TURN):
            await asyncio.sleep(self._pause)
            began = perf_counter()
            await self._caller.call(self._name, **self._arguments)
            times.append(perf_counter() - began)


# The one who waits is another process: both read the same clock.


class Waiter:
    """A client in a process of its own that waits for handles."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def wait_for(self, id: str) -> None:
        self._stdin.write(f"{id}\n".encode())

    async def woken(self) -> tuple[float, int]:
        """When it had the reply, and how many ms the server says that it waited."""
        at, waited = (await self._stdout.readline()).split()
        return float(at), int(waited)


@asynccontextmanager
async def waiting(kind: Kind, url: str) -> AsyncIterator[Waiter]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.mcp_clients", kind, url, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    try:
        yield Waiter(process)
    finally:
        process.stdin.close()
        await process.wait()


async def _wait_for_what_comes(kind: Kind, url: str) -> None:
    loop = asyncio.get_running_loop()
    async with connected(kind, url) as caller:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            answer = await caller.call("wait_for", handleId=line.strip())
            print(perf_counter(), json.loads(answer)["waitedMs"], flush=True)


if __name__ == "__main__":
    asyncio.run(_wait_for_what_comes("sdk" if sys.argv[1] == "sdk" else "plain", sys.argv[2]))
