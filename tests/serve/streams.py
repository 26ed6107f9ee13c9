"""Whoever listens to `/api/events` and comes back where it was, as a browser's EventSource does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2
from tests.patience import PATIENCE
from tests.serve.serving import Served


class Event(NamedTuple):
    """One event of a stream. What is told in passing has no number: 0."""

    id: int
    type: str
    data: dict[str, Any]


async def events(answered: httpx2.Response) -> AsyncIterator[Event]:
    """The events of a stream; comments and blank lines are none."""
    fields: dict[str, str] = {}
    async for line in answered.aiter_lines():
        if not line and "data" in fields:
            yield Event(int(fields.get("id", "0")), fields.get("event", "message"), json.loads(fields["data"]))
        if not line:
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")


class Listener:
    """Keeps what it has heard, in order; when its connection breaks it asks for what came after the last."""

    def __init__(self, server: Served, after: int = 0) -> None:
        self._server = server
        self._after = after
        self._news = asyncio.Event()
        self.heard: list[Event] = []
        self.passing: list[Event] = []
        self.connections = 0

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.heard]

    async def listen(self) -> None:
        """For ever."""
        while True:
            try:
                await self._once()
            except (httpx2.HTTPError, OSError):
                await asyncio.sleep(0.05)

    async def _once(self) -> None:
        headers = {"Last-Event-ID": str(self.heard[-1].id if self.heard else self._after)}
        async with (
            self._server.client() as http,
            http.stream("GET", "/api/events", headers=headers, timeout=None) as answered,
        ):
            assert answered.status_code == 200, answered.status_code
            self.connections += 1
            async for event in events(answered):
                (self.heard if event.id else self.passing).append(event)
                self._news.set()

    async def until(self, type: str, **data: Any) -> Event:
        """The first event of that type and data, when it is there."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for event in self.heard:
                    said = event.data | event.data.get("data", {})
                    if event.type == type and all(said.get(name) == value for name, value in data.items()):
                        return event
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def listening(server: Served, after: int = 0) -> AsyncIterator[Listener]:
    """A listener that hears everything after that place."""
    listener = Listener(server, after)
    task = asyncio.create_task(listener.listen())
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])
