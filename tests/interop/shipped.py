"""`keephold serve` with a token and a configuration that offers all a configuration can of what the conformance suite
asks for, and a proxy in front of it that sends the token: the suite has no option for it."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from tests.interop.form import FORMS
from tests.interop.jobs import JOBS
from tests.mcp.clients import connected
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.serve.serving import ROOT, TOKEN, Served, served

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
    f'[conversation.tools.{tool.name}]\nsource = "python"\nfunction = "tests.interop.{module}:{tool.name}"\n'
    'on_crash = "replay"\n\n'
    for module, tools in {"jobs": JOBS, "form": FORMS}.items()
    for tool in tools
)


@asynccontextmanager
async def shipped(directory: Path) -> AsyncIterator[str]:
    """Serve, and yield the URL for clients without a token."""
    async with behind_proxy(directory, CONFIG, 1) as proxy:
        await _listed(proxy.url)
        yield proxy.url


@asynccontextmanager
async def three(directory: Path, store: str) -> AsyncIterator["Proxy"]:
    """Three servers on one store, of which a random one gets each request."""
    async with behind_proxy(directory, CONFIG, 3, "--store", store) as proxy:
        for each in proxy.servers:
            await _listed(each.mcp)
        yield proxy


class Proxy:
    """Sends each request to a random one of the servers that live, never to the same one twice in a row."""

    def __init__(self, port: int, servers: list[Served]) -> None:
        self.port = port
        self.url = f"http://localhost:{port}/mcp"
        self.servers = servers
        self.adds_token = True
        self.requests = 0
        self.killed = 0
        self.kills_after: int | None = None
        """The number of requests after which it kills a server that is answering none."""
        self._busy = Counter[int]()
        self._last = 0
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def forward(self, reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        self._clients[writing] = asyncio.create_task(self._forward(reading, writing))

    async def close(self) -> None:
        for writing in self._clients:
            writing.transport.abort()
        await asyncio.gather(*self._clients.values(), return_exceptions=True)
        await asyncio.gather(*(writing.wait_closed() for writing in self._clients), return_exceptions=True)

    @asynccontextmanager
    async def losing_one(self, after: int = 1) -> AsyncIterator[None]:
        """Kill a server meanwhile, when so many requests have come. Start it again at the end."""
        self.kills_after = self.requests + after
        yield
        self.kills_after = None
        for each in self.servers:
            if each.process.poll() is not None:
                self.killed += 1
                await asyncio.to_thread(each.restart)
                await _listed(each.mcp)

    @property
    def last(self) -> Served:
        """The server that got the last request."""
        return next(each for each in self.servers if each.port == self._last)

    def _choose(self) -> int:
        self.requests += 1
        living = [each for each in self.servers if each.process.poll() is None]
        idle = [each for each in living if not self._busy[each.port]]
        if self.kills_after is not None and self.requests > self.kills_after and idle:
            self.kills_after = None
            idle[0].kill()
            living.remove(idle[0])
        self._last = random.choice([each.port for each in living if each.port != self._last] or [living[0].port])
        return self._last

    async def _forward(self, reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        """Pass on one request with the token, and the bytes of its answer; an end on either side ends the other."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            first, _, rest = (await reading.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            fields = dict(line.lower().split(b":", 1) for line in rest.splitlines() if line)
            body = await reading.readexactly(int(fields.get(b"content-length", b"0")))
            kept = [line for line in rest.splitlines() if not line.lower().startswith(b"connection:")]
            token = [b"Authorization: Bearer " + TOKEN.encode()] if self.adds_token else []
            added = [b"Connection: close", *token]
            port = self._choose()
            self._busy[port] += 1
            try:
                await _passed(port, b"\r\n".join([first, *added, *kept, b""]) + body, reading, writing)
            finally:
                self._busy[port] -= 1
        writing.close()


async def _passed(port: int, request: bytes, reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
    answers, requests = await asyncio.open_connection("127.0.0.1", port)
    leaves, back = asyncio.create_task(reading.read()), asyncio.create_task(_copy(answers, writing))
    try:
        requests.write(request)
        await asyncio.wait([leaves, back], return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaves.cancel()
        requests.close()
        await back
        with suppress(ConnectionError):
            await requests.wait_closed()


@asynccontextmanager
async def behind_proxy(directory: Path, config: str, count: int, *words: str) -> AsyncIterator[Proxy]:
    """Servers on one store, and a proxy in front of them."""
    port = free_port()
    with ExitStack() as stack:
        words = ("--url", f"http://localhost:{port}", *words)
        proxy = Proxy(port, [stack.enter_context(served(directory, config, *words)) for _ in range(count)])
        async with await asyncio.start_server(proxy.forward, "localhost", port):
            yield proxy
        await proxy.close()


async def _listed(url: str) -> None:
    """Until the foreign server of a server has connected."""
    missing = set(PROXIED)
    for _ in range(int(PATIENCE / 0.1)):
        async with connected(url, token=TOKEN) as client:
            missing = set(PROXIED) - {tool.name for tool in (await client.list_tools()).tools}
        if not missing:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not listed: {missing}")


async def _copy(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reading.read(65536):
            writing.write(data)
            await writing.drain()
    writing.close()
