"""Run the application: a socket, uvicorn in our own loop, signals, and an orderly end (R6).

On SIGINT and SIGTERM streams end, waiting calls are answered, and the runtime closes. A second signal exits at once;
the guard ends what is left. SIGHUP reloads the configuration.

uvicorn waits without limit for the head and the body of a request, so ten thousand idle connections would lock out
all others. Here a head must arrive within `HEAD_SECS`, and then the body must keep coming.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from keephold.errors import ConfigError

HEAD_SECS = 10.0
BODY_SECS = 30.0
"""The longest pause within a body."""
_RESERVE = 200
"""Descriptors kept for the store, tools and terminals."""


class SlowClientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for slow clients."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None

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
            self._wait(BODY_SECS)
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
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def on_response_complete(self) -> None:
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


def bound(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a bound socket. It names TCP explicitly: only then does asyncio send replies at once, 40 ms sooner."""
    listening = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.set_inheritable(False)
        listening.listen(_BACKLOG)  # a client that connects at once waits, and is not refused
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        why = error.strerror if isinstance(error, OSError) else "that is no name of a machine"
        raise ConfigError([f"cannot listen on {host}:{port}: {why}; choose another with {option} PORT"]) from None
    return listening


async def serve(
    app: ASGIApp,
    listening: socket.socket,
    *,
    close: Callable[[], Awaitable[None]],
    reload: Callable[[], None] | None = None,
    patient: bool = True,
) -> int:
    """Serve until a signal comes, then `close`; return the exit code."""
    allow_many()
    try:
        listening.listen(_BACKLOG)  # two servers that start together can both bind
    except OSError as error:
        raise ConfigError([f"cannot listen on {listening.getsockname()[1]}: {error.strerror}"]) from None
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
    serving = asyncio.ensure_future(server._serve([listening]))
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
        with contextlib.suppress(OSError):
            listening.close()
    return 128 + stopped[0] if stopped else 0
