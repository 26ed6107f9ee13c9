"""One child process in a terminal of its own, on the running event loop.

As with `Process`, callbacks report output as it comes and, once, the end. When `on_exit` is called, all output of the
leader has been delivered, and no process, descriptor or timer of the call is left.

No input is lost. Input that the terminal does not take yet is kept here. A program that reads lines gets a line that is
longer than the kernel's limit in several reads, without noticing.

We hold the program's side of the terminal open as well, as long as the leader lives. A program may close its terminal
and open it again (/dev/tty), which would look like its end; and only that side can report unread input.

The program starts as from a login: no signal is ignored or blocked and no other descriptor is open.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from keephold.errors import ToolError
from keephold.platforms import BUSY, Look, machine
from keephold.platforms.unix import termios
from keephold.tools.child import UNREAD_LIMIT, input_closed, input_not_read, not_started
from keephold.tools.session import Exit, ProcessSession

_CHUNK = 4096  # a terminal never gives more at once
_AT_ONCE = 16 * 1024  # then others of the loop have their turn; the kernel does not hold more
HOLDS = 16 * 1024
"""The kernel's limit for input that nobody reads."""
_LINE, _SPARE = machine.terminal_line, 16
KEYS_AFTER = 0.1
"""Seconds between a new size and input, and, where single keys are read, between text and keys of one `apply`:
otherwise some programs drop input, or read Enter as part of a paste."""
_CONTROLS = bytes(byte for byte in (*range(0x20), 0x7F) if byte != 0x09)
_IUTF8 = 0o40000  # `termios` has no name for it


