"""Hand the address of a running server over to a new one, for `keephold serve --replace`.

A server on a file listens at a Unix socket that only its user can reach. The new server connects, and the two exchange
packets of JSON:

    new   {"handover": 1, "release": "1.4.0", "schema": 9, "at": ["127.0.0.1", 8420], "drain": 600}
    old   {"handover": 1, "release": "1.3.0", "schema": 9} and its listening sockets, or {"refused": why}
    new   {"ready": true} when it is ready to answer
    old   {"go": true} after it has stopped to accept connections
    new   {"serving": true} before it begins to accept them
    old   {"connections": 3} and connections that no request is using; {"released": true}: calls can be claimed

Only one of the two accepts connections at any time. The queue of connections that nobody has accepted belongs to the
listening sockets, which both have, so no connection is refused. If the new server ends before it has said `serving`,
the old one continues. If the new one says nothing for five seconds, because it is stopped, the old one says
`{"back": true}`, refuses a later `serving`, and continues. After `serving`, the old one has left its address for good:
if the new one dies, it has to be started again like any other server that died.

The first packet of each side is the same in all versions of this protocol. A new server whose schema of the store is
newer would upgrade the store while the old one uses it, so it is refused.

Responses that last end, so that their clients reconnect to the new server. A stream of events and a talk of frames
(`serve/attach_http.py`) watch for the client to leave. The old server tells them that the client has left, so they
finish (`Lasting`). The old server answers its other requests.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keephold.control.remote_talk import TALK
from keephold.errors import ConfigError
from keephold.forking import close_in_children
from keephold.platforms import machine
from keephold.private_file import HANDOVER, is_ours
from keephold.store.sqlite.processes import owners_of
from keephold.store.sqlite.statements import migrations

if TYPE_CHECKING:
    from keephold.serve.server import Front

_log = logging.getLogger("keephold.serve")

PROTOCOL = 1
_SCHEMA = max(migrations())
_LONGEST = 1 << 16
_MOST = 200
"""Descriptors in one packet; Linux takes 253."""
_FIRST_SECS = _SERVING_SECS = 5.0
"""How long the other side may take for its first packet, and the new server to say that it serves."""
_TALK = TALK.lower().encode()


class ConnectionEnded(Exception):
    """The other server has closed the connection, or has died."""


class Channel:
    """The connection of two servers."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection

    @property
    def peer(self) -> tuple[int, int]:
        """The pid and the user of the other server."""
        return machine.peer(self._socket)

    async def send(self, said: dict[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        """Send a packet. Raises `ConnectionEnded`."""
        data, loop = json.dumps(said).encode(), asyncio.get_running_loop()
        while True:
            try:
                socket.send_fds(self._socket, [data], [each.fileno() for each in sockets])
                return
            except BlockingIOError:
                await _ready(self._socket, loop.add_writer, loop.remove_writer)
            except OSError as error:
                raise ConnectionEnded from error

    async def receive(self) -> tuple[dict[str, Any], list[socket.socket]]:
        """Return the next packet, and the sockets that came with it. Raises `ConnectionEnded`."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                received = socket.recv_fds(self._socket, _LONGEST, _MOST, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                await _ready(self._socket, loop.add_reader, loop.remove_reader)
            except OSError as error:
                raise ConnectionEnded from error
        sockets = [close_in_children(socket.socket(fileno=each)) for each in received[1]]
        try:
            said = json.loads(received[0]) if received[0] else None
        except ValueError:
            said = None
        if not isinstance(said, dict):
            _close(sockets)
            raise ConnectionEnded
        return said, sockets

    async def last(self) -> dict[str, Any]:
        """Refuse further packets; return one that has come already. Raises `ConnectionEnded` if there is none."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)  # the other side learns of it when it sends
        said, sockets = await self.receive()
        _close(sockets)
        return said

    def close(self) -> None:
        self._socket.close()


async def _ready(waits: socket.socket, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
    ready = asyncio.Event()
    add(waits, ready.set)
    try:
        await ready.wait()
    finally:
        remove(waits)


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


# The running server


class Successor:
    """The server that has replaced this one."""

    def __init__(self, channel: Channel, pid: int, drain: float) -> None:
        self.pid = pid
        self.drain = drain
        """How many seconds this server may take to finish its work."""
        self._channel = channel
        self._connections: list[socket.socket] = []
        self._told = asyncio.Event()
        self._released = False
        self._telling = asyncio.create_task(self._tell())

    def pass_on(self, connection: socket.socket) -> None:
        """Give it a connection that no request is using."""
        self._connections.append(connection)
        self._told.set()

    def released(self) -> None:
        """Tell it that calls were released."""
        self._released = True
        self._told.set()

    @property
    def busy(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._connections)

    async def _tell(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            if self._released:
                self._released = False
                await self._send({"released": True})
            while self._connections:
                some = self._connections[:_MOST]
                await self._send({"connections": len(some)}, some)
                del self._connections[: len(some)]
                _close(some)

    async def _send(self, said: dict[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        with contextlib.suppress(ConnectionEnded):  # its clients see that, too
            await self._channel.send(said, sockets)

    async def close(self) -> None:
        self._telling.cancel()
        await asyncio.gather(self._telling, return_exceptions=True)
        _close(self._connections)
        self._channel.close()


class Offer:
    """Offers the address of this server to a new one."""

    def __init__(self, path: str, front: "Front") -> None:
        self.taken: asyncio.Future[Successor] = asyncio.get_running_loop().create_future()
        """The server that has replaced this one."""
        self._path = path
        self._front = front
        self._to: int | None = None
        """The pid of the server that is about to replace this one."""
        self._socket = close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._socket.setblocking(False)
        _remove(path)
        self._socket.bind(path)
        Path(path).chmod(0o600)
        self._socket.listen()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run(self._accept())

    def _run(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            self._run(self._serve(Channel(connection)))

    async def _serve(self, channel: Channel) -> None:
        successor = None
        try:
            async with asyncio.timeout(_FIRST_SECS):
                asked, _ = await channel.receive()
            pid, user = channel.peer
            refusal = self._refusal(asked, user)
            if refusal is not None:
                await channel.send(refusal)
            elif await self._hand_over(channel, pid):
                successor = Successor(channel, pid, float(asked["drain"]))
                self.taken.set_result(successor)
        except (ConnectionEnded, TimeoutError):
            pass
        finally:
            if successor is None:
                channel.close()

    def _refusal(self, asked: dict[str, Any], user: int) -> dict[str, Any] | None:
        if user != os.geteuid():
            return {"refused": "it belongs to another user"}
        if asked.get("handover") != PROTOCOL:
            return {"refused": _differs(asked, "hand over in different ways", PROTOCOL, "handover")}
        if asked.get("schema") != _SCHEMA:
            return {"refused": _differs(asked, "write different schemas to the store", _SCHEMA, "schema")}
        at = list(self._front.listening[0].getsockname()[:2])
        if asked.get("at") != at:
            return {"elsewhere": at}
        if not isinstance(asked.get("drain"), int | float):  # known to be good before anything changes here
            return {"refused": "`drain` must be a number of seconds"}
        if self._to is not None:
            return {"refused": f"another `keephold serve --replace` (pid {self._to}) is replacing it"}
        return None

    async def _hand_over(self, channel: Channel, pid: int) -> bool:
        """Return whether the other server has this one's place. If it ends before, this one continues."""
        self._to = pid
        try:
            await channel.send(_hello(), self._front.listening)
            await channel.receive()  # without a limit: until the other is ready, nothing changes here
            await self._release_address(channel)
        except ConnectionEnded:
            self._to = None
            _log.warning("pid %d was about to replace this server and has ended or stopped; this server continues", pid)
            return False
        return True

    async def _release_address(self, channel: Channel) -> None:
        self._front.pause()
        try:
            await channel.send({"go": True})
            try:
                async with asyncio.timeout(_SERVING_SECS):
                    await channel.receive()
            except TimeoutError:
                await self._take_back(channel)
        except ConnectionEnded:
            await self._front.resume()
            raise

    async def _take_back(self, channel: Channel) -> None:
        """Take the address back from a server that does not serve.

        Raises `ConnectionEnded`, unless that has just begun to.
        """
        try:
            await channel.last()
        except ConnectionEnded:
            await channel.send({"back": True})
            raise

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        _remove(self._path)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _hello() -> dict[str, Any]:
    return {"handover": PROTOCOL, "release": version("keephold"), "schema": _SCHEMA}


def _differs(said: dict[str, Any], how: str, mine: int, field: str) -> str:
    return (
        f"the running keephold {version('keephold')} and the new {said.get('release', '?')} {how}: {mine} and "
        f"{said.get(field, '?')}. Stop the running one, then start the new one"
    )


# The new server


class Predecessor:
    """The running server, which this one replaces."""

    def __init__(self, channel: Channel, listening: list[socket.socket], pid: int) -> None:
        self.listening = listening
        self.pid = pid
        self._channel = channel

    async def gone(self) -> None:
        """Say that this server is ready, and return when the other one accepts no more connections. If it has died, its
        sockets are here. Raises `ConfigError` if this one was stopped too long, and the other has taken them back."""
        with contextlib.suppress(ConnectionEnded):
            await self._channel.send({"ready": True})
            await self._channel.receive()
            try:
                await self._channel.send({"serving": True})
            except ConnectionEnded:
                said, _ = await self._channel.receive()
                if "back" in said:
                    at = self.listening[0].getsockname()[:2]
                    raise _cannot(at, f"pid {self.pid} has waited {_SERVING_SECS:g} s for this one") from None

    async def follow(self, adopt: Callable[[socket.socket], Awaitable[None]], claim: Callable[[], None]) -> None:
        """Take over the other one's connections, and `claim` the calls that it releases, until it has ended."""
        with contextlib.suppress(ConnectionEnded):
            while True:
                said, connections = await self._channel.receive()
                for each in connections:
                    await adopt(each)
                if "released" in said:
                    claim()
        claim()  # what it released when it closed

    def close(self) -> None:
        self._channel.close()
        _close(self.listening)


async def predecessor(store: Path, at: tuple[str, int], drain: float) -> Predecessor | None:
    """Find the server on this store that listens at that address, and reserve its place; None if there is none. Raises
    `ConfigError` if it cannot be replaced."""
    if not machine.replaces_servers:
        raise ConfigError(["`--replace` needs Linux; stop the other server, and start this one without `--replace`"])
    try:
        bells = owners_of(store).bells()
    except OSError:
        return None
    for bell in bells:
        path = bell + HANDOVER
        if is_ours(path):
            found = await _asked(path, at, drain)
            if found is not None:
                return found
    return None


async def _asked(path: str, at: tuple[str, int], drain: float) -> Predecessor | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(connection)
    try:
        async with asyncio.timeout(_FIRST_SECS):
            await asyncio.get_running_loop().sock_connect(connection, path)
            await channel.send({**_hello(), "at": list(at), "drain": drain})
            said, listening = await channel.receive()
    except TimeoutError:
        channel.close()
        raise _cannot(at, "it does not answer; it may be stopped or busy") from None
    except (OSError, ConnectionEnded):  # it has died, or ends
        channel.close()
        return None
    pid = channel.peer[0]
    if listening:
        return Predecessor(channel, listening, pid)
    channel.close()
    if "elsewhere" in said and said["elsewhere"][1:] != [at[1]]:
        return None
    host = said["elsewhere"][0] if "elsewhere" in said else None
    why = said.get("refused") if host is None else f"it listens at {host}, so give --host {host}"
    raise _cannot(at, f"pid {pid}: {why}")


def _cannot(at: tuple[str, int], why: str) -> ConfigError:
    return ConfigError([f"the server at {at[0]}:{at[1]} cannot be replaced ({why})"])


# Responses that last


class Lasting:
    """The outermost layer: it knows which responses last."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._over = False
        self._open: set[_Response] = set()

    def end(self) -> None:
        """End the responses that last, now and from now on."""
        self._over = True
        for response in self._open:
            response.over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A POST of MCP is answered by its stream.
        if scope["type"] != "http" or not (scope["method"] == "GET" or scope["path"].endswith("/talk")):
            await self._app(scope, receive, send)
            return
        response = _Response(self._begun, receive, send)
        try:
            await self._app(scope, response.receive, response.send)
            await response.finish()
        finally:
            self._open.discard(response)

    def _begun(self, response: "_Response") -> None:
        self._open.add(response)
        if self._over:
            response.over.set()


class _Response:
    def __init__(self, begun: "Callable[[_Response], None]", receive: Receive, send: Send) -> None:
        """`begun` is called if it is a response that lasts."""
        self._begun = begun
        self._receive = receive
        self._send = send
        self._done = False
        self.over = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            if headers.get(b"content-type", b"").startswith(b"text/event-stream") or _TALK in headers:
                self._begun(self)
        elif not message.get("more_body"):
            self._done = True
        await self._send(message)

    async def receive(self) -> Message:
        getting = asyncio.ensure_future(self._receive())
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait((getting, over), return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else {"type": "http.disconnect"}
        finally:
            over.cancel()
            getting.cancel()

    async def finish(self) -> None:
        """Send the end of a response that was ended."""
        if self.over.is_set() and not self._done:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
