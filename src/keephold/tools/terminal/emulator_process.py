"""The emulators of a runtime, in a worker process (K6): the native code that programs' output reaches.

The parent is `emulator_worker.py`. Frames are msgpack arrays. The parent sends `[operation, number, …]`, where `number`
names an emulator. This process sends `[0, value]` for a query and `[number, data]` for a terminal's reply to a program.

A shared page says which emulator is being used, so that the parent knows which one crashed the process, and how far
each has been fed, so that most questions for a mode need no query.
"""

import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec

from keephold.tools.terminal.emulator import Emulator, SupportsCells, open_emulator

SLOT = struct.Struct("QQ")
"""One for each emulator: bytes it was fed, and its modes. The first slot has the number of the one in use."""
SLOTS = 4096
ALTERNATE, APPLICATION_KEYS = 1, 2
_SECONDS = 0.25
"""Processor time for one operation, and that an emulator may save up for its output."""
_PER_FRAME, _PER_BYTE, _PER_SECOND = 5e-5, 2e-6, 0.5
"""Processor time that an emulator gains with each piece of output, with each byte of it, and as time passes. Ordinary
output needs a hundredth of it. A program whose output needs more is making the emulator work for its own sake."""


def prepare() -> None:
    """Load the library. If that fails, the process does not start."""
    import pyghostty  # noqa: F401


def serve(receive: Callable[[], bytes | None], send: Callable[[bytes], None]) -> None:
    """Serve frames until the parent is gone. The first one names the descriptor of the shared page."""
    first = receive()
    if first is None:
        return
    number = msgspec.msgpack.decode(first)
    page = mmap.mmap(number, SLOT.size * SLOTS)
    os.close(number)
    decode, encode = msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode
    emulators = _Emulators(page, lambda value: send(encode(value)))
    while (content := receive()) is not None:
        emulators.use(*decode(content))


class _Emulators:
    def __init__(self, page: mmap.mmap, send: Callable[[Any], None]) -> None:
        self._page = page
        self._send = send
        self._known: dict[int, Emulator] = {}
        self._fed: dict[int, int] = {}
        self._saved: dict[int, tuple[float, float]] = {}
        """By emulator: processor time it may use, and when it last used any."""
        self._restoring = False

    def use(self, operation: str, number: int, *given: Any) -> None:
        SLOT.pack_into(self._page, 0, number, 0)
        size = len(given[0]) if operation == "feed" else None
        began, used = self._allowance(number, size), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, max(0.005, began))  # its signal, SIGPROF, kills
        self._use(operation, number, given)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if size is not None:
            self._saved[number] = (began - (time.process_time() - used), time.monotonic())
        if number in self._known and number < SLOTS:
            SLOT.pack_into(self._page, number * SLOT.size, self._fed[number], _modes(self._known[number]))
        SLOT.pack_into(self._page, 0, 0, 0)

    def _allowance(self, number: int, size: int | None) -> float:
        """Return the processor time for an operation; `size` is that of the output it is fed."""
        if size is None:
            return _SECONDS
        now = time.monotonic()
        saved, since = self._saved.get(number, (_SECONDS, now))
        gained = _PER_FRAME + size * _PER_BYTE + (now - since) * _PER_SECOND
        return min(_SECONDS, saved + gained)

    def _use(self, operation: str, number: int, given: tuple[Any, ...]) -> None:
        if operation == "open":
            rows, cols, restored = given
            self._known[number] = open_emulator(rows, cols, lambda data: self._reply(number, data), kind="ghostty")
            self._fed[number] = 0
            if restored:
                self._restoring = True
                self._known[number].feed(restored)
                self._restoring = False
        else:
            emulator = self._known[number]
            match operation:
                case "feed":
                    emulator.feed(given[0])
                    self._fed[number] += len(given[0])
                case "resize":
                    emulator.resize(*given)
                case "close":
                    self._known.pop(number).close()
                    del self._fed[number]
                    self._saved.pop(number, None)
                case "screen":
                    self._send([0, emulator.screen()])
                case "scrollback":
                    self._send([0, emulator.scrollback(*given)])
                case "painted":
                    self._send([0, emulator.painted() if isinstance(emulator, SupportsCells) else b""])
                case "modes":
                    self._send([0, _modes(emulator)])

    def _reply(self, number: int, data: bytes) -> None:
        if not self._restoring:  # the program has had these replies
            self._send([number, data])


def _modes(emulator: Emulator) -> int:
    return ALTERNATE * emulator.alternate | APPLICATION_KEYS * emulator.application_keys
