"""Connections of slow clients: uvicorn's protocol with time limits.

uvicorn waits without limit for the head and the body of a request, so ten thousand idle connections would lock out
all others. Here a head must arrive within `HEAD_SECS`. The whole body must arrive within `BODY_SECS` and `MIB_SECS` for
each MiB, so a client that sends a byte now and then does not keep its connection.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from keephold.platforms import machine

HEAD_SECS = 10.0
BODY_SECS = 30.0
"""How long a body may take, and the longest pause within it."""
MIB_SECS = 10.0
"""How much longer a body may take for each MiB of it that has arrived: about 100 kB/s."""
_TOO_SLOW = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
_RESERVE = 200
"""Descriptors kept for the store, tools and terminals."""
IDLE_SECS = 75
"""How long a connection may be idle between two requests."""


class SlowClientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for slow clients. `freed` gets connections that no request uses any more."""

    def __init__(self, *args: Any, freed: "Callable[[SlowClientProtocol], None] | None" = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._freed = freed
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = 0.0
        self._received = 0
        """When the body began to arrive, and how many bytes came since; 0 while none is under way."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > machine.most_files() - _RESERVE:
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
