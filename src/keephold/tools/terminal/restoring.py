"""A terminal's screen, rebuilt from its recorded output (R7).

An output of up to a MiB is shown to the emulator from its start, with the sizes that the terminal had: the screen is
that of a terminal that was never interrupted. If the output is longer, its last MiB is shown, or more, back to the last
full clear, after the modes that were set before.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from keephold.handles.output import Output

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


def start_of(output: Output) -> int:
    """Return the offset from which the screen is rebuilt."""
    if output.total <= ENOUGH:
        return 0
    enough = output.total - ENOUGH
    for start in range(enough, max(0, output.total - MOST), -_PIECE):
        cleared = [found.start() for found in _CLEARS.finditer(output.before(start + 16, _PIECE + 16))]
        if cleared:
            return max(0, start - _PIECE) + cleared[-1]
    return enough


def first_size(output: Output, start: int) -> Size:
    """Return the size that the terminal had at that offset."""
    timeline = output.timeline
    assert timeline is not None, "the output of a terminal has sizes"
    size = Size(timeline.started.rows, timeline.started.cols)
    for each in timeline.sizes():
        if each.offset <= start:
            size = Size(each.rows, each.cols)
    return size


def steps(output: Output, start: int, stop: int) -> Iterator[bytes | Size]:
    """Yield what the emulator is to be shown, from one offset to another: pieces of output, and sizes between them."""
    if start:
        yield _modes(output, start)
    at, sizes = start, list(output.timeline.sizes()) if output.timeline is not None else []
    for size in [each for each in sizes if start < each.offset <= stop]:
        yield from _pieces(output, at, size.offset)
        yield Size(size.rows, size.cols)
        at = size.offset
    yield from _pieces(output, at, stop)


def _pieces(output: Output, at: int, stop: int) -> Iterator[bytes]:
    while at < stop:
        piece = output.read(at, min(stop, at + _PIECE))
        at = piece.end
        if piece.data:
            yield piece.data


def _modes(output: Output, stop: int) -> bytes:
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
