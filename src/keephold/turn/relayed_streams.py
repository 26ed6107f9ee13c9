"""The channel of the attach protocol without a socket: the frames of a handle, asked for by rows of the store (M3).

Processes on other machines share the store and nothing else. A client's first request opens a session in the owner's
process; each request is answered with the frames that are there, as soon as there is one. So output arrives as it is
printed.

A client's own frames go the other way. They may hold a password, so they never become rows: they are whispered, if the
store can do that (`SupportsWhispers`). Whispers can be lost, so they are numbered. The owner acknowledges them in its
answers, and each request says how many were sent. If one is missing, nothing after it is taken, and the client gets
`input_lost`. None is sent again: what the owner has taken would be typed twice.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from typing import Protocol

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from keephold.errors import KeepholdError
from keephold.turn import attach_protocol as frames
from keephold.turn.attach_protocol import Frame, Want

POLL_SECS = 10.0
"""How long a request waits for the first frame before it is answered without any."""
_TYPING_POLL_SECS = 2.0
"""The same for a client that types: the next request may tell of lost input."""
_KEPT_SECS = 60.0
"""How long a session lives without a request."""
_TYPING_KEPT_SECS = 15.0
"""The same for a client that types: nobody else can drive the terminal meanwhile."""
_LATE_SECS = 3.0
"""How long a whisper may take when the request after it has arrived."""
_HEARD_SECS = 0.3
"""How long an acknowledgement waits for output with which it is sent."""
_LEAVE_SECS = 10.0
"""How long the last input may take."""
_AHEAD = 1 << 18
"""Bytes of frames that may wait for the next request."""
_PIECE = 5000
"""Bytes of a whisper; PostgreSQL takes fewer than 8,000, and they are sent as base64."""
_FINAL_SECS = 2.0
"""How long a session may take to end after its last frame."""
_CLOSED = frames.Refused("the stream is closed; ask again", "runtime_closed")
_LOST = (
    "Your last input may not have reached the handle: the connection to its process was lost. See what the handle "
    "shows, then attach or send again."
)


class Poll(msgspec.Struct, omit_defaults=True, tag="stream"):
    """A request for the next frames of a session."""

    session: str
    want: Want | None = None
    """The request that opens the session, in its first poll, without input."""
    sent: int = 0
    """How many whispers the client has sent."""


class Whisper(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A part of the bytes that a client sends in a session."""

    session: str
    number: int
    data: bytes


class PollAnswer(msgspec.Struct, array_like=True):
    """The answer to a `Poll`."""

    frames: list[tuple[str, bytes]]
    heard: int = 0
    """How many whispers the owner has taken."""
    ear: str = ""
    """Where the owner hears them."""


_whisper = msgspec.json.Decoder(Whisper)


