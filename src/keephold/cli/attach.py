"""`keephold attach`: connect the user's terminal to that of a handle, in any process, until the user detaches or the
program ends. The user's terminal is in raw mode meanwhile, and restored afterwards."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from typing import NamedTuple, Self

import click

from keephold.cli.parameters import conversation_option
from keephold.cli.printing import one_line
from keephold.cli.store import Where, look, where_options
from keephold.control.base import Looking
from keephold.errors import KeepholdError
from keephold.handles.handle import HandleInfo
from keephold.handles.state import Failure
from keephold.platforms.unix import termios, tty
from keephold.tools.base import Screen
from keephold.turn import attach_protocol as frames

_RESET = (
    b"\x1b[?1049l"  # the alternate screen
    b"\x1b[?1000;1002;1003;1004;1006;2004;2026l"  # mouse, focus, bracketed paste, output held back
    b"\x1b[<9u\x1b[>4;0m"  # other encodings of keys
    b"\x1b[!p\x1b[?7h\x1b[?25h\x1b[0 q\x1b(B\x1b[0m"  # a soft reset, and what some terminals leave out of it
)
_KEY = re.compile(r"(?:C-|ctrl-|\^)([a-z@\[\]\\^_])", re.IGNORECASE)
_QUIET_SECS = 0.3
"""After this time without output, the program is taken to have finished drawing."""


class DetachKey(NamedTuple):
    """A key held down with Ctrl: its name, and every form in which terminals send it."""

    name: str
    forms: tuple[bytes, ...]

    @classmethod
    def parse(cls, text: str) -> "DetachKey":
        found = _KEY.fullmatch(text)
        if found is None:
            raise click.BadParameter(f"a key held down with Ctrl, such as `C-]` or `C-a`, not `{text}`")
        letter = found[1].lower()
        code = ord(letter)
        plain = bytes([ord(letter.upper()) & 0x1F])
        return cls(f"Ctrl-{letter}", (plain, b"\x1b[%d;5u" % code, b"\x1b[27;5;%d~" % code))

    def before(self, typed: bytes) -> bytes | None:
        """Return the input before the key; None if the key was not pressed."""
        places = [place for form in self.forms if (place := typed.find(form)) >= 0]
        return typed[: min(places)] if places else None


class RawTerminal:
    """The terminal at stdin and stdout."""

    def __init__(self) -> None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise KeepholdError(
                "attach needs a terminal at stdin and stdout; `keephold logs -f` needs none", code="invalid_arguments"
            )
        self.input, self._output = sys.stdin.fileno(), sys.stdout.fileno()

    def __enter__(self) -> Self:
        # Scroll the screen's text up, so that the user can scroll back to it.
        rows = self.size()[0]
        self.write(b"\x1b[%d;1H" % rows + b"\n" * rows)
        self._before = termios.tcgetattr(self.input)
        tty.setraw(self.input, termios.TCSADRAIN)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self.write(_RESET + b"\x1b[%d;1H\r\n" % self.size()[0])
            termios.tcsetattr(self.input, termios.TCSAFLUSH, self._before)

    def size(self) -> tuple[int, int]:
        """Return rows and columns; 0, 0 if the terminal does not know."""
        columns, rows = os.get_terminal_size(self._output)
        return rows, columns

    def read(self) -> bytes:
        """Return the input; nothing if the terminal is gone."""
        try:
            return os.read(self.input, 1 << 16)
        except OSError:
            return b""

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._output, view) :]


def over(screen: Screen, text: str) -> bytes:
    """Return the sequences that write a text over one line of the screen: the last one if it is free."""
    row = 1 if screen.alternate or any(screen.lines[screen.rows - 1 :]) else screen.rows
    return b"\x1b7\x1b[%d;1H\x1b[7m%s\x1b[0m\x1b8" % (row, text[: screen.cols - 1].encode())


@click.command()
@click.argument("ID")
@click.option("--read-only", is_flag=True, help="Watch only; send nothing to the program.")
@click.option("--detach-key", metavar="KEY", default="C-]", callback=lambda _, __, value: DetachKey.parse(value),
              help="Detach with this key. Default: C-].")  # fmt: skip
@conversation_option
@where_options
def attach(id: str, read_only: bool, detach_key: DetachKey, conversation: str | None, where: Where) -> None:
    """Take over the terminal of the handle of an ID, or a uid. Ctrl-] detaches, and the program keeps running."""
    terminal = RawTerminal()
    name, ended, stopped_by = look(
        where, lambda looking: _attach(looking, terminal, id, conversation, detach_key, read_only=read_only)
    )
    if ended is not None:
        click.echo(_how(ended), err=True)
        sys.exit(int(isinstance(ended.outcome, Failure)))
    click.echo(f"detached from {one_line(name)}, which keeps running", err=True)
    sys.exit(128 + stopped_by if stopped_by else 0)


async def _attach(
    looking: Looking, terminal: RawTerminal, id: str, conversation: str | None, key: DetachKey, *, read_only: bool
) -> tuple[str, HandleInfo | None, int]:
    """Return the handle's id, its end if it has stopped, and the number of the signal that ended this, if one did."""
    rows, cols = terminal.size()
    (fact,) = await looking.find((id,), conversation)
    watching = frames.Want(uid=fact["uid"], want="follow", screen=True)
    driving = frames.Want(uid=fact["uid"], want="attach", rows=rows, cols=cols)
    async with looking.talk(fact, watching if read_only else driving) as talk:
        first = await talk.receive()  # a refusal must come before the terminal changes
        session = _AttachSession(terminal, talk, key, read_only=read_only)
        return fact["id"], *await session.run(first)


