"""The client's end of the attach protocol: a connection to the process that runs a handle."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from keephold.errors import KeepholdError
from keephold.handles.state import Stopped
from keephold.store.base import Record, Store
from keephold.turn import attach_protocol as frames
from keephold.turn.relayed_streams import TYPING, Polls, RelayedLink

SILENT_SECS = 5.0
"""How long the process may take to send its first frame."""
_LEAVE_SECS = 10.0
"""How long it may take to read the last input."""


class OwnerAddress(NamedTuple):
    """A handle that a live process runs, and the socket of that process, if it is on this machine."""

    uid: str
    id: str
    tool: str
    path: str | None
    owner: str = ""


def running(store: Store, record: Record) -> OwnerAddress | None:
    """Return where a handle is run; None if no live process runs it, or this one does and has no socket."""
    if record.owner is None or isinstance(record.state, Stopped) or not store.alive(record.owner):
        return None
    path = socket_of(store, record.owner)
    if path is None and record.owner == store.owner:
        return None
    return OwnerAddress(record.uid, record.id, record.tool, path, record.owner)


def socket_of(store: Store, owner: str) -> str | None:
    """Return the path at which the runtime of an owner listens; None if the store does not know one."""
    where = getattr(store, "stream", None)
    return None if where is None else where(owner)


class Link:
    """An open connection, read frame by frame."""

    def __init__(
        self, to: OwnerAddress, want: frames.Want, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._to = to
        self._reader = reader
        self._writer = writer
        self._patience: float | None = SILENT_SECS
        self._given = frames.Given(want.input, want.keys) if want.want == "send" else None
        """Sent when the process has shown that it acts on it."""
        self.send(frames.WANT, msgspec.structs.replace(want, input=msgspec.UNSET, keys=()))

    async def receive(self) -> frames.Frame:
        """Return the next frame. Raises `KeepholdError` if the process refuses, is silent or has died."""
        try:
            async with asyncio.timeout(self._patience):
                received = await frames.receive(self._reader)
        except TimeoutError:
            raise _silent(self._to.id) from None
        self._patience = None
        if received is None:
            raise gone(self._to.id, self._to.tool)
        frame = frames.decoded(*received)
        if self._given is not None:
            self.send(frames.INPUT, self._given)
            self._given = None
        return frame

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        self._writer.write(frames.frame(kind, payload))


@asynccontextmanager
async def linked(to: OwnerAddress, want: frames.Want, polls: Polls | None = None) -> AsyncIterator[frames.Talk]:
    """Connect to the process and send the request: over its socket or, if that cannot be reached, by `polls`."""
    try:
        if to.path is None:
            raise ConnectionRefusedError
        reader, writer = await asyncio.open_unix_connection(to.path)
    except OSError:
        if polls is None or (want.want in TYPING and not polls.can_whisper):
            raise _silent(to.id) if to.path is not None else _no_socket(to.id) from None
        relayed = RelayedLink(polls, to.owner, want)
        try:
            yield relayed
        finally:
            await relayed.close()
        return
    try:
        yield Link(to, want, reader, writer)
    finally:
        try:
            if want.want == "attach":
                await _leave(reader, writer)
        finally:  # also if leaving is cancelled
            writer.transport.abort()
            with contextlib.suppress(OSError):  # that the process was first to close is not an error
                await writer.wait_closed()


async def _leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the process has read all input. A connection that is aborted loses what was not read yet."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_LEAVE_SECS):
            writer.write(frames.frame(frames.DETACH, b""))
            while await reader.read(1 << 16):
                pass


def gone(id: str, tool: str) -> KeepholdError:
    """Make the error for a handle whose process has died."""
    return KeepholdError(
        f"The runtime that ran handle `{id}` is gone; start one that has its tool `{tool}`, such as `keephold serve`: "
        "it resumes the handle, or reports how it ended",
        code="owner_not_answering",
    )


def _no_socket(id: str) -> KeepholdError:
    """Make the error for input to a process that can be reached by rows of the store only."""
    return KeepholdError(
        f"The process that runs handle `{id}` has no socket that can be reached from here. Nothing was sent: input may "
        "be a password, which is not written to the store. Do this where the handle runs, or name a server there by "
        "--server.",
        code="owner_not_answering",
    )


def _silent(id: str) -> KeepholdError:
    return KeepholdError(
        f"The process that runs handle `{id}` lives but does not answer; it may be stopped or busy. Nothing was sent. "
        "Try again.",
        code="owner_not_answering",
    )
