"""A front end and workers in the test's loop, with a real Temporal server and real HTTP between them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.patience import PATIENCE, until
from tests.temporal import Place as TestPlace

from keephold import Runtime, ToolCall
from keephold.engines.temporal.client import Place, Temporal
from keephold.engines.temporal.worker import TemporalWorker
from keephold.serve.engine_channel import EngineChannel
from keephold.tools.base import Tool


def place_of(temporal: TestPlace) -> Place:
    return Place(address=temporal.address, namespace=temporal.namespace, task_queue=temporal.task_queue)


@asynccontextmanager
async def working(
    temporal: TestPlace, tools: Iterable[Tool], *, count: int = 1, suspend_secs: float = 600,
    kind: type[TemporalWorker] = TemporalWorker, **options: Any,
) -> AsyncIterator[Sequence[TemporalWorker]]:  # fmt: skip
    """Workers for these tools. They suspend a call only after `suspend_secs`."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    factory = loop.get_task_factory()
    workers = [
        kind(place_of(temporal), tools, suspend_secs=suspend_secs, drain_secs=1, **options) for _ in range(count)
    ]
    running = [asyncio.ensure_future(worker.run(stop)) for worker in workers]
    try:
        yield workers
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*running), PATIENCE)
        loop.set_task_factory(factory)


@asynccontextmanager
async def front_end(
    temporal: TestPlace, tools: Iterable[Tool], store: str = "memory:", *, port: int = 0, **options: Any
) -> AsyncIterator[Runtime]:
    """A runtime whose calls run on Temporal, and the address where their workers reach it."""
    runtime = Runtime(tools, store=store, engines={"temporal": Temporal(place_of(temporal))}, **options)
    assert runtime.front_end is not None
    channel = EngineChannel(runtime.front_end)

    async def answer(request: Request) -> Response:
        return await channel.answer(request, request.headers)

    with socket.create_server(("127.0.0.1", port)) as listening:
        runtime.front_end.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        application = Starlette(routes=[Route("/engines/{uid:path}", answer, methods=["POST"])])
        settings = uvicorn.Config(application, log_level="critical", ws="none", timeout_graceful_shutdown=1)
        web = uvicorn.Server(settings)
        serving = asyncio.create_task(web.serve(sockets=[listening]))
        await until(lambda: web.started)
        try:
            async with runtime:
                yield runtime
        finally:
            web.should_exit = True
            await serving


def spawn(tool: str, id: str, **arguments: Any) -> ToolCall:
    return ToolCall(id, tool, {"action": "spawn", "id": id, **arguments})
