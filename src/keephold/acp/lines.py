"""Read and write lines over any file descriptors: pipes, sockets, terminals, regular files.

Nothing here blocks the event loop. Other programs may share the descriptors (a shell's terminal, a log), so their flags
stay as they are: reading asks the kernel first, and writing uses an open file description of its own where the kernel
makes one.
"""

import asyncio
import errno
import os
import select
import socket
import stat
from collections.abc import Callable

from keephold.platforms import machine

_PIECE = 256 * 1024
"""Bytes that are read or written at once."""
_REST = 64
"""Pieces that are read after writing has failed: more than a pipe or a socket holds."""
_FLAGS = int(getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0))  # macOS lacks the second
HEAD = 1024
"""Bytes of an overlong line that are reported."""
LOW = 256 * 1024
"""Bytes that may wait to be written while `drain` returns."""


class LineReader:
    """Call `line` with each line without its end, in order; `too_long` gets the first bytes of an overlong line
    instead.

    `ended` is called once with the reason why no more lines come: "" for the end of input.
    """

    def __init__(
        self,
        fd: int,
        *,
        limit: int,
        line: Callable[[bytes], None],
        too_long: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self._fd = fd
        self._limit = limit
        self._line, self._too_long, self._ended = line, too_long, ended
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._polled = True

    def start(self) -> None:
        self._reading = True
        try:
            self._loop.add_reader(self._fd, self._read)
        except PermissionError:  # a regular file, which is always ready
            self._polled = False
            self._loop.call_soon(self._read)

    def stop(self) -> None:
        """Stop reading; `ended` is not called."""
        if self._reading:
            self._reading = False
            if self._polled:
                self._loop.remove_reader(self._fd)

    def _read(self) -> None:
        if not self._reading:
            return
        try:
            piece = os.read(self._fd, _PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            # A terminal whose other end has closed answers EIO: the end of input.
            self._end("" if error.errno == errno.EIO else str(error.strerror))
            return
        if not piece:
            self._end("")
            return
        self._take(piece)
        if not self._polled and self._reading:
            self._loop.call_soon(self._read)

    def rest(self) -> None:
        """Read the bytes that are available now."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        for _ in range(_REST):
            if not self._reading or not poll.poll(0):
                return
            self._read()

    def _end(self, why: str) -> None:
        if self._parts and not self._skipping:
            self._take(b"\n")  # a last line needs no end
        if self._reading:
            self.stop()
            self._ended(why)

    def _take(self, piece: bytes) -> None:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._add(line)
            if self._skipping:
                self._too_long(b"".join(self._parts)[:HEAD])
            else:
                self._line(line if len(self._parts) == 1 else b"".join(self._parts))
            self._parts, self._size, self._skipping = [], 0, False
            if not self._reading:  # the callback has stopped the reader
                return
        if rest:
            self._add(rest)

    def _add(self, part: bytes) -> None:
        """Add a part to the current line. Only the head of an overlong line is kept."""
        self._size += len(part)
        if self._skipping:
            return
        self._parts.append(part)
        if self._size > self._limit:
            self._skipping = True
            self._parts = [b"".join(self._parts)[:HEAD]]


class LineWriter:
    """Write in the order of the calls, at once if the other side takes it, else as soon as it does.

    If more than `most` bytes wait, the other side counts as gone. `lost` is called once with the reason why writing has
    failed; the waiting bytes are dropped.
    """

    def __init__(self, fd: int, *, most: int, lost: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._lost = lost
        self._waiting = bytearray()
        self._polling = False
        self._drained: list[tuple[int, asyncio.Future[None]]] = []
        self.open = True
        self._socket: socket.socket | None = None
        self._own: int | None = None
        self._made_nonblocking = False
        self._fd = self._describe(fd)

    def _describe(self, fd: int) -> int:
        """Return a descriptor for the same file whose writes do not block."""
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
            return self._socket.fileno()
        if not (stat.S_ISFIFO(mode) or os.isatty(fd)) or not os.get_blocking(fd):
            return fd
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._own = machine.reopen(fd, flags)
        except OSError:  # another user's file, or no reader, or this machine cannot: the first write reports it
            os.set_blocking(fd, False)
            self._made_nonblocking = True
            return fd
        return self._own

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes) -> None:
        """Queue the data, or drop it if writing has failed."""
        if not self.open:
            return
        self._waiting += data
        if not self._polling:
            self._flush()
        if len(self._waiting) > self._most:
            self._fail(f"the other side has left {len(self._waiting)} bytes unread")

    async def drain(self, low: int = LOW) -> None:
        """Return when at most `low` bytes wait, or writing has failed."""
        if len(self._waiting) > low:
            waiter = self._loop.create_future()
            self._drained.append((low, waiter))
            await waiter

    def close(self) -> None:
        """Stop writing and drop waiting bytes; `lost` is not called."""
        if not self.open:
            return
        self.open = False
        self._waiting.clear()
        self._poll(False)
        self._wake()
        if self._socket is not None:
            self._socket.close()
        if self._own is not None:
            os.close(self._own)
        if self._made_nonblocking:
            os.set_blocking(self._fd, True)

    def _flush(self) -> None:
        try:
            while self._waiting:
                count = self._write(self._waiting[:_PIECE])
                del self._waiting[:count]
        except (BlockingIOError, InterruptedError):
            self._poll(True)
        except OSError as error:
            self._fail(str(error.strerror))
        else:
            self._poll(False)
        self._wake()

    def _write(self, data: bytearray) -> int:
        if self._socket is not None:
            return self._socket.send(data, _FLAGS)
        return os.write(self._fd, data)

    def _poll(self, wanted: bool) -> None:
        if wanted == self._polling:
            return
        self._polling = wanted
        if wanted:
            self._loop.add_writer(self._fd, self._flush)
        else:
            self._loop.remove_writer(self._fd)

    def _wake(self) -> None:
        if not self._drained:
            return
        still = []
        for low, waiter in self._drained:
            if waiter.done():
                continue
            if len(self._waiting) <= low:
                waiter.set_result(None)
            else:
                still.append((low, waiter))
        self._drained = still

    def _fail(self, why: str) -> None:
        self.close()
        self._lost(why)
