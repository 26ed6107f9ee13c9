"""A terminal's output as text: what a reader would see if the terminal were a roll of paper.

`render` promises: it never raises; it takes time in proportion to the data, for any data; of the control characters
only newlines and tabs remain; and the text is no longer than the data (a bad byte counts as the three of its
replacement), for which blanks that a moving cursor leaves may have to be fewer.

Paper does not move up. The cursor moves within its row: printing over a cell replaces it, and erasing clears it, so a
progress bar ends as its last state and an edited command line as it was sent. All other sequences are ignored. The
alternate screen, where full-screen programs draw, is left out. A full row continues in the next one without a line end
and cannot be changed any more, as in a terminal of that width.

`Lines` does the same with output that arrives piece by piece, and looks at each byte once.
"""

import codecs
import re
import unicodedata
from collections import deque

from keephold.handles.output import Output
from keephold.text import SEQUENCE, SEQUENCE_SIZE, has_controls

_LOOK_BACK = 1 << 18
"""How far back to look for the beginning of an alternate screen."""
WIDTH = 1024
"""The width of the paper if that of the terminal is unknown, and the greatest width."""

ALTERNATE = frozenset(("47", "1047", "1049"))
"""The modes that show the alternate screen."""
_LINE_END = re.compile("(?<!\r)\r++\n")
_TOKEN = re.compile(f"\r+|\b+|{SEQUENCE.pattern}")
_CSI = re.compile("(?:\x1b\\[|\x9b)(\\??)([0-9;]*)([@-~])")
_SWITCH = re.compile("(?:\x1b\\[|\x9b)\\?([0-9;]*)([hl])|\x1bc")
_BEGINS = "\x1b\x90\x98\x9b\x9d\x9e\x9f"
"""The first characters of sequences of more than one."""
_ACTS = frozenset("CaDG`KJP@XHfd")
"""The final characters of sequences that move the cursor or change its row."""
_SIMPLE = re.compile("[ -\u02ff]+|[^ -\u02ff]+")
_GONE = "\0"
"""A cell that is blank and takes no room in the text: its character was shorter than it was wide."""
_MARKS = 8
"""How many characters without a width may share the cell of another one; the others are dropped."""


def render(data: bytes, before: bytes = b"", cols: int = WIDTH) -> str:
    """Return the bytes as text. `cols` is the width of the terminal.

    `before` was printed before them: a sequence, or the alternate screen, may have begun there.
    """
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if "\r\n" in text:
        text = _LINE_END.sub("\n", text)
    start = end_of_begun(before, text)
    hidden = on_alternate(before + data[:start] if start else before)
    if start == 0 and not hidden and not has_controls(text):
        return text
    return _Paper(max(1, min(cols, WIDTH))).print(text, start, hidden)


def render_piece(output: Output, data: bytes, start: int) -> str:
    """Return the bytes from the offset `start` of a terminal's output as text."""
    if not data:
        return ""
    return render(data, output.before(start, _LOOK_BACK), width(output, start))


def width(output: Output, offset: int) -> int:
    """Return how wide the terminal was when the byte at `offset` was printed; `WIDTH` without a terminal."""
    return WIDTH if output.timeline is None else output.timeline.cols(offset) or WIDTH


def on_alternate(before: bytes, otherwise: bool = False) -> bool:
    """Whether the alternate screen is shown after these bytes; `otherwise`: if they do not tell."""
    reset = before.rfind(b"\x1bc")
    end = len(before)
    while (at := before.rfind(b"\x1b[?", reset + 1, end)) >= 0:
        switch = _SWITCH.match(before[at : at + 64].decode("latin-1"))
        if switch and not ALTERNATE.isdisjoint(switch[1].split(";")):
            return switch[2] == "h"
        end = at + 2
    return otherwise and reset < 0


def end_of_begun(before: bytes, text: str) -> int:
    """Return where in the text a sequence ends that began before it."""
    tail = before[-SEQUENCE_SIZE:].decode("utf-8", "replace")
    if has_controls(tail):
        for sequence in SEQUENCE.finditer(tail + text):
            if sequence.end() > len(tail):
                return sequence.end() - len(tail) if sequence.start() < len(tail) else 0
    return 0


