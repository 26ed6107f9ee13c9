"""A handle's output as text: a piece by its offset, lines that contain a pattern, or new output as it comes.

The output comes from the process that runs the handle (this one or another, over its socket), or from the store if none
does. The text is safe to show: a terminal's lines as rendered, other output without control sequences (K4), and ids in
place of keys (K5).
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NotRequired, TypedDict

from msgspec.structs import replace

from keephold.control.safe_text import Keyless, Plain, Readable, Rendered
from keephold.control.stored_output import stored_output, talking
from keephold.durable.keys import LONGEST, masked, masked_part, unfinished_key
from keephold.handles.output import Output, Piece
from keephold.handles.rendering import render_piece
from keephold.handles.spool import Spool
from keephold.runtime import Runtime
from keephold.store.base import Record
from keephold.text import plain, printable
from keephold.tools.builtin.read_output import KeptBytes, matches_in, piece_of
from keephold.turn import attach_protocol as frames
from keephold.turn.attached import HandleFollower
from keephold.turn.owner_connection import running

PIECE = 65_536
"""The most bytes of one piece."""
_COPY = 100 << 20
"""Bytes of another process's output that are searched for a pattern."""
_BEFORE = 1 << 18
"""Bytes of a terminal's output before a piece that are needed to render it."""
_NOWHERE = 1 << 62
"""An offset beyond every output."""


class Match(TypedDict):
    """A line that contains a pattern, and where the line begins."""

    offset: int
    line: str


class OutputPiece(TypedDict):
    """A piece of an output: `text`, or the `matches` of a pattern. `next` is the offset of the following piece."""

    uid: str
    offset: int
    next: int
    total: int
    missing: int
    text: NotRequired[str]
    matches: NotRequired[list[Match]]


async def output(
    runtime: Runtime, record: Record, *, offset: int, limit: int, from_end: int | None, pattern: str | None
) -> OutputPiece:
    """Return a piece of an output, or the lines that contain a pattern. `from_end` replaces `offset`."""
    size = max(1, min(limit, PIECE))
    async with _source(runtime, record) as source:
        total = source.total
        start = max(0, total - from_end) if from_end is not None else min(offset, total)
        if pattern is not None:
            await source.fetch(max(0, start - size), total)  # lines may begin earlier
            found = await matches_in(source, pattern.encode(errors="replace"), start, size)
            matches = [Match(offset=each["offset"], line=masked(printable(each["line"]))) for each in found["matches"]]
        else:
            await source.fetch(max(0, start - LONGEST), min(start + size + LONGEST, total))
            found = piece_of(source, start, size, None, last=False)
            text = "" if "missing" in found else _keyless(source, found)
    piece = OutputPiece(uid=record.uid, offset=start, next=found["end"], total=total, missing=found.get("missing", 0))
    return {**piece, "text": text} if pattern is None else {**piece, "matches": matches}


def _keyless(source: "_Printed", found: dict[str, Any]) -> str:
    """Mask the keys in a piece, even one that begins before it or ends after it."""
    start, end = found["offset"], found["end"]
    before = source.read(max(0, start - LONGEST), start).data.decode("ascii", "replace")
    after = source.read(end, min(end + LONGEST, source.total)).data.decode("ascii", "replace")
    return masked_part(before, printable(found["content"]), after)


class _Printed(KeptBytes):
    """A handle's output, without its result."""

    def __init__(self, output: Output | None) -> None:
        self._output = output
        self._printed = self.total = 0 if output is None else output.total
        self._result = b""

    async def fetch(self, start: int, stop: int) -> None:
        """Make these bytes available; here they are."""


class _Elsewhere(_Printed):
    """The output of a handle that another process runs: bytes that were not fetched are missing."""

    def __init__(self, runtime: Runtime, record: Record, status: frames.HandleStatus, spool: Spool) -> None:
        super().__init__(None)
        self.total = status.handle.output_bytes
        self._runtime, self._record, self._spool = runtime, record, spool
        self._terminal = status.cols > 0
        self.parts: list[tuple[int, Output]] = []
        """The fetched parts, each without a gap, with the offset of its first byte."""

    async def fetch(self, start: int, stop: int) -> None:
        place = max(0, start - _BEFORE) if self._terminal else start
        want = frames.Want(uid=self._record.uid, want="read", since=place)
        async with talking(self._runtime.registry.store, self._record, want, self._runtime.relay) as talk:
            async for _, payload in frames.all_frames(talk):
                if isinstance(payload, frames.Gap):
                    place = payload.offset
                elif isinstance(payload, bytes):
                    self._part(place).append(payload)
                    place += len(payload)
                if place >= stop:
                    return

    def _part(self, place: int) -> Output:
        """Return the part to which bytes from that offset belong."""
        if not self.parts or sum((self.parts[-1][0], self.parts[-1][1].total)) != place:
            self.parts.append((place, Output(self._spool, _COPY)))
            self.parts[-1][1].terminal = self._terminal
        return self.parts[-1][1]

    def read(self, start: int, stop: int) -> Piece:
        for begin, part in self.parts:
            if start < begin:
                return Piece(b"", start, begin, begin - start)
            if start < begin + part.total:
                piece = part.read(start - begin, stop - begin)
                return Piece(piece.data, start, begin + piece.end, piece.missing)
        return Piece(b"", start, self.total, self.total - start)

    def show(self, data: bytes, start: int) -> str:
        for begin, part in self.parts:
            if self._terminal and begin <= start < begin + part.total:
                return render_piece(part, data, start - begin)
        return super().show(data, start)

    def lines(self, data: bytes) -> list[bytes]:
        return data.splitlines(keepends=True) if not self._terminal else re.findall(rb"[^\n]*\n|[^\n]+", data)


