"""The messages between a runtime and a keeper, over a Unix socket.

A frame is four bytes of length, one byte with the number of descriptors that come along, and a message in msgpack: a
map with its kind in `do`. Fields that a peer does not know are ignored, and those it does not send have defaults, so
that a newer runtime can take over the processes of an older keeper. The first message of each side has its version.

In a page of shared memory the keeper shows, for each of its processes, how far its output and its input have come. A
runtime that finds a program waiting for input must have seen the output before, and the program must have got all
input (A6). The page tells it without a round trip whether the keeper is just moving output, or holds some back, how
much there is in all, and which input was handed over.
"""

import asyncio
import contextlib
import mmap
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from keephold.platforms import machine

VERSION = 1
_HEAD = struct.Struct(">IB")
_PIECE = 1 << 16
_MOST = 16
"""Descriptors that one message carries."""
_CLOSES: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_FLAGS = int(getattr(socket, "MSG_DONTWAIT", 0)) | _CLOSES
LONGEST = 16 << 20
"""Bytes of a frame: arguments and environment of a program are the longest."""


class _Message(msgspec.Struct, tag_field="do", kw_only=True, omit_defaults=True):
    uid: str = ""


# From a runtime


class Hello(_Message, tag="hello"):
    version: int = VERSION


class Start(_Message, tag="start"):
    """Start a process. `terminal` is the size of its terminal; without one it gets pipes."""

    fence: int
    argv: list[bytes]
    env: dict[bytes, bytes]
    head: int
    ring: int
    ahead: int
    cwd: bytes | None = None
    terminal: tuple[int, int] | None = None
    stdin: bool = False
    grace: float = 2.0
    keep_secs: float = 3600.0
    total: int = 0


class Take(_Message, tag="take"):
    """Take a process back. A lower fence than that of the runtime that has it is refused."""

    fence: int


class Write(_Message, tag="write"):
    """Input: `data` now, `later` a moment after it. A `cause` that came before is ignored."""

    number: int
    data: bytes = b""
    later: bytes = b""
    cause: bytes = b""


class CloseStdin(_Message, tag="close_stdin"):
    number: int


class Resize(_Message, tag="resize"):
    rows: int
    cols: int


class EndProcess(_Message, tag="end"):
    grace: float


class Hide(_Message, tag="hide"):
    secret: str


class Seen(_Message, tag="seen"):
    """The runtime has read the output up to `total`."""

    total: int


class Leave(_Message, tag="leave"):
    """The runtime does not want the process any more: it is kept for another one."""


Request = Hello | Start | Take | Leave | Write | CloseStdin | Resize | EndProcess | Hide | Seen

# From a keeper


class Welcome(_Message, tag="welcome"):
    """Descriptor: the page of totals (`Page`)."""

    version: int
    mark: str = ""


class ProcessRunning(_Message, tag="running"):
    """The process runs and belongs to this runtime. `descriptors` names those that come along: the `master` of its
    terminal; or the pipes of its `output` and its `input`, as far as they are open, as paths."""

    pid: int
    slot: int
    generation: int
    """Its place in the page: slots are used again."""
    total: int = 0
    answered: int = 0
    """The output up to here was read by an earlier runtime."""
    descriptors: tuple[str, ...] = ()


class Failed(_Message, tag="failed"):
    """It could not be started."""

    message: str
    code: str


class Unknown(_Message, tag="unknown"):
    """No such process runs here (any more)."""


class Output(_Message, tag="output"):
    total: int


class Stalled(_Message, tag="stalled"):
    """Its output cannot be stored now, for this reason, and it waits; an empty reason: it continues."""

    reason: str


class Refused(_Message, tag="refused"):
    """Input was refused, for this reason: nothing of it was written (C6). Taken input is shown in the page."""

    reason: str


class ProcessEnded(_Message, tag="ended"):
    code: int | None = None
    signal: int | None = None
    total: int = 0
    reason: str = ""
    causes: tuple[bytes, ...] = ()
    """The causes of the last input that it got."""


class Displaced(_Message, tag="displaced"):
    """Another runtime has the process; nothing was done."""


Report = Welcome | ProcessRunning | Failed | Unknown | Output | Stalled | Refused | ProcessEnded | Displaced

_encode = msgspec.msgpack.Encoder().encode
requests: "msgspec.msgpack.Decoder[Request]" = msgspec.msgpack.Decoder(Request)
reports: "msgspec.msgpack.Decoder[Report]" = msgspec.msgpack.Decoder(Report)


