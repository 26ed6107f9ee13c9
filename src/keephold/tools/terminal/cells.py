"""What a terminal shows with its colours: rows of runs, each a text in one style.

An emulator gives its screen as the bytes that would paint it (`SupportsCells`), which is one call into its library;
asking it for each cell would be thousands. `rows_of` reads those bytes. It knows what emulators write there, which is
text, line ends and SGR; anything else is passed over.
"""

import re
from typing import Literal, NamedTuple, Protocol, runtime_checkable

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


class Run(NamedTuple):
    """Text of one row in one style."""

    text: str
    style: Style


Rows = tuple[tuple[Run, ...], ...]

_PLAIN = Style()


@runtime_checkable
class SupportsCells(Protocol):
    """An emulator, or a terminal, that knows how each cell is drawn."""

    def painted(self) -> bytes:
        """What makes a new terminal of this size show the same, with colours, cursor and modes."""


def rows_of(painted: str, count: int) -> Rows:
    """The rows that are painted there, so many."""
    rows: list[tuple[Run, ...]] = []
    row: list[Run] = []
    style, at = _PLAIN, 0
    painted = painted.replace("\x7f", " ")  # Ghostty has a glyph for it
    for found in _SEQUENCE.finditer(painted):
        if found.start() > at:
            row.append(Run(painted[at : found.start()], style))
        at = found.end()
        if found[1] is not None:
            style = _changed(style, found[1])
        elif found[2] is not None:
            rows.append(tuple(row))
            row = []
    if at < len(painted):
        row.append(Run(painted[at:], style))
    rows.append(tuple(row))
    return (*rows[:count], *[()] * (count - len(rows)))


def plain_rows(lines: tuple[str, ...]) -> Rows:
    """Lines without any style, as rows."""
    return tuple((Run(line, _PLAIN),) if line else () for line in lines)


def _changed(style: Style, parameters: str) -> Style:
    """The style after an SGR."""
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
