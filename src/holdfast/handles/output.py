"""What a tool printed, within bounds (O5), for any number of readers (C5).

`Output` promises: appending is cheap and never raises; reading takes nothing away; at most 1 MiB is in memory, the rest
in one file. Of more than `max_output` bytes the first half and the last half are kept. What lies between is the gap;
its size is always exact, and no read crosses it unnoticed.

Bytes have offsets that never change. The byte at offset `o` is stored at place `o` if it belongs to the first half,
else in a ring behind it. Memory and file use the same places, so going from one to the other is a single write.

If the disk takes no more (full, broken), `failure` says why. What it has taken stays, the latest MiB is kept in memory
from then on, and what falls between the two is in the gap like anything else that is gone.
"""

import itertools
import os
import sys
from pathlib import Path
from typing import NamedTuple

from holdfast.handles.spool import Spool

_MEMORY = 1 << 20
_GATHER = 1 << 14
"""Behind the linear part, smaller pieces are gathered up to this size before they are put in place."""
_ALL = sys.maxsize

_numbers = itertools.count(1)


class Piece(NamedTuple):
    """What one read gave. The next one starts at `end`, whether there was data or `missing` bytes are gone."""

    data: bytes
    start: int
    end: int
    missing: int = 0


class Span(NamedTuple):
    """A range of an output, as a view is cut from it."""

    output: "Output"
    start: int
    stop: int