class RelayedStream:
    """The channel to one client of a handle that this process runs."""

    def __init__(self, ear: str) -> None:
        self.expiry: asyncio.TimerHandle | None = None
        self.serving: asyncio.Task[None] | None = None
        self.ear = ear
        """Where the client's whispers are heard; empty: it sends none."""
        self._said = bytearray()
        """The client's frames, of which the last one may not be whole."""
        self._ready: list[tuple[str, bytes]] = []
        self._ahead = 0
        self._spoken, self._changed, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.closed = self._lost = self._final = False
        self._heard = self._told = 0

    # The channel

    async def receive(self) -> tuple[str, bytes] | None:
        while (found := frames.take(self._said, frames.LONGEST)) is None and not self._lost:
            self._spoken.clear()
            await self._spoken.wait()
        return found

    async def send(self, kind: str, payload: bytes | msgspec.Struct) -> None:
        self._post(kind, payload)
        while self._ahead > _AHEAD:
            self._room.clear()
            await self._room.wait()

    def _post(self, kind: str, payload: bytes | msgspec.Struct) -> None:
        data = frames.encoded(payload)
        self._ready.append((kind, data))
        self._ahead += len(data)
        self._final = kind in (*frames.LAST, frames.ERROR)
        self._changed.set()

    def abort(self) -> None:
        """Close it, and say so to a client that waits for more."""
        if not self.closed:
            self._post(frames.ERROR, _CLOSED)
            self.closed = True

    async def close(self) -> None:
        self.closed = True
        self._changed.set()

    # The client

    def hear(self, number: int, data: bytes) -> None:
        if number > self._heard:
            self.lose()
        elif number == self._heard and not self._lost and self.ear:
            self._heard += 1
            self._said += data
            self._spoken.set()
            if len(self._said) > 2 * frames.LONGEST:  # whispers cannot be held back (K6)
                self.lose()
            asyncio.get_running_loop().call_later(_HEARD_SECS, self._acknowledge)

    def _acknowledge(self) -> None:
        if self._told != self._heard:
            self._changed.set()

    def expect(self, sent: int) -> None:
        """Lose the session if the client's first `sent` whispers do not arrive soon."""
        if sent > self._heard:
            asyncio.get_running_loop().call_later(_LATE_SECS, self._miss, sent)

    def _miss(self, sent: int) -> None:
        if sent > self._heard:
            self.lose()

    def lose(self) -> None:
        """Take no more whispers: one is missing, or may be."""
        self._lost = bool(self.ear)
        self._spoken.set()

    async def take(self) -> PollAnswer:
        """Return the frames that are there, or the next one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TYPING_POLL_SECS if self.ear else POLL_SECS):
                await self._changed.wait()
        self._changed.clear()
        taken, self._ready, self._ahead = self._ready, [], 0
        self._room.set()
        if self._final and self.serving is not None:  # at once, or when the last input of a driver has been read
            await asyncio.wait((self.serving,), timeout=_FINAL_SECS)
        self._told = self._heard
        if self.closed and self._lost:
            taken.append((frames.ERROR, frames.encoded(frames.Refused(_LOST, "input_lost"))))
        return PollAnswer(taken, self._heard, self.ear)


class RelayedStreams:
    """The sessions of a runtime's handles."""

    def __init__(self) -> None:
        self._open: dict[str, RelayedStream] = {}

    def begin(self, id: str, ear: str = "") -> RelayedStream:
        self._end(id)
        session = self._open[id] = RelayedStream(ear)
        return session

    async def take(self, id: str, sent: int = 0) -> PollAnswer:
        """Return the next frames of a session. `sent`: how many whispers its client has sent."""
        session = self._open.get(id)
        if session is None:
            return PollAnswer([(frames.ERROR, frames.encoded(_CLOSED))])
        if session.expiry is not None:
            session.expiry.cancel()
        kept = _TYPING_KEPT_SECS if session.ear else _KEPT_SECS
        session.expiry = asyncio.get_running_loop().call_later(kept, self._end, id)
        session.expect(sent)
        answer = await session.take()
        if session.closed:
            self._end(id)
        return answer

    def hear(self, message: str | None) -> None:
        """Hand a whisper to its session. None: whispers may be lost. Any other text is ignored."""
        if message is None:
            for session in self._open.values():
                session.lose()
            return
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            heard = _whisper.decode(message)
            if heard.session in self._open:
                self._open[heard.session].hear(heard.number, heard.data)

    def _end(self, id: str) -> None:
        session = self._open.pop(id, None)
        if session is not None:
            if session.serving is not None:
                session.serving.cancel()
            if session.expiry is not None:
                session.expiry.cancel()

    def close(self) -> None:
        """End all sessions."""
        for id in tuple(self._open):
            self._end(id)


class Polls(Protocol):
    """Reaches other processes through the store (`turn/relay.py`)."""

    @property
    def can_whisper(self) -> bool: ...

    async def poll(self, uid: str, owner: str, poll: Poll) -> PollAnswer:
        """Return the owner's reply. Raises `KeepholdError` if the owner has died or is silent."""

    async def whisper(self, ear: str, message: str) -> None:
        """As `SupportsWhispers.whisper`."""


