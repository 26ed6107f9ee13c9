"""A connection to the process that runs a handle; `turn/attach_protocol.py` is what they speak."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from keephold.control.handle_json import owner_of
from keephold.errors import KeepholdError
from keephold.store.base import Record, Store
from keephold.turn import attach_protocol as frames

SILENT_SECS = 5.0
"""How long the process may take to say its first word."""


class OwnerAddress(NamedTuple):
    """A handle that a process runs, and where that process listens."""

    record: Record
    path: str


def running(store: Store, record: Record) -> OwnerAddress | None:
    """Where a handle is run; None if no process does."""
    where = getattr(store, "stream", None)  # SupportsStreams
    if where is None or record.owner is None or owner_of(store, record) != "alive":
        return None
    path = where(record.owner)
    return None if path is None else OwnerAddress(record, path)


class Link:
    """What the process says, frame by frame."""

    def __init__(self, record: Record, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._record = record
        self._reader = reader
        self._writer = writer
        self._patience: float | None = SILENT_SECS

    async def receive(self) -> tuple[str, bytes]:
        """The next frame. Raises `KeepholdError` for a refusal, for silence, and if the process is gone."""
        try:
            async with asyncio.timeout(self._patience):
                received = await frames.receive(self._reader)
        except TimeoutError:
            raise _silent(self._record) from None
        self._patience = None
        if received is None:
            raise gone(self._record.id, self._record.tool)
        if received[0] == frames.ERROR:
            refused = msgspec.json.decode(received[1], type=frames.Refused)
            raise KeepholdError(refused.message, code=refused.code)
        return received

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        self._writer.write(frames.frame(kind, payload))


@asynccontextmanager
async def linked(to: OwnerAddress, want: frames.Want) -> AsyncIterator[Link]:
    """A connection over which that is asked for."""
    try:
        reader, writer = await asyncio.open_unix_connection(to.path)
    except OSError:
        raise _silent(to.record) from None
    link = Link(to.record, reader, writer)
    try:
        link.send(frames.WANT, want)
        yield link
    finally:
        writer.transport.abort()  # whatever was to be said is said, unless nobody listens


def gone(id: str, tool: str) -> KeepholdError:
    """What is said of a handle whose process has died."""
    return KeepholdError(
        f"The process that ran handle `{id}` is gone; a runtime that has its tool `{tool}` goes on with it, or tells "
        "how it ended",
        code="owner_not_answering",
    )


def _silent(record: Record) -> KeepholdError:
    return KeepholdError(
        f"The process that runs handle `{record.id}` lives but does not answer; it may be stopped or busy. Try again.",
        code="owner_not_answering",
    )
