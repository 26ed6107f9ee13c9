"""End the responses that last, so that their clients reconnect to the server that has replaced this one.

A stream of events and a talk of frames (`serve/attach_http.py`) watch for the client to leave. When this server is
replaced, they get to know that it has left, and the response ends in good order. Other requests are answered here.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.remote_talk import TALK

_TALK = TALK.lower().encode()


class Lasting:
    """The outermost layer: it knows which responses last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._over = False
        self._open: set[_Response] = set()

    def end(self) -> None:
        """End the responses that last, now and from now on."""
        self._over = True
        for response in self._open:
            response.over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A POST of MCP is answered by its stream.
        if scope["type"] != "http" or not (scope["method"] == "GET" or scope["path"].endswith("/talk")):
            await self._app(scope, receive, send)
            return
        response = _Response(self._begun, receive, send)
        try:
            await self._app(scope, response.receive, response.send)
            await response.finish()
        finally:
            self._open.discard(response)

    def _begun(self, response: "_Response") -> None:
        self._open.add(response)
        if self._over:
            response.over.set()


class _Response:
    def __init__(self, begun: "Callable[[_Response], None]", receive: Receive, send: Send) -> None:
        """`begun` is called if it is a response that lasts."""
        self._begun = begun
        self._receive = receive
        self._send = send
        self._done = False
        self.over = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            if headers.get(b"content-type", b"").startswith(b"text/event-stream") or _TALK in headers:
                self._begun(self)
        elif not message.get("more_body"):
            self._done = True
        await self._send(message)

    async def receive(self) -> Message:
        getting = asyncio.ensure_future(self._receive())
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait((getting, over), return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else {"type": "http.disconnect"}
        finally:
            over.cancel()
            getting.cancel()

    async def finish(self) -> None:
        """Send the end of a response that was ended."""
        if self.over.is_set() and not self._done:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
