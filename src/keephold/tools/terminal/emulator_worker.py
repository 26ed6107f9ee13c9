"""Emulators in a worker process (K6): programs' output reaches native code there, and not in the runtime.

All emulators of an event loop share one process. Feeding and resizing do not wait for it: a terminal whose process is
behind is not read for a while. A question for the screen waits. If the process dies, the terminal that it was working
for is lost: its program's output has crashed the emulator. The others continue in a new process, which is fed their
kept output again.
"""

import asyncio
import contextlib
import logging
import mmap
import os
import select
import socket
import weakref
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import msgspec

from keephold.platforms import machine
from keephold.tools.base import Screen
from keephold.tools.terminal.emulator_process import ALTERNATE, APPLICATION_KEYS, SLOT, SLOTS
from keephold.tools.terminal.lines import LineEmulator
from keephold.worker import WorkerProcess
from keephold.worker_process import HEADER

_log = logging.getLogger("keephold.tools")

_MEMORY = 8 << 30
_START_SECS, _STUCK_SECS = 60.0, 30.0
"""How long the process may take to start, and to answer or take anything after that, before it is
killed. Only a starved process takes so long: the limit of processor time is the kernel's."""
_PIECE, _LARGEST = 256 * 1024, 64 << 20
"""Bytes that are received at once, and those of the largest frame."""
_BACKLOG = 16 * 1024
"""Bytes that may be unsent, and as many sent. A program that prints more waits for its emulator, because a question for
the screen waits until all of them are shown: hostile ones take two microseconds each."""
_TOO_MUCH = 4 << 20
"""Unsent bytes for which the loop waits: terminals are fed that should not be."""

_hosts: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, EmulatorHost]" = weakref.WeakKeyDictionary()


