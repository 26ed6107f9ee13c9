"""The attach protocol without a socket: the frames of a handle, asked for by rows of the store (M3).

Processes on other machines share the store and nothing else. A client's first request opens a session in the owner's
process; each request is answered with the frames that are there, as soon as there is one. So output arrives as it is
printed. Nobody can type this way: input may be a password, and the store never gets one.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import msgspec

from keephold.errors import KeepholdError
from keephold.turn import attach_protocol as frames
from keephold.turn.attach_protocol import Frame, Want

_log = logging.getLogger("keephold.turn")

POLL_SECS = 10.0
"""How long a request waits for the first frame before it is answered without any."""
_KEPT_SECS = 60.0
"""How long a session lives without a request."""
_AHEAD = 4
"""Frames that may wait for the next request."""
_CLOSED = frames.frame(frames.ERROR, frames.Refused("the stream is closed; ask again", "runtime_closed"))


class Poll(msgspec.Struct, omit_defaults=True, tag="stream"):
    """A request for the next frames of a session."""

    session: str
    want: Want | None = None
    """The request that opens the session, in its first poll."""


IS_POLL = b'{"type":"stream",'


class _Session:
    """One client of a handle that this process runs."""

    def __init__(self, found: AsyncGenerator[Frame, None]) -> None:
        self._ahead: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)
        self.pump = asyncio.get_running_loop().create_task(self._pump(found))
        self.expiry: asyncio.TimerHandle | None = None

    async def _pump(self, found: AsyncGenerator[Frame, None]) -> None:
        try:
            async with aclosing(found):
                async for kind, payload in found:
                    await self._ahead.put(frames.frame(kind, payload))
        except KeepholdError as error:
            await self._ahead.put(frames.frame(frames.ERROR, frames.Refused(error.message, error.code)))
        except Exception:  # without an end its client would ask again and again
            _log.exception("a stream was cut short")
            await self._ahead.put(_CLOSED)
        await self._ahead.put(None)

    async def take(self) -> tuple[bytes, bool]:
        """Return the frames that are there, or the next one, and whether they are the last ones."""
        taken = list[bytes | None]()
        try:
            async with asyncio.timeout(POLL_SECS):
                taken.append(await self._ahead.get())
        except TimeoutError:
            return b"", False
        while taken[-1] is not None and not self._ahead.empty():
            taken.append(self._ahead.get_nowait())
        return b"".join(filter(None, taken)), taken[-1] is None


class Sessions:
    """The sessions of a runtime's handles."""

    def __init__(self) -> None:
        self._open: dict[str, _Session] = {}

    def begin(self, id: str, found: AsyncGenerator[Frame, None]) -> None:
        """Open a session for these frames."""
        self._open[id] = _Session(found)

    async def take(self, id: str) -> bytes:
        """Return the next frames of a session."""
        session = self._open.get(id)
        if session is None:
            return _CLOSED
        if session.expiry is not None:
            session.expiry.cancel()
        session.expiry = asyncio.get_running_loop().call_later(_KEPT_SECS, self._end, id)
        taken, last = await session.take()
        if last:
            self._end(id)
        return taken

    def _end(self, id: str) -> None:
        session = self._open.pop(id, None)
        if session is not None:
            session.pump.cancel()
            if session.expiry is not None:
                session.expiry.cancel()

    async def close(self) -> None:
        """End all sessions."""
        pumps = [session.pump for session in self._open.values()]
        for id in tuple(self._open):
            self._end(id)
        await asyncio.gather(*pumps, return_exceptions=True)


class Polls(Protocol):
    """Sends requests to other processes (`turn/relay.py`)."""

    async def poll(self, uid: str, owner: str, poll: Poll) -> bytes:
        """Return the owner's reply. Raises `KeepholdError` if the owner has died or is silent."""


class RelayedLink:
    """A session in another process, read frame by frame."""

    def __init__(self, polls: Polls, owner: str, want: Want) -> None:
        self._polls = polls
        self._owner = owner
        self._want: Want | None = want
        self._uid = want.uid
        self._session = secrets.token_hex(8)
        self._frames: deque[tuple[str, bytes]] = deque()

    async def receive(self) -> Frame:
        while not self._frames:
            want, self._want = self._want, None
            data = await self._polls.poll(self._uid, self._owner, Poll(self._session, want))
            self._frames.extend(frames.split(data))
        return frames.decoded(*self._frames.popleft())

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        """Ignore it: nobody types here."""
