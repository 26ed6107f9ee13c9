"""The runtime's end of the attach protocol: other processes follow output, drive a terminal and send input.

A runtime with a durable store listens on a Unix socket that only its user can reach; the lock file of its owner names
it. An idle socket costs nothing.

A client reads a handle's output by offset and at its own pace. A slow client delays neither the tool nor other clients
and costs one frame of memory; overwritten output is reported as a gap.
"""

import asyncio
import logging
import shlex
import socket
from collections.abc import Collection
from contextlib import aclosing
from pathlib import Path
from typing import cast

import msgspec

from keephold.errors import KeepholdError, ToolError
from keephold.forking import close_in_children
from keephold.handles.handle import Handle
from keephold.handles.registry import Registry
from keephold.handles.state import Waiting
from keephold.store.base import SupportsWhispers
from keephold.text import to_utf8
from keephold.turn import attach_protocol as frames
from keephold.turn.actions import Actions
from keephold.turn.attach_protocol import Size, Want
from keephold.turn.attached import CHUNK, Driver, HandleFollower, driving, recorded, status_of, terminal_of
from keephold.turn.owner_connection import socket_of
from keephold.turn.relayed_streams import Poll, PollAnswer, RelayedStreams
from keephold.turn.settle import printed

_log = logging.getLogger("keephold.turn")

_DEAF = frames.Refused(
    "The process that runs the handle hears no input from other machines at present. Nothing was sent. Try again.",
    "owner_not_answering",
)
_LAST_SECS = 1.0
"""How long closing waits for clients to read the last frames."""


class Streams:
    """The socket of a runtime, and its connected clients."""

    def __init__(self, registry: Registry, actions: Actions) -> None:
        self.registry = registry
        self.actions = actions
        self._server: asyncio.Server | None = None
        self._path = ""
        self._clients: dict[asyncio.Task[None], _Client] = {}
        self._left: set[str] = set()
        """The uids of handles that another process takes over."""
        self._sessions = RelayedStreams()

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
        self._serve(frames.Socket(reader, writer, frames.LONGEST))

    def _serve(self, channel: frames.Channel, want: Want | None = None) -> "asyncio.Task[None]":
        client = _Client(self, channel)
        task = asyncio.get_running_loop().create_task(client.serve(want))
        self._clients[task] = client
        task.add_done_callback(self._gone)
        return task

    def _gone(self, task: "asyncio.Task[None]") -> None:
        """Disconnect a client even if it was never served: a task may be cancelled before it begins."""
        self._clients.pop(task).channel.abort()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection was cut short", exc_info=error)

    async def polled(self, poll: Poll) -> PollAnswer:
        """Return the next frames of a client that has no connection (`turn/relayed_streams.py`)."""
        if poll.want is not None:
            store, types = self.registry.store, poll.want.want in frames.TYPING
            ear = store.ear if types and isinstance(store, SupportsWhispers) else ""
            if types and not ear:
                return PollAnswer([(frames.ERROR, frames.encoded(_DEAF))])
            session = self._sessions.begin(poll.session, ear)
            session.serving = self._serve(session, poll.want)
        return await self._sessions.take(poll.session, poll.sent)

    def handle(self, uid: str) -> Handle:
        """Return a handle that this runtime runs, or has just run."""
        if uid in self._left:
            raise ToolError("another process takes the handle over; ask again", code="runtime_closed")
        handle = self.registry.loaded(uid)
        if handle is None or handle.owner != self.registry.store.owner:
            raise ToolError("the handle is not run here any more; ask again", code="handle_not_found")
        return handle


