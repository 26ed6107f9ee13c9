"""The frames that a runtime and an attached client exchange over a Unix socket.

A frame is one byte of kind, four bytes of length (big endian) and the payload: raw bytes for output and input, JSON for
everything else. The first frame of a client is its request.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
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
    """Yield every frame up to the last one, an `END` or a `REPLY`."""
    while True:
        frame = await talk.receive()
        yield frame
        if frame[0] in (END, REPLY):
            return


def redraw(screen: "Screen") -> bytes:
    """Return the sequences that make a terminal show this screen."""
    drawn = [b"\x1b[?1049h" if screen.alternate else b"\x1b[?1049l", b"\x1b[0m\x1b[r\x1b[H\x1b[2J"]
    for row, line in enumerate(screen.lines, start=1):
        drawn.append(b"\x1b[%d;1H" % row + strip_controls(line).encode(errors="replace"))
    drawn.append(b"\x1b[%d;%dH" % screen.cursor)
    return b"".join(drawn)


def frame(kind: str, payload: bytes | msgspec.Struct) -> bytes:
    """Encode a frame."""
    data = to_json(payload) if isinstance(payload, msgspec.Struct) else payload
    return kind.encode() + len(data).to_bytes(4) + data


def split(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the frames of a reply: each one's kind and payload."""
    place = 0
    while place < len(data):
        start = place + _HEAD
        end = start + int.from_bytes(data[place + 1 : start])
        yield chr(data[place]), data[start:end]
        place = end


async def receive(reader: asyncio.StreamReader, longest: int | None = None) -> tuple[str, bytes] | None:
    """Return the next frame, None at the end. Raises `KeepholdError` if it is too long."""
    try:
        head = await reader.readexactly(_HEAD)
        size = int.from_bytes(head[1:])
        if longest is not None and size > longest:
            raise KeepholdError(f"a frame of {size} bytes; at most {longest} are taken", code="limit_exceeded")
        return chr(head[0]), await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
