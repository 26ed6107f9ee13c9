"""The emulator behind a terminal's screen.

An emulator is fed a program's output and returns the screen that a user would see. It promises that no input makes it
raise, that its memory is bounded, and that it does nothing unless it is called: no thread, no timer.

`open_emulator` returns Ghostty's if `keephold[terminal]` is installed. Otherwise it returns that of `lines.py`, which
knows lines and no screen, and says so.

A screen with colours is rows of runs, each a text in one style. An emulator returns its screen as the bytes that would
paint it (`SupportsCells`), which is one call into its library; asking it for each cell would be thousands. `rows_of`
reads those bytes: text, line ends and SGR. It ignores everything else.
"""

import logging
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from keephold.text import has_controls, strip_controls
from keephold.tools.base import Screen

_log = logging.getLogger("keephold.tools")

SCROLLBACK = 10_000
"""The most lines above the screen that can be read."""
_SCROLLBACK_BYTES = 16 << 20
"""Bytes for these lines, enough for all of them in 200 columns. Fewer are kept if they need more."""
_NO_LIMIT = 1 << 31
_AS_BLANKS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")

Kind = Literal["auto", "ghostty", "line"]


class Emulator(Protocol):
    """A terminal without a window, used on one thread."""

    def feed(self, data: bytes) -> None:
        """Feed output, which may be cut anywhere. Feeding much at once is cheaper than feeding it in pieces.

        The terminal's replies are sent before this returns.
        """

    def resize(self, rows: int, cols: int) -> None:
        """Resize it and wrap long lines again. Both are 1 or more."""

    def screen(self) -> Screen:
        """Return the current screen."""

    def scrollback(self, count: int) -> tuple[str, ...]:
        """Return the last `count` lines above the screen, oldest first."""

    @property
    def alternate(self) -> bool:
        """Whether the alternate screen of full-screen programs is shown."""

    @property
    def application_keys(self) -> bool:
        """Whether cursor keys are to be sent in their application form (DECCKM)."""

    def close(self) -> None:
        """Free it: no other method may be called afterwards. Twice is harmless."""


def open_emulator(
    rows: int,
    cols: int,
    reply: Callable[[bytes], None],
    *,
    kind: Kind = "auto",
    kept: Callable[[], bytes] = bytes,
    lost: Callable[[], None] = lambda: None,
) -> Emulator:
    """Return an emulator of that size. `reply` gets a terminal's replies to a program's requests.

    `auto`: Ghostty's if it is available, in a process of its own where a loop runs. If that process dies of this
    emulator, `lost` is called and lines are shown from then on; if it dies of another, this one is fed again the output
    that `kept` returns. If `ghostty` is asked for and is not available, raises the reason.
    """
    if kind == "auto":
        from keephold.tools.terminal.emulator_worker import WorkerEmulator, host

        found = host()
        if found is not None:
            return WorkerEmulator(found, rows, cols, reply, kept, lost)
    if kind != "line":
        try:
            return _Ghostty(rows, cols, reply)
        except Exception as error:  # not installed, not for this machine, or broken: a terminal must start nevertheless
            if kind == "ghostty":
                raise
            if not isinstance(error, ImportError):
                _log.warning("the terminal emulator cannot be used; screens are lines only", exc_info=error)
    from keephold.tools.terminal.lines import LineEmulator

    return LineEmulator(rows, cols, reply)


