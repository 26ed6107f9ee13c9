"""The output of a tool, within bounds (O5), for any number of readers (C5).

`Output` promises: appending is cheap and never raises; reading takes nothing away; at most 1 MiB is in memory, the rest
in one file. Of more than `max_output` bytes the first half and the last half are kept. The bytes between are the gap;
its size is always exact, and no read crosses it unnoticed.

Bytes have offsets that never change. The byte at offset `o` is stored at place `o` if it belongs to the first half,
else in a ring behind it. Memory and file use the same places, so moving from one to the other is a single write.

If the disk takes no more (full, broken), `failure` says why. Bytes on the disk stay, the latest MiB is kept in memory
from then on, and bytes between the two are in the gap like all other lost bytes.

`keep` describes an output for the store: a little of it inline, more in the file. `restored` makes an output of that
description that reads the same and can be appended to, in this process or in another one.

A kept process's output is written by its keeper, into the same file at the same places (R7). `follow` hands the file
over to it, and `followed` says how far it has come; nothing is copied.
"""

import contextlib
import itertools
import os
import sys
from pathlib import Path
from typing import NamedTuple, cast

from keephold.handles.spool import Spool
from keephold.handles.timeline import Timeline, of_terminal
from keephold.platforms import machine
from keephold.platforms.unix import O_CLOEXEC, O_NOFOLLOW
from keephold.store.base import KeptOutput

_MEMORY = 1 << 20
_GATHER = 1 << 14
"""Behind the linear part, smaller pieces are gathered up to this size before they are put in place."""
_ALL = sys.maxsize
_AHEAD, _LEAST = 4 << 20, 1 << 16
"""How far another process that writes the file may be ahead of us, and the least head and ring that it gets."""
_KEPT = -1
"""As `_linear`: a `KeptOutput` describes this output, so its memory must not change, and its ring only with notice."""

_numbers = itertools.count(1)


class Piece(NamedTuple):
    """The result of one read. The next one starts at `end`, whether there was data or `missing` bytes are gone."""

    data: bytes
    start: int
    end: int
    missing: int = 0


class Layout(NamedTuple):
    """Where another process writes an output: the byte at offset `o` goes to place `o` below `head`, else to the ring
    of that size behind it. It has written `total` bytes so far. It stays within `ahead` bytes of the total that
    `followed` had last, so that no byte is overwritten while it is read."""

    head: int
    ring: int
    ahead: int
    total: int


class Span(NamedTuple):
    """A range of an output, as a view is cut from it."""

    output: "Output"
    start: int
    stop: int


