"""The user's terminal: reads keys and lines, lends itself to the user's editor, and is restored after every prompt.

It is `/dev/tty`, because stdin and stdout carry batches and answers. While taken, it delivers every key at once
without echo, and Ctrl-C is an ordinary key. Nothing here blocks. If the terminal goes away, a read raises `Gone`.
"""

import asyncio
import codecs
import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from keephold.platforms import machine
from keephold.platforms.unix import O_NOCTTY, O_NONBLOCK, termios
from keephold.text import readable, strip_controls, to_utf8
from keephold.tools.environment import inherited

ESCAPE_WAIT = 0.05
"""Seconds after which an escape is the Escape key: a slow line may split the sequence of an arrow key."""
END_GRACE = 2.0
"""Seconds that a borrower has to exit when the prompt is withdrawn."""

_DEVICE = "/dev/tty"
# The terminal is opened again: our own descriptor is non-blocking, which would surprise a program.
_GATE = f'read -r _ && exec "$@" <{_DEVICE} >{_DEVICE} 2>&1'
_PASTE, _PASTE_END = "\x1b[200~", "\x1b[201~"
_PASTES_ON, _PASTES_OFF = "\x1b[?2004h", "\x1b[?2004l"
_PLAIN_SCREEN = "\x1b[?1049l\x1b[?25h\x1b[0m"  # not the alternate one, with a cursor, without colours
# The sequence of one key. It ends before a control even if incomplete, so that a stray beginning of a sequence cannot
# swallow the user's Ctrl-C.
_ONE_KEY = re.compile(
    "\x1b\\[\\[[A-E]"  # F1 to F5 on the console
    "|\x1b\\[[0-?]*+[ -/]*+(?:[0-~]|(?=[^ -~]))"  # CSI
    "|\x1bO(?:[ -~]|(?=[^ -~]))"  # SS3
    "|\x1b[]PX^_][^\x00-\x1f]*(?:\x07|(?=[\x00-\x1f]))"  # the terminal's answer to another program
    "|\x1b(?=[\x03\x1b])"  # the Escape key
    "|\x1b[^\\[O\\]PX^_]"  # a key with Alt
    "|[^\x1b]"
)
_NAMES = {
    "\x1b": "escape",
    **dict.fromkeys(["\r", "\n"], "enter"),
    **dict.fromkeys(["\x7f", "\x08"], "backspace"),
    **dict.fromkeys(["\x01", "\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"], "home"),
    **dict.fromkeys(["\x05", "\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"], "end"),
    **{f"\x1b{kind}{letter}": name for kind in "[O"
       for letter, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)},
    "\x1b[3~": "delete",
    **{chr(ord(letter) - 64): f"C-{letter.lower()}" for letter in "CDUW"},
}  # fmt: skip


class Gone(Exception):
    """The terminal hung up, or no longer belongs to this process."""


class KeyPress(NamedTuple):
    """A key: its name, or `text` or `paste` with the typed or pasted text."""

    name: str
    text: str = ""


