"""The times of an output: when each line was printed, and how a terminal's session can be replayed as it happened.

A `Timeline` promises: noting is cheap enough to be done for every piece; at most `MARKS` are kept, however long the
session; output is never shown later than it was printed, nor earlier by more than twice the `interval`. That is 10 ms
for a terminal and a second for other output, until there are too many marks. Then it is doubled, until half of them can
be dropped: those of busy stretches, because marks further apart than the interval stay.

A timeline has offsets and times; the bytes are the output's. A time of day that is set back counts as no time passed.

`asciicast` makes a recording of a terminal's session that players can show (asciicast, version 2): a line of JSON for
the terminal and one for each event, with its time, kind and data. It promises: every byte that is kept is in it, in
order; times never go back; a character that was cut in two is whole. Where bytes are lost the recording says so in a
line of its own. Typed input is not in it, except where the terminal echoed it.
"""

import codecs
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from keephold.handles.output import Output

MARKS = 4096
"""How many marks and sizes are kept at most, together."""
_INTERVAL, _WITHOUT_TERMINAL = 0.01, 1.0
_FRESH_SECS = 0.1
_SIZED = b"\x95"
"""How the bytes of a terminal's timeline begin: a list of five. One without a terminal has four."""


class Started(NamedTuple):
    """The beginning of a session: a time of day, and the size of the terminal; 0 without a terminal."""

    at: float
    rows: int
    cols: int


class Resized(NamedTuple):
    """From the byte at `offset` on the terminal had another size, `after` seconds into the session."""

    offset: int
    after: float
    rows: int
    cols: int


class Timeline:
    """The times of one output."""

    __slots__ = ("_at", "_behind", "_fresh", "_offsets", "_sizes", "_times", "_until", "interval", "started")

    def __init__(self, started: float, rows: int = 0, cols: int = 0) -> None:
        self.started = Started(started, rows, cols)
        self.interval = _INTERVAL if cols else _WITHOUT_TERMINAL
        """Seconds. Output within one interval has one time, that of its first byte."""
        # The bytes from `_offsets[i - 1]` to `_offsets[i]` were printed `_times[i]` seconds after the start.
        self._offsets: list[int] = []
        self._times: list[float] = []
        self._sizes: list[Resized] = []
        self._behind = 0.0  # by how much the clock was set back, in all
        self._fresh = -math.inf  # until this time of the loop, the latest mark holds
        self._at, self._until = math.inf, -math.inf  # the latest mark holds for notes between these times of day

    def printed(self, offset: int, clock: Callable[[], float], steady: float) -> None:
        """Note that all output up to now ends at `offset`. `steady` is the time of the loop, which may be virtual.

        Without a terminal, the clock is read ten times a second at most: reading it costs as much as printing a short
        line."""
        if steady < self._fresh:
            self._offsets[-1] = offset
            return
        self.note(offset, clock())
        if not self.started.cols:
            self._fresh = steady + _FRESH_SECS

    def note(self, offset: int, at: float) -> None:
        """Note that all output up to the time `at` ends at `offset`. Call it after each piece."""
        if self._at <= at < self._until:
            self._offsets[-1] = offset
        else:
            self._mark(offset, at)

    def resized(self, offset: int, at: float, rows: int, cols: int) -> None:
        """Note that output from `offset` on is for a terminal of another size."""
        after = self._after(at)
        if self._sizes and after - self._sizes[-1].after < self.interval:
            after = self._sizes.pop().after
        self._sizes.append(Resized(offset, after, rows, cols))
        self._make_room()

    def marks(self) -> Iterator[tuple[int, float]]:
        """Return offsets and the seconds after the start at which output had reached them; both rise."""
        return zip(self._offsets, self._times, strict=True)

    def when(self, offset: int) -> tuple[float, int] | None:
        """Return the time of day at which the byte at `offset` was printed, and the offset up to which that time holds.
        None: the byte was not printed yet, or not noted."""
        at = bisect_right(self._offsets, offset)
        return None if at == len(self._offsets) else (self.started.at + self._times[at], self._offsets[at])

    def sizes(self) -> Iterator[Resized]:
        """Return the sizes that the terminal had after its first one."""
        return iter(self._sizes)

    def cols(self, offset: int) -> int:
        """Return how wide the terminal was when the byte at `offset` was printed."""
        cols = self.started.cols
        for size in self._sizes:
            if size.offset > offset:
                break
            cols = size.cols
        return cols

    def _mark(self, offset: int, at: float) -> None:
        after = self._after(at)
        if self._times and after - self._times[-1] < self.interval:  # the clock was set back, or this was loaded
            self._offsets[-1] = offset
        else:
            self._offsets.append(offset)
            self._times.append(after)
            self._make_room()
        self._at, self._until = at, at + self.interval - (after - self._times[-1])

    def _after(self, at: float) -> float:
        """Return seconds after the start: never less than last time."""
        last = max(self._times[-1] if self._times else 0.0, self._sizes[-1].after if self._sizes else 0.0)
        after = at - self.started.at + self._behind
        if after < last:
            self._behind += last - after
            return last
        return after

    def _make_room(self) -> None:
        if len(self._times) + len(self._sizes) < MARKS:
            return
        while len(self._times) + len(self._sizes) > MARKS // 2:
            self.interval *= 2
            self._thin()

    def _thin(self) -> None:
        """Merge marks that are closer than the interval: marks keep the first time, sizes the last size."""
        offsets, times = self._offsets, self._times
        self._offsets, self._times = [], []
        for offset, after in zip(offsets, times, strict=True):
            if self._times and after - self._times[-1] < self.interval:
                self._offsets[-1] = offset
            else:
                self._offsets.append(offset)
                self._times.append(after)
        sizes: list[Resized] = []
        for size in self._sizes:
            if sizes and size.after - sizes[-1].after < self.interval:
                size = size._replace(after=sizes.pop().after)
            sizes.append(size)
        self._sizes = sizes

    def dump(self) -> bytes:
        """Return bytes for the store: times in milliseconds, everything as the difference to what is before it."""
        times = [round(after * 1000) for after in self._times]
        sizes = [(size.offset, round(size.after * 1000), size.rows, size.cols) for size in self._sizes]
        marks = (self.interval, _steps(self._offsets), _steps(times))
        if not self.started.cols:
            return msgspec.msgpack.encode((self.started.at, *marks))
        return msgspec.msgpack.encode((self.started, *marks, sizes))

    @classmethod
    def load(cls, data: bytes) -> "Timeline":
        """Return the timeline that was dumped; it can be noted to again."""
        if of_terminal(data):
            started, interval, offsets, times, sizes = msgspec.msgpack.decode(data, type=_Dumped)
        else:
            at, interval, offsets, times = msgspec.msgpack.decode(data, type=_DumpedWithoutTerminal)
            started, sizes = Started(at, 0, 0), []
        timeline = cls(*started)
        timeline.interval = interval
        timeline._offsets = _sums(offsets)
        timeline._times = [after / 1000 for after in _sums(times)]
        timeline._sizes = [Resized(offset, after / 1000, rows, cols) for offset, after, rows, cols in sizes]
        return timeline


