"""What a handle has printed, as text: a piece by its offset, lines that hold a pattern, or whatever comes as it comes.

Whoever runs the handle is asked: this process, another one over its socket, or the store when nobody does. Text is what
a person may see: a terminal's lines as they were to be seen, anything else without control sequences (K4).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from holdfast.control.base import Talk
from holdfast.control.kept import talking
from holdfast.control.link import running
from holdfast.control.readable import Plain, Readable, Rendered
from holdfast.errors import HoldfastError
from holdfast.handles.handle import Handle
from holdfast.handles.output import Output
from holdfast.handles.spool import Spool
from holdfast.handles.text import printable
from holdfast.runtime import Runtime
from holdfast.store.base import Record
from holdfast.tools.builtin.read_output import Kept, matches_in, piece_of
from holdfast.turn import frames
from holdfast.turn.following import Following

PIECE = 65_536
"""The most bytes of one piece."""
_AHEAD = 16
"""Frames that wait to be taken by whoever follows a handle of this process."""
_COPY = 100 << 20
"""Bytes of another process's output that are looked through for a pattern."""


async def output(
    runtime: Runtime, record: Record, *, offset: int, limit: int, from_end: int | None, pattern: str | None
) -> dict[str, Any]:
    """`{"uid", "offset", "next", "total", "missing", "text"}`, or with a pattern `matches` instead of `text`.

    `next` is where to go on; it is `total` at the end. `from_end` counts back from the end instead of `offset`.
    """
    async with _readable(
        runtime, record, everything=pattern is not None, since=0 if from_end is not None else offset
    ) as (
        kept,
        base,
    ):
        total = base + kept.total
        size = max(1, min(limit, PIECE))
        start = max(0, total - from_end) if from_end is not None else min(offset, total)
        if pattern is not None:
            found = await matches_in(kept, pattern.encode(), max(0, start - base), size)
            matches = [{"offset": base + each["offset"], "line": printable(each["line"])} for each in found["matches"]]
            return _answer(record, start, base + found["end"], total, found.get("missing", 0)) | {"matches": matches}
        found = piece_of(kept, max(0, start - base), size, None, last=False)
        text = "" if "missing" in found else printable(found["content"])
        return _answer(record, start, base + found["end"], total, found.get("missing", 0)) | {"text": text}


def _answer(record: Record, start: int, end: int, total: int, missing: int) -> dict[str, Any]:
    return {"uid": record.uid, "offset": start, "next": end, "total": total, "missing": missing}


@asynccontextmanager
async def _readable(
    runtime: Runtime, record: Record, *, everything: bool, since: int
) -> AsyncIterator[tuple[Kept, int]]:
    """What is kept of a handle's output, and at which offset of the whole that begins."""
    handle = runtime.registry.loaded(record.uid)
    if handle is not None and (runtime.registry.runs(handle) or not handle.active):
        yield Kept(handle), 0
    elif running(runtime.registry.store, record) is not None:
        since = 0 if everything else since
        spool = Spool(None)
        copy, base = await _copied(runtime, record, spool, since)
        stand_in = runtime.registry.revive(msgspec.structs.replace(record, output=None))
        stand_in.output = copy
        try:
            yield Kept(stand_in), base
        finally:
            copy.discard()
    else:
        yield Kept(runtime.registry.revive(record)), 0


async def _copied(runtime: Runtime, record: Record, spool: Spool, since: int) -> tuple[Output, int]:
    """What another process has of its handle's output."""
    copy, base = Output(spool, _COPY), since
    async with talking(runtime.registry.store, record, frames.Want(uid=record.uid, want="read", since=since)) as talk:
        while True:
            kind, payload = await talk.receive()
            if kind == frames.OUTPUT:
                copy.append(payload)
            elif kind == frames.GAP and copy.total == 0:
                base = msgspec.json.decode(payload, type=frames.Gap).offset
            elif kind == frames.END:
                return copy, base


async def follow(runtime: Runtime, record: Record, offset: int) -> AsyncIterator[dict[str, Any]]:
    """What a handle prints and how its state changes, from that offset on, until it has stopped."""
    readable: Readable = Plain()
    place = offset
    async with _frames(runtime, record, frames.Want(uid=record.uid, want="follow", since=offset)) as talk:
        while True:
            kind, payload = await talk.receive()
            if kind == frames.OUTPUT:
                text = readable.feed(payload).decode("utf-8", "replace")
                place += len(payload)
                if text:
                    yield {"type": "output", "offset": place, "text": text}
            elif kind == frames.GAP:
                gap = msgspec.json.decode(payload, type=frames.Gap)
                place = gap.offset
                yield {"type": "gap", "missing": gap.missing, "offset": gap.offset}
            elif kind in (frames.STATE, frames.END):
                told = msgspec.json.decode(payload, type=dict[str, Any])
                if place == offset and told.get("cols"):
                    readable = Rendered(told["cols"])
                if kind == frames.END and (rest := readable.end()):
                    yield {"type": "output", "offset": place, "text": rest.decode("utf-8", "replace")}
                yield {"type": "state" if kind == frames.STATE else "end", "handle": _told(told["handle"])}
                if kind == frames.END:
                    return


def _told(handle: dict[str, Any]) -> dict[str, Any]:
    """A handle as its process tells it, without its outcome, which `Control.handle` gives."""
    return {key: value for key, value in handle.items() if key != "outcome"}


@asynccontextmanager
async def _frames(runtime: Runtime, record: Record, want: frames.Want) -> AsyncIterator[Talk]:
    """Frames from whoever has the handle; a handle of a store without sockets is followed in memory."""
    handle = runtime.registry.loaded(record.uid)
    store = runtime.registry.store
    if handle is None or not handle.active or not runtime.registry.runs(handle) or running(store, record) is not None:
        async with talking(store, record, want) as talk:
            yield talk
        return
    async with _followed(handle, want.since) as here:
        yield here


@asynccontextmanager
async def _followed(handle: Handle, since: int) -> AsyncIterator[Talk]:
    pipe = _Pipe()
    following = Following(handle, cast(asyncio.StreamWriter, pipe), since)
    task = asyncio.create_task(pipe.ended(following))
    try:
        yield pipe
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Pipe:
    """Takes what `Following` writes, and gives it to one reader at its pace."""

    def __init__(self) -> None:
        self._frames: asyncio.Queue[tuple[str, bytes] | HoldfastError] = asyncio.Queue(_AHEAD)
        self._written: list[tuple[str, bytes]] = []

    def write(self, data: bytes) -> None:
        self._written.append((chr(data[0]), data[5:]))

    async def drain(self) -> None:
        written, self._written = self._written, []
        for frame in written:
            await self._frames.put(frame)

    async def ended(self, following: Following) -> None:
        try:
            await following.until_stopped()
        except HoldfastError as error:
            await self._frames.put(error)

    async def receive(self) -> tuple[str, bytes]:
        received = await self._frames.get()
        if isinstance(received, HoldfastError):
            raise received
        return received

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        """Whoever only follows says nothing."""