class _Ghostty:
    """Ghostty's terminal, through `pyghostty`."""

    __slots__ = ("_replies", "_reply", "_terminal")

    def __init__(self, rows: int, cols: int, reply: Callable[[bytes], None]) -> None:
        import pyghostty

        # Not limited by lines: keeping to such a limit makes short lines seven times slower.
        self._terminal: Any = pyghostty.Terminal(cols=cols, rows=rows, scrollback=_NO_LIMIT)
        self._limit_scrollback(cols)
        self._set("KITTY_IMAGE_STORAGE_LIMIT", "uint64_t*", 0)  # nobody sees images here
        # The terminal must not be called from within itself, so replies wait until it has been fed.
        self._replies: list[bytes] = []
        self._reply = reply
        self._terminal.on_reply(self._replies.append)

    def feed(self, data: bytes) -> None:
        self._terminal.feed(data)
        if self._replies:
            answer = b"".join(self._replies)
            self._replies.clear()
            self._reply(answer)

    def resize(self, rows: int, cols: int) -> None:
        self._terminal.resize(cols, rows)
        self._limit_scrollback(cols)

    def screen(self) -> Screen:
        column, row = self._terminal.cursor
        cols, rows = self._terminal.size  # a program may have asked for another width (DECCOLM)
        return Screen(
            lines=self._lines("active", 0, rows),
            rows=rows,
            cols=cols,
            cursor=(row + 1, column + 1),
            title=self._title(),
            alternate=self.alternate,
            emulator="ghostty",
            scrollback=self._above(),
        )

    def painted(self) -> bytes:
        """Return the bytes that make a new terminal of this size show the same, with colours, cursor and modes."""
        from pyghostty import ffi, lib
        from pyghostty.core import init_sized

        selection = self._selection("active", 0, self._terminal.size[1])
        options = init_sized("GhosttyFormatterTerminalOptions")
        options.emit, options.selection = lib.GHOSTTY_FORMATTER_FORMAT_VT, selection
        options.extra.modes = options.extra.scrolling_region = True
        screen = options.extra.screen
        screen.cursor = screen.style = screen.charsets = True
        formatter = ffi.new("GhosttyFormatter*")
        if lib.ghostty_formatter_terminal_new(ffi.NULL, formatter, self._native, options[0]) != 0:
            return b""
        try:
            return _read(ffi, lambda *buffer: lib.ghostty_formatter_format_buf(formatter[0], *buffer)).encode()
        finally:
            lib.ghostty_formatter_free(formatter[0])

    def scrollback(self, count: int) -> tuple[str, ...]:
        rows = self._terminal.get("scrollback_rows", "size_t")
        return self._lines("history", rows - max(0, min(count, self._above())), rows)

    @property
    def alternate(self) -> bool:
        return bool(self._terminal.get("active_screen", "int"))

    @property
    def application_keys(self) -> bool:
        return bool(self._terminal.mode(1))

    def close(self) -> None:
        if self._terminal is not None:
            self._terminal.on_reply(None)
            self._terminal.close()
            self._terminal = None

    def _limit_scrollback(self, cols: int) -> None:
        needed = SCROLLBACK * (cols * 8 + 100)  # a cell has 8 bytes, and a plain line some more
        self._set("SCROLLBACK_MAX_BYTES", "size_t*", min(needed, _SCROLLBACK_BYTES))

    def _above(self) -> int:
        """Return how many lines can be read. There may be more: Ghostty estimates, and drops some hundred at a time."""
        rows: int = self._terminal.get("scrollback_rows", "size_t")
        return min(rows, SCROLLBACK)

    def _title(self) -> str:
        from pyghostty import ffi

        title = self._terminal.get("title", "GhosttyString")
        return strip_controls(ffi.buffer(title.ptr, title.len)[:].decode("utf-8", "replace")) if title.len else ""

    def _lines(self, area: Literal["active", "history"], start: int, stop: int) -> tuple[str, ...]:
        """Return rows of the screen, or of the lines above it, without trailing blanks."""
        if start == stop:
            return ()
        from pyghostty import ffi, lib
        from pyghostty.core import init_sized

        options = init_sized("GhosttyTerminalSelectionFormatOptions")
        options.emit, options.trim = lib.GHOSTTY_FORMATTER_FORMAT_PLAIN, True
        selection = self._selection(area, start, stop)  # referred to by the options, which do not keep it
        options.selection = selection
        text = _read(ffi, lambda *buffer: lib.ghostty_terminal_selection_format_buf(self._native, options[0], *buffer))
        lines = text.split("\n")
        if has_controls(text):  # Ghostty has a glyph for DEL
            lines = [line.translate(_AS_BLANKS).rstrip(" ") for line in lines]
        return (*lines, *[""] * (stop - start - len(lines)))  # blank rows at the end are not in the text

    def _selection(self, area: Literal["active", "history"], start: int, stop: int) -> Any:
        from pyghostty.core import init_sized

        selection = init_sized("GhosttySelection")
        selection.start = self._terminal.ref(0, start, area)[0]
        selection.end = self._terminal.ref(self._terminal.size[0] - 1, stop - 1, area)[0]
        return selection

    def _set(self, option: str, kind: str, value: int) -> None:
        from pyghostty import ffi, lib

        lib.ghostty_terminal_set(self._native, getattr(lib, f"GHOSTTY_TERMINAL_OPT_{option}"), ffi.new(kind, value))

    @property
    def _native(self) -> Any:
        return self._terminal._t[0]  # `Terminal` covers only a part of the library


