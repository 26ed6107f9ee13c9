"""One client that follows one handle: its output, its state changes, its end.

The client sets the pace. No output is buffered for it: the follower reads by offset when there is room to send more,
and reports a gap if that part was overwritten. A client that watches a screen and falls far behind gets the whole
screen again instead.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle, Watcher
from keephold.tools.base import SupportsScreen
from keephold.turn import attach_protocol as frames
from keephold.turn.settle import printed

if TYPE_CHECKING:
    from keephold.tools.run import Run

CHUNK = 1 << 16
"""Bytes of output in a frame, and how many may wait to be taken by the client."""
_FAR = 1 << 20
"""How many bytes a client that watches a screen may be behind."""


def status_of(handle: Handle, offset: int) -> frames.HandleStatus:
    """Return the handle's state as a frame carries it."""
    timeline = None if handle.output is None else handle.output.timeline
    return frames.HandleStatus(handle.info(), 0 if timeline is None else timeline.started.cols, offset)


class Following(Watcher):
    """Sends the changes of a handle: from an offset of its output on, or from the current screen of its terminal."""

    def __init__(
        self, handle: Handle, writer: asyncio.StreamWriter, since: int = 0, screen: SupportsScreen | None = None
    ) -> None:
        self._handle = handle
        self._writer = writer
        self._offset = since
        self._screen = screen
        self._changed = asyncio.Event()
        self._sent: tuple[object, ...] = ()
        self._run: Run | None = None
        self._closing = False

    async def catch_up(self) -> None:
        """Send the output so far, and the handle's state."""
        handle = self._handle
        await self._send(frames.STATE, status_of(handle, self._offset))
        await self._send_output(printed(handle))
        await self._send(frames.END, status_of(handle, self._offset))

    async def until_stopped(self) -> None:
        """Send everything, until the handle has stopped. Raises `ToolError` if the runtime is closed first."""
        handle = self._handle
        if self._screen is not None:
            await self._send_screen(self._screen)
        handle.watch(self)
        try:
            while True:
                self._changed.clear()
                self._listen()
                await self._send_state()
                stopped = not handle.active
                await self._send_output(None)
                if stopped:
                    break
                if self._closing:
                    raise ToolError(
                        f"the runtime that ran handle `{handle.id}` was closed; the next one goes on with it",
                        code="runtime_closed",
                    )
                await self._changed.wait()
        finally:
            handle.unwatch(self)
            if self._run is not None:
                self._run.listeners.remove(self._changed.set)
        await self._send(frames.END, status_of(handle, self._offset))

    def close(self) -> None:
        """The runtime is closing: send the rest of the output, and stop."""
        self._closing = True
        self._changed.set()

    # Watcher

    def started(self, handle: Handle) -> None:
        self._changed.set()

    def stopped(self, handle: Handle) -> None:
        self._changed.set()

    def parked(self, handle: Handle) -> None:
        self._changed.set()

    def handle_changed(self, handle: Handle) -> None:
        self._changed.set()

    def _listen(self) -> None:
        if self._run is None and self._handle.run is not None:
            self._run = self._handle.run
            self._run.listeners.append(self._changed.set)

    # Sending

    async def _send_state(self) -> None:
        handle = self._handle
        now = handle.state, handle.parked, handle.driver
        if self._sent != now:
            self._sent = now
            await self._send(frames.STATE, status_of(handle, self._offset))

    async def _send_screen(self, screen: SupportsScreen) -> None:
        self._offset = printed(self._handle)
        await self._send(frames.SCREEN, screen.screen())

    async def _send_output(self, stop: int | None) -> None:
        while (output := self._handle.output) is not None:
            end = output.total if stop is None else min(stop, output.total)
            if self._offset >= end:
                return
            if self._screen is not None and end - self._offset > _FAR:
                await self._send_screen(self._screen)
                continue
            piece = output.read(self._offset, min(self._offset + CHUNK, end))
            self._offset = piece.end
            if piece.missing:
                await self._send(frames.GAP, frames.Gap(piece.missing, piece.end))
            else:
                await self._send(frames.OUTPUT, piece.data)

    async def _send(self, kind: frames.Kind, payload: bytes | msgspec.Struct) -> None:
        self._writer.write(frames.frame(kind, payload))
        await self._writer.drain()