class _AttachSession:
    def __init__(self, terminal: RawTerminal, talk: frames.Talk, key: DetachKey, *, read_only: bool) -> None:
        self._terminal = terminal
        self._talk = talk
        self._key = key
        self._read_only = read_only
        self._hint = f" {'watching' if read_only else 'attached'}; {key.name} detaches "
        self._hint_again = b""
        self._timer: asyncio.TimerHandle | None = None
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self, first: frames.Frame) -> tuple[HandleInfo | None, int]:
        loop, terminal = asyncio.get_running_loop(), self._terminal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave, number)
        if not self._read_only:
            size = terminal.size
            loop.add_signal_handler(signal.SIGWINCH, lambda: self._talk.send(frames.RESIZE, frames.Size(*size())))
        with terminal:
            showing = asyncio.create_task(self._show(first))
            loop.add_reader(terminal.input, self._typed)
            try:
                await asyncio.wait((showing, self._left), return_when=asyncio.FIRST_COMPLETED)
                if showing.done():
                    return showing.result(), 0
                self._talk.send(frames.DETACH)
                return None, self._left.result()
            finally:
                loop.remove_reader(terminal.input)
                self._hint_again = b""
                showing.cancel()
                await asyncio.gather(showing, return_exceptions=True)

    async def _show(self, received: frames.Frame) -> HandleInfo:
        while True:
            kind, payload = received
            match payload:
                case Screen():
                    self._terminal.write(frames.redraw(payload))
                    self._show_hint(payload)
                case bytes():
                    self._terminal.write(payload)
                    self._repeat_hint_later()
                case frames.HandleStatus() if kind == frames.END:
                    return payload.handle
            received = await self._talk.receive()

    def _show_hint(self, screen: Screen) -> None:
        """Show once how to detach. A full-screen program draws over it when its size changes: then show it again."""
        if self._hint:
            drawn = over(screen, self._hint)
            self._terminal.write(drawn)
            self._hint, self._hint_again = "", drawn if screen.alternate else b""
            self._repeat_hint_later()

    def _repeat_hint_later(self) -> None:
        if self._hint_again:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECS, self._repeat_hint)

    def _repeat_hint(self) -> None:
        self._terminal.write(self._hint_again)
        self._hint_again = b""

    def _typed(self) -> None:
        typed = self._terminal.read()
        before = self._key.before(typed)
        if not self._read_only:
            self._talk.send(frames.INPUT, typed if before is None else before)
        if before is not None or not typed:
            self._leave(0)

    def _leave(self, number: int) -> None:
        if not self._left.done():
            self._left.set_result(number)


def _how(ended: HandleInfo) -> str:
    said = f"{one_line(ended.id)}: "
    if isinstance(ended.outcome, Failure):
        return said + one_line(ended.outcome.message)
    return f"{said}ok" if ended.exit_code is None else f"{said}ended with exit code {ended.exit_code}"
