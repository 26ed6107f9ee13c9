"""A handle's output from the process that runs it, or from the store in the same frames; and handles found by text.

If no process runs a handle, its output is complete, so following it only reads it. A kept process may print more, for
the runtime that takes it back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

import msgspec
from msgspec.structs import replace

from keephold.control.handle_json import info_of, owner_of
from keephold.errors import KeepholdError
from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.handles.state import Stopped, name
from keephold.store.base import HandleQuery, Record, Store
from keephold.store.rules import folded
from keephold.text import to_json, to_utf8
from keephold.tools.keeper.record import read_record
from keephold.tools.keeping import kept_output
from keephold.turn import attach_protocol as frames
from keephold.turn.attached import Pieces, recorded
from keephold.turn.owner_connection import gone, linked, running
from keephold.turn.relayed_streams import Polls


@asynccontextmanager
async def talking(
    store: Store, record: Record, want: frames.Want, polls: Polls | None = None
) -> AsyncIterator[frames.Talk]:
    """Connect to the process that runs the handle, or to the store if none does. `polls` reach a process that has no
    socket on this machine."""
    to = running(store, record)
    if to is not None:
        async with linked(to, want, polls) as link:
            yield link
        return
    with stored_output(store, record) as output:
        yield StoredOutput(store, record, want, output)


@contextmanager
def stored_output(store: Store, record: Record) -> Iterator[Output | None]:
    """Open the stored output of a handle, or that of its kept process so far."""
    output = record.output
    if store.directory is not None and not isinstance(record.state, Stopped):
        kept = read_record(store.directory, record.uid)
        output = output if kept is None else kept_output(store.directory, kept)
    if output is None:
        yield None
    else:
        with closing(Output.restored(Spool(store.directory), output, record.uid)) as restored:
            yield restored


class StoredOutput:
    """Yields the frames that the handle's process would send at its end."""

    def __init__(self, store: Store, record: Record, want: frames.Want, output: Output | None) -> None:
        if want.want in ("attach", "send") or want.screen:
            raise _not_run(store, record)
        self._record = record
        self._output = output
        cast = want.want == "cast"
        self._frames = recorded(output, self._status(0)) if cast else self._read(Pieces(want.since, times=want.times))

    async def receive(self) -> frames.Frame:
        return next(self._frames)

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        """Ignore it: no process runs the handle."""

    def _read(self, pieces: Pieces) -> Iterator[frames.Frame]:
        output = self._output
        yield frames.STATE, self._status(pieces.offset)
        while output is not None and pieces.offset < output.total:
            yield from pieces.read(output, output.total)
        yield frames.END, self._status(pieces.offset)

    def _status(self, offset: int) -> frames.HandleStatus:
        timeline = None if self._output is None else self._output.timeline
        cols = 0 if timeline is None else timeline.started.cols
        return frames.HandleStatus(info_of(self._record), cols, offset)


def _not_run(store: Store, record: Record) -> KeepholdError:
    if owner_of(store, record) == "gone":
        return gone(record.id, record.tool)
    how = name(record.state) if isinstance(record.state, Stopped) else "waiting for its completion from outside"
    return KeepholdError(f"Handle `{record.id}` is {how}: no process runs it", code="not_running")


# Finding handles by a text: no store has an index for that, so handles are read in the order of a list and looked at
# one after the other, the newest first. One search looks at a bounded number, and says where the next one continues.

EXAMINED = 5000
"""The most handles that one search looks at."""
_PAGE = 100
_PIECE = 1 << 20
"""Bytes of an output that are looked at before the event loop runs."""


async def containing(
    store: Store, query: HandleQuery, text: str, output_here: Callable[[Record], Output | None]
) -> tuple[list[Record], str | None]:
    """Return handles of the query, at most `query.limit`, that contain the text; ASCII letters match in either case.

    `output_here` returns the output of a handle that this process has in memory. The other value is the `after` of the
    next search; None if there are no more handles."""
    needle, quoted = to_utf8(folded(text)), folded(to_json(text)[1:-1].decode())
    found: list[Record] = []
    after = query.after
    for _ in range(EXAMINED // _PAGE):
        page = await store.handles(replace(query, after=after, limit=_PAGE))
        for record in page:
            after = record.uid
            given = folded(to_json(record.arguments).decode())
            if quoted in given or await _has_printed(store, record, needle, output_here(record)):
                found.append(record)
                if len(found) == query.limit:
                    return found, after
        if len(page) < _PAGE:
            return found, None
        await asyncio.sleep(0)
    return found, after


async def _has_printed(store: Store, record: Record, needle: bytes, here: Output | None) -> bool:
    if here is not None:
        return await _contains(here, needle)
    kept = record.output
    if kept is not None and kept.total == len(kept.data):  # the usual case: all of it is in the row
        return needle in kept.data.lower()
    with stored_output(store, record) as output:
        return output is not None and await _contains(output, needle)


async def _contains(output: Output, needle: bytes) -> bool:
    start, tail = 0, b""
    while start < output.total:
        piece = output.read(start, start + _PIECE)
        data = (b"" if piece.missing else tail) + piece.data.lower()
        if needle in data:
            return True
        start, tail = piece.end, data[-len(needle) :]
        if start < output.total:
            await asyncio.sleep(0)
    return False