def unfinished(data: bytes) -> int:
    """Count the bytes at the end of `data` that begin an incomplete UTF-8 character: 0 to 3."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needed > back and byte < 0xF8 else 0
    return 0


class Output:
    """The output of one handle. For one thread, except that another thread may sync or read a finished output."""

    __slots__ = (
        "_ahead",
        "_descriptor",
        "_head",
        "_in_file",
        "_kept_from",
        "_linear",
        "_memory",
        "_name",
        "_path",
        "_pending",
        "_ring",
        "_size",
        "_spool",
        "_stored",
        "failure",
        "terminal",
        "timeline",
        "total",
    )

    def __init__(self, spool: Spool, max_output: int, name: str | None = None) -> None:
        """`name` is that of the file, should there be one: the handle's uid, if the file is to be found again."""
        self.total = 0
        """Bytes ever appended."""
        self.failure: str | None = None
        """Why the disk takes no more, once it does not."""
        self.terminal = False
        """Printed to a terminal: the bytes contain cursor movements, too."""
        self.timeline: Timeline | None = None
        """The times at which bytes were printed, where known. The caller of `append` notes them."""
        self._spool = spool
        self._name = name
        self._head = max_output // 2
        self._ring = max_output - self._head
        self._kept_from = 0  # offsets behind the head and below this one were given up with the disk
        self._linear = min(max_output, _MEMORY)  # up to this total, appending is all there is to do; then 0
        self._in_file = 0  # places below this one are in the file, the others in memory
        self._memory = bytearray()
        self._pending = bytearray()  # the latest bytes, not yet in their places
        self._path: Path | None = None
        self._size = 0  # of the file, as the spool has counted it
        self._stored = False  # a `KeptOutput` names the file
        self._descriptor = -1
        self._ahead = 0  # another process writes the file, and may have overwritten this much of the ring already

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
                if self._linear == _KEPT:
                    self._append_kept(offset, data)
                    return
                self._leave_linear(offset)
            self._add(offset, data)

    def _leave_linear(self, total: int) -> None:
        """Begin the file, or the ring if there can be no file: memory cannot hold the next piece."""
        self._linear = 0
        if self._head + self._ring > _MEMORY:
            try:
                self._move_to_file()
                return
            except OSError as error:
                # Nothing has wrapped yet, so memory is laid out like that of an output that may keep no more than it.
                self.failure = str(error)
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
        """Put the pending bytes, which end at `end`, in their places."""
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
        """Return where the bytes of a range are, or belong: runs of `(place, start, stop)`, without those beyond the
        ring."""
        head, ring = self._head, self._ring
        runs = []
        if start < head and start < stop:
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
        more = max(0, place + len(data) - self._size)
        if more:
            self._spool.disk.take(more)
        try:
            while data:
                written = machine.write_at(self._descriptor, data, place)
                place += written
                data = data[written:]
        except OSError:
            self._spool.disk.give_back(more)
            raise
        self._size += more

    def _give_up_disk(self, start: int, stop: int, error: OSError) -> None:
        """Keep what is on disk, and from `start` a ring in memory: writing the bytes from `start` to `stop` failed."""
        self.failure = str(error)
        kept_from, head, latest = start, start, b""
        if stop > self._head + self._ring or self._kept_from > self._head:
            # The ring has begun to overwrite itself, or not with the head's end. Its latest bytes go into memory, less
            # those that the failed write may have touched. (Otherwise all that was written before counts as head.)
            head = min(start, self._head)
            kept_from = min(start, max(start - _MEMORY, stop - self._ring, self._head, self._kept_from))
            latest = self._load(kept_from, start)
            if len(latest) < start - kept_from:
                kept_from, latest = start, b""
        self._head = self._in_file = head
        self._ring = _MEMORY
        self._kept_from = kept_from
        self._memory = bytearray(_MEMORY)
        self._store(kept_from, memoryview(latest))

    # --- following a file that another process writes

    def follow(self) -> Layout:
        """Bring all output into the file, which another process continues. Raises `OSError` if there can be no file.

        Nothing may be appended here before `unfollow`.
        """
        self._flush(self.total)
        if self.total <= self._head:  # the ring is empty, so it can be made larger by what may be ahead
            self._head, self._ring = max(self._head, _LEAST), max(self._ring, _LEAST)
            self._ahead = min(_AHEAD, self._ring // 2)
            self._ring += self._ahead
        else:
            self._ahead = min(_AHEAD, self._ring // 2)
        if self._in_file != _ALL:
            self._move_to_file()
        self._linear = 0
        return Layout(self._head, self._ring, self._ahead, self.total)

    def follow_again(self, layout: Layout) -> None:
        """Follow a file that another process writes since a `follow` elsewhere. Raises `OSError` if it is gone."""
        self._head, self._ring, self._ahead, self.total = layout
        self._path = self._spool.file(self._name or "")
        self._size = self._path.lstat().st_size
        self._in_file, self._linear = _ALL, 0

    def followed(self, total: int) -> None:
        """The other process has written up to `total`."""
        self.total = total
        size = min(total, self._head + self._ring)
        if size > self._size:
            self._spool.disk.count(size - self._size)
            self._size = size

    def unfollow(self) -> None:
        """The other process writes no more: this one may append again."""
        self._ahead = 0

    # --- reading

    @property
    def gap(self) -> tuple[int, int] | None:
        """Return the offsets of the first lost byte and of the first one kept after it."""
        end = max(self._kept_from, min(self.total, self.total - self._ring + self._ahead))
        return (self._head, end) if end > self._head else None

    @property
    def whole(self) -> int:
        """Return the end of the last complete character: how far to read now if you will read again."""
        return self.total - unfinished(self.before(self.total, 3))

    def span(self, start: int = 0, stop: int | None = None) -> Span:
        """Return the range from `start` to `stop`, or what is there now, for a view."""
        stop = self.total if stop is None else max(0, min(stop, self.total))
        return Span(self, max(0, min(start, stop)), stop)

    def read(self, start: int, stop: int | None = None) -> Piece:
        """Return the bytes from `start`, up to `stop` or the gap, whichever is first.

        Inside the gap no data is returned: `missing` bytes are lost and `end` is where output continues, beyond `stop`
        if need be. Reading from `end` until it is `total` covers everything. Bytes that the disk does not give back are
        missing, too.
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
        """Return the bytes before an offset, as far as they are kept without interruption."""
        piece = self.read(max(0, offset - size), offset)
        if piece.missing and piece.end < offset:
            piece = self.read(piece.end, offset)
        return piece.data if piece.end == offset else b""

    def _load(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range that is kept whole; fewer, or none, if the disk does not give them back."""
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
            data = machine.read_at(descriptor, size, place)
            while len(data) < size and (more := machine.read_at(descriptor, size - len(data), place + len(data))):
                data += more
            return data
        except OSError:
            return b""
        finally:
            if descriptor >= 0 and self._descriptor < 0:
                os.close(descriptor)

    # --- keeping

    def keep(self, inline: int) -> KeptOutput:
        """Describe the output for the store, when no more is expected. Bytes appended later do not harm the
        description.

        Up to `inline` bytes that are not in the file are in the description; otherwise everything is brought into the
        file, which the store must sync. If the file does not take it, the description has what the file took before and
        the latest bytes, or else the first and the latest ones.
        """
        self._flush(self.total)
        self._linear = _KEPT
        size = min(self.total, self._head + self._ring)
        if self._in_file and not self._stored and size <= inline:
            self._take_in(min(self._in_file, size))
        if self._in_file == 0 and len(self._memory) <= inline:
            return self._described(None)
        try:
            if self._in_file != _ALL:
                self._move_to_file()
        except OSError as error:
            self.failure = str(error)
            self._stored = self._in_file > 0
            head = self._in_file or min(self._head, inline // 2)
            ring = min(self._ring, inline if self._stored else inline - head)
            start = min(self.total, max(head, self._kept_from, self.total - ring))
            return self._cut(head, ring, start)._described(self._path if self._stored else None)
        self._stored = True
        return self._described(self._path)

    @property
    def has_file(self) -> bool:
        """Whether it needs its file."""
        return self._path is not None

    def _take_in(self, size: int) -> None:
        """Bring the bytes of the file into memory. The caller removes the file, once the description is stored."""
        data = self._fetch(0, size)
        if len(data) == size:
            self.close()
            self._spool.disk.give_back(self._size)
            self._memory, self._in_file, self._path, self._size = bytearray(data) + self._memory, 0, None, 0

    def _described(self, file: Path | None) -> KeptOutput:
        in_file, memory = self._in_file, self._memory
        if file is not None and in_file == _ALL:
            try:
                in_file = file.lstat().st_size  # just so: `_find_file` compares
            except OSError:
                in_file = self._head + self._ring
        return KeptOutput(
            total=self.total,
            head=self._head,
            ring=self._ring,
            kept_from=self._kept_from,
            in_file=in_file,
            # Large data is not copied: these bytes do not change any more (`_append_kept`).
            data=bytes(memory) if len(memory) <= _GATHER else cast(bytes, memory),
            file=None if file is None else file.name,
            times=b"" if self.timeline is None else self.timeline.dump(),
        )

    @classmethod
    def restored(cls, spool: Spool, kept: KeptOutput, name: str | None = None) -> "Output":
        """Return the output that was kept. `name` is for its file, should it need one. Bytes that the file lacks are
        lost."""
        output = cls(spool, 0, kept.file or name)
        output.total = kept.total
        output._head, output._ring, output._kept_from = kept.head, kept.ring, kept.kept_from
        output._memory = cast(bytearray, kept.data)
        output._linear = _KEPT
        if kept.times:
            output.terminal, output.timeline = of_terminal(kept.times), Timeline.load(kept.times)
        return output if kept.file is None else output._find_file(kept, kept.file)

    def _find_file(self, kept: KeptOutput, name: str) -> "Output":
        self._in_file = kept.in_file if kept.data else _ALL
        try:
            self._path = self._spool.file(name)
            size = self._path.lstat().st_size
        except OSError:
            ring = min(self._ring, _MEMORY)
            start = max(self._head, self._kept_from, self.total - ring) if kept.data else self.total
            return self._cut(0, ring, start)
        self._stored, self._size = True, size
        # A process that appends to a kept output may overwrite its ring, and then die without keeping it again. Until
        # the ring begins again the file grows, and a file that cannot grow is made longer on purpose (`_append_kept`).
        if not kept.data and size != kept.in_file and size >= self._head + self._ring:
            self._kept_from = self.total
        return self

    def _append_kept(self, offset: int, data: bytes) -> None:
        """Append to an output that has been kept."""
        self._linear = 0
        self.total = offset
        self._memory = bytearray(self._memory)
        if self._in_file == 0 and len(self._memory) == offset:
            self._linear = min(self._head + self._ring, _MEMORY)
        elif self._in_file == _ALL:
            try:
                if self._descriptor < 0:
                    self._descriptor = self._open(0)
                size = os.fstat(self._descriptor).st_size
                if size >= self._head + self._ring:
                    os.ftruncate(self._descriptor, size + 1)
            except OSError as error:
                self._give_up_disk(offset, offset + len(data), error)
        self.append(data)

    def _cut(self, head: int, ring: int, start: int) -> "Output":
        """Return one that has the first `head` bytes where they are and, in memory, a ring with those from `start`."""
        cut = Output(self._spool, 0, self._name)
        cut.total, cut.terminal, cut.timeline = self.total, self.terminal, self.timeline
        cut._head, cut._ring, cut._kept_from = head, ring, start
        cut._in_file = in_file = min(self._in_file, head)
        cut._memory = bytearray(head - in_file + ring)
        cut._store(in_file, memoryview(self._load(in_file, head)))
        cut._store(start, memoryview(self._load(start, self.total)))
        return cut

    # --- the file

    def _move_to_file(self) -> None:
        """Write what is in memory to its places in the file. If that raises `OSError`, nothing has changed."""
        in_file, path = self._in_file, self._path
        try:
            if path is None:
                self._path = self._spool.file(self._name or f"output-{next(_numbers)}")
                # A file of this name was left by a crash.
                self._descriptor = self._open(os.O_CREAT | (os.O_TRUNC if self._name else os.O_EXCL))
            self._in_file = _ALL
            self._write(in_file, memoryview(self._memory))
            self._memory = bytearray()
        except OSError:
            self._in_file = in_file
            if path is None:
                self._remove_file()
            raise

    def _open(self, flags: int) -> int:
        assert self._path is not None
        return os.open(self._path, flags | os.O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0o600)

    def sync(self) -> None:
        """Return when the file's data is on the disk. Raises `OSError` if the disk says it is not."""
        self._flush(self.total)
        if self._path is not None:
            descriptor = self._descriptor if self._descriptor >= 0 else self._open(0)
            try:
                machine.sync_data(descriptor)
            finally:
                if self._descriptor < 0:
                    os.close(descriptor)

    def close(self) -> None:
        """Close the descriptor, because no more output will come. Reading stays possible and opens the file when it
        must."""
        self._flush(self.total)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def discard(self) -> None:
        """Free everything. The counts stay; all bytes, also later ones, are in the gap.

        The store removes a file that a durable store knows.
        """
        if self._stored and self._spool.durable:
            self.close()
            self._path, self._size = None, 0
        self._remove_file()
        self._memory, self._pending = bytearray(), bytearray()
        self.timeline = None
        self._linear = self._in_file = self._head = self._ring = 0

    def _remove_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._path = None
        self._spool.disk.give_back(self._size)
        self._size = 0
