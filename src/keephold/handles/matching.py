"""The search for a pattern in output that grows (A9).

Lines are searched as `rendering.py` shows them. The last line counts before it is finished, because a prompt has no
line end.

A search reads the handle's output by offset and looks at each byte a bounded number of times: once while its line is
read, and again with the part of an unfinished line that each later piece continues. Searches do not take the event loop
for themselves: a long output is searched in steps, and after slow steps, of however many searches, all others come
first.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from keephold.handles.output import Output, Piece
from keephold.handles.patterns import Pattern
from keephold.handles.rendering import WIDTH, Lines, width

if TYPE_CHECKING:
    from keephold.handles.handle import Handle

LONGEST_LINE = 4096
"""Characters of an unfinished line that are searched again when it continues; of a longer line, the last ones."""
_SLOW_SECS = 0.02
_SHARE = 9
"""After slow steps all searches pause for this many times as long as those took."""
_CHEAP = 128
"""A piece is searched without delay if as many of them are one step."""
_SHOWN = 1000
"""Characters of a matched line that are shown."""
_BEFORE = 200
"""A longer line is shown from this many characters before the match."""


class _Share:
    """The time that all searches of an event loop take from it."""

    def __init__(self) -> None:
        self._spent = 0.0  # in this round of the loop
        self._until = 0.0

    @property
    def pause(self) -> float:
        """Seconds until a step may be taken."""
        return self._until - asyncio.get_running_loop().time()

    def spend(self, took: float) -> None:
        loop = asyncio.get_running_loop()
        if not self._spent:
            loop.call_soon(self._begin_round)
        self._spent += took
        if self._spent > _SLOW_SECS:
            self._until = loop.time() + _SHARE * self._spent

    def _begin_round(self) -> None:
        self._spent = 0.0


_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, _Share] = WeakKeyDictionary()


def _share() -> _Share:
    return _shares.setdefault(asyncio.get_running_loop(), _Share())


class Search:
    """Searches one output for a pattern, and calls `looked` when a line matches, or when a search that was behind has
    seen all there is."""

    __slots__ = ("_cut", "_later", "_line", "_lines", "_looked", "_output", "_pattern", "expected", "matched", "offset")

    def __init__(
        self, pattern: Pattern, output: Callable[[], Output | None], looked: Callable[[], None], start: int = 0
    ) -> None:
        """`output` returns the output, once there is one; `start` is the offset of the first line."""
        self._pattern = pattern
        self._output = output
        self._looked = looked
        self.offset = start
        """Output before this one is searched."""
        self.expected = 0
        """Output of another process up to this offset is on its way."""
        self._lines = Lines()
        self._line = ""
        """The finished rows of the unfinished line."""
        self._cut = False
        """The unfinished line has lost its beginning."""
        self._later: asyncio.Handle | None = None
        self.matched: str | None = None
        """The line, once one matches."""

    @property
    def behind(self) -> bool:
        """Whether output is left to be searched."""
        return self._later is not None or self.offset < self.expected

    def printed(self) -> None:
        """Search new output: all of it now, unless that takes long."""
        if self._later is None and self.matched is None:
            self._step()

    def cancel(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _step(self) -> None:
        was_behind, self._later = self._later is not None, None
        output = self._output()
        if output is not None and output.total > self.offset:
            if self._is_long(output.total - self.offset) and _share().pause > 0:
                self._continue()
                return
            piece = output.read(self.offset, self.offset + self._pattern.step)
            took = self._take(piece, width(output, piece.start))
            if self.matched is None and (output.total > self.offset or took > _SLOW_SECS):
                self._continue()
        if self.matched is not None or (was_behind and self._later is None):
            self._looked()

    def _is_long(self, size: int) -> bool:
        return size * _CHEAP > self._pattern.step

    def _continue(self) -> None:
        loop, pause = asyncio.get_running_loop(), _share().pause
        self._later = loop.call_later(pause, self._step) if pause > 0 else loop.call_soon(self._step)

    def _take(self, piece: Piece, cols: int) -> float:
        """Search the piece; return the seconds that it took, or 0 if it cannot have been slow."""
        if piece.missing:  # the line before the gap has no end, and the one behind it no beginning
            self._lines, self._line, self._cut = Lines(), "", False
        self.offset = piece.end
        is_long = self._is_long(len(piece.data))
        began = time.thread_time() if is_long else 0.0
        self._look(piece.data, cols)
        if not is_long:
            return 0.0
        took = time.thread_time() - began
        _share().spend(took)
        return took

    async def feed(self, data: bytes, start: int, missing: int = 0) -> None:
        """Search output of another process, from the offset `start`; `missing` bytes are lost there."""
        end = start + len(data) + missing
        while self.offset < end and self.matched is None:
            while (pause := _share().pause) > 0:  # noqa: ASYNC110 (time passes)
                await asyncio.sleep(pause)
            part = data[self.offset - start :][: self._pattern.step]
            self._take(Piece(part, self.offset, end if missing else self.offset + len(part), missing), WIDTH)
            await asyncio.sleep(0)
        if self.matched is not None or (self.expected and not self.behind):
            self._looked()

    def _look(self, data: bytes, cols: int) -> None:
        text, cut = self._line + self._lines.feed(data, cols), self._cut
        whole = text + self._lines.unfinished
        searched = whole.removesuffix("\n").encode()  # nothing is printed behind the line end yet
        if whole and (found := self._pattern.find(searched, int(cut))) is not None:
            self.matched = _line_of(searched, *found)
        _, ended, self._line = text.rpartition("\n")
        self._cut = len(self._line) > LONGEST_LINE or (cut and not ended)
        self._line = self._line[-LONGEST_LINE:]


class OutputElsewhere(Protocol):
    """Searches the output of handles that other processes run."""

    async def look(self, handle: "Handle", search: Search) -> None:
        """Search the output so far. Raises `ToolError` if the other process cannot be followed."""

    async def follow(self, handle: "Handle", search: Search) -> None:
        """Search the output that follows, until a line matches or the handle has stopped."""


def _line_of(text: bytes, start: int, end: int) -> str:
    """Return the line of a match, or the part of a long one that begins a little before it."""
    begin = text.rfind(b"\n", 0, start) + 1
    until = text.find(b"\n", end)
    line = text[begin : len(text) if until < 0 else until].decode(errors="replace")
    if len(line) <= _SHOWN:
        return line
    at = max(0, len(text[begin:start].decode(errors="replace")) - _BEFORE)
    return f"{'…' if at else ''}{line[at : at + _SHOWN]}{'…' if at + _SHOWN < len(line) else ''}"
