"""The frames that a runtime and an attached client exchange, and the channel that carries them over a Unix socket.

Frames without a socket are in `turn/relayed_streams.py`. As bytes, a frame is one byte of kind, four bytes of length
(big endian) and the payload: raw bytes for output and input, JSON for everything else. The first frame of a client is
its request.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.handle import HandleInfo
from keephold.text import strip_controls, to_json

if TYPE_CHECKING:
    from keephold.tools.base import Screen

LONGEST = 16 << 20
"""The most bytes of a frame that a runtime accepts (K6)."""
_HEAD = 5

Kind = Literal["w", "i", "r", "d", "o", "g", "t", "p", "s", "e", "y", "x"]
# From the client
WANT: Kind = "w"
INPUT: Kind = "i"
RESIZE: Kind = "r"
DETACH: Kind = "d"
# From the runtime
OUTPUT: Kind = "o"
GAP: Kind = "g"
TIME: Kind = "t"
SCREEN: Kind = "p"
"""The terminal's screen (`tools.base.Screen`); the output frames that follow continue from it."""
STATE: Kind = "s"
END: Kind = "e"
REPLY: Kind = "y"
"""The result of a `send`: the handle's state as a reply shows it (C3)."""
ERROR: Kind = "x"
LAST = (END, REPLY)


class Want(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first frame of a client. `uid` is the handle's."""

    uid: str
    want: Literal["read", "follow", "attach", "cast", "send"]
    """`read`: the output so far. `follow`: that and all later output, until the handle stops. `attach`: drive the
    terminal. `cast`: its session as an asciicast, a frame for some lines. `send`: send input once, as the user."""
    since: int = 0
    """Offset of the first byte of output to send."""
    times: bool = False
    """Send when output was printed, too, as far as that is known."""
    screen: bool = False
    """`follow` a terminal from its current screen, instead of `since`."""
    rows: int = 0
    cols: int = 0
    """The size of the client's terminal; 0: unknown."""
    input: Any | msgspec.UnsetType = msgspec.UNSET
    """None closes the stdin of a command."""
    keys: tuple[str, ...] = ()
    """Input and keys follow in a `Given`, once the runtime has sent the handle's state."""
    secret: bool = False
    """The input was read without showing it."""
    answers: str | None = None
    """The input answers this question (`turn/tool_call.py`), or is refused."""


TYPING = ("attach", "send")
"""Requests whose client sends input."""


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input of a `send`, in an `INPUT` frame. A process that is stopped or busy never gets it: it would be carried
    out some day, although its sender was refused."""

    input: Any | msgspec.UnsetType = msgspec.UNSET
    keys: tuple[str, ...] = ()


class Size(msgspec.Struct, frozen=True):
    """The new size of the attached client's terminal."""

    rows: int
    cols: int


class Gap(msgspec.Struct, frozen=True):
    """`missing` bytes were overwritten; the output continues at `offset`."""

    missing: int
    offset: int


class PrintedAt(msgspec.Struct, frozen=True):
    """The output that follows was printed at this time, in seconds since 1970."""

    at: float


class HandleStatus(msgspec.Struct, frozen=True):
    """The handle's state: at first and after each change (`STATE`), and at the end (`END`)."""

    handle: HandleInfo
    cols: int
    """The width of its terminal at the start; 0: it has none."""
    offset: int
    """Offset of the output that follows."""


class Refused(msgspec.Struct, frozen=True):
    """Why the runtime refuses the request, or ends the connection."""

    message: str
    code: str


Frame: TypeAlias = "tuple[str, bytes | HandleStatus | Gap | PrintedAt | Screen]"
"""A kind and its payload: one of these structs, or bytes (output, the JSON of a reply)."""


def decoded(kind: str, data: bytes) -> Frame:
    """Decode a frame from a runtime. Raises `KeepholdError` for a refusal."""
    if kind in (STATE, END):
        return kind, msgspec.json.decode(data, type=HandleStatus)
    if kind == GAP:
        return kind, msgspec.json.decode(data, type=Gap)
    if kind == TIME:
        return kind, msgspec.json.decode(data, type=PrintedAt)
    if kind == SCREEN:
        from keephold.tools.base import Screen

        return kind, msgspec.json.decode(data, type=Screen)
    if kind == ERROR:
        refused = msgspec.json.decode(data, type=Refused)
        raise KeepholdError(refused.message, code=refused.code)
    return kind, data


class Talk(Protocol):
    """A connection to the process that has a handle's output."""

    async def receive(self) -> Frame:
        """Return the next frame. Raises `KeepholdError` for a refusal, for silence, and if the connection is lost."""

    def send(self, kind: Kind, payload: bytes | msgspec.Struct = b"") -> None: ...


async def all_frames(talk: Talk) -> AsyncGenerator[Frame, None]:
    """Yield every frame up to the last one."""
    while True:
        frame = await talk.receive()
        yield frame
        if frame[0] in LAST:
            return


def redraw(screen: "Screen") -> bytes:
    """Return the sequences that make a terminal show this screen."""
    drawn = [b"\x1b[?1049h" if screen.alternate else b"\x1b[?1049l", b"\x1b[0m\x1b[r\x1b[H\x1b[2J"]
    for row, line in enumerate(screen.lines, start=1):
        drawn.append(b"\x1b[%d;1H" % row + strip_controls(line).encode(errors="replace"))
    drawn.append(b"\x1b[%d;%dH" % screen.cursor)
    return b"".join(drawn)


def encoded(payload: bytes | msgspec.Struct) -> bytes:
    """Encode the payload of a frame."""
    return to_json(payload) if isinstance(payload, msgspec.Struct) else payload


def frame(kind: str, payload: bytes | msgspec.Struct) -> bytes:
    """Encode a frame."""
    data = encoded(payload)
    return kind.encode() + len(data).to_bytes(4) + data


def take(data: bytearray, longest: int | None = None) -> tuple[str, bytes] | None:
    """Take the first frame off; None if it is not whole. Raises `KeepholdError` if it is too long."""
    size = int.from_bytes(data[1:_HEAD]) if len(data) >= _HEAD else 0
    if longest is not None and size > longest:
        raise KeepholdError(f"a frame of {size} bytes; at most {longest} are taken", code="limit_exceeded")
    if len(data) < _HEAD + size:
        return None
    kind, payload = chr(data[0]), bytes(data[_HEAD : _HEAD + size])
    del data[: _HEAD + size]
    return kind, payload


class Channel(Protocol):
    """A connection of the process that runs a handle to one client."""

    async def receive(self) -> tuple[str, bytes] | None:
        """Return the client's next frame, None if it has left. Raises `KeepholdError` if the frame is too long."""

    async def send(self, kind: str, payload: bytes | msgspec.Struct) -> None:
        """Send a frame; return when the client has taken so much that it may be sent more."""

    async def close(self) -> None:
        """Close it behind the last frame."""

    def abort(self) -> None:
        """Close it now."""


class Socket:
    """A channel over a Unix socket, at either end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, longest: int | None = None) -> None:
        self._reader, self._writer, self._longest = reader, writer, longest
        self._held = bytearray()

    async def receive(self) -> tuple[str, bytes] | None:
        while (found := take(self._held, self._longest)) is None:
            try:
                data = await self._reader.read(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._held += data
        return found

    async def send(self, kind: str, payload: bytes | msgspec.Struct) -> None:
        self.post(kind, payload)
        await self._writer.drain()

    def post(self, kind: str, payload: bytes | msgspec.Struct = b"") -> None:
        """Send a frame without waiting."""
        self._writer.write(frame(kind, payload))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()
