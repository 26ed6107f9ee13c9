"""How much of an output is shown (O1–O3): the projector, and the shares of results that are in one reply.

The projector promises: what is within both caps of a view is shown as it is. Of anything else it shows a window, which
never exceeds a cap and never splits a character, and a marker whose number is exact. The marker, and the hint that says
how to read the rest, come on top of the caps.

A command's output may be gigabytes: only what the window needs is read. Bytes that were not kept (O5) count as cut; a
window does not reach across them. Bytes that are not UTF-8 are shown as replacement characters, control sequences are
not shown (K4). Both happen after the cut, so the marker counts bytes as the tool printed them. A carriage return
counts, and is shown, as the end of a line; in what a terminal was sent it is what it is there (`rendering.py`).

A value that is not a string is shown as compact JSON. If it is too big, its strings are cut and its structure stays:
they share what the structure leaves of the cap, markers included. `max_lines` holds for each string, the hint stands in
the first one that is cut. Only if the structure alone does not fit is the JSON cut like any other text.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, Protocol

import msgspec

from keephold.handles.output import Span, unfinished
from keephold.handles.rendering import end_of_begun, render_piece
from keephold.text import SEQUENCE_SIZE, strip_controls, to_json, to_utf8
from keephold.tools.base import OutputView, Window


class ProjectorProtocol(Protocol):
    """The type of `Runtime(projector=…)`. `hint` is a sentence that says how to read what is not shown."""

    def text(self, source: str | Span, view: OutputView, hint: str) -> str:
        """A text, or a range of an output, within the caps of the view."""

    def value(self, value: Any, view: OutputView, hint: str) -> str:
        """A result: a string as `text` shows it, any other value as compact JSON."""


class Projector:
    """The projector a runtime has unless it is given another."""

    def text(self, source: str | Span, view: OutputView, hint: str) -> str:
        cap = _cap(view)
        if isinstance(source, Span):
            return _project(_Printed(source), cap, view, hint)
        if len(source) <= cap and (len(source) <= view.max_lines or source.count("\n") < view.max_lines):
            if source.isascii():
                return source
            data = to_utf8(source)
            return data.decode() if len(data) <= cap else _project(_Plain(data), cap, view, hint)
        return _project(_Plain(to_utf8(source)), cap, view, hint)

    def value(self, value: Any, view: OutputView, hint: str) -> str:
        if isinstance(value, str):
            return self.text(value, view, hint)
        cap = _cap(view)
        encoded = to_json(value)
        if len(encoded) <= cap and encoded.count(b"\\n") < view.max_lines:
            return encoded.decode()
        shown = _cut_strings(encoded, cap, view, hint)
        return _project(_Plain(encoded), cap, view, hint) if shown is None else shown


def shares(sizes: Sequence[int], limits: Sequence[int], total: int) -> list[int]:
    """Share `total` among several results (O3): each gets at most its size and its own limit.

    A part that one does not use goes to the others, until all of `total` is used.
    """
    wanted = [min(size, limit) for size, limit in zip(sizes, limits, strict=True)]
    given = [0] * len(wanted)
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], max(0, total) // (len(wanted) - place))
        total -= given[index]
    return given


def size_of(source: Any, mode: Literal["bytes", "tokens"] = "bytes") -> int:
    """How big a text, a range of an output, or a value is, in the unit of a view's `limit` (O1)."""
    if isinstance(source, Span):
        size = source.stop - source.start
    else:
        size = len(to_utf8(source) if isinstance(source, str) else to_json(source))
    return size if mode == "bytes" else _tokens(size)


def _cap(view: OutputView) -> int:
    return view.limit if view.mode == "bytes" else view.limit * 4


