"""The runtime's end of the attach protocol: other processes follow output, drive a terminal and send input.

A runtime with a durable store listens on a Unix socket that only its user can reach; the lock file of its owner names
it. An idle socket costs nothing.

A client reads a handle's output by offset and at its own pace. A slow client delays neither the tool nor other clients
and costs one frame of memory; overwritten output is reported as a gap. A terminal has at most one driver. While a user
drives a terminal, it has the size of theirs and takes what they type; however the client leaves, it gets its old size
back.
"""

import asyncio
import logging
import shlex
import socket
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from pathlib import Path
from typing import Protocol, cast

import msgspec

from keephold.errors import KeepholdError, ToolError
from keephold.forking import close_in_children
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Waiting
from keephold.handles.timeline import asciicast
from keephold.store.base import SupportsWhispers
from keephold.text import time_of_day, to_utf8
from keephold.tools.base import SupportsScreen
from keephold.tools.run import Run
from keephold.turn import attach_protocol as frames
from keephold.turn import send_input
from keephold.turn.actions import Actions
from keephold.turn.attach_protocol import Size, Want
from keephold.turn.output_follower import CHUNK, Following, status_of
from keephold.turn.owner_connection import socket_of
from keephold.turn.relayed_streams import TYPING, Poll, Sessions
from keephold.turn.settle import printed

_PIECE = 4096
_AGAIN_SECS = 0.02
"""Seconds between two attempts to write to a program that reads slowly. Nothing signals that it has read."""
_UNREAD = 1 << 20
"""Bytes of input that may wait for the program; more are dropped, as a terminal does."""
_LARGEST = Size(500, 1000)