class KeyDecoder:
    """Decodes bytes from a terminal into keys. Unknown keys are dropped."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    @property
    def undecided(self) -> bool:
        """Whether the last byte is an escape: the key, or the beginning of a sequence."""
        return self._rest == "\x1b"

    def feed(self, data: bytes) -> Iterator[KeyPress]:
        """Yield the keys that these bytes complete."""
        text, at = self._rest + self._decode(data), 0
        while at < len(text):
            if text.startswith(_PASTE, at):
                end = text.find(_PASTE_END, at)
                if end < 0:
                    break
                yield KeyPress("paste", strip_controls(text[at + len(_PASTE) : end]).rstrip("\n"))
                at = end + len(_PASTE_END)
            elif found := _ONE_KEY.match(text, at):
                at = found.end()
                if (name := _NAMES.get(found[0])) is not None:
                    yield KeyPress(name)
                elif len(found[0]) == 1 and unicodedata.category(found[0]) != "Cc":
                    yield KeyPress("text", found[0])
            else:
                break
        self._rest = text[at:]

    def decide(self) -> KeyPress:
        """Return the Escape key: nothing came after it."""
        self._rest = ""
        return KeyPress("escape")


class Tty:
    """The user's terminal. It is in raw mode, and keys are read, only while it is taken."""

    def __init__(self, fd: int) -> None:
        """`fd` is open for reading and writing, and non-blocking. `close` closes it."""
        self._fd = fd
        self._loop: asyncio.AbstractEventLoop | None = None  # the one it was taken on
        self.dumb = os.environ.get("TERM", "dumb") == "dumb"
        """Whether it does not support control sequences."""
        self._modes: list[Any] | None = None  # to be put back; None: not taken
        self._decoder = KeyDecoder()
        self._keys: deque[KeyPress] = deque()
        self._unsent = bytearray()
        self._gone = False
        self._changed = asyncio.Event()  # a key, everything sent, or gone
        self._escape: asyncio.TimerHandle | None = None

    @property
    def columns(self) -> int:
        """Its current width."""
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._fd).columns or 80
        return 80

    @property
    def rows(self) -> int:
        """Its current height."""
        with contextlib.suppress(OSError):
            return os.get_terminal_size(self._fd).lines or 24
        return 24

    # Taking it

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Read keys during the block, and restore the terminal after it."""
        self._take()
        try:
            yield
        finally:
            self._put_back()

    def close(self) -> None:
        """Restore the terminal, also during a prompt, and close it. Calling it twice is harmless."""
        if self._fd >= 0:
            self._put_back()
            self._lose()
            os.close(self._fd)
            self._fd = -1

    def _take(self, modes: list[Any] | None = None) -> None:
        """Enter raw mode. `modes` are restored later; by default, the current ones."""
        if self._gone:
            return
        self._loop = asyncio.get_running_loop()
        try:
            # A background job is stopped here until the user brings it to the foreground.
            modes = modes or termios.tcgetattr(self._fd)
            termios.tcsetattr(self._fd, termios.TCSANOW, _raw(modes))
        except termios.error:
            self._lose()
            return
        self._modes = modes
        self._loop.add_reader(self._fd, self._read)
        self._control(_PASTES_ON)

    def _put_back(self) -> None:
        if self._modes is None:
            return
        assert self._loop is not None
        self._control(_PASTES_OFF)
        self._loop.remove_reader(self._fd)
        self._forget()
        modes, self._modes = self._modes, None
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(self._fd) == os.getpgrp():  # else a shell has it and has set the modes it wants
                termios.tcsetattr(self._fd, termios.TCSANOW, modes)

    # Keys

    async def key(self) -> KeyPress:
        """Return the next key. Raise `Gone`."""
        while not self._keys:
            await self._change()
        return self._keys.popleft()

    async def key_within(self, secs: float) -> KeyPress | None:
        """Return the next key; None if none comes in time. Raise `Gone`."""
        try:
            async with asyncio.timeout(secs):
                return await self.key()
        except TimeoutError:
            return self._keys.popleft() if self._keys else None  # it may have come just then

    async def _change(self) -> None:
        if self._gone:
            raise Gone
        self._changed.clear()
        await self._changed.wait()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        self._stop_escape()
        self._keys.extend(self._decoder.feed(data))
        if self._decoder.undecided:
            assert self._loop is not None
            self._escape = self._loop.call_later(ESCAPE_WAIT, self._escaped)
        if self._keys:
            self._changed.set()

    def _escaped(self) -> None:
        self._keys.append(self._decoder.decide())
        self._changed.set()

    def _stop_escape(self) -> None:
        if self._escape is not None:
            self._escape.cancel()
            self._escape = None

    def _forget(self) -> None:
        self._stop_escape()
        self._decoder = KeyDecoder()
        self._keys.clear()

    def _lose(self) -> None:
        self._gone = True
        self._unsent.clear()
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self._changed.set()

    # Text

    async def show(self, text: str, *, keep: bool = False) -> None:
        """Write a prompt. Keys typed before it are discarded, to prevent accidental approval, unless `keep`."""
        if self._gone:
            raise Gone
        if not keep:
            self._discard_typed()
        self.write(text)
        if self._unsent:
            await self._sent()
            if not keep:
                self._discard_typed()

    def _discard_typed(self) -> None:
        self._forget()
        with contextlib.suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)

    def write(self, text: str) -> None:
        """Write text unchanged: text of tools and models must have been cleaned."""
        if not self._gone:
            self._unsent += to_utf8(text)
            self._send()

    def _control(self, sequence: str) -> None:
        if not self.dumb:
            self.write(sequence)

    def _send(self) -> None:
        assert self._loop is not None
        try:
            while self._unsent:
                del self._unsent[: os.write(self._fd, self._unsent)]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._send)
            return
        except OSError:
            self._lose()
            return
        self._loop.remove_writer(self._fd)
        self._changed.set()

    async def _sent(self) -> None:
        while self._unsent:
            await self._change()

    # Lending it

    async def lend(self, argv: Sequence[str]) -> int:
        """Lend the terminal to a program until it ends. Return its exit code, or its signal as a negative number.

        It is the foreground job, so that Ctrl-C and Ctrl-Z reach it and not us. If the prompt is withdrawn, it is
        terminated. Raise `OSError` if it cannot be started.
        """
        await self._sent()
        modes = self._modes
        self._put_back()
        try:
            return await self._run(argv)
        finally:
            self._take(modes)  # the program may have changed the modes

    async def _run(self, argv: Sequence[str]) -> int:
        child = _started(argv)
        try:
            self._to_foreground(child.pid)
            _start(child)
            with _never_stopped(child.pid):
                await _ended(child)
        finally:
            self._to_foreground(os.getpgrp())
            if (child.returncode or 0) < 0:  # it could not clean up
                self._control(_PLAIN_SCREEN)
        return child.returncode

    def _to_foreground(self, group: int) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # or taking it back would stop us
        try:
            with contextlib.suppress(OSError):  # gone; reading a key raises `Gone`
                os.tcsetpgrp(self._fd, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LineEditor:
    """A line of input, and the cursor in it."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0

    def press(self, key: KeyPress) -> None:
        """Apply a key; unknown keys are ignored."""
        before, after = self.text[: self.at], self.text[self.at :]
        match key.name:
            case "text" | "paste":
                before += key.text
            case "backspace":
                before = before[:-1]
            case "delete" | "C-d":
                after = after[1:]
            case "C-u":
                before = ""
            case "C-w":
                kept = before.rstrip()
                before = kept[: max(map(kept.rfind, " \t\n")) + 1]
            case "left":
                before, after = before[:-1], before[-1:] + after
            case "right":
                before, after = before + after[:1], after[1:]
            case "home":
                before, after = "", before + after
            case "end":
                before, after = before + after, ""
        self.text, self.at = before + after, len(before)