class RelayedLink:
    """A session in another process, read frame by frame."""

    def __init__(self, polls: Polls, owner: str, want: Want) -> None:
        self._polls = polls
        self._owner = owner
        self._want: Want | None = replace(want, input=UNSET, keys=())
        self._given = frames.Given(want.input, want.keys) if want.want == "send" else None
        self._uid = want.uid
        self._session = secrets.token_hex(16)
        self._frames: deque[tuple[str, bytes]] = deque()
        self._polling: asyncio.Task[None] | None = None
        """Outlives a `receive` that is cancelled: its answer may hold the last acknowledgement."""
        self._ear = ""
        self._unsent = bytearray()
        self._sending: asyncio.Task[None] | None = None
        self._sent = self._arriving = self._heard = 0
        """How many whispers were begun, have been sent, and are acknowledged."""
        self._failed: KeepholdError | None = None
        self._types = want.want in frames.TYPING
        """Whether frames are sent: until this client detaches."""
        self._owed = True
        """Whether input was not acknowledged when this client detached."""
        self._over = False

    async def receive(self) -> Frame:
        while (frame := await self._received()) is None:
            pass
        return frame

    async def _received(self) -> "Frame | None":
        """Return the next frame; None if the owner's answer has none."""
        try:
            if not self._frames:
                self._polling = self._polling or asyncio.create_task(self._poll())
                await asyncio.wait((self._polling,))
                polling, self._polling = self._polling, None
                polling.result()
                if self._failed is not None:
                    raise self._failed
                if not self._frames:
                    return None
            kind, data = self._frames.popleft()
            self._over = kind in frames.LAST
            frame = frames.decoded(kind, data)
        except KeepholdError as error:
            self._over = True
            if self._sent > self._heard and error.code != "input_lost":
                raise KeepholdError(f"{_LOST} ({error.message})", code="input_lost") from error
            raise
        if self._given is not None:
            given, self._given = self._given, None
            self.send(frames.INPUT, given)
        return frame

    async def _poll(self) -> None:
        want, self._want = self._want, None
        answer = await self._polls.poll(self._uid, self._owner, Poll(self._session, want, self._arriving))
        self._frames += answer.frames
        if answer.ear:  # else the session is over
            self._heard, self._ear = answer.heard, answer.ear
            self._send_unsent()

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        """Send a frame, unless the session takes none. `receive` or `close` raises if it may be lost."""
        if self._types and not self._over:
            if kind == frames.DETACH:
                self._types, self._owed = False, bool(self._unsent) or self._sent > self._heard
            self._unsent += frames.frame(kind, payload)
            self._send_unsent()

    def _send_unsent(self) -> None:
        if self._ear and self._unsent and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._unsent and self._failed is None:
            piece = bytes(self._unsent[:_PIECE])
            del self._unsent[:_PIECE]
            message = msgspec.json.encode(Whisper(self._session, self._sent, piece)).decode()
            self._sent += 1  # before it is sent: it may arrive although this fails
            try:
                await self._polls.whisper(self._ear, message)
                self._arriving = self._sent
            except KeepholdError as error:
                self._failed = error

    async def close(self) -> None:
        """Leave the session. Raises `KeepholdError` if something that was sent may not have arrived."""
        if self._want is None:
            self.send(frames.DETACH)
        try:
            async with asyncio.timeout(_LEAVE_SECS):
                while (self._unsent or self._heard < self._sent) and not self._over:
                    await self._received()
        except (KeepholdError, TimeoutError) as error:
            if self._owed:  # else only the detaching may be lost: the owner ends the session by itself
                raise error if isinstance(error, KeepholdError) else KeepholdError(_LOST, code="input_lost") from None
        finally:
            tasks = [task for task in (self._polling, self._sending) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
