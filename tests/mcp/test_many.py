"""Two thousand clients that wait: all are answered, and waiting costs the server nothing (A7, W2)."""

import asyncio
import json
import resource
from collections.abc import Iterator

import pytest
from tests.mcp.clients import MODERN, connected
from tests.mcp.serving import Office, Process
from tests.soak import tries

WAITS = tries(800, soak=2000)
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
}
HEADERS = f"""\
POST /mcp HTTP/1.1
Host: localhost
Accept: application/json, text/event-stream
Content-Type: application/json
Mcp-Protocol-Version: {MODERN}
Mcp-Method: tools/call
Mcp-Name: wait_for
Connection: close
Content-Length: """.replace("\n", "\r\n")


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough of them, here and for the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * WAITS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def wait(port: int, token: str, number: int) -> bytes:
    """One client, on a connection of its own; the SDK's would keep this machine busy, and not the server."""
    params = {"name": "wait_for", "arguments": {"handleId": "h"}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{HEADERS}{len(body)}\r\nAuthorization: Bearer {token}\r\n\r\n{body}".encode())
    try:
        return await reader.read(-1)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_A7_many_hundred_waits_cost_nothing_and_all_end(office: Office, descriptors: None) -> None:
    server = Process(office)
    async with connected(server.url) as client, asyncio.timeout(100):
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        waiting = [asyncio.create_task(wait(server.port, server.token, number)) for number in range(WAITS)]
        while server.connections() < WAITS:  # noqa: ASYNC110 (another process has them)
            await asyncio.sleep(0.05)
        computed = -1.0
        while server.cpu_secs() > computed + 0.5:  # busy with what arrives, then still; a server that polls never is
            computed = server.cpu_secs()
            await asyncio.sleep(2)
        assert not any(each.done() for each in waiting)
        await client.call_tool("complete_wait_handle", {"handleId": "h", "result": "all of you"})
        answers = await asyncio.gather(*waiting)
    assert sum(b"all of you" in answer for answer in answers) == WAITS
    assert "Traceback" not in server.said.read_text()
