"""An exchange of frames with the process of a handle, through a server (`serve/attach_http.py`).

Frames arrive in the body of one response; the client sends its own in requests, one after the other. The response's
header `Keephold-Talk` gives these requests their address.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx2
import msgspec
from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.text import to_json
from keephold.turn import attach_protocol as frames

if TYPE_CHECKING:
    from keephold.control.remote import RemoteControl

PATIENT = httpx2.Timeout(None, connect=10.0)
"""For operations without a time limit."""
TALK = "Keephold-Talk"
_TRIES, _TRY_SECS = 50, 0.1
"""How often a talk is opened again before it is lost, and the time between two tries."""
_PATIENCE = 20
"""After how many tries a terminal that does not run is taken to have stopped."""
_MOVED = ("owner_not_answering", "runtime_closed")
"""Errors of a handle that another process takes over, if one can."""
_SOON = ("driven_by_person", "not_running", *_MOVED)
"""Refusals that end soon: the server that was replaced has not left the handle yet, or no other has taken it."""
_LAST_SECS = 2.0
"""How long the last input may take to arrive."""


class RemoteTalk:
    """An exchange of frames with a handle's process, through a server. If the server is replaced, the new one carries
    it on."""

    def __init__(self, server: "RemoteControl", want: frames.Want) -> None:
        self._server = server
        self._want = want
        self._held = bytearray()
        self._unsent = bytearray()
        self._sending: asyncio.Task[None] | None = None
        self._in_vain = 0
        """How often it was opened since the last frame."""

    async def open(self) -> None:
        """Send the request. Raises `KeepholdError` if it is refused."""
        request = self._server.client.build_request(
            "POST", f"/api/handles/{quote(self._want.uid, safe='')}/talk", content=to_json(self._want), timeout=PATIENT,
            headers={"content-type": "application/json"},
        )  # fmt: skip
        self._response = await self._server.sent(request)
        self._pieces: AsyncIterator[bytes] = self._response.aiter_raw()
        self._in_vain += 1

    async def receive(self) -> frames.Frame:
        while True:
            try:
                if (found := frames.take(self._held)) is not None:
                    return self._noted(frames.decoded(*found))
                self._held += await anext(self._pieces)
            except KeepholdError as error:
                if error.code not in _MOVED:
                    raise
                await self._open_again(error)
            except StopAsyncIteration:  # in good order, before the last frame: the server was replaced
                await self._open_again(self._lost())
            except httpx2.TransportError:
                raise self._lost() from None

    def _noted(self, frame: frames.Frame) -> frames.Frame:
        """Note up to where the output has come."""
        self._in_vain = 0
        match frame:
            case frames.OUTPUT, bytes(data):
                self._want = replace(self._want, since=self._want.since + len(data))
            case _, frames.HandleStatus(offset=offset) | frames.Gap(offset=offset):
                self._want = replace(self._want, since=offset)
        return frame

    async def _open_again(self, why: KeepholdError) -> None:
        """Open it again, through the server that answers now, or raise why it ended."""
        if TALK not in self._response.headers:
            raise why
        await self._response.aclose()
        self._held.clear()
        while True:
            if self._in_vain > _TRIES:
                raise why
            await asyncio.sleep(_TRY_SECS if self._in_vain else 0)  # a server that is leaving ends it at once
            try:
                await self.open()
                break
            except KeepholdError as error:
                self._in_vain += 1
                if error.code not in _SOON:
                    raise why from error
                if error.code == "not_running" and self._in_vain > _PATIENCE:
                    self._want = replace(self._want, want="follow", screen=False)  # it may have stopped: how?
        self._send_unsent()

    def _lost(self) -> KeepholdError:
        return KeepholdError(
            f"the connection to the server {self._server.url} is lost; ask again when it is there",
            code="server_unreachable",
        )

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        """Queue a frame; while a request is under way, frames collect for the next one, in order."""
        if kind == frames.DETACH:
            return  # leaving says it already
        if isinstance(payload, frames.Size):
            self._want = replace(self._want, rows=payload.rows, cols=payload.cols)
        self._unsent += frames.frame(kind, payload)
        self._send_unsent()

    def _send_unsent(self) -> None:
        if self._unsent and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._unsent:
            data, talk = bytes(self._unsent), self._response.headers.get(TALK, "")
            self._unsent.clear()
            try:
                response = await self._server.client.post(f"/api/talks/{talk}", content=data)
            except httpx2.TransportError:
                return  # `receive` raises the error
            if response.status_code == 404:  # another server has the address: sent when the talk is there, too
                self._unsent[:0] = data
                if talk == self._response.headers.get(TALK, ""):
                    return

    async def close(self) -> None:
        """Send what is queued, and leave."""
        if self._sending is not None:
            await asyncio.wait((self._sending,), timeout=_LAST_SECS)
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._response.aclose()