def unfinished(data: bytes) -> int:
    """How many bytes at the end of `data` begin a UTF-8 character that is not complete: 0 to 3."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needed > back and byte < 0xF8 else 0
    return 0


class Output:
    """The output of one handle. Of one thread, except that a finished output may be synced or read from another."""

    __slots__ = (
        "_descriptor",
        "_head",
        "_in_file",
        "_kept_from",
        "_linear",
        "_memory",
        "_path",
        "_pending",
        "_ring",
        "_spool",
        "failure",
        "total",
    )

    def __init__(self, spool: Spool, max_output: int) -> None:
        self.total = 0
        """Bytes ever appended."""
        self.failure: str | None = None
        """Why the disk takes no more, once it does not."""
        self._spool = spool
        self._head = max_output // 2
        self._ring = max_output - self._head
        self._kept_from = 0  # offsets behind the head and below this one were given up with the disk
        self._linear = min(max_output, _MEMORY)  # up to this total, appending is all there is to do; then 0
        self._in_file = 0  # places below this one are in the file, the others in memory
        self._memory = bytearray()
        self._pending = bytearray()  # the latest bytes, not yet in their places
        self._path: Path | None = None
        self._descriptor = -1

    # --- writing

    def append(self, data: bytes) -> None:
        if not data:
            return
        offset = self.total
        self.total = total = offset + len(data)
        if total <= self._linear:
            self._memory += data
        else:
            if self._linear:
                self._leave_linear(offset)
            self._add(offset, data)

    def _leave_linear(self, total: int) -> None:
        """Memory cannot hold the next piece: begin the file, or the ring if there is to be no file."""
        self._linear = 0
        if self._head + self._ring > _MEMORY:
            try:
                self._path = self._spool.file(f"output-{next(_numbers)}")
                self._descriptor = self._open(os.O_CREAT | os.O_EXCL)
                self._in_file = _ALL
                self._write(0, memoryview(self._memory))
                self._memory = bytearray()
                return
            except OSError as error:
                # Nothing has wrapped yet, so memory is laid out like that of an output that may keep no more than it.
                self.failure = str(error)
                self._remove_file()
                self._in_file = 0
                self._head = self._ring = _MEMORY // 2
        self._memory.extend(bytes(self._head + self._ring - total))

    def _add(self, offset: int, data: bytes) -> None:
        """Store a piece behind the linear part, gathering small ones."""
        if len(data) >= _GATHER:
            self._flush(offset)
            self._store(offset, memoryview(data))
            return
        self._pending += data
        if len(self._pending) >= _GATHER:
            self._flush(self.total)

    def _flush(self, end: int) -> None:
        """Put what is pending, which ends at `end`, in its place."""
        # Write first, then forget: flushing twice at once, from two threads, writes the same bytes to the same place.
        if self._pending:
            data = bytes(self._pending)
            self._store(end - len(data), memoryview(data))
            self._pending = bytearray()

    def _store(self, offset: int, data: memoryview) -> None:
        """Put the bytes from `offset` on into their places."""
        try:
            for place, start, stop in self._places(offset, offset + len(data)):
                self._write(place, data[start - offset : stop - offset])
        except OSError as error:
            self._give_up_disk(offset, offset + len(data), error)
            self._store(offset, data)

    def _places(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Where the bytes of a range are, or go: runs of `(place, start, stop)`, less what the ring has no room for."""
        head, ring = self._head, self._ring
        runs = []
        if start < head:
            runs.append((start, start, min(stop, head)))
        start = max(start, head, stop - ring)
        while start < stop:
            place = (start - head) % ring
            end = min(stop, start + ring - place)
            runs.append((head + place, start, end))
            start = end
        return runs

    def _write(self, place: int, data: memoryview) -> None:
        if place >= self._in_file:
            place -= self._in_file
            self._memory[place : place + len(data)] = data
            return
        if self._descriptor < 0:
            self._descriptor = self._open(0)
        while data:
            written = os.pwrite(self._descriptor, data, place)
            place += written
            data = data[written:]

    def _give_up_disk(self, start: int, stop: int, error: OSError) -> None:
        """Writing the bytes from `start` to `stop` failed: keep what is on disk, and from `start` a ring in memory."""
        self.failure = str(error)
        kept_from, head, latest = start, start, b""
        if stop > self._head + self._ring:
            # The ring has begun to overwrite itself. Its latest bytes go into memory, less those that the failed write
            # may have touched. (Otherwise all that was written before counts as head.)
            head = min(start, self._head)
            kept_from = min(start, max(start - _MEMORY, stop - self._ring, self._head))
            latest = self._load(kept_from, start)
            if len(latest) < start - kept_from:
                kept_from, latest = start, b""
        self._head = self._in_file = head
        self._ring = _MEMORY
        self._kept_from = kept_from
        self._memory = bytearray(_MEMORY)
        self._store(kept_from, memoryview(latest))

    # --- reading

    @property
    def gap(self) -> tuple[int, int] | None:
        """The offsets of the first byte that is gone and of the first one kept after it."""
        end = max(self._kept_from, self.total - self._ring)
        return (self._head, end) if end > self._head else None

    @property
    def whole(self) -> int:
        """The end of the last complete character: how far to read now, for a reader who will come again."""
        return self.total - unfinished(self.before(self.total, 3))

    def span(self, start: int = 0, stop: int | None = None) -> Span:
        """The range from `start` to `stop` or what is there now, for a view."""
        stop = self.total if stop is None else max(0, min(stop, self.total))
        return Span(self, max(0, min(start, stop)), stop)

    def read(self, start: int, stop: int | None = None) -> Piece:
        """The bytes from `start`, up to `stop` or the gap, whichever is first.

        Inside the gap there is no data: `missing` bytes are gone and `end` is where output goes on, beyond `stop` if
        need be. Reading on from `end` until it is `total` goes over everything. Bytes that the disk does not give back
        are missing, too.
        """
        self._flush(self.total)
        _, start, stop = self.span(start, stop)
        gap = self.gap
        if gap is not None:
            if gap[0] <= start < gap[1] and start < stop:
                return Piece(b"", start, gap[1], gap[1] - start)
            if start < gap[0]:
                stop = min(stop, gap[0])
        data = self._load(start, stop)
        if not data and start < stop:
            return Piece(b"", start, stop, stop - start)
        return Piece(data, start, start + len(data))

    def before(self, offset: int, size: int) -> bytes:
        """The bytes before an offset, as far as they are kept without interruption."""
        piece = self.read(max(0, offset - size), offset)
        if piece.missing and piece.end < offset:
            piece = self.read(piece.end, offset)
        return piece.data if piece.end == offset else b""

    def _load(self, start: int, stop: int) -> bytes:
        """The bytes of a range that is kept whole; fewer, or none, if the disk does not give them back."""
        parts = []
        for place, begin, end in self._places(start, stop):
            part = self._fetch(place, end - begin)
            parts.append(part)
            if len(part) < end - begin:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fetch(self, place: int, size: int) -> bytes:
        if place >= self._in_file:
            place -= self._in_file
            return bytes(memoryview(self._memory)[place : place + size])
        descriptor = self._descriptor
        try:
            if descriptor < 0:
                descriptor = self._open(0)
            data = os.pread(descriptor, size, place)
            while len(data) < size and (more := os.pread(descriptor, size - len(data), place + len(data))):
                data += more
            return data
        except OSError:
            return b""
        finally:
            if descriptor >= 0 and self._descriptor < 0:
                os.close(descriptor)

    # --- the file

    def _open(self, flags: int) -> int:
        assert self._path is not None
        return os.open(self._path, flags | os.O_RDWR | os.O_NOFOLLOW, 0o600)

    def sync(self) -> None:
        """Return when what is in the file is on the disk. Raises `OSError` if the disk says it is not."""
        self._flush(self.total)
        if self._path is not None:
            descriptor = self._descriptor if self._descriptor >= 0 else self._open(0)
            try:
                os.fdatasync(descriptor)
            finally:
                if self._descriptor < 0:
                    os.close(descriptor)

    def close(self) -> None:
        """Give the descriptor back: nothing more will come. Reading stays possible and opens the file when it must."""
        self._flush(self.total)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def discard(self) -> None:
        """Free everything. The counts stay; all that was printed, or will be, is in the gap."""
        self._remove_file()
        self._memory, self._pending = bytearray(), bytearray()
        self._linear = self._in_file = self._head = self._ring = 0

    def _remove_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