@asynccontextmanager
async def _source(runtime: Runtime, record: Record) -> AsyncIterator[_Printed]:
    """Open a handle's output, in its process or in the store."""
    store, handle = runtime.registry.store, runtime.registry.loaded(record.uid)
    if handle is not None and (runtime.registry.runs(handle) or not handle.active):
        yield _Printed(handle.output)
    elif running(store, record) is not None:
        spool = Spool(None)
        source = _Elsewhere(runtime, record, await _status_of(runtime, record), spool)
        try:
            yield source
        finally:
            for _, part in source.parts:
                part.discard()
            spool.close()
    else:
        with stored_output(store, record) as kept:
            yield _Printed(kept)


async def _status_of(runtime: Runtime, record: Record) -> frames.HandleStatus:
    """Return another process's status of its handle: how long the output is, and whether it is a terminal."""
    want = frames.Want(uid=record.uid, want="read", since=_NOWHERE)
    async with talking(runtime.registry.store, record, want, runtime.relay) as talk:
        async for _, payload in frames.all_frames(talk):
            if isinstance(payload, frames.HandleStatus):
                return payload
    raise AssertionError("a handle's state comes first")


async def follow(runtime: Runtime, record: Record, offset: int) -> AsyncGenerator[dict[str, Any], None]:
    """Yield a handle's output and state changes as JSON, from that offset on, until it has stopped."""
    before = await _before(runtime, record, offset)
    readable = _after(before, Plain())
    place = offset
    async with aclosing(follow_frames(runtime, record, offset)) as following:
        async for kind, payload in following:
            match payload:
                case bytes():
                    text = readable.feed(payload).decode("utf-8", "replace")
                    place += len(payload)
                    if text:  # a client that comes back continues before the text that is held back
                        yield {"type": "output", "offset": place - readable.held, "text": text}
                case frames.Gap(missing, at):
                    if rest := readable.end():
                        yield {"type": "output", "offset": place, "text": rest.decode("utf-8", "replace")}
                    place = at
                    yield {"type": "gap", "missing": missing, "offset": at}
                case frames.HandleStatus(info, cols):
                    if place == offset and cols:
                        readable = _after(before, Rendered(cols))
                    if kind == frames.END and (rest := readable.end()):
                        yield {"type": "output", "offset": place, "text": rest.decode("utf-8", "replace")}
                    shown = replace(info, outcome=None)  # which `RuntimeView.handle` returns
                    yield {"type": "state" if kind == frames.STATE else "end", "handle": masked(plain(shown))}


async def _before(runtime: Runtime, record: Record, offset: int) -> bytes:
    """Return the end of the output before that offset: a key may begin there."""
    if offset == 0:
        return b""
    async with _source(runtime, record) as source:
        start, stop = max(0, offset - LONGEST), min(offset, source.total)
        await source.fetch(start, stop)
        return source.read(start, stop).data if start < stop else b""


def _after(before: bytes, readable: Readable) -> Readable:
    """Continue after that output; only the beginning of a key in it matters."""
    text = before.decode("ascii", "replace")
    return Keyless(readable, text[unfinished_key(text) :])


async def follow_frames(runtime: Runtime, record: Record, since: int) -> AsyncGenerator[frames.Frame, None]:
    """Yield the frames of a handle from that offset on until it has stopped, from its process or from the store.

    A handle of this runtime is followed in memory if the store has no sockets."""
    handle, store = runtime.registry.loaded(record.uid), runtime.registry.store
    if handle is None or not handle.active or not runtime.registry.runs(handle) or running(store, record) is not None:
        want = frames.Want(uid=record.uid, want="follow", since=since)
        async with talking(store, record, want, runtime.relay) as talk:
            async for frame in frames.all_frames(talk):
                yield frame
        return
    async with aclosing(HandleFollower(handle, since).until_stopped()) as following:
        async for frame in following:
            yield frame
