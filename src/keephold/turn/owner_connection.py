"""The client's end of the attach protocol: a connection to the process that runs a handle.

`SearchElsewhere` uses such connections to search the output of handles that other processes run, for `await` (A9): over
the socket of the owner, or by requests in the store if that cannot be reached.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from keephold.errors import KeepholdError, ToolError
from keephold.handles.state import Stopped
from keephold.store.base import Record, Store, SupportsStreams
from keephold.turn import attach_protocol as frames
from keephold.turn.relayed_streams import Polls, RelayedLink

if TYPE_CHECKING:
    from keephold.handles.handle import Handle
    from keephold.handles.matching import Search
    from keephold.handles.registry import Registry

SILENT_SECS = 5.0
"""How long the process may take to send its first frame."""
_LEAVE_SECS = 10.0
"""How long it may take to read the last input."""
_AGAIN_SECS = 1.0
"""Seconds between two attempts to reach an owner that has died: another process may take the handle over."""


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
    return store.stream(owner) if isinstance(store, SupportsStreams) else None


class OwnerConnection:
    """An open connection, read frame by frame."""

    def __init__(self, to: OwnerAddress, want: frames.Want, socket: frames.Socket) -> None:
        self._to = to
        self._socket = socket
        self._drives = want.want == "attach"
        self._patience: float | None = SILENT_SECS
        self._given = frames.Given(want.input, want.keys) if want.want == "send" else None
        """Sent when the process has shown that it acts on it."""
        self.send(frames.WANT, msgspec.structs.replace(want, input=msgspec.UNSET, keys=()))

    async def receive(self) -> frames.Frame:
        """Return the next frame. Raises `KeepholdError` if the process refuses, is silent or has died."""
        try:
            async with asyncio.timeout(self._patience):
                received = await self._socket.receive()
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
        self._socket.post(kind, payload)

    async def close(self) -> None:
        """Leave. A driver waits until the process has read all input, which an aborted connection would lose."""
        try:
            if self._drives:
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(_LEAVE_SECS):
                        self.send(frames.DETACH)
                        while await self._socket.receive() is not None:
                            pass
        finally:  # also if leaving is cancelled
            self._socket.abort()
            with contextlib.suppress(OSError):  # that the process was first to close is not an error
                await self._socket.close()


@asynccontextmanager
async def linked(to: OwnerAddress, want: frames.Want, polls: Polls | None = None) -> AsyncIterator[frames.Talk]:
    """Connect to the process and send the request: over its socket or, if that cannot be reached, by `polls`."""
    link: OwnerConnection | RelayedLink
    try:
        if to.path is None:
            raise ConnectionRefusedError
        socket = frames.Socket(*await asyncio.open_unix_connection(to.path))
    except OSError:
        if polls is None or (want.want in frames.TYPING and not polls.can_whisper):
            raise _silent(to.id) if to.path is not None else _no_socket(to.id) from None
        link = RelayedLink(polls, to.owner, want)
    else:
        link = OwnerConnection(to, want, socket)
    try:
        yield link
    finally:
        await link.close()


class SearchElsewhere:
    """Searches the output of handles of other processes, by connections to their owners."""

    def __init__(self, registry: "Registry", polls: Polls) -> None:
        self._registry = registry
        self._polls = polls

    async def look(self, handle: "Handle", search: "Search") -> None:
        """Search the output so far. Raises `ToolError` if the owner lives and does not answer."""
        to = self._owner(handle)
        if to is not None:
            try:
                await self._receive(to, frames.Want(uid=handle.uid, want="read", since=search.offset), search)
            except ToolError:
                raise
            except KeepholdError as error:
                raise ToolError(error.message, code=error.code) from None

    async def follow(self, handle: "Handle", search: "Search") -> None:
        while self._registry.runs_elsewhere(handle) and search.matched is None:
            try:
                to = self._owner(handle)
                if to is not None:
                    await self._receive(to, frames.Want(uid=handle.uid, want="follow", since=search.offset), search)
                    return
            except KeepholdError:
                pass  # it has died, or is closing: its next owner is asked
            await asyncio.sleep(_AGAIN_SECS)
        search.printed()  # this process runs it now

    def _owner(self, handle: "Handle") -> OwnerAddress | None:
        """Return where the handle is run; None if its owner has died."""
        store, owner = self._registry.store, handle.owner
        if owner is None or not store.alive(owner):
            return None
        return OwnerAddress(handle.uid, handle.id, handle.tool.name, socket_of(store, owner), owner)

    async def _receive(self, to: OwnerAddress, want: frames.Want, search: "Search") -> None:
        offset = want.since
        async with linked(to, want, self._polls) as link:
            async for _, payload in frames.all_frames(link):
                if isinstance(payload, bytes):
                    await search.feed(payload, offset)
                    offset += len(payload)
                elif isinstance(payload, frames.Gap):
                    await search.feed(b"", payload.offset - payload.missing, payload.missing)
                    offset = payload.offset
                elif isinstance(payload, frames.HandleStatus):
                    offset = payload.offset
                if search.matched is not None:
                    return


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
