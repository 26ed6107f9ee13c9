"""Frames over HTTP: they come in the body of one response, and what is to be sent goes in requests of its own, one
after the other. The header `Keephold-Talk` of the response names the talk for them.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import msgspec

from keephold.errors import KeepholdError
from keephold.turn import attach_protocol as frames

TALK = "Keephold-Talk"
HEAD = 5
"""Bytes of a frame before its payload."""
_LAST_SECS = 2.0
"""How long what was typed last may take to arrive."""


class RemoteTalk:
    """A talk with whoever runs a handle, by way of a server."""

    def __init__(self, client: httpx2.AsyncClient, response: httpx2.Response, url: str) -> None:
        self._client = client
        self._response = response
        self._url = url
        self._pieces: AsyncIterator[bytes] = response.aiter_raw()
        self._held = bytearray()
        self._unsent = bytearray()
        self._sending: asyncio.Task[None] | None = None

    async def receive(self) -> tuple[str, bytes]:
        while True:
            if len(self._held) >= HEAD:
                size = int.from_bytes(self._held[1:HEAD])
                if len(self._held) >= HEAD + size:
                    kind, payload = chr(self._held[0]), bytes(self._held[HEAD : HEAD + size])
                    del self._held[: HEAD + size]
                    return _checked(kind, payload)
            try:
                self._held += await anext(self._pieces)
            except (StopAsyncIteration, httpx2.TransportError):
                raise KeepholdError(
                    f"the connection to the server {self._url} is lost; ask again when it is there",
                    code="server_unreachable",
                ) from None

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        """Whatever is sent while a request is on its way goes with the next one, in order."""
        if kind == frames.DETACH:
            return  # leaving is enough
        self._unsent += frames.frame(kind, payload)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._unsent:
            data = bytes(self._unsent)
            self._unsent.clear()
            try:
                await self._client.post(f"/api/talks/{self._response.headers[TALK]}", content=data)
            except httpx2.TransportError:
                return  # whoever receives is told so

    async def close(self) -> None:
        """Say what is still to be said, and leave."""
        if self._sending is not None:
            await asyncio.wait((self._sending,), timeout=_LAST_SECS)
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._response.aclose()


def framed(kind: str, payload: bytes) -> bytes:
    """The bytes of a frame that was received, to be passed on."""
    return kind.encode() + len(payload).to_bytes(4) + payload


def _checked(kind: str, payload: bytes) -> tuple[str, bytes]:
    if kind == frames.ERROR:
        refused = msgspec.json.decode(payload, type=frames.Refused)
        raise KeepholdError(refused.message, code=refused.code)
    return kind, payload