class TerminalSide:
    """Our side of a program's terminal: the settings that decide what typing does."""

    @property
    def master(self) -> int | None:
        """Its descriptor; None if it is not open."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    @property
    def echo(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(self._flags() & termios.ECHO)

    @property
    def canonical(self) -> bool:
        """Whether the program gets whole lines; otherwise every key as it is pressed."""
        return bool(self._flags() & termios.ICANON)

    def _flags(self) -> int:
        return 0 if self.master is None else int(termios.tcgetattr(self.master)[3])

    @property
    def eof(self) -> bytes:
        """The character that ends the input in line mode: Ctrl-D, unless the program chose another."""
        return b"\x04" if self.master is None else eof_of(termios.tcgetattr(self.master))

    def send_eof(self) -> None:
        """Type that character."""
        self.write(self.eof)

    def interrupts(self, data: bytes) -> bool:
        """Whether typing this discards input that was typed before and not read."""
        return self.master is not None and interrupt_in(self.master, data) >= 0


class Pty(TerminalSide):
    """A started program. All calls and callbacks are on the loop's thread; no callback comes out of the constructor."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        rows: int,
        cols: int,
        mark: str,
        on_output: Callable[[bytes], None],
        on_exit: Callable[[Exit], None],
        grace: float = 2.0,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Start it, or raise `ToolError`. `env` must carry `mark`; `grace` is for processes that the leader leaves
        behind. `on_sent` is called when input that was kept here has been handed over.
        """
        self._loop = asyncio.get_running_loop()
        self._on_output = on_output
        self._master: int | None = None
        self._slave: int | None = None
        self._unsent = bytearray()
        self._later = b""
        """Keys to press a moment after the text."""
        self._presses: asyncio.TimerHandle | None = None
        self._sent = 0
        self._taken = 0  # bytes that the terminal took since it was last seen empty
        self._line = 0  # bytes of them since the last end of a line
        self._writes_later = False
        self._paused = False
        self._on_sent = on_sent
        try:
            self._master, self._slave = os.openpty()
            os.set_blocking(self._master, False)
            _take_utf8(self._slave)
            self.resize(rows, cols)
            pid, wait = machine.spawn(argv, env, cwd, self._slave)
            self._session = ProcessSession(
                pid,
                wait,
                mark=mark,
                grace=grace,
                on_leader_end=self._leader_ended,
                close_output=self._close_master,
                on_exit=on_exit,
                # A shell ignores the first; a stopped one gets neither of the first two.
                asks=(signal.SIGTERM, signal.SIGHUP, signal.SIGCONT),
                others=self._foreground,
            )
        except (OSError, ValueError) as error:
            self._close_slave()
            self._close_master()
            raise not_started(argv, cwd, error) from error
        self._loop.add_reader(self._master, self._read)

    @property
    def pid(self) -> int:
        """The leader's pid, which is also its process group and its session."""
        return self._session.pid

    @property
    def unsent(self) -> int:
        """Bytes of input that the terminal did not take yet."""
        return len(self._unsent) + len(self._later)

    @property
    def master(self) -> int | None:
        return self._master

    def resize(self, rows: int, cols: int) -> None:
        """Resize the terminal; the program gets SIGWINCH."""
        if self._master is not None:
            termios.tcsetwinsize(self._master, (rows, cols))

    def _foreground(self) -> Iterable[int]:
        try:
            return () if self._master is None else (os.tcgetpgrp(self._master),)
        except OSError:  # the leader has closed its terminal
            return ()

    # Input

    def write(self, data: bytes, cause: bytes = b"", later: bytes = b"") -> None:
        """Type `data`, and `later` 100 ms after it. If the program does not read `data` or has ended, raises
        `ToolError`, and nothing was written. Only a keeper needs the `cause`."""
        self.check_room(data)
        assert self._master is not None
        interrupt = interrupt_in(self._master, data)
        if interrupt >= 0:
            data = data[interrupt:]
            self._take_back()
        self._sent += len(data)
        self._unsent += data
        if not self._writes_later:
            self._flush()
        if later:
            self._later = later
            self._presses = self._loop.call_later(KEYS_AFTER, self.press)

    @property
    def typing(self) -> bool:
        """Whether keys are still to be pressed after the text of the last input."""
        return bool(self._later)

    def press(self) -> None:
        """Press the keys that are due."""
        if keys := self._drop_keys():
            with contextlib.suppress(ToolError):  # there was room for them, or the program is gone
                self.write(keys)
            self._on_sent()

    def _drop_keys(self) -> bytes:
        keys, self._later = self._later, b""
        if self._presses is not None:
            self._presses.cancel()
            self._presses = None
        return keys

    def check_room(self, data: bytes) -> None:
        """Raise the error that writing this would raise (C6)."""
        if self._slave is None or self._master is None:
            raise input_closed()
        if interrupt_in(self._master, data) >= 0:
            return  # it makes room itself
        more = len(data)
        if not self._unsent and not machine.has_input(self._slave):
            self._taken = 0
        unread = len(self._unsent) + min(self._taken, HOLDS)
        if unread + more > UNREAD_LIMIT:
            raise input_not_read(unread, more)

    def _take_back(self) -> None:
        assert self._slave is not None
        self._unsent.clear()
        self._taken = self._line = 0
        termios.tcflush(self._slave, termios.TCIFLUSH)

    def _flush(self) -> None:
        assert self._master is not None
        while self._unsent:
            attributes = termios.tcgetattr(self._master)
            piece, push = self._next_piece(attributes)
            try:
                count = os.write(self._master, piece + push)
            except BlockingIOError:
                break
            written = piece[:count]
            self._taken += len(written)
            self._line = 0 if count > len(piece) else self._line_after(written, attributes)
            del self._unsent[: len(written)]
        if bool(self._unsent) != self._writes_later:
            self._writes_later = bool(self._unsent)
            if self._writes_later:
                self._loop.add_writer(self._master, self._flush)
            else:
                self._loop.remove_writer(self._master)
                self._on_sent()

    def _next_piece(self, attributes: Sequence[Any]) -> tuple[bytes, bytes]:
        """Return the next bytes to write, with an end of input inserted that makes the reader take a long line in
        parts.

        That character does not end the input inside a line: the reader gets the bytes so far, and reads again.
        """
        if not attributes[3] & termios.ICANON:
            return bytes(self._unsent[:_CHUNK]), b""
        piece = bytes(self._unsent[: max(_LINE - self._line, _SPARE)])
        ends = _last_end(piece, attributes)
        if ends >= 0:
            return piece[: ends + 1], b""
        if len(piece) == len(self._unsent) and self._line + len(piece) <= _LINE:
            return piece, b""
        # A control character may erase the characters before it, and then this would end the input after all.
        text = piece.rstrip(_CONTROLS)
        return (text, eof_of(attributes)) if text else (piece, b"")

    def _line_after(self, written: bytes, attributes: Sequence[Any]) -> int:
        """Return the number of bytes in the unfinished line."""
        if not attributes[3] & termios.ICANON:
            return 0
        ends = _last_end(written, attributes)
        return self._line + len(written) if ends < 0 else len(written) - ends - 1

    # Output

    def _read(self) -> None:
        """Read in turns with others of the loop, and deliver at once."""
        assert self._master is not None
        parts, size, closed = [], 0, False
        try:
            while size < _AT_ONCE and not closed:
                data = os.read(self._master, _CHUNK)
                parts.append(data)
                size += len(data)
                closed = not data
        except BlockingIOError:
            pass
        except OSError:  # EIO: no process has the terminal open any more
            closed = True
        if closed:
            self._close_master()
        if size:
            self._on_output(b"".join(parts))
        if closed:
            self._session.output_ended()

    def pause(self) -> None:
        """Stop reading: a program that prints more than the kernel holds waits. Not after the leader's end."""
        if self._master is not None and self._session.exit is None:
            self._paused = True
            self._loop.remove_reader(self._master)

    def resume(self) -> None:
        if self._master is not None and self._paused:
            self._paused = False
            self._loop.add_reader(self._master, self._read)

    def look(self) -> Look:
        """Whether the program waits for input, as it is right now."""
        if self._master is None or self._slave is None or self._unsent:
            return BUSY
        return machine.look(self._master, self._slave, self.pid)

    def probe(self) -> Look:
        """Like `probe`, but a Look. Earlier output is delivered first, so a listener has seen it."""
        found, sent = self.look(), self._sent
        if found.reader is not None and self._master is not None:
            self._read()
            if self._sent != sent:  # its output was answered at once
                return BUSY
        return found

    # The end

    def end(self, grace: float) -> None:
        """Begin to end it (C7): signals to its group and to the foreground's, SIGKILL after `grace` seconds."""
        self._drop_keys()
        self._session.end(grace)

    def _leader_ended(self) -> None:
        self._close_slave()
        self.resume()
        if self._master is None:
            self._session.output_ended()
        else:
            self._read()

    def _close_slave(self) -> None:
        if self._slave is not None:
            os.close(self._slave)
            self._slave = None
        self._drop_keys()
        self._unsent.clear()
        if self._writes_later and self._master is not None:
            self._loop.remove_writer(self._master)
        self._writes_later = False

    def _close_master(self) -> None:
        if self._master is not None:
            self._loop.remove_reader(self._master)
            self._loop.remove_writer(self._master)
            os.close(self._master)
            self._master = None


def interrupt_in(master: int, data: bytes) -> int:
    """Return the position of a key that interrupts the program, or -1.

    Such a key discards all input before it that was not read yet, as at any terminal.
    """
    *_, flags, _, _, characters = termios.tcgetattr(master)
    if not flags & termios.ISIG or flags & termios.NOFLSH:
        return -1
    keys = (characters[each] for each in (termios.VINTR, termios.VQUIT, termios.VSUSP))
    return max((data.rfind(key) for key in keys if key != b"\0"), default=-1)


def _take_utf8(terminal: int) -> None:
    """Tell the terminal that characters may have several bytes: a backspace erases all of them."""
    attributes = termios.tcgetattr(terminal)
    attributes[0] |= _IUTF8
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _last_end(data: bytes, attributes: Sequence[Any]) -> int:
    """Return the position of the last line end in the typed input, or -1."""
    returns = data.rfind(b"\r") if attributes[0] & termios.ICRNL else -1
    return max(data.rfind(b"\n"), data.rfind(eof_of(attributes)), returns)


def eof_of(attributes: Sequence[Any]) -> bytes:
    """Return the character that ends the input in line mode."""
    character: bytes = attributes[6][termios.VEOF]
    return b"\x04" if character == b"\0" else character
