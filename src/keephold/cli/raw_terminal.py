"""The user's terminal in raw mode, connected to a program elsewhere, and restored afterwards."""

import contextlib
import os
import re
import sys
from typing import NamedTuple, Self

import click

from keephold.errors import KeepholdError
from keephold.platforms.unix import termios, tty
from keephold.tools.base import Screen

_RESET = (
    b"\x1b[?1049l"  # the alternate screen
    b"\x1b[?1000;1002;1003;1004;1006;2004;2026l"  # mouse, focus, bracketed paste, output held back
    b"\x1b[<9u\x1b[>4;0m"  # other encodings of keys
    b"\x1b[!p\x1b[?7h\x1b[?25h\x1b[0 q\x1b(B\x1b[0m"  # a soft reset, and what some terminals leave out of it
)
_KEY = re.compile(r"(?:C-|ctrl-|\^)([a-z@\[\]\\^_])", re.IGNORECASE)


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
        self.write(b"\x1b[%d;1H" % self.rows + b"\n" * self.rows)
        self._before = termios.tcgetattr(self.input)
        tty.setraw(self.input, termios.TCSADRAIN)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal may be gone
            self.write(_RESET + b"\x1b[%d;1H\r\n" % self.rows)
            termios.tcsetattr(self.input, termios.TCSAFLUSH, self._before)

    @property
    def rows(self) -> int:
        return self.size()[0]

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
