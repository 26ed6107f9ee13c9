"""A terminal's screen as HTML: rows of spans whose classes name their colours, and the palette's style sheet.

The Content-Security-Policy forbids style attributes, so every colour is a class: `f1` is text in colour 1 of the
palette, `b1` a background. True colours become the nearest of the 256. `palette_css` makes the style sheet.
"""

import html
import unicodedata
from collections.abc import Iterator

from keephold.tools.terminal.emulator import Colour, Rows, Style, StyledRun

SIXTEEN = (
    "#7d8590", "#ff8a80", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#d0d7de",
    "#8b949e", "#ffa198", "#a5f2ac", "#f2cc60", "#a5d6ff", "#e2c5ff", "#8be9f0", "#ffffff",
)  # fmt: skip
"""The first sixteen colours as text, readable on the dark screen."""
SIXTEEN_BEHIND = (
    "#3d444d", "#8e1519", "#116329", "#6b4a00", "#0a4ba0", "#5e2fa3", "#11616b", "#59636e",
    "#656c76", "#b0211f", "#1a7f37", "#845306", "#1459c4", "#7a44c9", "#1a7480", "#818b98",
)  # fmt: skip
"""The first sixteen colours as backgrounds, dark enough for light text."""
_STEPS = (0, 95, 135, 175, 215, 255)
_ATTRIBUTES = ("bold", "faint", "italic", "underline", "invisible", "strike", "overline")
_UNSEEN = frozenset(range(0x202A, 0x202F)) | frozenset(range(0x2066, 0x206A)) | {0x2028, 0x2029, 0x200E, 0x200F}
"""Characters that would change the text's direction, or break a line."""
_DROPPED = dict.fromkeys(_UNSEEN)


def screen_html(rows: Rows, cursor: tuple[int, int] | None) -> str:
    """Return the rows, one a line. `cursor` is its row and column, from 1."""
    return "\n".join(
        "".join(_row(row, cursor[1] - 1 if cursor is not None and cursor[0] == number else None))
        for number, row in enumerate(rows, start=1)
    )


def _row(row: tuple[StyledRun, ...], cursor: int | None) -> Iterator[str]:
    column = 0
    for text, style in row:
        for piece, at_cursor in _parted(text.translate(_DROPPED), None if cursor is None else cursor - column):
            yield _span(piece, _classes(style, at_cursor=at_cursor))
        column += _columns(text)
    if cursor is not None and cursor >= column:
        yield " " * (cursor - column) + '<span class="cursor"> </span>'


def _parted(text: str, cursor: int | None) -> Iterator[tuple[str, bool]]:
    """Yield the text before the cursor, the character under it, and the text after it."""
    width = _columns(text)
    if cursor is None or not 0 <= cursor < width:
        yield text, False
        return
    start, at = 0, 0
    while at + _width(text[start]) <= cursor:
        at += _width(text[start])
        start += 1
    end = start + 1
    while end < len(text) and _width(text[end]) == 0:
        end += 1
    yield text[:start], False
    yield text[start:end], True
    yield text[end:], False


def _span(text: str, classes: str) -> str:
    if not text:
        return ""
    inner = html.escape(text) if text.isascii() else "".join(map(_cell, text))
    return f'<span class="{classes}">{inner}</span>' if classes else inner


def _cell(character: str) -> str:
    """Give a wide character two columns, since fonts differ in its width."""
    escaped = html.escape(character)
    return f'<span class="wide">{escaped}</span>' if _width(character) == 2 else escaped


def _classes(style: Style, *, at_cursor: bool) -> str:
    front, back = style.foreground, style.background
    names: list[str] = [name for name in _ATTRIBUTES if name in style.attributes]
    if "inverse" in style.attributes:
        names += [_named("f", back, "fi"), _named("b", front, "bi")]
    else:
        # Our backgrounds are dark, so black text on a colour becomes white.
        names += [_named("f", 15 if front == 0 and back is not None else front, ""), _named("b", back, "")]
    if at_cursor:
        names.append("cursor")
    return " ".join(filter(None, names))


def _named(kind: str, colour: Colour, own: str) -> str:
    """Return the class of a colour; `own` is the class of the terminal's own colour."""
    if colour is None:
        return own
    return f"{kind}{colour if isinstance(colour, int) else nearest(*colour)}"


def nearest(red: int, green: int, blue: int) -> int:
    """Return the number of the nearest palette colour, from 16 on."""
    at = [min(range(6), key=lambda step: abs(_STEPS[step] - value)) for value in (red, green, blue)]
    grey = max(0, min(23, round(((red + green + blue) / 3 - 8) / 10)))
    cube = 16 + 36 * at[0] + 6 * at[1] + at[2]
    return min(cube, 232 + grey, key=lambda number: _distance(rgb(number), (red, green, blue)))


def rgb(number: int) -> tuple[int, int, int]:
    """Return red, green and blue of a palette colour, from 16 on."""
    if number >= 232:
        value = 8 + 10 * (number - 232)
        return value, value, value
    red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
    return _STEPS[red], _STEPS[green], _STEPS[blue]


def _distance(one: tuple[int, int, int], other: tuple[int, int, int]) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def palette_css() -> str:
    """Return the style sheet of all colours, which pages load as `/static/palette.css`."""
    lines = []
    for number in range(256):
        front = SIXTEEN[number] if number < 16 else _hex(number)
        back = SIXTEEN_BEHIND[number] if number < 16 else _hex(number)
        lines.append(f".screen .f{number} {{ color: {front}; }} .screen .b{number} {{ background: {back}; }}")
    return "\n".join(lines) + "\n"


def _hex(number: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*rgb(number))


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