class Lines:
    """Renders output piece by piece."""

    __slots__ = ("_begun", "_decode", "_hidden", "_paper")

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._begun = ""
        """The end of the last piece, where a sequence or a line end may have begun."""
        self._hidden = False
        self._paper = _Paper(WIDTH)

    def feed(self, data: bytes, cols: int = WIDTH) -> str:
        """Return the text that is finished now, with its line ends."""
        text = self._begun + self._decode(data)
        self._begun = ""
        if not self._hidden and not has_controls(text):
            done = ""
            if self._paper.empty:  # the usual case: whole lines, which need no paper
                done, line_end, text = text.rpartition("\n")
                done += line_end
            if text:
                self._paper.write(text)
                done += self._paper.take()
            return done
        keep = len(text) - _unfinished(text)
        text, self._begun = text[:keep], text[keep:]
        self._paper.width = max(1, min(cols, WIDTH))
        self._hidden = self._paper.feed(_LINE_END.sub("\n", text), 0, self._hidden)
        return self._paper.take()

    @property
    def unfinished(self) -> str:
        """The text behind the finished text: the row of the cursor as it is now."""
        return self._paper.row


def _unfinished(text: str) -> int:
    """Return how many characters at the end of the text the next piece may give another meaning."""
    last = next(iter(deque(SEQUENCE.finditer(text, max(0, len(text) - SEQUENCE_SIZE)), maxlen=1)), None)
    if last is None or last.end() < len(text):
        return 0
    if last[0] == "\r":
        return len(text) - len(text.rstrip("\r"))
    return 0 if last[0][0] not in _BEGINS or _CSI.fullmatch(last[0]) else len(last[0])