class Driving:
    """One user who drives a terminal: entered when they take over, left when they leave."""

    def __init__(self, run: Run, live: SupportsScreen) -> None:
        self._run = run
        self._live = live
        self._unread = bytearray()
        self._again: asyncio.TimerHandle | None = None
        screen = live.screen()
        self._before = Size(screen.rows, screen.cols)

    def __enter__(self) -> "Driving":
        self._run.drive(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._again is not None:
            self._again.cancel()
        try:
            self.resize(self._before)
        finally:
            self._run.drive(False)

    def resize(self, size: Size) -> None:
        """Give the terminal this size; 0 keeps the size."""
        if size.rows > 0 and size.cols > 0:
            self._live.resize(min(size.rows, _LARGEST.rows), min(size.cols, _LARGEST.cols))

    def type(self, data: bytes) -> None:
        """Write input as fast as the program reads. A key that interrupts it is not queued."""
        if self._unread and self._live.interrupts(data):
            self._unread.clear()
            if self._again is not None:
                self._again.cancel()
                self._again = None
        if len(self._unread) + len(data) <= _UNREAD:
            self._unread += data
        if self._again is None:
            self._write_unread()

    def _write_unread(self) -> None:
        self._again = None
        while self._unread:
            try:
                self._live.type(bytes(self._unread[:_PIECE]))
            except ToolError as error:
                if error.code == "input_not_read":
                    self._again = asyncio.get_running_loop().call_later(_AGAIN_SECS, self._write_unread)
                else:  # it has ended
                    self._unread.clear()
                return
            del self._unread[:_PIECE]


_log = logging.getLogger("keephold.turn")

_DEAF = frames.frame(
    frames.ERROR,
    frames.Refused(
        "The process that runs the handle hears no input from other machines at present. Nothing was sent. Try again.",
        "owner_not_answering",
    ),
)
_LAST_SECS = 1.0
"""How long closing waits for clients to read the last frames."""


class Streams:
    """The socket of a runtime, and its connected clients."""

    def __init__(self, registry: Registry, actions: Actions) -> None:
        self.registry = registry
        self.actions = actions
        self.drivers: dict[str, float] = {}
        """By uid of a terminal: since when a user drives it."""
        self._server: asyncio.Server | None = None
        self._path = ""
        self._clients: dict[asyncio.Task[None], _Client] = {}
        self._left: set[str] = set()
        """The uids of handles that another process takes over."""
        self._sessions = Sessions()

    async def open(self) -> None:
        """Listen, if the store names a socket. Raises `KeepholdError` if that fails."""
        store = self.registry.store
        if isinstance(store, SupportsWhispers):
            store.on_whisper.add(self._sessions.hear)
        path = socket_of(store, store.owner)
        if path is None:
            return
        self._path = path
        self._server = await asyncio.start_unix_server(self._connected, sock=_bound(path))

    async def close(self) -> None:
        """Send every client its last frame, and disconnect them."""
        if self._server is not None:
            self._server.close()
            _remove(self._path)
        for task, client in self._clients.items():
            if client.following is None:
                task.cancel()
            else:
                client.following.close()
        if self._clients:
            await asyncio.wait(tuple(self._clients), timeout=_LAST_SECS)
        for task in tuple(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._sessions.close()

    async def leave(self, handles: Collection[Handle]) -> None:
        """End the connections of clients that follow handles which another process is about to run, when all that they
        typed has been read."""
        self._left.update(handle.uid for handle in handles)
        ended = set[asyncio.Task[None]]()
        for task, client in self._clients.items():
            if client.following is not None and client.following.handle in handles:
                client.following.close()
                ended.add(task)
        if ended:
            await asyncio.wait(ended, timeout=2 * _LAST_SECS)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=CHUNK)
        self._serve(_Client(self, reader, writer), writer.transport.abort)

    def _serve(self, client: "_Client", disconnect: Callable[[], None]) -> "asyncio.Task[None]":
        """Serve a client, and disconnect it even if it was never served: a task may be cancelled before it begins."""
        task = asyncio.get_running_loop().create_task(client.serve())
        self._clients[task] = client
        task.add_done_callback(self._gone)
        task.add_done_callback(lambda _: disconnect())
        return task

    def _gone(self, task: "asyncio.Task[None]") -> None:
        del self._clients[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection was cut short", exc_info=error)

    async def polled(self, poll: Poll) -> bytes:
        """Return the next frames of a client that has no connection (`turn/relayed_streams.py`)."""
        if poll.want is not None:
            ear = getattr(self.registry.store, "ear", "") if poll.want.want in TYPING else ""
            if poll.want.want in TYPING and not ear:
                return _DEAF
            session = self._sessions.begin(poll.session, ear)
            session.reader.feed_data(frames.frame(frames.WANT, poll.want))
            session.serving = self._serve(_Client(self, session.reader, session), session.abort)
        return await self._sessions.take(poll.session, poll.sent)

    def handle(self, uid: str) -> Handle:
        """Return a handle that this runtime runs, or has just run."""
        if uid in self._left:
            raise ToolError("another process takes the handle over; ask again", code="runtime_closed")
        handle = self.registry.loaded(uid)
        if handle is None or handle.owner != self.registry.store.owner:
            raise ToolError("the handle is not run here any more; ask again", code="handle_not_found")
        return handle


class _Writer(Protocol):
    """The part of `asyncio.StreamWriter` that is used."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class _Client:
    """One connection, from its first frame to its end."""

    def __init__(self, streams: Streams, reader: asyncio.StreamReader, writer: _Writer) -> None:
        self._streams = streams
        self._reader = reader
        self._writer = writer
        self.following: Following | None = None

    async def serve(self) -> None:
        """Serve the client's request, or send why it is refused."""
        try:
            await self._serve()
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:  # the client has left
            pass

    async def _serve(self) -> None:
        try:
            first = await frames.receive(self._reader, frames.LONGEST)
            if first is not None:
                await self._do(*first)
        except KeepholdError as error:
            self._send_frame(frames.ERROR, frames.Refused(error.message, error.code))

    async def _do(self, kind: str, payload: bytes) -> None:
        try:
            want = msgspec.json.decode(payload, type=Want)
        except msgspec.DecodeError as error:
            raise ToolError(f"the first frame does not say what is wanted: {error}", code="invalid_arguments") from None
        if kind != frames.WANT:
            raise ToolError(f"the first frame must be of kind `{frames.WANT}`, not {kind!r}", code="invalid_arguments")
        handle = self._streams.handle(want.uid)
        match want.want:
            case "read":
                await self._forward(Following(handle, want.since, times=want.times).so_far())
            case "follow":
                screen = _terminal(handle) if want.screen else None
                await self._follow(Following(handle, want.since, screen, times=want.times), None)
            case "attach":
                await self._attach(handle, Size(want.rows, want.cols))
            case "cast":
                await self._forward(_cast(handle))
            case "send":
                await self._send(handle, want)

    def _send_frame(self, kind: str, payload: bytes | msgspec.Struct) -> None:
        self._writer.write(frames.frame(kind, payload))

    async def _forward(self, found: AsyncGenerator[frames.Frame, None]) -> None:
        async with aclosing(found):
            async for kind, payload in found:
                self._send_frame(kind, payload)
                await self._writer.drain()

    async def _send(self, handle: Handle, want: Want) -> None:
        state = handle.state
        if isinstance(state, Waiting) and state.question.secret and not want.secret:
            raise ToolError(
                f"the answer to question `{state.question.id}` of handle `{handle.id}` is a secret: "
                f"`keephold send --password {shlex.quote(handle.id)}` reads it without showing it",
                code="bad_answer",
            )
        self._send_frame(frames.STATE, status_of(handle, printed(handle)))
        received = await frames.receive(self._reader, frames.LONGEST)
        if received is None:  # the client gave up, and sent nothing
            return
        try:
            given = msgspec.json.decode(received[1], type=frames.Given)
        except msgspec.DecodeError as error:
            raise ToolError(f"the second frame is not input to send: {error}", code="invalid_arguments") from None
        actions = self._streams.actions
        reply = await send_input.send(
            actions, handle, given.input, given.keys, secret=want.secret, answers=want.answers
        )
        self._send_frame(frames.REPLY, to_utf8(reply.result))

    async def _attach(self, handle: Handle, size: Size) -> None:
        streams, live, run = self._streams, _terminal(handle), handle.run
        assert run is not None
        since = streams.drivers.get(handle.uid)
        if since is not None:
            raise ToolError(
                f"somebody has been driving terminal `{handle.id}` since {time_of_day(since)}, and only one can; "
                f"`keephold attach --read-only {shlex.quote(handle.id)}` watches",
                code="driven_by_person",
            )
        streams.drivers[handle.uid] = streams.registry.clock.now()
        try:
            with Driving(run, live) as driving:
                driving.resize(size)
                await self._follow(Following(handle, screen=live), driving)
        finally:
            del streams.drivers[handle.uid]

    async def _follow(self, following: Following, driving: Driving | None) -> None:
        """Follow until the handle has stopped or the client has left."""
        self.following = following
        sending = asyncio.create_task(self._forward(following.until_stopped()))
        reading = asyncio.create_task(self._read(driving))
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and driving is not None and isinstance(sending.exception(), ToolError):
                await self._take_last(reading, cast(ToolError, sending.exception()))
            elif sending.done():
                sending.result()
        finally:
            sending.cancel()
            reading.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)

    async def _take_last(self, reading: "asyncio.Task[None]", why: ToolError) -> None:
        """Tell a driver why its connection ends, and read what it has sent before it knew."""
        self._send_frame(frames.ERROR, frames.Refused(why.message, why.code))
        await asyncio.wait((reading,), timeout=_LAST_SECS)

    async def _read(self, driving: Driving | None) -> None:
        """Read what the client sends, until it leaves. A client that only follows may leave, too."""
        while (received := await frames.receive(self._reader, frames.LONGEST)) is not None:
            match received:
                case frames.INPUT, data if driving is not None:
                    driving.type(data)
                case frames.RESIZE, data if driving is not None:
                    driving.resize(msgspec.json.decode(data, type=Size))
                case frames.DETACH, _:
                    return


async def _cast(handle: Handle) -> AsyncGenerator[frames.Frame, None]:
    """Yield the session so far, as the lines of an asciicast."""
    output = handle.output
    if output is None or output.timeline is None or not output.terminal:
        raise ToolError(
            f"handle `{handle.id}` is not a terminal, so there is no session to show", code="invalid_arguments"
        )
    yield frames.STATE, status_of(handle, 0)
    for line in asciicast(output.timeline, output):
        yield frames.OUTPUT, f"{line}\n".encode()
    yield frames.END, status_of(handle, 0)


def _bound(path: str) -> socket.socket:
    bound = close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        bound.bind(path)
        Path(path).chmod(0o600)
    except OSError as error:
        bound.close()
        raise KeepholdError(
            f"no socket can be made at `{path}` ({error}); set XDG_RUNTIME_DIR to another directory of yours",
            code="store_unusable",
        ) from error
    return bound


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _terminal(handle: Handle) -> SupportsScreen:
    """Return the terminal of a handle. Raises `ToolError` if it has none, or has stopped."""
    if handle.tool.source != "terminal":
        word = shlex.quote(handle.id)
        raise ToolError(
            f"handle `{handle.id}` is not a terminal: `keephold logs -f {word}` follows what it prints, "
            f"`keephold send {word}` sends it something",
            code="invalid_arguments",
        )
    if handle.run is None or handle.run.live is None or handle.run.ending or not handle.active:
        raise ToolError(f"handle `{handle.id}` does not run", code="not_running")
    return cast(SupportsScreen, handle.run.live)
