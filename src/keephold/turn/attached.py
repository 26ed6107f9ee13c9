"""One client of one handle of this process: `HandleFollower` shows it the handle, with `driving` it drives a terminal.

The client sets the pace. No output is buffered for it: the follower reads by offset when there is room to send more,
and reports a gap if that part was overwritten. A client that watches a screen and falls far behind gets the whole
screen again instead.
"""

import asyncio
import shlex
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import cast

from keephold.errors import ToolError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.output import Output
from keephold.handles.timeline import asciicast
from keephold.text import time_of_day
from keephold.tools.base import SupportsScreen
from keephold.turn import attach_protocol as frames
from keephold.turn.attach_protocol import Frame, Size
from keephold.turn.settle import printed

CHUNK = 1 << 16
"""Bytes of output in a frame, and how many may wait to be taken by the client."""
_FAR = 1 << 20
"""How many bytes a client that watches a screen may be behind."""
_PIECE = 4096
_AGAIN_SECS = 0.02
"""Seconds between two attempts to write to a program that reads slowly. Nothing signals that it has read."""
_UNREAD = 1 << 20
"""Bytes of input that may wait for the program; more are dropped, as a terminal does."""
_LARGEST = Size(500, 1000)


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


def recorded(output: Output | None, status: frames.HandleStatus) -> Iterator[Frame]:
    """Yield the session of a terminal so far, as the lines of an asciicast."""
    if output is None or output.timeline is None or not output.terminal:
        raise ToolError(
            f"handle `{status.handle.id}` is not a terminal, or nothing is kept of its session",
            code="invalid_arguments",
        )
    yield frames.STATE, status
    for line in asciicast(output.timeline, output):
        yield frames.OUTPUT, f"{line}\n".encode()
    yield frames.END, status


class HandleFollower(Watcher):
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

    def so_far(self) -> Iterator[Frame]:
        """Yield the output so far, and the handle's state."""
        handle = self.handle
        yield frames.STATE, status_of(handle, self._pieces.offset)
        yield from self._output(printed(handle))
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
                        f"the runtime that ran handle `{handle.id}` was closed; the next one resumes it",
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

    def _wake(self, handle: Handle) -> None:
        self._changed.set()

    started = stopped = parked = handle_changed = printed = became_ready = _wake

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


class Driver:
    """A user who drives a terminal: while they do, it has the size of theirs and takes what they type."""

    def __init__(self, live: SupportsScreen) -> None:
        self.live = live
        self._unread = bytearray()
        self._again: asyncio.TimerHandle | None = None

    def resize(self, size: Size) -> None:
        """Give the terminal this size; 0 keeps the size."""
        if size.rows > 0 and size.cols > 0:
            self.live.resize(min(size.rows, _LARGEST.rows), min(size.cols, _LARGEST.cols))

    def type(self, data: bytes) -> None:
        """Write input as fast as the program reads. A key that interrupts it is not queued."""
        if self._unread and self.live.interrupts(data):
            self.drop()
        if len(self._unread) + len(data) <= _UNREAD:
            self._unread += data
        if self._again is None:
            self._write_unread()

    def drop(self) -> None:
        """Drop input that the program has not read."""
        self._unread.clear()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _write_unread(self) -> None:
        self._again = None
        while self._unread:
            try:
                self.live.type(bytes(self._unread[:_PIECE]))
            except ToolError as error:
                if error.code == "input_not_read":
                    self._again = asyncio.get_running_loop().call_later(_AGAIN_SECS, self._write_unread)
                else:  # it has ended
                    self._unread.clear()
                return
            del self._unread[:_PIECE]


@contextmanager
def driving(handle: Handle) -> Iterator[Driver]:
    """Let a user drive a terminal; then it gets its old size back. Raises `ToolError` if another user drives it."""
    driver, run = Driver(terminal_of(handle)), handle.run
    assert run is not None
    if handle.driven_since is not None:
        raise ToolError(
            f"somebody has been driving terminal `{handle.id}` since {time_of_day(handle.driven_since)}, and only one "
            f"can; `keephold attach --read-only {shlex.quote(handle.id)}` watches",
            code="driven_by_person",
        )
    before = driver.live.screen()
    handle.driven_since = run.registry.clock.now()
    try:
        run.drive(True)
        yield driver
    finally:
        handle.driven_since = None
        driver.drop()
        try:
            driver.resize(Size(before.rows, before.cols))
        finally:
            run.drive(False)


def terminal_of(handle: Handle) -> SupportsScreen:
    """Return the terminal of a handle. Raises `ToolError` if it has none, or has stopped."""
    if handle.tool.source != "terminal":
        word = shlex.quote(handle.id)
        raise ToolError(
            f"handle `{handle.id}` is not a terminal: `keephold logs -f {word}` follows what it prints, "
            f"`keephold send {word}` sends it something",
            code="invalid_arguments",
        )
    if handle.run is None or handle.run.live is None or handle.run.ending or not handle.active:
        raise ToolError(f"handle `{handle.id}` does not run", code="not_running")
    return cast(SupportsScreen, handle.run.live)
