"""Server-sent events: a response that lasts until its source ends or its client disconnects.

There is no task or timer for each event: chunks are sent as they come. Regular comment lines keep proxies from closing
an idle connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from keephold.serve.operations import while_there

BEAT_SECS = 15.0
_FIRST = b": keephold\nretry: 1000\n\n"
"""Browsers reconnect after as many milliseconds; their own default is 3 to 5 s, in which a page shows nothing new."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(name: str, data: Any, id: int | None = None) -> bytes:
    """Encode an event; `data` becomes JSON, which has no line ends."""
    number = b"" if id is None else b"id: %d\n" % id
    return b"%sevent: %s\ndata: %s\n\n" % (number, name.encode(), msgspec.json.encode(data))


class EventStream(Response):
    """A response that sends a comment at once, so that the client sees that it is connected."""

    def __init__(
        self, chunks: AsyncGenerator[bytes, None], counted: AbstractContextManager[None] | None = None
    ) -> None:
        """`counted` is entered while the stream is open."""
        super().__init__()
        self._chunks = chunks
        self._counted = counted or contextlib.nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # it has no body, so it would never end
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        with self._counted:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await while_there(self._send(send), _watch(receive, send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": _FIRST, "more_body": True})
        async with contextlib.aclosing(self._chunks):
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _watch(receive: Receive, send: Send) -> None:
    """Send regular comments until the client disconnects."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECS):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
        await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
