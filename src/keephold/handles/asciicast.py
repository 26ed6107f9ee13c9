"""A terminal's session as a recording that players can show: asciicast, version 2.

A recording has a line of JSON for the terminal and one for each event: when, what kind, what. It promises: every byte
that is kept is in it, in order; times never go back; a character that was cut in two is whole. Where bytes are gone the
recording says so in a line of its own. What was typed is not in it, except where the terminal echoed it.
"""

import codecs
from collections.abc import Iterator

import msgspec

from keephold.handles.output import Output
from keephold.handles.timeline import Resized, Timeline

_PIECE = 1 << 16
"""How many bytes one event shows at most."""


def asciicast(timeline: Timeline, output: Output) -> Iterator[str]:
    """The recording, line by line, without line ends."""
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

    def __init__(self, output: Output) -> None:
        self._output = output
        self._at = 0
        self._now = 0.0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, stop: int, after: float) -> Iterator[str]:
        """What was printed up to `stop`, at that time, or now if that is later."""
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
        """What is left of a character that will not be whole any more."""
        if text := self._decoder.decode(b"", final=True):
            yield self._event("o", text)

    def _event(self, kind: str, data: str) -> str:
        return msgspec.json.encode((round(self._now, 3), kind, data)).decode()
