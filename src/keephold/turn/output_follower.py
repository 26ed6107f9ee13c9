"""One client that follows one handle: its output, its state changes, its end.

The client sets the pace. No output is buffered for it: the follower reads by offset when there is room to send more,
and reports a gap if that part was overwritten. A client that watches a screen and falls far behind gets the whole
screen again instead.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator

from keephold.errors import ToolError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.output import Output
from keephold.tools.base import SupportsScreen
from keephold.turn import attach_protocol as frames
from keephold.turn.attach_protocol import Frame
from keephold.turn.settle import printed

CHUNK = 1 << 16
"""Bytes of output in a frame, and how many may wait to be taken by the client."""
_FAR = 1 << 20
"""How many bytes a client that watches a screen may be behind."""


class Pieces:
    """Reads an output a frame at a time, from an offset on; with `times`, also when it was printed."""

    def __init__(self, offset: int, *, times: bool) -> None:
        self.offset = offset
        self._times = times
        self._at: float | None = None

    def read(self, output: Output, end: int) -> Iterator[Frame]:
        """Yield the next piece before `end`."""
        end = min(end, self.offset + CHUNK)
        if self._times and output.timeline is not None and (known := output.timeline.when(self.offset)) is not None:
            at, holds_to = known
            end = min(end, holds_to)
            if at != self._at:
                self._at = at
                yield frames.TIME, frames.PrintedAt(at)
        piece = output.read(self.offset, end)
        self.offset = piece.end
        yield (frames.GAP, frames.Gap(piece.missing, piece.end)) if piece.missing else (frames.OUTPUT, piece.data)


def status_of(handle: Handle, offset: int) -> frames.HandleStatus:
    """Return the handle's state as a frame carries it."""
    timeline = None if handle.output is None else handle.output.timeline
    return frames.HandleStatus(handle.info(), 0 if timeline is None else timeline.started.cols, offset)


class Following(Watcher):
    """Yields the changes of a handle: from an offset of its output on, or from the current screen of its terminal."""

    def __init__(
        self, handle: Handle, since: int = 0, screen: SupportsScreen | None = None, *, times: bool = False
    ) -> None:
        self.handle = handle
        self._pieces = Pieces(since, times=times)
        self._screen = screen
        self._changed = asyncio.Event()
        self._sent: tuple[object, ...] = ()
        self._closing = False

    async def so_far(self) -> AsyncGenerator[Frame, None]:
        """Yield the output so far, and the handle's state."""
        handle = self.handle
        yield frames.STATE, status_of(handle, self._pieces.offset)
        for frame in self._output(printed(handle)):
            yield frame
        yield frames.END, status_of(handle, self._pieces.offset)

    async def until_stopped(self) -> AsyncGenerator[Frame, None]:
        """Yield everything until the handle has stopped. Raises `ToolError` if the runtime is closed first."""
        handle = self.handle
        if self._screen is not None:
            yield self._whole_screen(self._screen)
        handle.watch(self)
        try:
            while True:
                self._changed.clear()
                now = handle.state, handle.parked, handle.driver, handle.ready
                if self._sent != now:
                    self._sent = now
                    yield frames.STATE, status_of(handle, self._pieces.offset)
                stopped = not handle.active
                for frame in self._output(None):
                    yield frame
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
        yield frames.END, status_of(handle, self._pieces.offset)

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

    def printed(self, handle: Handle) -> None:
        self._changed.set()

    def became_ready(self, handle: Handle) -> None:
        self._changed.set()

    def _whole_screen(self, screen: SupportsScreen) -> Frame:
        self._pieces.offset = printed(self.handle)
        return frames.SCREEN, screen.screen()

    def _output(self, stop: int | None) -> Iterator[Frame]:
        """Read what follows the offset, a frame at a time: the client may take long between two frames."""
        while (output := self.handle.output) is not None:
            end = output.total if stop is None else min(stop, output.total)
            if self._pieces.offset >= end:
                return
            if self._screen is not None and end - self._pieces.offset > _FAR:
                yield self._whole_screen(self._screen)
                continue
            yield from self._pieces.read(output, end)