def host() -> "EmulatorHost | None":
    """Return the host of the running loop; None without a loop, or if the emulator is not installed."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    found = _hosts.get(loop)
    if found is None and find_spec("pyghostty") is not None:
        found = _hosts[loop] = EmulatorHost(loop)
    return found


class _Died(Exception):
    """The process is gone."""


class WorkerEmulator:
    """One emulator in the process (`Emulator`, `SupportsCells`)."""

    def __init__(
        self,
        host: "EmulatorHost",
        rows: int,
        cols: int,
        reply: Callable[[bytes], None],
        kept: Callable[[], bytes],
        lost: Callable[[], None],
    ) -> None:
        self._host = host
        self.number = 0
        self.rows, self.cols = rows, cols
        self.reply = reply
        self.kept = kept
        """Returns the last output, from which it is restored."""
        self.on_lost = lost
        self.fed = 0
        self.modes = 0
        """As they were when they were last known."""
        self.instead: LineEmulator | None = None
        """The lines that are shown after it was lost."""
        host.add(self)

    def feed(self, data: bytes) -> None:
        if self.instead is not None:
            self.instead.feed(data)
        else:
            self._host.feed(self, data)

    @property
    def behind(self) -> bool:
        """Whether the process should get less output."""
        return self.instead is None and self._host.behind

    def when_caught_up(self, call: Callable[[], None]) -> None:
        """Call this when the process is no longer `behind`."""
        self._host.when_caught_up.append(call)

    def resize(self, rows: int, cols: int) -> None:
        self.rows, self.cols = rows, cols
        if self.instead is not None:
            self.instead.resize(rows, cols)
        else:
            self._host.send(self, "resize", rows, cols)

    def screen(self) -> Screen:
        found: Screen | None = self._host.ask(self, "screen", kind=Screen)
        return self.use_lines().screen() if found is None else found

    def scrollback(self, count: int) -> tuple[str, ...]:
        found: tuple[str, ...] | None = self._host.ask(self, "scrollback", count, kind=tuple[str, ...])
        return self.use_lines().scrollback(count) if found is None else found

    def painted(self) -> bytes:
        """Return the bytes that make a new terminal of this size show the same (`SupportsCells`)."""
        found: bytes | None = self._host.ask(self, "painted", kind=bytes)
        return found or b""

    @property
    def alternate(self) -> bool:
        return self._host.modes(self) & ALTERNATE > 0 if self.instead is None else self.instead.alternate

    @property
    def application_keys(self) -> bool:
        return self._host.modes(self) & APPLICATION_KEYS > 0 if self.instead is None else self.instead.application_keys

    def close(self) -> None:
        self._host.remove(self)

    def use_lines(self) -> LineEmulator:
        """Show lines from now on."""
        if self.instead is None:
            self.instead = LineEmulator(self.rows, self.cols, self.reply)
            self.instead.feed(self.kept())
        return self.instead


class EmulatorHost:
    """The process for the emulators of one loop. It runs while an emulator is open or somebody holds it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._holds = 0
        self._known: dict[int, WorkerEmulator] = {}
        self._next = 1
        self._free: list[int] = []
        self._process: WorkerProcess | None = None
        self._page: mmap.mmap
        self._unsent = bytearray()
        self._writing = False
        """Whether the loop waits for room in the socket."""
        self.when_caught_up: list[Callable[[], None]] = []
        self._received = bytearray()
        self._answers: deque[Any] = deque()
        self._replies: deque[tuple[int, bytes]] = deque()
        self._asked = 0
        """The number of the emulator that a query waits for."""
        self._ready = False
        self._why = ""
        """Why the process did not start."""
        self._encode = msgspec.msgpack.Encoder().encode

    @property
    def behind(self) -> bool:
        return len(self._unsent) > _BACKLOG

    def hold(self) -> None:
        """Start the process now, and keep it until `release`."""
        self._holds += 1
        self._try_to_start()

    def release(self) -> None:
        self._holds -= 1
        self._end_if_unused()

    def add(self, emulator: WorkerEmulator) -> None:
        emulator.number = self._free.pop() if self._free else self._next
        self._next += emulator.number == self._next
        self._known[emulator.number] = emulator
        if self._process is not None:
            if emulator.number < SLOTS:
                SLOT.pack_into(self._page, emulator.number * SLOT.size, 0, 0)
            self.send(emulator, "open", emulator.rows, emulator.cols, b"")
        else:
            self._try_to_start()

    def remove(self, emulator: WorkerEmulator) -> None:
        if self._known.pop(emulator.number, None) is not None:
            if self._process is not None and emulator.instead is None:
                self.send(emulator, "close")
            self._free.append(emulator.number)
            self._end_if_unused()

    def modes(self, emulator: WorkerEmulator) -> int:
        """Return an emulator's modes: from the page, if it has been fed everything, else by a query."""
        if emulator.instead is not None or emulator.number not in self._known:
            return 0
        if self._process is not None and emulator.number < SLOTS:
            fed, modes = SLOT.unpack_from(self._page, emulator.number * SLOT.size)
            if fed == emulator.fed:
                emulator.modes = modes
                return emulator.modes
        emulator.modes = self.ask(emulator, "modes", kind=int) or 0
        return emulator.modes

    def send(self, emulator: WorkerEmulator, operation: str, *given: Any) -> bool:
        """Send an operation that has no answer. Return False if the process died: then the emulator was restored as it
        is to be, or is lost."""
        try:
            self._exchange(self._framed((operation, emulator.number, *given)))
        except _Died:
            self._died()
            return False
        return True

    def feed(self, emulator: WorkerEmulator, data: bytes) -> None:
        if self.send(emulator, "feed", data) or (emulator.instead is None and self.send(emulator, "feed", data)):
            emulator.fed += len(data)
        elif emulator.instead is not None:
            emulator.instead.feed(data)

    def ask(self, emulator: WorkerEmulator, operation: str, *given: Any, kind: Any) -> Any:
        """Return the answer to a query, of that type; None if the emulator is lost."""
        while emulator.instead is None and emulator.number in self._known and self._process is not None:
            self._asked = emulator.number
            try:
                self._exchange(self._framed((operation, emulator.number, *given)), answer=True)
                return msgspec.convert(self._answers.popleft(), kind)
            except (_Died, msgspec.ValidationError):
                self._died()
            finally:
                self._asked = 0
        return None

    # The process

    def _try_to_start(self) -> None:
        try:
            self._start()
        except _Died:
            self._died()

    def _start(self) -> None:
        """Start the process, with all emulators. Raises `_Died`."""
        if self._process is not None:
            return
        descriptor, page = -1, None
        try:
            descriptor = machine.shared_memory("keephold-emulators", SLOT.size * SLOTS)
            page = self._page = mmap.mmap(descriptor, SLOT.size * SLOTS)
            self._process = WorkerProcess("keephold.tools.terminal.emulator_process", _MEMORY, 0, (descriptor,))
        except OSError as error:
            if page is not None:
                page.close()
            self._give_up(error)
            return
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self._process.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BACKLOG)
        self._ready = False
        self.loop.add_reader(self._process.socket.fileno(), self._readable)
        self._exchange(self._framed(descriptor))
        for emulator in tuple(self._known.values()):
            if emulator.instead is None:
                restored = _restored(emulator) if emulator.fed else b""
                emulator.fed = 0
                self._exchange(self._framed(("open", emulator.number, emulator.rows, emulator.cols, restored)))

    def _give_up(self, why: object) -> None:
        """Use lines for all terminals: there is no process."""
        level = logging.DEBUG if str(why).startswith(("ImportError", "ModuleNotFoundError")) else logging.ERROR
        _log.log(level, "the terminal emulator's process cannot be started (%s); screens are lines only", why)
        for emulator in self._known.values():
            emulator.use_lines()

    def _end_if_unused(self) -> None:
        if not self._holds and not self._known:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self.loop.remove_reader(process.socket.fileno())
            self.loop.remove_writer(process.socket.fileno())
            process.end()
            self._unsent.clear()
            self._writing = False
            self._caught_up()
            self._page.close()
            self._received.clear()
            self._answers.clear()

    def _died(self) -> None:
        """Lose the emulator that was in use, and restore the others in a new process."""
        if self._process is None:
            return
        with contextlib.suppress(_Died):
            self._receive(self._process.socket)  # it may have started and died before we looked
        ready, culprit = self._ready, SLOT.unpack_from(self._page, 0)[0] or self._asked
        self._end()
        if not ready:
            self._give_up(self._why or "it died")
            return
        _log.error("the terminal emulator's process has died; its terminal ends, the others are restored")
        lost = self._known.get(culprit)
        if lost is not None:
            lost.use_lines()
            self.loop.call_soon(lost.on_lost)
        if self._known or self._holds:
            self._try_to_start()

    # Frames

    def _framed(self, content: Any) -> bytes:
        body = self._encode(content)
        return HEADER.pack(len(body)) + body

    def _exchange(self, frame: bytes, *, answer: bool = False) -> None:
        """Send a frame, now or when there is room. Wait for the answer to a query, and while far too much is unsent.
        Frames are received meanwhile, so that the two processes cannot wait for each other."""
        if self._process is None:
            raise _Died
        self._unsent += frame
        self._flush()
        connection = self._process.socket
        while len(self._unsent) > _TOO_MUCH or (answer and not self._answers):
            poll = select.poll()
            poll.register(connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = poll.poll((_STUCK_SECS if self._ready else _START_SECS) * 1000)
            if not ready:
                raise _Died
            _, events = ready[0]
            if events & ~select.POLLOUT:
                self._receive(connection)
            if events & select.POLLOUT:
                self._flush()
        self._pass_on()

    def _flush(self) -> None:
        """Send as much as there is room for; the rest is sent when there is more."""
        assert self._process is not None
        connection = self._process.socket
        try:
            sent = connection.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            raise _Died from None
        del self._unsent[:sent]
        if self._unsent and not self._writing:
            self.loop.add_writer(connection.fileno(), self._writable)
        elif self._writing and not self._unsent:
            self.loop.remove_writer(connection.fileno())
        self._writing = bool(self._unsent)
        if not self._unsent:
            self._caught_up()

    def _caught_up(self) -> None:
        calls, self.when_caught_up = self.when_caught_up, []
        for call in calls:
            self.loop.call_soon(call)

    def _writable(self) -> None:
        try:
            self._flush()
        except _Died:
            self._died()

    def _readable(self) -> None:
        try:
            assert self._process is not None
            self._receive(self._process.socket)
        except _Died:
            self._died()
        self._pass_on()

    def _receive(self, connection: socket.socket) -> None:
        try:
            piece = connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            raise _Died from None
        if not piece:
            raise _Died
        received = self._received
        received += piece
        while len(received) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(received)[0]
            if end > _LARGEST:
                raise _Died
            if len(received) < end:
                return
            content = bytes(memoryview(received)[HEADER.size : end])
            del received[:end]
            if not self._ready:  # the first frame is empty, or says why it did not start
                self._ready, self._why = not content, content.decode(errors="replace")
            else:
                self._take(content)

    def _take(self, content: bytes) -> None:
        """Take an answer, or a terminal's reply. A frame that is neither comes from a process that was taken over."""
        try:
            frame = msgspec.msgpack.decode(content)
        except (msgspec.DecodeError, RecursionError):
            frame = None
        match frame:
            case [0, value]:
                self._answers.append(value)
            case [int(number), bytes(data)]:
                self._replies.append((number, data))
            case _:
                raise _Died

    def _pass_on(self) -> None:
        """Give the terminals' replies to their programs."""
        while self._replies:
            number, data = self._replies.popleft()
            if number in self._known:
                self._known[number].reply(data)


def _restored(emulator: WorkerEmulator) -> bytes:
    """Return the output that restores an emulator. The modes may have been set before it."""
    modes = (b"\x1b[?1049h" if emulator.modes & ALTERNATE else b"") + (
        b"\x1b[?1h" if emulator.modes & APPLICATION_KEYS else b""
    )
    return modes + emulator.kept()
