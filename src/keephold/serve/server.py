"""Run the application: a socket, uvicorn in our own loop, signals, and an orderly end (R6).

On SIGINT and SIGTERM streams end, waiting calls are answered, and the runtime closes. A second signal exits at once;
the guard ends what is left. SIGHUP reloads the configuration.

uvicorn waits without limit for the head and the body of a request, so ten thousand idle connections would lock out
all others. Here a head must arrive within `HEAD_SECS`. The whole body must arrive within `BODY_SECS` and `MIB_SECS` for
each MiB, so a client that sends a byte now and then does not keep its connection.
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import h11
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from keephold.errors import ConfigError

HEAD_SECS = 10.0
BODY_SECS = 30.0
"""How long a body may take, and the longest pause within it."""
MIB_SECS = 10.0
"""How much longer a body may take for each MiB of it that has arrived: about 100 kB/s."""
_TOO_SLOW = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
_RESERVE = 200
"""Descriptors kept for the store, tools and terminals."""


class SlowClientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for slow clients."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = 0.0
        self._received = 0
        """When the body began to arrive, and how many bytes came since; 0 while none is under way."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _most_connections():
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


def allow_many() -> None:
    """Raise this process's limit of descriptors to its maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _most_connections() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVE


_GRACE_SECS = 2
"""How long closing waits for connections to end."""
_IDLE_SECS = 75
_BACKLOG = 4096
_PORTS = 100
"""How many free ports of one address are tried on the other."""


class CannotListen(ConfigError):
    """The port cannot be had. The cause is the system's error."""


def bound(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a bound socket. It names TCP explicitly: only then does asyncio send replies at once, 40 ms sooner."""
    listening = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


async def serve(
    app: ASGIApp,
    listening: Sequence[socket.socket],
    *,
    close: Callable[[], Awaitable[None]],
    reload: Callable[[], None] | None = None,
    patient: bool = True,
) -> int:
    """Serve until a signal comes, then `close`; return the exit code."""
    allow_many()
    try:
        for each in listening:
            each.listen(_BACKLOG)  # two servers that start together can both bind
    except OSError as error:
        raise ConfigError([f"cannot listen on {each.getsockname()[1]}: {error.strerror}"]) from None
    stopped: list[int] = []
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def stop(number: int) -> None:
        if stopped:
            os._exit(128 + number)  # second signal: the guard ends what is left
        stopped.append(number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    # No access log: the path of a completion contains its key (K5). Signals are ours.
    config = uvicorn.Config(
        app,
        access_log=False,
        backlog=_BACKLOG,
        http=SlowClientProtocol if patient else "auto",
        log_level="error",
        proxy_headers=False,  # anybody may send these headers, and nothing needs them
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECS,
        timeout_keep_alive=_IDLE_SECS,
        ws="none",
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    serving = asyncio.ensure_future(server._serve(list(listening)))
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        await close()  # late clients get an answer; to them a refused connection would be an error
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it complains about cut streams
        AppStatus.should_exit = True  # streams of 2025 clients end
        server.should_exit = True
        await serving
    finally:
        waiting.cancel()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        for each in listening:
            with contextlib.suppress(OSError):
                each.close()
    return 128 + stopped[0] if stopped else 0
