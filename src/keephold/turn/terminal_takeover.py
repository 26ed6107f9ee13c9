"""A person at a terminal of this runtime: while they drive it, it has their size and takes what they type.

It is handed back as it was, however they leave.
"""

import asyncio

from keephold.errors import ToolError
from keephold.tools.base import SupportsScreen
from keephold.tools.run import Run
from keephold.turn.attach_protocol import Size

_PIECE = 4096
_AGAIN_SECS = 0.02
"""A program that is slow to read is asked again so soon. Nothing tells when it has read."""
_UNREAD = 1 << 20
"""Bytes typed, or pasted, that wait for the program; more are dropped, as a terminal does."""
_LARGEST = Size(500, 1000)


class Driving:
    """Entered when the person takes over, left when they go."""

    def __init__(self, run: Run, live: SupportsScreen) -> None:
        self._run = run
        self._live = live
        self._unread = bytearray()
        self._again: asyncio.TimerHandle | None = None
        screen = live.screen()
        self._before = Size(screen.rows, screen.cols)

    def __enter__(self) -> "Driving":
        self._run.drive(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._again is not None:
            self._again.cancel()
        try:
            self.resize(self._before)
        finally:
            self._run.drive(False)

    def resize(self, size: Size) -> None:
        """Give the terminal this size; 0 is none."""
        if size.rows > 0 and size.cols > 0:
            self._live.resize(min(size.rows, _LARGEST.rows), min(size.cols, _LARGEST.cols))

    def type(self, data: bytes) -> None:
        """Let the program have it, as fast as it reads. A key that interrupts it does not stand in line."""
        if self._unread and self._live.interrupts(data):
            self._unread.clear()
            if self._again is not None:
                self._again.cancel()
                self._again = None
        if len(self._unread) + len(data) <= _UNREAD:
            self._unread += data
        if self._again is None:
            self._pass_on()

    def _pass_on(self) -> None:
        self._again = None
        while self._unread:
            try:
                self._live.type(bytes(self._unread[:_PIECE]))
            except ToolError as error:
                if error.code == "input_not_read":
                    self._again = asyncio.get_running_loop().call_later(_AGAIN_SECS, self._pass_on)
                else:  # it has ended, and takes nothing any more
                    self._unread.clear()
                return
            del self._unread[:_PIECE]
