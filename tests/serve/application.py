"""The whole application in the test's loop, on a port of its own, so that a test can look into it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from tests.control.places import Needs
from tests.mcp.serving import _end_watcher
from tests.patience import PATIENCE, until
from tests.wait_tools import with_wait_tools

from keephold import Runtime
from keephold.control.control import Control
from keephold.mcp.server import Server
from keephold.serve.app import App
from keephold.serve.metrics import Prometheus
from keephold.serve.server import SlowClientProtocol
from keephold.store.base import Store
from keephold.tools.base import Tool
from keephold.turn.prompt_queue import FromList

TOKEN = "token-of-the-owner-0123456789abcdef"


@dataclass
class Application:
    """What serves, and who may ask it."""

    runtime: Runtime
    control: Control
    needs: Needs
    app: App
    metrics: Prometheus
    port: int

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, token: str | None = TOKEN, **options: Any) -> httpx2.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.AsyncClient(base_url=self.base, headers=headers, timeout=PATIENCE, **options)


@asynccontextmanager
async def application(
    tools: Iterable[Tool] = (),
    store: str | Store = "memory:",
    *,
    principals: Mapping[str, str] | None = None,
    **options: Any,
) -> AsyncIterator[Application]:
    """Serve these tools, as `keephold serve` does."""
    metrics = Prometheus()
    async with with_wait_tools(tools, store=store, prompter=FromList(), metrics=metrics) as runtime:
        server = Server(runtime, builtins=["*"])
        control = Control(runtime, snapshot=metrics.snapshot, served=server.calls.served)
        app = App(server, control, metrics)
        await server.open()
        await app.open()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            asgi = app.asgi(TOKEN, principals, options.pop("hosts", ()), **options)
            web = uvicorn.Server(
                uvicorn.Config(
                    asgi, http=SlowClientProtocol, log_level="critical", ws="none", timeout_graceful_shutdown=2
                )
            )
            serving = asyncio.create_task(web.serve(sockets=[listening]))
            await until(lambda: web.started)
            try:
                yield Application(runtime, control, Needs(runtime), app, metrics, port)
            finally:
                await app.close()
                web.should_exit = True
                await serving
                await _end_watcher()
