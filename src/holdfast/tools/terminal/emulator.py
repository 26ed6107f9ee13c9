"""What a terminal shows: the emulator behind a screen.

An emulator is fed what a program printed and can tell what a person would see. It promises: no input makes it raise, it
keeps at most `SCROLLBACK` lines above the screen, and it does nothing unless it is called: no thread, no timer.

`open_emulator` gives Ghostty's, where `holdfast[terminal]` is installed. Otherwise it gives the one of `lines.py`, which
knows lines and no screen, and says so.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

from holdfast.tools.base import Screen
from holdfast.tools.terminal.lines import LineEmulator

SCROLLBACK = 10_000
"""How many lines above the screen are kept."""

Kind = Literal["auto", "ghostty", "line"]


class Emulator(Protocol):
    """A terminal without a window. Of one thread."""

    def feed(self, data: bytes) -> None:
        """What the program printed; a piece may end anywhere. Replies leave before this returns."""

    def resize(self, rows: int, cols: int) -> None: ...

    def screen(self) -> Screen: ...

    def scrollback(self, count: int) -> tuple[str, ...]:
        """The last so many lines above the screen, oldest first."""

    @property
    def alternate(self) -> bool:
        """Whether the alternate screen of full-screen programs is shown."""

    @property
    def application_keys(self) -> bool:
        """Whether cursor keys are to be sent in their application form (DECCKM)."""

    def close(self) -> None:
        """Free it; nothing may be asked of it afterwards. Twice is harmless."""


def open_emulator(rows: int, cols: int, reply: Callable[[bytes], None], *, kind: Kind = "auto") -> Emulator:
    """An emulator of that size. `reply` gets what a terminal answers when a program asks it something.

    `auto`: Ghostty's if it can be imported. Raises `ImportError` if `ghostty` is asked for and cannot.
    """
    if kind != "line":
        try:
            return GhosttyEmulator(rows, cols, reply)
        except (ImportError, OSError):  # OSError: the package is there, its library is not for this machine
            if kind == "ghostty":
                raise
    return LineEmulator(rows, cols, reply)


class GhosttyEmulator:
    """Ghostty's terminal, by way of `pyghostty`."""

    def __init__(self, rows: int, cols: int, reply: Callable[[bytes], None]) -> None:
        import pyghostty

        self._reply = reply
        self._replies: list[bytes] = []
        self._terminal: Any = pyghostty.Terminal(cols=cols, rows=rows, scrollback=SCROLLBACK)
        self._terminal.on_reply(self._replies.append)
        self._rows, self._cols = rows, cols

    def feed(self, data: bytes) -> None:
        self._terminal.feed(data)
        if self._replies:
            answer = b"".join(self._replies)
            self._replies.clear()
            self._reply(answer)

    def resize(self, rows: int, cols: int) -> None:
        self._terminal.resize(cols, rows)
        self._rows, self._cols = rows, cols

    def screen(self) -> Screen:
        column, row = self._terminal.cursor
        lines = self._terminal.text().split("\n")
        lines += [""] * (self._rows - len(lines))
        return Screen(
            lines=tuple(lines),
            rows=self._rows,
            cols=self._cols,
            cursor=(row + 1, column + 1),
            alternate=self.alternate,
        )

    def scrollback(self, count: int) -> tuple[str, ...]:
        return ()

    @property
    def alternate(self) -> bool:
        return bool(self._terminal.get("active_screen", "int"))

    @property
    def application_keys(self) -> bool:
        return bool(self._terminal.mode(1))

    def close(self) -> None:
        self._terminal.close()
