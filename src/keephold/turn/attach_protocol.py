"""What a runtime and a client of its streams say to each other: frames over a Unix socket.

A frame is one byte of kind, four bytes of length (big endian), and so many bytes: output and input as they are,
everything else JSON. The first frame of a client says what it wants; then each side sends what the other may need.
"""

import asyncio
from typing import Any, Literal, Protocol

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.handle import HandleInfo
from keephold.text import to_json

LONGEST = 16 << 20
"""Bytes of a frame that a runtime takes from a client (K6)."""
_HEAD = 5

Kind = Literal["w", "i", "r", "d", "o", "g", "p", "s", "e", "y", "x"]
# From the client
WANT: Kind = "w"
INPUT: Kind = "i"
RESIZE: Kind = "r"
DETACH: Kind = "d"
# From the runtime
OUTPUT: Kind = "o"
GAP: Kind = "g"
SCREEN: Kind = "p"
"""What the terminal shows (`tools.base.Screen`); output that follows goes on from it."""
STATE: Kind = "s"
END: Kind = "e"
REPLY: Kind = "y"
"""What came of a `send`: the handle's state as a reply shows it (C3)."""
ERROR: Kind = "x"


class Want(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first frame of a client. `uid` is the handle's."""

    uid: str
    want: Literal["read", "follow", "attach", "cast", "send"]
    """`read`: what was printed so far. `follow`: that, and whatever comes, until the handle stops. `attach`: drive the
    terminal. `cast`: its session as an asciicast, a frame for some lines. `send`: what a person sends, once."""
    since: int = 0
    """Offset of the first byte of output that is wanted."""
    screen: bool = False
    """`follow` a terminal from what it shows now, instead of `since`."""
    rows: int = 0
    cols: int = 0
    """The size of the terminal that attaches; 0: it does not know."""
    input: Any | msgspec.UnsetType = msgspec.UNSET
    """None closes the stdin of a command."""
    keys: tuple[str, ...] = ()
    secret: bool = False
    """What is sent was read from a person without showing it."""
    answers: str | None = None
    """What is sent is the answer to this question (`turn/tool_call.py`), or is not sent at all."""


class Size(msgspec.Struct, frozen=True):
    """The terminal of whoever is attached has another size now."""

    rows: int
    cols: int


class Gap(msgspec.Struct, frozen=True):
    """So many bytes are gone; output goes on at `offset`."""

    missing: int
    offset: int


class HandleStatus(msgspec.Struct, frozen=True):
    """How the handle is: at the beginning, when its state has changed (`STATE`), and at last (`END`)."""

    handle: HandleInfo
    cols: int
    """How wide its terminal was at the beginning; 0: it has none."""
    offset: int
    """Where the output that follows begins."""


class Refused(msgspec.Struct, frozen=True):
    """Why the runtime does not, or no longer, do what is wanted."""

    message: str
    code: str


class SupportsStreams(Protocol):
    """A store that knows where its processes can be talked to."""

    def stream(self, owner: str) -> str | None:
        """The path of the socket of an owner's runtime. None: nowhere."""


def frame(kind: Kind, payload: bytes | msgspec.Struct) -> bytes:
    """The bytes of a frame."""
    data = to_json(payload) if isinstance(payload, msgspec.Struct) else payload
    return kind.encode() + len(data).to_bytes(4) + data


async def receive(reader: asyncio.StreamReader, longest: int | None = None) -> tuple[str, bytes] | None:
    """The next frame; None at the end. Raises `KeepholdError` for one that is longer than it may be."""
    try:
        head = await reader.readexactly(_HEAD)
        size = int.from_bytes(head[1:])
        if longest is not None and size > longest:
            raise KeepholdError(f"a frame of {size} bytes; at most {longest} are taken", code="limit_exceeded")
        return chr(head[0]), await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