class Connection:
    """One end of a connection, on the running loop. Nothing blocks: what the socket does not take yet is kept."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes, list[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_frame` gets each message and its descriptors, which it owns; `on_lost` is called once, unless `close`
        was."""
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = sock
        sock.setblocking(False)
        self._on_frame, self._on_lost = on_frame, on_lost
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._writes_later = False
        self._drained: asyncio.Future[None] | None = None
        self._loop.add_reader(sock, self.receive)

    def send(self, message: _Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message. The descriptors are closed once they are sent."""
        content = _encode(message)
        self._unsent.append((_HEAD.pack(len(content), len(descriptors)) + content, descriptors))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        sock = self._socket
        try:
            while self._unsent and sock is not None:
                data, descriptors = self._unsent[0]
                sent = socket.send_fds(sock, [data], descriptors) if descriptors else sock.send(data)
                _close(descriptors)
                self._unsent[0] = (data[sent:], ())
                if sent == len(data):
                    self._unsent.popleft()
        except BlockingIOError:
            assert sock is not None
            self._loop.add_writer(sock, self._flush)
            self._writes_later = True
            return
        except OSError:  # the other end is gone; the reader learns of it
            self._drop_unsent()
        if self._writes_later and sock is not None:
            self._writes_later = False
            self._loop.remove_writer(sock)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _drop_unsent(self) -> None:
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()

    async def drained(self) -> None:
        """Return when everything is sent, or the other end is gone."""
        if self._unsent:
            self._drained = self._loop.create_future()
            await self._drained

    def receive(self) -> bool:
        """Read once and hand over whole messages; return whether there may be more at once."""
        if self._socket is None:
            return False
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_PIECE, socket.CMSG_SPACE(_MOST * 4), _FLAGS)
        except BlockingIOError:
            return False
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors += private(array("i", content[: len(content) // 4 * 4]))
        self._received += data
        if not data or not self._deliver():
            self._lose()
            return False
        return True

    def _deliver(self) -> bool:
        """Hand over whole frames; return whether the stream makes sense."""
        received = self._received
        while len(received) >= _HEAD.size and self._socket is not None:
            size, count = _HEAD.unpack_from(received)
            if size > LONGEST or count > len(self._descriptors):
                return False
            if len(received) < _HEAD.size + size:
                break
            frame = bytes(memoryview(received)[_HEAD.size : _HEAD.size + size])
            del received[: _HEAD.size + size]
            descriptors = [self._descriptors.popleft() for _ in range(count)]
            try:
                self._on_frame(frame, descriptors)
            except msgspec.ValidationError:  # a message of another version, which has other means as well
                _close(descriptors)
            except msgspec.DecodeError:
                return False
        return True

    def _lose(self) -> None:
        if self._socket is not None:
            self.close()
            self._on_lost()

    def close(self) -> None:
        """Close it. Twice is harmless."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
            _close(self._descriptors)
            self._drop_unsent()
            if self._drained is not None and not self._drained.done():
                self._drained.set_result(None)


def private(descriptors: Iterable[int]) -> Iterator[int]:
    """Yield received descriptors, which no child inherits: the kernel sees to it, but not that of macOS."""
    for descriptor in descriptors:
        if not _CLOSES:
            os.set_inheritable(descriptor, False)
        yield descriptor


def _close(descriptors: Sequence[int] | deque[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


# The page of shared memory

SLOTS = 4096
_NUMBER = struct.Struct("@Q")
_INPUT = struct.Struct("@QQ")
_SLOT = 4 * _NUMBER.size  # generation and state; bytes in the spool; the last input, and its bytes not handed over
_TOTAL, _HANDED = _NUMBER.size, 2 * _NUMBER.size
SETTLED, MOVING, HOLDING, GONE = 0, 1, 2, 3
"""Nothing is on its way; output is being moved; output is held back because it may begin a secret or finds no room; the
slot belongs to another process by now."""


class Page:
    """The page, as its keeper or a runtime has it mapped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, SLOTS * _SLOT)

    @classmethod
    def new(cls) -> "Page":
        return cls(machine.shared_memory("keephold-keeper", SLOTS * _SLOT))

    def begin(self, slot: int, total: int) -> int:
        """Give the slot to another process, and return its generation."""
        (before,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        generation: int = (before >> 2) + 1
        self.moving(slot, generation)  # before its total could be taken for that of the process before
        self.handed(slot, 0, 0)
        self.settled(slot, generation, total)
        return generation

    def moving(self, slot: int, generation: int) -> None:
        """Output is about to be taken from the program. To be called before it is."""
        _NUMBER.pack_into(self._map, slot * _SLOT, generation << 2 | MOVING)

    def settled(self, slot: int, generation: int, total: int, state: int = SETTLED) -> None:
        """Output was moved; the spool has `total` bytes."""
        _NUMBER.pack_into(self._map, slot * _SLOT + _TOTAL, total)
        _NUMBER.pack_into(self._map, slot * _SLOT, generation << 2 | state)

    def handed(self, slot: int, number: int, unsent: int) -> None:
        """The input with this number was handed over, except for the last `unsent` bytes."""
        _NUMBER.pack_into(self._map, slot * _SLOT + _HANDED + _NUMBER.size, unsent)
        _NUMBER.pack_into(self._map, slot * _SLOT + _HANDED, number)

    def output(self, slot: int, generation: int) -> tuple[int, int]:
        """Return the state, and the total at that time or later."""
        (state,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        (total,) = _NUMBER.unpack_from(self._map, slot * _SLOT + _TOTAL)
        (after,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        return (state & 3, total) if state >> 2 == after >> 2 == generation else (GONE, 0)

    def input(self, slot: int) -> tuple[int, int]:
        """Return the number of the last input that was taken, and the bytes that are not handed over."""
        number, unsent = _INPUT.unpack_from(self._map, slot * _SLOT + _HANDED)
        return number, unsent

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)