def _read(ffi: Any, fill: Callable[..., int]) -> str:
    """Return the text that `fill(buffer, size, written)` writes; call it for the size first."""
    size = ffi.new("size_t*")
    fill(ffi.NULL, 0, size)
    buffer = ffi.new("uint8_t[]", max(1, size[0]))
    fill(buffer, len(buffer), size)
    return bytes(ffi.buffer(buffer, size[0])).decode("utf-8", "replace")


Colour = int | tuple[int, int, int] | None
"""A number of the palette (0 to 255), red, green and blue, or None: the terminal's own."""
Attribute = Literal["bold", "faint", "italic", "underline", "blink", "inverse", "invisible", "strike", "overline"]

_SEQUENCE = re.compile(
    "\x1b\\[([0-9;:]*)m"  # SGR
    "|(\r?\n)"
    "|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|[\x00-\x1f\x7f-\x9f]"
)
_ATTRIBUTES: dict[int, Attribute] = {
    1: "bold",
    2: "faint",
    3: "italic",
    4: "underline",
    5: "blink",
    7: "inverse",
    8: "invisible",
    9: "strike",
    21: "underline",
    53: "overline",
}


class Style(NamedTuple):
    """How a text is drawn."""

    foreground: Colour = None
    background: Colour = None
    attributes: frozenset[Attribute] = frozenset()


class StyledRun(NamedTuple):
    """Text of one row in one style."""

    text: str
    style: Style


Rows = tuple[tuple[StyledRun, ...], ...]

_PLAIN = Style()


@runtime_checkable
class SupportsCells(Protocol):
    """An emulator, or a terminal, that knows how each cell is drawn."""

    def painted(self) -> bytes:
        """Return the bytes that make a new terminal of this size show the same, with colours, cursor and modes."""


def rows_of(painted: str, count: int) -> Rows:
    """Return the given number of rows that these bytes paint."""
    rows: list[tuple[StyledRun, ...]] = []
    row: list[StyledRun] = []
    style, at = _PLAIN, 0
    painted = painted.replace("\x7f", " ")  # Ghostty has a glyph for it
    for found in _SEQUENCE.finditer(painted):
        if found.start() > at:
            row.append(StyledRun(painted[at : found.start()], style))
        at = found.end()
        if found[1] is not None:
            style = _changed(style, found[1])
        elif found[2] is not None:
            rows.append(tuple(row))
            row = []
    if at < len(painted):
        row.append(StyledRun(painted[at:], style))
    rows.append(tuple(row))
    return (*rows[:count], *[()] * (count - len(rows)))


def plain_rows(lines: tuple[str, ...]) -> Rows:
    return tuple((StyledRun(line, _PLAIN),) if line else () for line in lines)


def _changed(style: Style, parameters: str) -> Style:
    """Return the style after an SGR."""
    values = parameters.split(";")
    while values:
        number, *more = values.pop(0).split(":")
        code = int(number or 0)
        if code == 0:
            style = _PLAIN
        elif code in (38, 48, 58):
            colour = _colour([*more, *values])
            if not more:
                del values[: 4 if values[:1] == ["2"] else 2]
            if code == 38:
                style = style._replace(foreground=colour)
            elif code == 48:  # 58 is the colour of an underline, which is not shown
                style = style._replace(background=colour)
        elif code in _ATTRIBUTES and more != ["0"]:
            style = style._replace(attributes=style.attributes | {_ATTRIBUTES[code]})
    return style


def _colour(values: list[str]) -> Colour:
    match values:
        case ["5", number, *_]:
            return int(number or 0) & 255
        case ["2", red, green, blue, *_]:
            return int(red or 0) & 255, int(green or 0) & 255, int(blue or 0) & 255
    return None