def _tokens(size: int) -> int:
    return -(-size // 4)


# --- cutting

_NEWLINE = re.compile(rb"\n")
_LINE_END = re.compile(rb"\r+\n?|\n")


class _Plain:
    """Text in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.start, self.stop = 0, len(data)
        self.first = self.last = (0, len(data))

    def read(self, start: int, stop: int) -> bytes:
        return self._data[start:stop]

    def line_ends(self, data: bytes) -> Iterator[re.Match[bytes]]:
        return _NEWLINE.finditer(data)

    def show(self, data: bytes, start: int) -> str:
        return data.decode()


class _Printed:
    """A range of a tool's output: `first` and `last` are what is kept at its beginning and at its end."""

    def __init__(self, span: Span) -> None:
        self._output, self.start, self.stop = span
        gap = self._output.gap
        kept = [(self.start, self.stop)]
        if gap is not None and self.start < gap[1] and gap[0] < self.stop:
            behind = gap[1] + _continuation(self.read(gap[1], min(self.stop, gap[1] + 3)))
            kept = [(self.start, min(self.stop, gap[0])), (max(self.start, behind), self.stop)]
        kept = [part for part in kept if part[0] < part[1]] or [(self.stop, self.stop)]
        self.first, self.last = kept[0], kept[-1]

    def read(self, start: int, stop: int) -> bytes:
        return self._output.read(start, stop).data

    def line_ends(self, data: bytes) -> Iterator[re.Match[bytes]]:
        return (_LINE_END if b"\r" in data and not self._output.terminal else _NEWLINE).finditer(data)

    def show(self, data: bytes, start: int) -> str:
        """The bytes from `start` as text, without control sequences and without the rest of one that began before."""
        if self._output.terminal:
            return render_piece(self._output, data, start)
        text = data.decode("utf-8", "replace")
        begun = end_of_begun(self._output.before(start, SEQUENCE_SIZE), text) if text else 0
        return strip_controls(text[begun:])


def _project(source: _Plain | _Printed, cap: int, view: OutputView, hint: str) -> str:
    """All of the source if it is within `cap` bytes and the view's lines, else a window and a marker."""
    size = source.stop - source.start
    over = size > cap
    lines = 0
    if not over:
        data = source.read(source.start, source.stop)
        over = len(_narrow(data, cap, from_end=False)) < size
        lines = _count_lines(source, data)
        if not over and lines <= view.max_lines:
            return source.show(data, source.start)
    room, lines_room = _halves(cap, view.window), _halves(view.max_lines, view.window)
    head = _head(source, room[0], lines_room[0])
    tail, tail_start = _tail(source, room[1], lines_room[1], source.first[0] + len(head))
    shown = len(head) + len(tail)
    if not over:
        marker = f"...{lines - view.max_lines} lines truncated..."
    elif view.mode == "bytes":
        marker = f"...{size - shown} bytes truncated..."
    else:
        marker = f"...{_tokens(size) - _tokens(shown)} tokens truncated..."
    parts = (source.show(head, source.first[0]), marker, hint, source.show(tail, tail_start))
    return "\n\n".join(part for part in parts if part)


def _halves(amount: int, window: Window) -> tuple[int, int]:
    """How much of a cap is for the head and how much for the tail."""
    if window == "head_tail":
        return amount - amount // 2, amount // 2
    return (amount, 0) if window == "head" else (0, amount)


def _head(source: _Plain | _Printed, room: int, lines: int) -> bytes:
    start, stop = source.first
    data = source.read(start, min(stop, start + room))
    if start + len(data) < source.stop:
        data = data[: len(data) - unfinished(data)]
    data = _narrow(data, room, from_end=False)
    ends = list(islice(source.line_ends(data), lines))
    if len(ends) < lines or (ends and ends[-1].end() == len(data)):
        return data
    return data[: ends[-1].start()] if ends else b""


def _tail(source: _Plain | _Printed, room: int, lines: int, not_before: int) -> tuple[bytes, int]:
    """The tail and the offset it starts at."""
    start, stop = source.last
    start = min(stop, max(start, stop - room, not_before))
    data = source.read(start, stop)
    if stop < source.stop:
        data = data[: len(data) - unfinished(data)]
        stop = start + len(data)
    if start > source.start:
        data = data[_continuation(data) :]
    data = _narrow(data, room, from_end=True)
    starts = [0, *(end.end() for end in source.line_ends(data))]
    if starts[-1] == len(data):
        starts.pop()
    if lines < len(starts):
        data = data[starts[-lines] :] if lines else b""
    return data, stop - len(data)


def _count_lines(source: _Plain | _Printed, data: bytes) -> int:
    """The last line need not have an end."""
    count, stop = 0, 0
    for end in source.line_ends(data):
        count, stop = count + 1, end.end()
    return count + (stop < len(data))


def _continuation(data: bytes) -> int:
    """How many bytes at the beginning of `data` end a character that began before."""
    count = 0
    while count < min(3, len(data)) and 0x80 <= data[count] < 0xC0:
        count += 1
    return count


def _narrow(data: bytes, room: int, *, from_end: bool) -> bytes:
    """As much of `data` as fits into `room` bytes when shown: a byte that is not UTF-8 is shown as three."""
    try:
        data.decode()
        return data
    except UnicodeDecodeError:
        # A surrogate stands for one such byte, and takes as much room as the replacement character will.
        wide = data.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")
    if len(wide) <= room:
        return data
    if from_end:
        wide = wide[len(wide) - room :]
        wide = wide[_continuation(wide) :]
    else:
        wide = wide[:room]
        wide = wide[: len(wide) - unfinished(wide)]
    return wide.decode("utf-8", "surrogatepass").encode("utf-8", "surrogateescape")


# --- JSON


def _cut_strings(encoded: bytes, cap: int, view: OutputView, hint: str) -> str | None:
    """JSON whose strings are cut so that the whole is within `cap`; None if its structure leaves no room for that."""
    value = msgspec.json.decode(encoded)
    strings = list(_strings(value))
    structure = len(encoded) - sum(len(to_json(string)) for string in strings)
    if structure > cap:
        return None
    texts = [_Plain(string.encode()) for string in strings]
    # First the lines, which every string has to itself; then the size, which they share.
    shown = [_project(text, text.stop, view, "") for text in texts]
    if shown == strings and len(encoded) <= cap:
        return encoded.decode()
    sizes = [len(to_json(text)) for text in shown]
    room_for_hint = len(to_json(f"\n\n{hint}")) - 2 if hint else 0
    if structure + room_for_hint > cap:
        return None
    for index, room in enumerate(shares(sizes, sizes, cap - structure - room_for_hint)):
        text = texts[index]
        if room < sizes[index]:
            fitted = _fit(text, room + room_for_hint, view, hint)
            if fitted is None:
                return None
            shown[index] = fitted
        elif shown[index] == strings[index]:
            continue
        else:
            shown[index] = _project(text, text.stop, view, hint)
        hint, room_for_hint = "", 0
    return to_json(_replaced(value, iter(shown))).decode()


def _fit(text: _Plain, room: int, view: OutputView, hint: str) -> str | None:
    """The longest window on a string that takes no more than `room` bytes of JSON, marker and hint included."""
    best = None
    low, high = 0, text.stop - 1
    while low <= high:
        cap = (low + high) // 2
        shown = _project(text, cap, view, hint)
        if len(to_json(shown)) <= room:
            best, low = shown, cap + 1
        else:
            high = cap - 1
    return best


def _strings(value: Any) -> Iterator[str]:
    """The strings of a JSON value in order, keys excepted."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _replaced(value: Any, strings: Iterator[str]) -> Any:
    """The value with other strings in place of `_strings(value)`."""
    if isinstance(value, str):
        return next(strings)
    if isinstance(value, dict):
        return {key: _replaced(item, strings) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, strings) for item in value]
    return value