class _Client:
    """One connection, from its first frame to its end."""

    def __init__(self, streams: Streams, channel: frames.Channel) -> None:
        self._streams = streams
        self.channel = channel
        self.following: HandleFollower | None = None

    async def serve(self, want: Want | None = None) -> None:
        """Serve the client's request, which is its first frame if it is not known, or send why it is refused."""
        try:
            try:
                if want is None:
                    want = await self._wanted()
                if want is not None:
                    await self._do(want)
            except KeepholdError as error:
                await self.channel.send(frames.ERROR, frames.Refused(error.message, error.code))
            await self.channel.close()
        except ConnectionError:  # the client has left
            pass

    async def _wanted(self) -> Want | None:
        if (first := await self.channel.receive()) is None:
            return None
        kind, payload = first
        try:
            want = msgspec.json.decode(payload, type=Want)
        except msgspec.DecodeError as error:
            raise ToolError(f"the first frame does not say what is wanted: {error}", code="invalid_arguments") from None
        if kind != frames.WANT:
            raise ToolError(f"the first frame must be of kind `{frames.WANT}`, not {kind!r}", code="invalid_arguments")
        return want

    async def _do(self, want: Want) -> None:
        handle = self._streams.handle(want.uid)
        match want.want:
            case "read":
                for frame in HandleFollower(handle, want.since, times=want.times).so_far():
                    await self.channel.send(*frame)
            case "follow":
                screen = terminal_of(handle) if want.screen else None
                await self._follow(HandleFollower(handle, want.since, screen, times=want.times), None)
            case "attach":
                with driving(handle) as driver:
                    driver.resize(Size(want.rows, want.cols))
                    await self._follow(HandleFollower(handle, screen=driver.live), driver)
            case "cast":
                for frame in recorded(handle.output, status_of(handle, 0)):
                    await self.channel.send(*frame)
            case "send":
                await self._send(handle, want)

    async def _show(self, following: HandleFollower) -> None:
        async with aclosing(following.until_stopped()) as found:
            async for frame in found:
                await self.channel.send(*frame)

    async def _send(self, handle: Handle, want: Want) -> None:
        state = handle.state
        if isinstance(state, Waiting) and state.question.secret and not want.secret:
            raise ToolError(
                f"the answer to question `{state.question.id}` of handle `{handle.id}` is a secret: "
                f"`keephold send --password {shlex.quote(handle.id)}` reads it without showing it",
                code="bad_answer",
            )
        await self.channel.send(frames.STATE, status_of(handle, printed(handle)))
        received = await self.channel.receive()
        if received is None:  # the client gave up, and sent nothing
            return
        try:
            given = msgspec.json.decode(received[1], type=frames.Given)
        except msgspec.DecodeError as error:
            raise ToolError(f"the second frame is not input to send: {error}", code="invalid_arguments") from None
        send = self._streams.actions.send
        reply = await send(handle, given.input, given.keys, secret=want.secret, answers=want.answers)
        await self.channel.send(frames.REPLY, to_utf8(reply.result))

    async def _follow(self, following: HandleFollower, driver: Driver | None) -> None:
        """Follow until the handle has stopped or the client has left."""
        self.following = following
        sending = asyncio.create_task(self._show(following))
        reading = asyncio.create_task(self._read(driver))
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and driver is not None and isinstance(sending.exception(), ToolError):
                await self._take_last(reading, cast(ToolError, sending.exception()))
            elif sending.done():
                sending.result()
        finally:
            sending.cancel()
            reading.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)

    async def _take_last(self, reading: "asyncio.Task[None]", why: ToolError) -> None:
        """Tell a driver why its connection ends, and read what it has sent before it knew."""
        await self.channel.send(frames.ERROR, frames.Refused(why.message, why.code))
        await asyncio.wait((reading,), timeout=_LAST_SECS)

    async def _read(self, driver: Driver | None) -> None:
        """Read what the client sends, until it leaves. A client that only follows may leave, too."""
        while (received := await self.channel.receive()) is not None:
            match received:
                case frames.INPUT, data if driver is not None:
                    driver.type(data)
                case frames.RESIZE, data if driver is not None:
                    driver.resize(msgspec.json.decode(data, type=Size))
                case frames.DETACH, _:
                    return


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
