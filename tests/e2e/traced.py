"""A program with a tracer provider, to be killed: `python -m tests.e2e.traced STORE SPANS HOW`.

Its tool does a step, then waits for an event. With HOW `begin` it spawns the tool, says `ready` when the tool waits,
and waits to be killed; with `go-on` it takes up the turn, brings the event, waits for the handle and ends. Every span
that ends is a line of the file SPANS, with the number of the process in it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from tests.patience import until
from tests.turn.calls import STATEFUL, spawn, wait_all

import keephold
from keephold import Call, Key, Runtime


class Lines(SpanExporter):
    """Writes spans as lines of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                file.write(json.dumps({**json.loads(span.to_json()), "pid": os.getpid()}) + "\n")
        return SpanExportResult.SUCCESS


async def main(store: str, how: str) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def deploy(call: Call) -> Any:
        """Creates something once, then waits to be told to go on."""

        async def create(given: Any) -> str:
            return "created"

        await call.durable().run_json("create", {}, create)
        keys.append(await call.durable().external_event_key("go"))
        return await call.durable().await_event_json(keys[0])

    async with Runtime([deploy], store=store) as rt:
        turn = rt.turn("main", resume=how == "go-on")
        async with turn:
            if how == "begin":
                await turn.run([spawn("deploy", "d")])
                await until(lambda: bool(keys))
                print("ready", flush=True)
                await asyncio.sleep(3600)
            await until(lambda: bool(keys))
            with trace.get_tracer("test").start_as_current_span("webhook"):
                await rt.resolve(keys[0], {"status": "ok", "payload": "went"})
            await turn.run([wait_all("d")])


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Lines(Path(sys.argv[2]))))
    trace.set_tracer_provider(provider)
    asyncio.run(main(sys.argv[1], sys.argv[3]))
    provider.shutdown()