class _Paper:
    """The roll: finished rows, and the row of the cursor.

    A row is a list of cells. A character that is more than one column wide, such as a tab, is in the first of its cells
    and leaves the others empty.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._done: list[str] = []
        self._row: list[str] = []
        self._column = 0  # `_width` itself if the row is full: the next character begins another
        self._unprinted = 0  # how many characters of sequences were not printed, and not made up for by blanks

    def print(self, text: str, start: int, hidden: bool) -> str:
        """Return all of the text from `start`, `hidden` until the alternate screen is left."""
        self.feed(text, start, hidden)
        self._finish_row()
        return self.take()

    def feed(self, text: str, start: int, hidden: bool) -> bool:
        """Print the text from `start`; return whether the alternate screen hides what follows it."""
        while True:
            if hidden:
                shown = _shown_again(text, start)
                if shown is None:
                    return True
                start, hidden = shown, False
            token = _TOKEN.search(text, start)
            if token is None:
                break
            self.write(text[start : token.start()])
            start = token.end()
            hidden = self._obey(token[0])
        self.write(text[start:])
        return False

    def take(self) -> str:
        """Return the finished rows, and forget them."""
        done = "".join(self._done).replace(_GONE, "")
        self._done.clear()
        return done

    @property
    def empty(self) -> bool:
        """Whether nothing was printed since the last line end."""
        return not self._row and not self._column

    @property
    def row(self) -> str:
        """The row of the cursor."""
        return "".join(self._row).replace(_GONE, "")

    # --- printing

    def write(self, text: str) -> None:
        if text.isascii() and text.isprintable():
            self._put_narrow(text)
            return
        first, line_end, rest = text.partition("\n")
        self._write_in_line(first)
        if line_end:
            self._finish_row()
            lines, line_end, last = rest.rpartition("\n")
            self._done += ("\n", lines, line_end)
            self._write_in_line(last)

    def _write_in_line(self, text: str) -> None:
        for index, part in enumerate(text.split("\t")):
            if index:
                self._tab()
            for run in _SIMPLE.findall(part):
                if run[0] <= "\u02ff":
                    self._put_narrow(run)
                else:
                    self._put_any(run)

    def _put_narrow(self, text: str) -> None:
        start = 0
        while start < len(text):
            if self._column >= self.width:
                self._next_row()
            stop = start + self.width - self._column
            self._place(list(text[start:stop]))
            start = stop

    def _put_any(self, text: str) -> None:
        for character in text:
            wide = columns(character)
            if wide == 0 and self._attached(character):
                continue
            cells = [character, ""] if wide == 2 else [character]
            if self._column + len(cells) > self.width:
                self._next_row()
            self._place(cells)

    def _attached(self, mark: str) -> bool:
        """Put a mark on the character before the cursor, if it can have one more."""
        at = min(self._column, len(self._row)) - 1
        while at > 0 and not self._row[at]:
            at -= 1
        if at < 0 or len(self._row[at]) > _MARKS:
            return False
        self._row[at] += mark
        return True

    def _tab(self) -> None:
        stop = min(self._column // 8 * 8 + 8, self.width - 1)
        if self._column >= len(self._row) and stop > self._column:
            self._place(["\t", *[""] * (stop - self._column - 1)])
        self._column = max(self._column, stop) if self._column < self.width else self._column

    def _place(self, cells: list[str]) -> None:
        """Put cells at the cursor, replacing those that are there."""
        row, column = self._row, self._column
        if column > len(row):
            column = len(row) + self._insert_blanks(len(row), column - len(row))
        end = column + len(cells)
        if column < len(row):
            self._part(column)
            self._part(end)
        row[column:end] = cells
        self._column = end

    def _next_row(self) -> None:
        self._done.append("".join(self._row))
        self._row, self._column = [], 0

    def _finish_row(self) -> None:
        """Drop blanks behind the cursor, which erasing leaves; those before it were printed."""
        row, column = self._row, self._column
        self._done += ("".join(row[:column]), "".join(row[column:]).rstrip(f" {_GONE}"))
        self._row, self._column = [], 0

    # --- obeying

    def _obey(self, token: str) -> bool:
        """Do what a control asks for; return whether it hides what follows."""
        self._unprinted += len(token)
        if token[0] == "\r":
            self._column = 0
        elif token[0] == "\b":
            self._column = max(0, min(self._column, self.width - 1) - len(token))
        elif sequence := _CSI.fullmatch(token):
            private, given, final = sequence.groups()
            if private:
                return final == "h" and not ALTERNATE.isdisjoint(given.split(";"))
            if final in _ACTS:
                self._column = min(self._column, self.width - 1)
                # No number is worth more digits than these, and `int` refuses thousands of them.
                self._move_or_edit(final, int(given.partition(";")[0].lstrip("0")[:5] or 0))
        return False

    def _move_or_edit(self, final: str, number: int) -> None:
        column, count = self._column, number or 1
        match final:
            case "C" | "a":
                self._column = min(column + count, self.width - 1)
            case "D":
                self._column = max(0, column - count)
            case "G" | "`":
                self._column = min(count, self.width) - 1
            case "K":
                self._erase_line(number)
            case "J" if number == 0:  # to the end of the screen: as far as paper goes, of the line
                self._erase_line(0)
            case "P":
                self._part(column)
                self._part(column + count)
                del self._row[column : column + count]
            case "@" if column < len(self._row):
                self._part(column)
                self._insert_blanks(column, min(count, self.width - column))
                self._part(self.width)
                del self._row[self.width :]
            case "X":
                self._erase(column, column + count)
            case "H" | "f" | "d" if self._row:  # to another row: paper has only this one, and no line is added
                self._column = len(self._row) + self._insert_blanks(len(self._row), 1)

    def _erase_line(self, which: int) -> None:
        if which == 0:
            self._part(self._column)
            del self._row[self._column :]
        elif which == 1:
            self._erase(0, self._column + 1)
        elif which == 2:
            self._row.clear()

    def _erase(self, start: int, stop: int) -> None:
        self._part(start)
        self._part(stop)
        self._blank(start, min(stop, len(self._row)))

    def _part(self, at: int) -> None:
        """Replace a wide character by blanks if this column splits it."""
        row = self._row
        if at >= len(row) or row[at]:
            return
        start, stop = at, at
        while start > 0 and not row[start]:
            start -= 1
        while stop < len(row) and not row[stop]:
            stop += 1
        self._blank(start, stop)

    def _blank(self, start: int, stop: int) -> None:
        self._unprinted += len("".join(self._row[start:stop]))
        visible = min(max(0, stop - start), self._unprinted)
        self._unprinted -= visible
        self._row[start:stop] = [" "] * visible + [_GONE] * (stop - start - visible)

    def _insert_blanks(self, at: int, count: int) -> int:
        """Return as many blanks as wanted, or as fit into a text that may not be longer than the data."""
        count = min(count, self._unprinted)
        self._unprinted -= count
        self._row[at:at] = [" "] * count
        return count


def _shown_again(text: str, start: int) -> int | None:
    """Return where the alternate screen is left, if it is."""
    for switch in _SWITCH.finditer(text, start):
        if switch[0] == "\x1bc" or (switch[2] == "l" and not ALTERNATE.isdisjoint(switch[1].split(";"))):
            return switch.end()
    return None


def columns(character: str) -> int:
    """Return how many columns of a terminal a character takes: 0 if it belongs to the one before."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
