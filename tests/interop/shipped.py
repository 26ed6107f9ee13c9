"""`keephold serve` with a token and a configuration that offers all a configuration can of what the conformance suite
asks for, and a proxy in front of it that sends the token: the suite has no option for it."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from tests.interop.form import FORMS
from tests.interop.jobs import JOBS
from tests.mcp.clients import connected
from tests.patience import PATIENCE
from tests.serve.serving import ROOT, TOKEN, Served, free_port, served

PROXIED = [
    "test_simple_text", "test_image_content", "test_audio_content", "test_tool_with_progress", "test_error_handling",
    "test_x_mcp_header", "json_schema_2020_12_tool", "test_reconnection", "test_trigger_tool_change",
    "test_input_required_result_elicitation", "test_input_required_result_request_state",
    "test_input_required_result_multi_round", "test_input_required_result_tampered_state",
]  # fmt: skip
"""Tools of a foreign server that keep their meaning behind ours."""
CONFIG = f"""
[mcp]
schema = "canonical"

[mcp.servers.fixtures]
command = ["{sys.executable}", "-m", "tests.interop.fixture", "--stdio"]
env = {{ PYTHONPATH = "{ROOT}" }}
tools = {PROXIED}

[conversation.tools."*"]
run = "unattended"

""" + "".join(
    f'[conversation.tools.{tool.name}]\nsource = "python"\nfunction = "tests.interop.{module}:{tool.name}"\n\n'
    for module, tools in {"jobs": JOBS, "form": FORMS}.items()
    for tool in tools
)


@asynccontextmanager
async def shipped(directory: Path, servers: int = 1) -> AsyncIterator[str]:
    """Serve, and yield the URL for clients without a token. Of several servers on one store, a random one gets each
    request."""
    async with behind_proxy(directory, CONFIG, servers) as (url, _):
        await _listed(url)
        yield url


@asynccontextmanager
async def behind_proxy(directory: Path, config: str, count: int) -> AsyncIterator[tuple[str, list[Served]]]:
    """Servers on one store, and the URL of a proxy that sends each request to one of those that live."""
    port, clients = free_port(), dict[asyncio.StreamWriter, asyncio.Task[None]]()
    servers: list[Served] = []

    async def forward(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        clients[writing] = asyncio.create_task(_forward(reading, writing, servers))

    with ExitStack() as stack:
        for _ in range(count):
            servers.append(stack.enter_context(served(directory, config, "--url", f"http://localhost:{port}")))
        async with await asyncio.start_server(forward, "localhost", port):
            yield f"http://localhost:{port}/mcp", servers
        for writing in clients:
            writing.transport.abort()
        await asyncio.gather(*clients.values(), return_exceptions=True)


async def _listed(url: str) -> None:
    """Until the foreign server has connected."""
    missing = set(PROXIED)
    for _ in range(int(PATIENCE / 0.1)):
        async with connected(url) as client:
            missing = set(PROXIED) - {tool.name for tool in (await client.list_tools()).tools}
        if not missing:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not listed: {missing}")


async def _forward(reading: asyncio.StreamReader, writing: asyncio.StreamWriter, servers: list[Served]) -> None:
    """Pass on one request with the token, and the bytes of its answer; an end on either side ends the other."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        first, _, rest = (await reading.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        fields = dict(line.lower().split(b":", 1) for line in rest.splitlines() if line)
        body = await reading.readexactly(int(fields.get(b"content-length", b"0")))
        others = b"".join(line + b"\r\n" for line in rest.splitlines() if not line.lower().startswith(b"connection:"))
        extra = b"\r\nConnection: close\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
        port = random.choice([each for each in servers if each.process.poll() is None]).port
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        leaves = asyncio.create_task(reading.read())
        back = asyncio.create_task(_copy(answers, writing))
        try:
            requests.write(first + extra + others + body)
            await asyncio.wait([leaves, back], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaves.cancel()
            requests.close()
            await back
    writing.close()


async def _copy(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reading.read(65536):
            writing.write(data)
            await writing.drain()
    writing.close()
