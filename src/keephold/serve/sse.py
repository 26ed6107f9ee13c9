"""Server-sent events: a response that goes on until its source ends or its client goes.

No task and no timer for each event: what the source gives is sent as it is. A comment line now and then keeps whatever
is between us and the client from taking the connection for dead.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

BEAT_SECS = 15.0
_FIRST = b": keephold\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(name: str, data: Any, id: int | None = None) -> bytes:
    """An event as it is sent; `data` as JSON, which has no line ends in it."""
    number = b"" if id is None else b"id: %d\n" % id
    return b"%sevent: %s\ndata: %s\n\n" % (number, name.encode(), msgspec.json.encode(data))


class EventStream:
    """An ASGI response. A comment is sent at once, so that the client knows that it is heard."""

    def __init__(self, chunks: AsyncIterator[bytes], counted: AbstractContextManager[None] | None = None) -> None:
        """`counted` is entered while it goes on."""
        self._chunks = chunks
        self._counted = counted or contextlib.nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":  # its answer has no body, so it would never be seen to end
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        with self._counted:
            await self._go_on(receive, send)

    async def _go_on(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        sending = asyncio.ensure_future(self._send(send))
        watching = asyncio.ensure_future(_watch(receive, send))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            sending.cancel()
            watching.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.body", "body": _FIRST, "more_body": True})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            aclose = getattr(self._chunks, "aclose", None)
            if aclose is not None:
                await aclose()


async def _watch(receive: Receive, send: Send) -> None:
    """Until the client has gone; meanwhile, a sign of life now and then."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_SECS):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return
        await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
