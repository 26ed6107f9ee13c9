"""Run the application: a socket, uvicorn in our own loop, slow clients, signals, and an orderly end (R6).

On SIGINT and SIGTERM streams end, waiting calls are answered, and the runtime closes. A second signal exits at once;
the guard ends what is left. SIGHUP reloads the configuration. A server that is replaced (`serve/handover.py`) closes
when its requests and calls have ended.

uvicorn waits without limit for the head and the body of a request, so ten thousand idle connections would lock out
all others. Here a head must arrive within `HEAD_SECS`. The whole body must arrive within `BODY_SECS` and `MIB_SECS` for
each MiB, so a client that sends a byte now and then does not keep its connection.
"""

import asyncio
import contextlib
import errno
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, cast

import h11
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from keephold.errors import ConfigError
from keephold.forking import close_in_children
from keephold.platforms import ENDS, machine
from keephold.serve.handover import Offer, Predecessor, Successor

HEAD_SECS = 10.0
BODY_SECS = 30.0
"""How long a body may take, and the longest pause within it."""
MIB_SECS = 10.0
"""How much longer a body may take for each MiB of it that has arrived: about 100 kB/s."""
_TOO_SLOW = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
_RESERVE = 200
"""Descriptors that are not for connections: they are kept for the store, tools and terminals."""
IDLE_SECS = 75
"""How long a connection may be idle between two requests."""
_log = logging.getLogger("keephold.serve")
_GRACE_SECS = 2
"""How long closing waits for connections to end."""
_BACKLOG = 4096
_LOOK_SECS = 0.2
"""How often a server that was replaced looks whether it has finished."""
_PORTS = 100
"""How many free ports of one address are tried on the other."""


class SlowClientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for slow clients. There are at most `most` connections. `freed` gets those
    that no request uses any more."""

    def __init__(
        self,
        *args: Any,
        most: float = math.inf,
        freed: "Callable[[SlowClientProtocol], None] | None" = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._most = most
        self._freed = freed
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = 0.0
        self._received = 0
        """When the body began to arrive, and how many bytes came since; 0 while none is under way."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
            return
        self._wait(HEAD_SECS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._deadline is None and self.timeout_keep_alive_task is None:  # the next head has begun
                self._wait(HEAD_SECS)
        elif self.cycle.more_body:
            if not self._received:
                self._begun = self.loop.time()
            self._received += len(data)
            whole = BODY_SECS + self._received / (1 << 20) * MIB_SECS
            self._wait(min(BODY_SECS, self._begun + whole - self.loop.time()))
        else:
            self._rest()

    def _wait(self, secs: float) -> None:
        self._rest()
        self._deadline = self.loop.call_later(secs, self._give_up)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.transport is None or self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_started:
            self.transport.abort()
            return
        self._disconnect(cycle)
        head = h11.Response(status_code=408, headers=_TOO_SLOW, reason=b"Request Timeout")
        for event in (head, h11.Data(data=b"the body of the request did not arrive in time\n"), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @staticmethod
    def _disconnect(cycle: RequestResponseCycle) -> None:
        """Make the application believe that the client has left."""
        cycle.disconnected = True
        cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP. If they are in a body, the application must not answer that request, too."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._disconnect(cycle)
            if cycle.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._received = 0
        self._rest()  # uvicorn's own timer closes what stays idle
        super().on_response_complete()
        if self._freed is not None:
            self._freed(self)

    def adopted(self) -> None:
        """The connection comes from another process, and may stay idle as long as it may there."""
        self._wait(IDLE_SECS)

    def detached(self) -> socket.socket | None:
        """Give up the connection and return its socket, which stays open; None if a request uses it."""
        states, transport = (self.conn.our_state, self.conn.their_state), self.transport
        unread, unsent = self.conn.trailing_data[0], transport.get_write_buffer_size()
        if states != (h11.IDLE, h11.IDLE) or unread or unsent or transport.is_closing():
            return None
        connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        transport.abort()  # closes its own descriptor only
        return connection


class CannotListen(ConfigError):
    """The port cannot be had. The cause is the system's error."""


def bound(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a bound socket. It names TCP explicitly: only then does asyncio send replies at once, 40 ms sooner."""
    listening = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = close_in_children(socket.socket(family, kind, socket.IPPROTO_TCP))
        # Windows would let a second program listen on the same port, unless it is taken exclusively.
        listening.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        if address[0] == "::":  # all addresses, also of IPv4
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(address)
        listening.set_inheritable(False)
        listening.listen(_BACKLOG)  # a client that connects at once waits, and is not refused
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        why = error.strerror if isinstance(error, OSError) else "that is not the name of a machine"
        raise CannotListen([f"cannot listen on {host}:{port}: {why}; choose another with {option} PORT"]) from error
    return listening


def address_of(host: str, port: int) -> tuple[str, int]:
    """Return the address that `bound` binds."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    return str(found[0]), int(found[1])


def bound_to_both(host: str, port: int) -> list[socket.socket]:
    """Return sockets of the same port on both loopback addresses, if `host` is one of them or stands for all; else one.

    Browsers resolve names below `.localhost` to both. A program of another user that has the port on the other address
    would get the requests, with their cookies (K9).
    """
    other = {"127.0.0.1": "::1", "0.0.0.0": "::1", "::1": "127.0.0.1"}
    for _ in range(_PORTS):
        first = bound(host, port)
        address = first.getsockname()[0]
        try:
            return [first, bound(other[address], first.getsockname()[1])] if address in other else [first]
        except CannotListen as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                return [first]  # this machine has no such address, so nobody else has it
            first.close()
            if port != 0:
                raise
    raise CannotListen([f"no port is free on both {host} and {other[address]}; choose one with --port PORT"])


class Front:
    """The listening sockets of a server, and its connections."""

    def __init__(self, app: ASGIApp, listening: Sequence[socket.socket]) -> None:
        self.listening = listening
        self._successor: Successor | None = None
        self._made = partial(SlowClientProtocol, most=machine.most_files() - _RESERVE, freed=self._freed)
        # No access log: the path of a completion contains its key (K5). Signals are ours.
        config = uvicorn.Config(
            app,
            access_log=False,
            backlog=_BACKLOG,
            http=cast(Any, self._made),
            log_level="error",
            proxy_headers=False,  # anybody may send these headers, and nothing needs them
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECS,
            timeout_keep_alive=IDLE_SECS,
            ws="none",
        )
        config.load()
        self._config = config
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)

    async def open(self) -> None:
        """Start the application, and accept connections."""
        await self._server.startup(sockets=[each.dup() for each in self.listening])

    async def run(self) -> None:
        """Serve until `stop`."""
        await self._server.main_loop()
        await self._server.shutdown()

    def stop(self) -> None:
        self._server.should_exit = True

    @property
    def busy(self) -> bool:
        """Whether there are connections."""
        return bool(self._server.server_state.connections)

    def pause(self) -> None:
        """Accept no more connections."""
        for server in self._server.servers:
            for each in server.sockets:
                asyncio.get_running_loop().remove_reader(each.fileno())

    async def resume(self) -> None:
        """Accept connections again."""
        loop = asyncio.get_running_loop()
        self._server.servers += [
            await loop.create_server(self._protocol, sock=each.dup(), backlog=_BACKLOG) for each in self.listening
        ]

    def leave(self, successor: Successor) -> None:
        """Give up the connections as soon as no request uses them."""
        self._successor = successor
        for connection in tuple(self._server.server_state.connections):
            self._freed(cast(SlowClientProtocol, connection))

    def close(self) -> None:
        """Close the listening sockets. A connection that is being accepted would be reset, so call it after a while."""
        for listening in self.listening:
            listening.close()
        for server in self._server.servers:
            server.close()

    def _freed(self, connection: SlowClientProtocol) -> None:
        found = None if self._successor is None else connection.detached()
        if found is not None and self._successor is not None:
            self._successor.pass_on(found)

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that another process has accepted."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # its client has left
            _, protocol = await loop.connect_accepted_socket(self._protocol, connection)
            protocol.adopted()

    def _protocol(self) -> SlowClientProtocol:
        state, lifespan = self._server.server_state, self._server.lifespan
        return self._made(self._config, state, lifespan.state)


class Handover(Protocol):
    """How a server takes the place of another one, and leaves its own."""

    path: str | None
    """The socket at which it can be replaced."""
    predecessor: Predecessor | None
    """The server that it replaces."""

    async def begin(self) -> None:
        """It serves."""

    def claim(self) -> None:
        """Resume the calls that the predecessor has released."""

    async def release(self, successor: Successor) -> bool:
        """End streams, and release what the successor can resume. Return whether anything is left. Called until nothing
        is."""


async def serve(
    app: ASGIApp,
    listening: Sequence[socket.socket],
    *,
    close: Callable[[], Awaitable[None]],
    reload: Callable[[], None] | None = None,
    handover: Handover | None = None,
) -> int:
    """Serve until a signal comes or another server has replaced this one, then `close`; return the exit code."""
    try:
        for each in listening:
            each.listen(_BACKLOG)  # two servers that start together can both bind
    except OSError as error:
        raise ConfigError([f"cannot listen on {each.getsockname()[1]}: {error.strerror}"]) from None
    front = Front(app, listening)
    try:
        if handover is not None and handover.predecessor is not None:
            await handover.predecessor.gone()
        with _signals(reload) as signals:
            await front.open()
            serving = asyncio.ensure_future(front.run())
            ending = [serving, asyncio.ensure_future(signals.ended.wait())]
            await _until_replaced(front, handover, ending)
            await close()  # late clients get an answer; to them a refused connection would be an error
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it complains about cut streams
            AppStatus.should_exit = True  # streams of 2025 clients end
            front.stop()
            await serving
            ending[1].cancel()
        return signals.code
    finally:
        for each in listening:
            with contextlib.suppress(OSError):
                each.close()


async def _until_replaced(front: Front, handover: Handover | None, ending: Sequence[asyncio.Future[Any]]) -> None:
    """Return when the server ends, or has been replaced and has finished its work."""
    if handover is None:
        await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        return
    offer = None if handover.path is None or not machine.replaces_servers else Offer(handover.path, front)
    following, successor = None, None
    try:
        if handover.predecessor is not None:
            following = asyncio.create_task(handover.predecessor.follow(front.adopt, handover.claim))
        await handover.begin()
        await asyncio.wait([*ending, *([] if offer is None else [offer.taken])], return_when=asyncio.FIRST_COMPLETED)
        if offer is not None and offer.taken.done():
            successor = offer.taken.result()
            await _drain(front, handover, successor, offer, ending)
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if offer is not None:
            await offer.close()
        if successor is not None:
            await successor.close()


async def _drain(
    front: Front, handover: Handover, successor: Successor, offer: Offer, ending: Sequence[asyncio.Future[Any]]
) -> None:
    """Finish the work of this server, for as long as its successor says."""
    loop = asyncio.get_running_loop()
    until = loop.time() + successor.drain
    front.leave(successor)
    await offer.close()
    _log.warning(
        "pid %d has replaced this server, which ends with its calls, in %g s at most", successor.pid, successor.drain
    )
    while True:
        left = await handover.release(successor)
        if (await asyncio.wait(ending, timeout=_LOOK_SECS, return_when=asyncio.FIRST_COMPLETED))[0]:
            return
        front.close()
        if not (left or front.busy or successor.busy) or loop.time() >= until:
            return


class _Signals:
    """TERM and INT end the server; twice, at once."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.code = 0

    def stop(self, number: int) -> None:
        if self.code:
            os._exit(128 + number)  # second signal: the guard ends what is left
        self.code = 128 + number
        self.ended.set()


@contextlib.contextmanager
def _signals(reload: Callable[[], None] | None) -> Iterator[_Signals]:
    found = _Signals()
    ends = [machine.on_signal(name, found.stop) for name in ENDS]
    if reload is not None:
        ends.append(machine.on_signal("SIGHUP", lambda _: reload()))
    try:
        yield found
    finally:
        for end in ends:
            end()
