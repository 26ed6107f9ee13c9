"""Connections that take their time: who opens one and does not say what it wants is not waited for.

uvicorn waits for ever for the head of a request and for its body. Ten thousand such connections would keep everybody
else out; here each has `HEAD_SECS` for a head, and after that must go on sending its body.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECS = 10.0
BODY_SECS = 30.0
"""How long nothing may come of a body that was announced."""
_RESERVE = 200
"""Descriptors for everything that is not a connection: the store, tools, terminals."""


class Patient(H11Protocol):
    """uvicorn's protocol, with limits to its patience."""

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
    """Let this process have as many descriptors as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _most_connections() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVE
