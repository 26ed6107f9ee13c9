"""End the responses that last, so that their clients reconnect to the server that has replaced this one.

A stream of events and a talk of frames (`serve/attach_http.py`) watch for the client to leave. When this server is
replaced, they get to know that it has left, and the response ends in good order. Other requests are answered here.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.remote import TALK

_TALK = TALK.lower().encode()


class Lasting:
    """The outermost layer: it knows which responses last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._over = asyncio.Event()

    def end(self) -> None:
        """End the responses that last, now and from now on."""
        self._over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A POST of MCP is answered by its stream.
        if scope["type"] != "http" or not (scope["method"] == "GET" or scope["path"].endswith("/talk")):
            await self._app(scope, receive, send)
            return
        response = _Response(self._over, receive, send)
        await self._app(scope, response.receive, response.send)
        await response.finish()


class _Response:
    def __init__(self, over: asyncio.Event, receive: Receive, send: Send) -> None:
        self._over = over
        self._receive = receive
        self._send = send
        self._lasts = False
        self._done = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            self._lasts = events or _TALK in headers
        elif not message.get("more_body"):
            self._done = True
        await self._send(message)

    async def receive(self) -> Message:
        getting = asyncio.ensure_future(self._receive())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((getting, over), return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if self._lasts and not getting.done() else await getting
        finally:
            over.cancel()
            getting.cancel()

    async def finish(self) -> None:
        """Send the end of a response that was ended."""
        if self._lasts and not self._done and self._over.is_set():
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