_Dumped = tuple[Started, float, list[int], list[int], list[tuple[int, int, int, int]]]
_DumpedWithoutTerminal = tuple[float, float, list[int], list[int]]


def of_terminal(dumped: bytes) -> bool:
    """Return whether a dumped timeline is that of a terminal."""
    return dumped[:1] == _SIZED


def _steps(values: list[int]) -> list[int]:
    return [value - before for value, before in zip(values, [0, *values], strict=False)]


def _sums(steps: list[int]) -> list[int]:
    return list(itertools.accumulate(steps))


_PIECE = 1 << 16
"""How many bytes one event shows at most."""


def asciicast(timeline: Timeline, output: "Output") -> Iterator[str]:
    """Return the recording, line by line, without line ends."""
    started = timeline.started
    header = {"version": 2, "width": started.cols, "height": started.rows, "timestamp": int(started.at)}
    yield msgspec.json.encode(header).decode()
    recorder = _Recorder(output)
    sizes = list(timeline.sizes())
    for stop, after in list(timeline.marks()):
        while sizes and sizes[0].offset < stop:
            size = sizes.pop(0)
            yield from recorder.show(size.offset, after)
            yield recorder.resize(size)
        yield from recorder.show(stop, after)
    yield from recorder.show(output.total, 0.0)
    for size in sizes:
        yield recorder.resize(size)
    yield from recorder.end()


class _Recorder:
    """Turns bytes into events. `_at` is the offset that has been reached, `_now` the time."""

    def __init__(self, output: "Output") -> None:
        self._output = output
        self._at = 0
        self._now = 0.0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, stop: int, after: float) -> Iterator[str]:
        """Yield the output up to `stop`, at that time, or now if that is later."""
        stop = min(stop, self._output.total)
        while self._at < stop:
            self._now = max(self._now, after)
            piece = self._output.read(self._at, min(stop, self._at + _PIECE))
            self._at = piece.end
            if piece.missing:
                yield from self.end()
                yield self._event("o", f"\x1b[0m\r\n[{piece.missing} bytes were not kept]\r\n")
            elif text := self._decoder.decode(piece.data):
                yield self._event("o", text)

    def resize(self, size: Resized) -> str:
        self._now = max(self._now, size.after)
        return self._event("r", f"{size.cols}x{size.rows}")

    def end(self) -> Iterator[str]:
        """Yield the rest of a character that will not be completed."""
        if text := self._decoder.decode(b"", final=True):
            yield self._event("o", text)

    def _event(self, kind: str, data: str) -> str:
        return msgspec.json.encode((round(self._now, 3), kind, data)).decode()
