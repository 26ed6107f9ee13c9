"""The screen of a chat: the conversation, below it the running handles, and the input line at the bottom.

The conversation is written once and scrolls away. The lines below it are redrawn in place when they change. The
terminal can be lent to a prompt or a program; new text is shown when it is back.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Self

from rich.cells import cell_len, get_character_cell_size, set_cell_size

from keephold.cli import keyboard
from keephold.cli.chat_lines import Piece, Style

SOON_SECS = 0.03
"""Delay before new text is shown, together with what else has come."""
TICK_SECS = 0.1
"""Interval at which running handles are redrawn."""

_TAB = "    "  # terminals disagree on what a tab does at the end of a row
_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_TOGETHER, _SHOWN = "\x1b[?2026h", "\x1b[?2026l"  # a terminal that knows these shows what is between them at once


class ChatScreen:
    """The user's terminal, taken while entered. `live` returns the lines of the running handles."""

    def __init__(self, tty: keyboard.Tty, live: Callable[[], Sequence[Piece]]) -> None:
        self.tty = tty
        self.typed = keyboard.LineEditor()
        self._live = live
        self._coloured = not os.environ.get("NO_COLOR")
        self._taken = ExitStack()
        self._open = False
        self._unseen: list[tuple[str, Style]] = []  # not on the terminal yet
        self._within = False  # the last text continues in its row
        self._held: list[tuple[str, Style]] = []  # lines that wait for the end of that row
        self._column = 0  # where the text on the terminal ends
        self._drawn: list[str] = []  # the rows of running handles on the terminal
        self._columns = 0  # the width of the terminal at that time
        self._row: keyboard.Row | None = None  # the input line; None: not on the terminal
        self._timer: asyncio.TimerHandle | None = None
        self._users = asyncio.Lock()

    def __enter__(self) -> Self:
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._put_back()
        if self._timer is not None:
            self._timer.cancel()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Restore the terminal and lend it to the block. One borrower at a time."""
        async with self._users:
            await asyncio.sleep(0)  # handle pending keys first
            was_open = self._open
            self._put_back()
            try:
                yield
            finally:
                if was_open:
                    self._take()

    def _take(self) -> None:
        self._taken.enter_context(self.tty.taken())
        self._open = True
        self.paint()

    def _put_back(self) -> None:
        if self._open:
            self.end()
            self.paint(bare=True)
            self._open = False
            self._taken.close()

    # The conversation

    def show(self, piece: Piece) -> None:
        """Show a piece, soon."""
        text = piece.text.replace("\t", _TAB)
        match piece.kind:
            case "end":
                self.end()
            case "line":
                line = text if piece.whole else self._cut(text)
                (self._held if self._within else self._unseen).append((f"{line}\n", piece.style))
            case _:
                self._flow(text, piece.style)
        self.changed()

    def end(self) -> None:
        """End the row of the last text."""
        if self._within:
            self._unseen.append(("\n", ""))
            self._line_ended()

    def _flow(self, text: str, style: Style) -> None:
        lines, newline, rest = text.rpartition("\n")
        if newline:
            self._unseen.append((lines + newline, style))
            self._line_ended()
        if rest:
            self._unseen.append((rest, style))
            self._within = True

    def _line_ended(self) -> None:
        self._within = False
        self._unseen += self._held
        self._held.clear()

    # The terminal

    def changed(self) -> None:
        """Redraw soon."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_SECS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.paint()
        if self._drawn and self._open:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECS, self._tick)

    def typing(self) -> None:
        """Redraw the input line."""
        if self._open and self._row is not None:
            self._row.draw(self.typed.text, self.typed.at)

    def paint(self, *, bare: bool = False) -> None:
        """Bring the terminal up to date; `bare` leaves nothing below the conversation."""
        if not self._open:
            return
        columns, rows = self.tty.columns, [] if bare else self._rows()
        if not (bare or self._unseen) and rows == self._drawn and self._row is not None and columns == self._columns:
            return
        parts = [_TOGETHER, self._to_rows(columns)]
        if self._unseen:
            parts += self._said(columns)
        parts += [f"{row}\x1b[K\n" for row in rows]
        parts.append("\x1b[J")
        self.tty.write("".join(parts))
        self._drawn, self._columns, self._row = rows, columns, None
        if not bare:
            self._row = keyboard.Row(self.tty, secret=False)
            self.typing()
        self.tty.write(_SHOWN)

    def _to_rows(self, columns: int) -> str:
        """Return the move from the cursor to the first row of running handles. A narrower terminal folds the rows."""
        up = len(self._drawn)
        if 0 < columns < self._columns:
            before = cell_len(self.typed.text[: self.typed.at]) + 2
            up = sum(max(1, -(-_width(row) // columns)) for row in self._drawn)
            up += min(before, self._columns - 1) // columns if self._row is not None else 0
        if columns != self._columns:
            self._column = 0  # the end of a folded row is unknown: continue in a new row
        return "\r" + (f"\x1b[{up}A" if up else "")

    def _said(self, columns: int) -> list[str]:
        if self._column >= columns:  # the row is full: the text continues in the next one anyway
            self._column = 0
            text, style = self._unseen[0]
            self._unseen[0] = text.removeprefix("\n"), style
        to_end = f"\x1b[A\x1b[{self._column}C" if self._column else ""  # the text may end in the row above
        parts = [to_end, "\x1b[J", *(self._styled(text, style) for text, style in self._unseen)]
        for text, _ in self._unseen:
            self._column = _after(self._column, text, columns)
        self._unseen.clear()
        if self._column:
            parts.append("\n")
        return parts

    def _rows(self) -> list[str]:
        lines = self._live()
        room = max(self.tty.rows - 4, 1)
        if len(lines) > room:
            lines = [*lines[: room - 1], Piece.line(f"  … and {len(lines) - room + 1} more", "dim")]
        return [self._styled(self._cut(line.text), line.style) for line in lines]

    def _cut(self, text: str) -> str:
        room = max(self.tty.columns - 1, 1)
        return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"

    def _styled(self, text: str, style: Style) -> str:
        if not style or not self._coloured:
            return text
        marked, rest = (text[:1], text[1:]) if style == "green" else (text, "")  # success colours only its mark
        body = marked.rstrip("\n")
        return f"\x1b[{_SGR[style]}m{body}\x1b[0m{marked[len(body) :]}{rest}"


def _width(row: str) -> int:
    """Return the width of a row, which may have one style."""
    if row.startswith("\x1b["):
        row = row.partition("m")[2].replace("\x1b[0m", "", 1)
    return cell_len(row)


def _after(column: int, text: str, columns: int) -> int:
    """Return the column of the cursor after a text that began in this column; `columns` if the row is full."""
    tail = text.rpartition("\n")
    column = 0 if tail[1] else column
    for character in tail[2]:
        width = get_character_cell_size(character)
        column = width if column + width > columns else column + width
    return column