class Row:
    """The last row of a prompt, redrawn at every key.

    It uses only carriage returns and backspaces, and draws no more than fits, so it works in every terminal.
    """

    def __init__(self, tty: Tty, *, secret: bool) -> None:
        self._tty = tty
        self._secret = secret
        self._width: int | None = None  # of what is drawn; None: nothing yet

    def draw(self, text: str, at: int | None = None) -> None:
        """Draw the part of the text around the cursor that fits. A secret is never drawn."""
        from rich.cells import cell_len

        if self._secret:
            if self._width is None:
                self._tty.write("> ")
            self._width = 0
            return
        at = len(text) if at is None else at
        room = max(self._tty.columns - 3, 1)
        before, after = _seen(text[max(at - room, 0) : at]), _seen(text[at : at + room])
        while cell_len(before) > room - min(cell_len(after), room // 4):
            before = before[1:]
        while cell_len(before) + cell_len(after) > room:
            after = after[:-1]
        width = cell_len(before) + cell_len(after)
        blank = max(min(self._width or 0, room) - width, 0)
        self._tty.write(f"\r> {before}{after}{' ' * blank}" + "\b" * (cell_len(after) + blank))
        self._width = width


def open_tty() -> Tty | None:
    """Return the terminal of this process; None if it has none, or is a background job."""
    try:
        fd = os.open(_DEVICE, os.O_RDWR | O_NONBLOCK | O_NOCTTY)
    except OSError:
        return None
    try:
        here = os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        here = False
    if not here:
        os.close(fd)
        return None
    return Tty(fd)


def _seen(text: str) -> str:
    """Return a part of a line as it is drawn in a row."""
    return readable(text.replace("\n", "⏎").replace("\t", " "))


def _raw(modes: list[Any]) -> list[Any]:
    """Return the modes for raw input, with output unchanged."""
    input_modes, output, control, local, speed_in, speed_out, characters = modes
    input_modes &= ~(termios.IXON | termios.ICRNL | termios.INLCR | termios.IGNCR | termios.ISTRIP | termios.BRKINT)
    local &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
    characters = [*characters]
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [input_modes, output, control, local, speed_in, speed_out, characters]


def _started(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Prepare a program in its own process group. It waits for `_start`, until it is the foreground job."""
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return subprocess.Popen(
        ["/bin/sh", "-c", _GATE, "sh", *argv],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0, process_group=0,
        env=inherited(),
    )  # fmt: skip


def _start(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(b"\n")


@contextlib.contextmanager
def _never_stopped(pid: int) -> Iterator[None]:
    """Continue a child whenever it is stopped, for example by Ctrl-Z: no shell would do it."""

    def look() -> None:
        if machine.is_stopped(pid):
            _signal_group(pid, signal.SIGCONT)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, look)
    try:
        look()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCHLD)


async def _ended(child: "subprocess.Popen[bytes]") -> None:
    """Wait for a child and reap it. If cancelled, terminate it with its process group."""
    try:
        await _end_of(child)
    except asyncio.CancelledError:
        _signal_group(child.pid, signal.SIGTERM)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_GRACE):
                    await _end_of(child)
        finally:
            _signal_group(child.pid, signal.SIGKILL)
        await _end_of(child)
        raise
    finally:
        child.poll()


async def _end_of(child: "subprocess.Popen[bytes]") -> None:
    end = machine.end_of(child.pid)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(end, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(end)
        end.close()


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have become another user
        os.killpg(group, number)
