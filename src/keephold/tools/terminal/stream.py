"""The output of a terminal as a stream: secrets masked in it (K5), its last part, in which prompts and drawings are
found, and the part of a recorded one from which a screen is rebuilt (R7).

An output of up to a MiB is shown to the emulator from its start, with the sizes that the terminal had: the screen is
that of a terminal that was never interrupted. If the output is longer, its last MiB is shown, or more, back to the last
full clear, after the modes that were set before.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from keephold.text import strip_controls

if TYPE_CHECKING:  # a keeper, which needs `Veil` alone, stays small
    from keephold.handles.output import Output


# Secrets

HELD_BACK = 0.05
"""Seconds that output may be held back because a secret could begin with it."""

_MASK = b"********"
_SHORTEST = 4  # characters; masking a shorter one would hit everywhere, and so reveal it


class Veil:
    """A stream in which secrets are masked, also if one is split over two pieces.

    To that end the last bytes of a piece are held back if a secret could begin with them: until the next piece, or
    until `reveal` is called, which happens by itself a moment later.
    """

    def __init__(self, show: Callable[[bytes], None]) -> None:
        self._show = show
        self._secrets: list[bytes] = []
        self._held = b""
        self._timer: asyncio.TimerHandle | None = None

    def hide(self, secret: str) -> None:
        """Mask this from now on."""
        if len(secret) >= _SHORTEST:
            self._secrets.append(secret.encode("utf-8", "replace"))
            self._secrets.sort(key=len, reverse=True)  # one may be part of another

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    def feed(self, data: bytes) -> None:
        """Show the part of the stream that may be shown so far."""
        if self._secrets:
            data = self._take() + data
            for secret in self._secrets:
                data = data.replace(secret, _MASK)
            length = max(_begun(data, secret) for secret in self._secrets)
            data, self._held = data[: len(data) - length], data[len(data) - length :]
            if self._held:
                self._timer = asyncio.get_running_loop().call_later(HELD_BACK, self.reveal)
        self._show(data)

    def reveal(self) -> None:
        """Show the bytes that were held back: they are not a secret after all."""
        if self._held:
            self._show(self._take())

    def _take(self) -> bytes:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, b""
        return held


def _begun(data: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of the data may be the beginning of the secret."""
    lengths = range(min(len(data), len(secret) - 1), 0, -1)
    return next((length for length in lengths if data.endswith(secret[:length])), 0)


# The last part

_LIMIT = 64 * 1024
_LINE = 4096
_PROMPT = 200

_POSITIONS = re.compile(rb"\x1b\[(?:[0-9]*(?:;[0-9]*)?[Hf]|[0-9]*d)")
"""Sequences that move the cursor to a position of the screen (CUP, HVP, VPA)."""

_LEAVES = re.compile(rb"\x1b\[\?(?:1049|1047|47)l")
"""The alternate screen is left."""


class Recent:
    """The last 64 KiB of a terminal's output."""

    def __init__(self, start: int = 0) -> None:
        """`start` is the offset of the output that is added first."""
        self._data = bytearray()
        self._total = start

    def add(self, data: bytes) -> None:
        self._total += len(data)
        self._data += data[-_LIMIT:]
        if len(self._data) > 2 * _LIMIT:
            del self._data[:-_LIMIT]

    def all(self) -> bytes:
        return bytes(self._data)

    def positions(self, since: int) -> bool:
        """Whether the output from that offset on moves the cursor about the screen."""
        length = min(self._total - since, _LIMIT)
        if length <= 0:
            return False
        start = max(0, len(self._data) - length)
        for left in _LEAVES.finditer(self._data, start):  # drawings on a screen that is gone do not count
            start = left.end()
        return _POSITIONS.search(self._data, start) is not None

    def last_line(self) -> str:
        """Return the last line that is not blank, as text; empty if there is none."""
        lines = strip_controls(self._data[-_LINE:].decode(errors="replace")).split("\n")
        return next((line.strip()[-_PROMPT:] for line in reversed(lines) if line.strip()), "")


# The part from which a screen is rebuilt

ENOUGH, MOST = 1 << 20, 16 << 20
"""Bytes of output from which a screen is rebuilt, and how far back a full clear is looked for."""
_PIECE = 1 << 16
_LONGEST = 64
"""Bytes of a sequence that sets modes."""

_CLEARS = re.compile(rb"\x1bc|\x1b\[2J|\x1b\[\?(?:1049|1047|47)h")
_MODES = re.compile(rb"\x1b\[\?([0-9]+(?:;[0-9]+)*)([hl])")


class Size(NamedTuple):
    """From here on the terminal has this size."""

    rows: int
    cols: int


def start_of(output: "Output") -> int:
    """Return the offset from which the screen is rebuilt."""
    if output.total <= ENOUGH:
        return 0
    enough = output.total - ENOUGH
    for start in range(enough, max(0, output.total - MOST), -_PIECE):
        cleared = [found.start() for found in _CLEARS.finditer(output.before(start + 16, _PIECE + 16))]
        if cleared:
            return max(0, start - _PIECE) + cleared[-1]
    return enough


def first_size(output: "Output", start: int) -> Size:
    """Return the size that the terminal had at that offset."""
    timeline = output.timeline
    assert timeline is not None, "the output of a terminal has sizes"
    size = Size(timeline.started.rows, timeline.started.cols)
    for each in timeline.sizes():
        if each.offset <= start:
            size = Size(each.rows, each.cols)
    return size


def steps(output: "Output", start: int, stop: int) -> Iterator[bytes | Size]:
    """Yield what the emulator is to be shown, from one offset to another: pieces of output, and sizes between them."""
    if start:
        yield _modes(output, start)
    at, sizes = start, list(output.timeline.sizes()) if output.timeline is not None else []
    for size in [each for each in sizes if start < each.offset <= stop]:
        yield from _pieces(output, at, size.offset)
        yield Size(size.rows, size.cols)
        at = size.offset
    yield from _pieces(output, at, stop)


def _pieces(output: "Output", at: int, stop: int) -> Iterator[bytes]:
    while at < stop:
        piece = output.read(at, min(stop, at + _PIECE))
        at = piece.end
        if piece.data:
            yield piece.data


def _modes(output: "Output", stop: int) -> bytes:
    """Return sequences that set the modes that the terminal has at that offset."""
    modes, before = dict[bytes, bytes](), b""
    for piece in _pieces(output, 0, stop):
        data = before + piece  # a sequence may be in two pieces; to set a mode again changes nothing
        before = piece[-_LONGEST:]
        for found in _MODES.finditer(data):
            for mode in found[1].split(b";"):
                modes.pop(mode, None)
                modes[mode] = found[2]
    return b"".join(b"\x1b[?%b%b" % each for each in modes.items())
