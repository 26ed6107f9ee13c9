"""`keephold serve` with a token and a configuration that offers all a configuration can of what the conformance suite
asks for, and a proxy in front of it that sends the token: the suite has no option for it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.interop.form import FORMS
from tests.interop.jobs import JOBS
from tests.mcp.clients import connected
from tests.patience import PATIENCE
from tests.serve.serving import ROOT, TOKEN, free_port, served

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
async def shipped(directory: Path) -> AsyncIterator[str]:
    """Serve, and yield the URL for clients without a token."""
    port, clients = free_port(), dict[asyncio.StreamWriter, asyncio.Task[None]]()

    async def forward(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        clients[writing] = asyncio.create_task(_forward(reading, writing, server.port))

    with served(directory, CONFIG, "--url", f"http://localhost:{port}") as server:
        async with await asyncio.start_server(forward, "localhost", port):
            url = f"http://localhost:{port}/mcp"
            await _listed(url)
            yield url
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


async def _forward(reading: asyncio.StreamReader, writing: asyncio.StreamWriter, port: int) -> None:
    """Pass on requests with the token, and the bytes of answers; an end on either side ends the other."""
    answers, requests = await asyncio.open_connection("127.0.0.1", port)
    back = asyncio.create_task(_copy(answers, writing))
    try:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, _, rest = (await reading.readuntil(b"\r\n\r\n")).partition(b"\r\n")
                fields = dict(line.lower().split(b":", 1) for line in rest.splitlines() if line)
                body = await reading.readexactly(int(fields.get(b"content-length", b"0")))
                requests.write(first + b"\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n" + rest + body)
                await requests.drain()
    finally:
        requests.close()
        await back
        with suppress(ConnectionError):
            await requests.wait_closed()


async def _copy(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reading.read(65536):
            writing.write(data)
            await writing.drain()
    writing.close()
