"""The file `<uid>.times` beside the output of a kept process: when how much was printed, and the sizes of its terminal.

A record has the bytes printed so far, the time of day, and a new size of the terminal, or 0. The first is the start.
After each piece of output a record is appended or, within an interval, the last one is changed: output in one interval
has the time of its first byte, as in a `Timeline`. So the largest total of the file is that of the output, also if the
keeper was killed. There are at most `MOST` records: then the interval is doubled until half of them can be dropped.
"""

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from keephold.tools.keeper.files import Files, content

if TYPE_CHECKING:
    from keephold.handles.timeline import Timeline

MOST = 4096
_RECORD = struct.Struct("<QdHHI")
_INTERVAL = 0.01


class Record(NamedTuple):
    total: int
    at: float
    rows: int = 0
    cols: int = 0


class Times:
    """The file, as the keeper writes it. A full disk loses times; the last total is retried with the next piece."""

    __slots__ = ("_at", "_count", "_files", "_first", "_interval", "_marked", "_path")

    def __init__(self, files: Files, path: Path, first: Record) -> None:
        """`first` is the start; that of a command is written with its first output, if it has any."""
        self._files, self._path = files, str(path)
        self._first: Record | None = first
        self._interval = _INTERVAL
        self._count = 0
        self._marked = False
        self._at = first.at
        if first.rows:
            self._begin(first)

    def note(self, total: int, at: float) -> None:
        """Note that all output up to now ends at `total`."""
        if self._marked and 0 <= at - self._at < self._interval:
            self._put(self._count - 1, Record(total, self._at))
        else:
            self._at, self._marked = at, True
            self._append(Record(total, at))

    def resized(self, total: int, at: float, rows: int, cols: int) -> None:
        """Note that output from `total` on is for a terminal of another size."""
        self._marked = False
        self._append(Record(total, at, rows, cols))

    def close(self) -> None:
        self._files.close(self._path)

    def _append(self, record: Record) -> None:
        if self._first is not None:
            self._begin(self._first)
        if self._count == MOST and not self._make_room():
            return
        if self._put(self._count, record):
            self._count += 1

    def _begin(self, first: Record) -> None:
        try:
            os.ftruncate(self._files.get(self._path), 0)  # left by an attempt before
        except OSError:
            return
        if self._put(0, first):
            self._first, self._count = None, 1

    def _put(self, number: int, record: Record) -> bool:
        try:
            os.pwrite(self._files.get(self._path), _RECORD.pack(*record, 0), number * _RECORD.size)
        except OSError:
            return False
        return True

    def _make_room(self) -> bool:
        """Drop every other record or so; return whether the disk allowed it."""
        try:
            descriptor = self._files.get(self._path)
            records = list(_records(os.pread(descriptor, MOST * _RECORD.size, 0)))
            kept = self._thin(records)
            data = b"".join(_RECORD.pack(*record, 0) for record in kept)
            os.pwrite(descriptor, data, 0)  # of a size that the file has already
            os.ftruncate(descriptor, len(data))
        except OSError:
            return False
        self._count, self._marked = len(kept), False
        return True

    def _thin(self, records: list[Record]) -> list[Record]:
        while len(records) > MOST // 2:
            self._interval *= 2
            records = _thinned(records, self._interval)
        return records


def _thinned(records: list[Record], interval: float) -> list[Record]:
    """Merge records closer than the interval: output keeps the first time, sizes the last size."""
    first, *rest = records
    kept: list[Record] = []
    for sizes in (False, True):
        thin: list[Record] = []
        for record in rest:
            if bool(record.rows) == sizes:
                near = bool(thin) and record.at - thin[-1].at < interval
                thin.append(record._replace(at=thin.pop().at) if near else record)
        kept += thin
    kept.sort(key=lambda record: (record.total, bool(record.rows)))
    return [first, *_in_order(kept)]


def _in_order(records: list[Record]) -> list[Record]:
    """Let no size be later than the output after it, for which it was."""
    ordered, limit = [], math.inf
    for record in reversed(records):
        limit = min(limit, record.at)
        ordered.append(record._replace(at=limit) if record.rows else record)
    return ordered[::-1]


def _records(data: bytes) -> Iterator[Record]:
    for total, at, rows, cols, _ in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
        yield Record(total, at, rows, cols)


def times_file(directory: Path, uid: str) -> Path:
    return directory / f"{uid}.times"


def read_times(directory: Path, uid: str) -> list[Record]:
    """Return the records of a kept process; none if there is no such file."""
    try:
        return list(_records(content(str(times_file(directory, uid)), MOST * _RECORD.size)))
    except OSError:
        return []


def timeline(records: list[Record]) -> "Timeline | None":
    """Return the times of the output; None if nothing was printed."""
    from keephold.handles.timeline import Timeline  # the keeper does not need it

    if not records:
        return None
    made = Timeline(records[0].at, records[0].rows, records[0].cols)
    for record in records[1:]:
        if record.rows:
            made.resized(record.total, record.at, record.rows, record.cols)
        else:
            made.note(record.total, record.at)
    return made
