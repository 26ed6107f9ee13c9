"""Turn a tool's output, piece by piece, into text that is safe to show (K4). A piece may end anywhere: bytes that need
the next piece to be understood are held back until it comes."""

import codecs
import re
from typing import Protocol

from keephold.durable.keys import masked, unfinished_key
from keephold.handles.rendering import on_alternate, render
from keephold.text import SEQUENCE, SEQUENCE_SIZE, ends_within_emoji, has_controls, printable, readable, strip_controls

_LONGEST_LINE = 1 << 20
"""Bytes of a terminal's line that are held back. A longer line is shown in parts."""
_ALTERNATE = b"\x1b[?1049h"
_UNFINISHED = re.compile("\r+\\Z")


class Readable(Protocol):
    """Takes bytes, and returns the bytes to show."""

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes:
        """Return what is held back, and start over."""

    @property
    def held(self) -> int:
        """Return how many bytes are held back."""


class Raw:
    """Returns everything unchanged."""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""

    held = 0


class Plain:
    """Returns text without control sequences."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._last = ""
        """The last two characters of the text so far: an emoji may continue after them."""

    def feed(self, data: bytes) -> bytes:
        text = self._held + self._decoder.decode(data)
        place = _unfinished(text)
        self._held = text[place:]
        return self._shown(text[:place])

    def end(self) -> bytes:
        shown = self._shown(self._held + self._decoder.decode(b"", final=True))
        self.__init__()  # type: ignore[misc]
        return shown

    def _shown(self, text: str) -> bytes:
        clean = strip_controls(text)
        before, self._last = self._last, (self._last + clean)[-2:]
        return readable(clean, before).encode(errors="replace")

    @property
    def held(self) -> int:
        return len(self._held.encode(errors="replace")) + len(self._decoder.getstate()[0])


class Rendered:
    """Returns a terminal's lines as a user would have seen them. The alternate screen splits a line in two."""

    def __init__(self, cols: int) -> None:
        self._cols = cols
        self._held = b""
        self._before = b""
        """The end of the rendered bytes, preceded by what selects its screen."""

    def feed(self, data: bytes) -> bytes:
        self._held += data
        end = self._held.rfind(b"\n") + 1
        return self._render(end or (len(self._held) if len(self._held) > _LONGEST_LINE else 0))

    def end(self) -> bytes:
        rendered = self._render(len(self._held))
        self._before = b""
        return rendered

    @property
    def held(self) -> int:
        return len(self._held)

    def _render(self, end: int) -> bytes:
        if end == 0:
            return b""
        lines, self._held, before = self._held[:end], self._held[end:], self._before
        alternate = on_alternate(before + lines)
        self._before = (_ALTERNATE if alternate else b"") + (before + lines)[-SEQUENCE_SIZE:]
        return printable(render(lines, before, self._cols)).encode(errors="replace")


class Keyless:
    """Replaces keys by their ids in another `Readable`'s text (K5)."""

    def __init__(self, readable: Readable, begun: str = "") -> None:
        """`begun` is text before this that may be the beginning of a key."""
        self._readable = readable
        self._held = begun

    def feed(self, data: bytes) -> bytes:
        text = self._held + self._readable.feed(data).decode()
        place = unfinished_key(text)
        self._held = text[place:]
        return _encoded(text[:place])

    def end(self) -> bytes:
        text, self._held = self._held + self._readable.end().decode(), ""
        return _encoded(text)

    @property
    def held(self) -> int:
        return len(self._held) + self._readable.held


def _encoded(text: str) -> bytes:
    return str(masked(text)).encode()


def _unfinished(text: str) -> int:
    """Return where an unfinished control sequence, a return before a newline, or the joint of an emoji begins."""
    start = max(0, len(text) - SEQUENCE_SIZE)
    tail = text[start:]
    if has_controls(tail):
        for sequence in SEQUENCE.finditer(tail):
            if sequence.end() == len(tail) and tail[sequence.start()] != "\r":
                return start + sequence.start()
        returns = _UNFINISHED.search(tail)
        if returns is not None:
            return start + returns.start()
    return len(text) - ends_within_emoji(text)
