"""A handle's output from the process that runs it, or from the store in the same frames.

If no process runs a handle, its output is complete, so following it only reads it. A kept process may print more, for
the runtime that takes it back.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec

from keephold.control.handle_json import info_of, owner_of
from keephold.errors import KeepholdError
from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.handles.state import Stopped, name
from keephold.handles.timeline import asciicast
from keephold.store.base import Record, Store
from keephold.tools.keeper.record import read_record
from keephold.tools.keeping import kept_output
from keephold.turn import attach_protocol as frames
from keephold.turn.output_follower import Pieces
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
    output = stored_output(store, record)
    try:
        yield StoredOutput(store, record, want, output)
    finally:
        if output is not None:
            output.close()


def stored_output(store: Store, record: Record) -> Output | None:
    """Return the stored output of a handle, or that of its kept process so far; the caller closes it."""
    output = record.output
    if store.directory is not None and not isinstance(record.state, Stopped):
        kept = read_record(store.directory, record.uid)
        output = output if kept is None else kept_output(store.directory, kept)
    return None if output is None else Output.restored(Spool(store.directory), output, record.uid)


class StoredOutput:
    """Yields the frames that the handle's process would send at its end."""

    def __init__(self, store: Store, record: Record, want: frames.Want, output: Output | None) -> None:
        if want.want in ("attach", "send") or want.screen:
            raise _not_run(store, record)
        self._record = record
        self._output = output
        if want.want == "cast" and (output is None or not output.terminal):
            raise KeepholdError(
                f"Handle `{record.id}` is not a terminal, or nothing is stored of its session", code="invalid_arguments"
            )
        self._frames = self._cast() if want.want == "cast" else self._read(Pieces(want.since, times=want.times))

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

    def _cast(self) -> Iterator[frames.Frame]:
        assert self._output is not None and self._output.timeline is not None
        for line in asciicast(self._output.timeline, self._output):
            yield frames.OUTPUT, f"{line}\n".encode()
        yield frames.END, self._status(0)

    def _status(self, offset: int) -> frames.HandleStatus:
        timeline = None if self._output is None else self._output.timeline
        cols = 0 if timeline is None else timeline.started.cols
        return frames.HandleStatus(info_of(self._record), cols, offset)


def _not_run(store: Store, record: Record) -> KeepholdError:
    if owner_of(store, record) == "gone":
        return gone(record.id, record.tool)
    how = name(record.state) if isinstance(record.state, Stopped) else "waiting for its completion from outside"
    return KeepholdError(f"Handle `{record.id}` is {how}: no process runs it", code="not_running")
