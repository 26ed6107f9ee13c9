"""One client that follows one handle: what it printed and prints, how its state changes, how it ended.

The client sets the pace. Between two frames nothing of the output is held for it: it is read by offset when there is
room to send more, and what is gone by then is told as a gap. Whoever watches a screen and falls far behind is shown the
screen anew instead: what has scrolled by is of no use there.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from keephold.errors import ToolError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.state import Pending
from keephold.tools.base import SupportsScreen
from keephold.turn import attach_protocol as frames
from keephold.turn.settle import printed

if TYPE_CHECKING:
    from keephold.tools.run import Run

CHUNK = 1 << 16
"""Bytes of output in a frame, and how many may wait to be taken by the client."""
_FAR = 1 << 20
"""Whoever watches a screen is not to be further behind than this."""
_LOOK_SECS = 0.1
"""Nothing tells when a queued call starts. While somebody follows one, it is looked at so often."""


def told(handle: Handle, offset: int) -> frames.HandleStatus:
    """How the handle is."""
    timeline = None if handle.output is None else handle.output.timeline
    return frames.HandleStatus(handle.info(), 0 if timeline is None else timeline.started.cols, offset)


class Following(Watcher):
    """Sends what happens to a handle: from an offset of its output on, or from what its terminal shows now."""

    def __init__(
        self, handle: Handle, writer: asyncio.StreamWriter, since: int = 0, screen: SupportsScreen | None = None
    ) -> None:
        self._handle = handle
        self._writer = writer
        self._offset = since
        self._screen = screen
        self._news = asyncio.Event()
        self._told: tuple[object, ...] = ()
        self._run: Run | None = None
        self._closing = False

    async def catch_up(self) -> None:
        """Send what is printed by now, and how the handle is."""
        handle = self._handle
        await self._send(frames.STATE, told(handle, self._offset))
        await self._send_output(printed(handle))
        await self._send(frames.END, told(handle, self._offset))

    async def until_stopped(self) -> None:
        """Send everything, until the handle has stopped. Raises `ToolError` if the runtime is closed first."""
        handle = self._handle
        if self._screen is not None:
            await self._send_screen(self._screen)
        handle.watch(self)
        try:
            while True:
                self._news.clear()
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
                await self._more()
        finally:
            handle.unwatch(self)
            if self._run is not None:
                self._run.listeners.remove(self._news.set)
        await self._send(frames.END, told(handle, self._offset))

    async def _more(self) -> None:
        queued = isinstance(self._handle.state, Pending)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECS if queued else None):
                await self._news.wait()

    def close(self) -> None:
        """The runtime is being closed: send what there is, and no more."""
        self._closing = True
        self._news.set()

    # Watcher

    def stopped(self, handle: Handle) -> None:
        self._news.set()

    def parked(self, handle: Handle) -> None:
        self._news.set()

    def handle_changed(self, handle: Handle) -> None:
        self._news.set()

    def _listen(self) -> None:
        if self._run is None and self._handle.run is not None:
            self._run = self._handle.run
            self._run.listeners.append(self._news.set)

    # Sending

    async def _send_state(self) -> None:
        handle = self._handle
        now = handle.state, handle.parked, handle.driver
        if self._told != now:
            self._told = now
            await self._send(frames.STATE, told(handle, self._offset))

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
