"""Lines instead of a screen, for systems without an emulator.

`LineEmulator` promises to be honest: its screen says `emulator: line` and has the last printed lines, unwrapped. It
follows the cursor within a line only (`rendering.py`). For a full-screen program it shows nothing, but says that one
runs and what to install.

It keeps the latest bytes and makes lines of them when asked, so that feeding it costs little.
"""

import re
from collections.abc import Callable

from keephold.handles.rendering import ALTERNATE, columns, on_alternate, render
from keephold.text import SEQUENCE_SIZE, strip_controls
from keephold.tools.base import Screen
from keephold.tools.terminal.emulator import SCROLLBACK

_KEPT = 1 << 17
"""The number of latest bytes from which lines are made, at least; at most twice as many."""
_SAYS = (
    "A full-screen program is running. Its screen is unknown: no terminal emulator is installed.",
    "`pip install 'keephold[terminal]'` brings one.",
)
_HEARD = re.compile(
    rb"\x1b\[\?([0-9;]*)([hl])"  # modes
    rb"|\x1b\][02];([^\x00-\x1f]*)(?:\x07|\x1b\\)"  # the title
    rb"|\x1b\[([56])n|\x1b\[0?(c)"  # requests to a terminal: its status, its cursor position, its type
    rb"|\x1b(c)"  # reset
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*|\][^\x07\x1b]*\x1b?)?\Z")


class LineEmulator:
    """The last lines that were printed."""

    def __init__(self, rows: int, cols: int, reply: Callable[[bytes], None]) -> None:
        self._rows, self._cols = rows, cols
        self._reply = reply
        self._printed = bytearray()
        self._begun_hidden = False  # the alternate screen was shown when `_printed` begins
        self._unfinished = b""
        self._title = ""
        self.alternate = False
        self.application_keys = False

    def feed(self, data: bytes) -> None:
        self._printed += data
        if len(self._printed) > 2 * _KEPT:
            self._forget()
        if self._unfinished or b"\x1b" in data:
            self._listen(self._unfinished + data)

    def resize(self, rows: int, cols: int) -> None:
        self._rows, self._cols = rows, cols

    def screen(self) -> Screen:
        lines = list(_SAYS) if self.alternate else self._lines()
        shown = lines[: self._rows] if self.alternate else lines[-self._rows :]
        row, column = (1, 1) if self.alternate else self._cursor(lines)
        return Screen(
            lines=(*(line.rstrip(" ") for line in shown), *[""] * (self._rows - len(shown))),
            rows=self._rows,
            cols=self._cols,
            cursor=(row, column),
            title=self._title,
            alternate=self.alternate,
            emulator="line",
            scrollback=0 if self.alternate else len(self._above(lines)),
        )

    def scrollback(self, count: int) -> tuple[str, ...]:
        above = [] if self.alternate else self._above(self._lines())
        return tuple(line.rstrip(" ") for line in above[len(above) - min(max(0, count), len(above)) :])

    def close(self) -> None:
        self._printed.clear()

    # --- lines

    def _lines(self) -> list[str]:
        """Return the printed lines; the last one is unfinished."""
        before = b"\x1b[?1049h" if self._begun_hidden else b""
        return render(bytes(self._printed), before, self._cols).split("\n")

    def _above(self, lines: list[str]) -> list[str]:
        return lines[: -self._rows][-SCROLLBACK:]

    def _cursor(self, lines: list[str]) -> tuple[int, int]:
        """Return the position behind the last output: no other is known."""
        return min(len(lines), self._rows), min(sum(map(columns, lines[-1])) + 1, self._cols)

    def _forget(self) -> None:
        """Drop the oldest output, to the end of a line if one ends in time."""
        stop = len(self._printed) - _KEPT
        line_end = self._printed.find(b"\n", stop)
        stop = stop if line_end < 0 else line_end + 1
        self._begun_hidden = on_alternate(bytes(self._printed[:stop]), otherwise=self._begun_hidden)
        del self._printed[:stop]

    # --- sequences

    def _listen(self, data: bytes) -> None:
        """Handle the sequences that are more than lines."""
        asked = []
        for modes, switch, title, status, identity, reset in (heard.groups() for heard in _HEARD.finditer(data)):
            if switch:
                self._switch(modes.decode().split(";"), on=switch == b"h")
            elif title is not None:
                self._title = strip_controls(title.decode("utf-8", "replace"))
            elif status or identity:
                asked.append(status or identity)
            elif reset:
                self.alternate = self.application_keys = False
                self._title = ""
        unfinished = _UNFINISHED.search(data, max(0, len(data) - SEQUENCE_SIZE))
        self._unfinished = unfinished[0] if unfinished else b""
        if asked:
            self._answer(asked)

    def _switch(self, modes: list[str], *, on: bool) -> None:
        if not ALTERNATE.isdisjoint(modes):
            self.alternate = on
        if "1" in modes:
            self.application_keys = on

    def _about(self) -> tuple[int, int]:
        """Return an approximate cursor position: rendering all that is kept for each request would cost too much."""
        last = bytes(self._printed[max(self._printed.rfind(b"\n") + 1, len(self._printed) - SEQUENCE_SIZE) :])
        row = min(self._printed.count(b"\n") + 1, self._rows)
        return row, min(sum(map(columns, render(last))) + 1, self._cols)

    def _answer(self, asked: list[bytes]) -> None:
        """Reply to a program that asks, as the simplest of terminals would, because it may wait for the answer."""
        answers = {b"5": b"\x1b[0n", b"c": b"\x1b[?6c"}
        if b"6" in asked:
            row, column = self._about()
            answers[b"6"] = b"\x1b[%d;%dR" % (row, column)
        self._reply(b"".join(answers[each] for each in asked))
