"""Which characters a user can see, how the others are shown (K4), and which characters an id may have (S6).

A user who approves a text must see all of it. Characters without a visible form are therefore shown as escapes:
`<U+2800>` in text, `\\u2800` in JSON. `str.isprintable` knows most of them, by their Unicode category: controls, format
characters, direction marks, tags, private use, unassigned, and every blank but the space. `_UNSEEN` has the rest.
"""

import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache

_UNSEEN = (
    "["
    # Default_Ignorable_Code_Point of Unicode 16.0, which fonts draw as nothing
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # fillers, joiners and blanks that have another category and no ink
    "\u2800\u2d7f\ufffc\U0001107f\U00013441\U00013442\U00016fe4\U0001d159"
    "]"
)
_PICTURE = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
# The joiners that make one emoji of several, and the selector that makes a picture of a sign. There they are visible.
_IN_EMOJI = (
    f"(?:(?<=[{_PICTURE}])|(?<=[{_PICTURE}]\ufe0f))\u200d(?=[{_PICTURE}])"
    f"|(?<=[{_PICTURE}])\ufe0f|(?<=[0-9#*])\ufe0f(?=\u20e3)"
)
_RIGHT_TO_LEFT = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
_STRING = r'"((?:[^"\\\n]|\\.)*)"'
ISOLATE, ISOLATED = "\u2068", "\u2069"
"""Begin and end a text that cannot reorder what is beside it."""
_LAST_KEPT = 0xFFFF
"""The last character whose form is kept: hostile text must not fill the memory with rare ones."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when the first text needs it: most text is ASCII, and these take longer than a short command's
    own work."""
    return re.compile(pattern)


def is_seen(character: str) -> bool:
    """Return whether a character has a visible form, or is the space."""
    return character.isprintable() and not _compiled(_UNSEEN).match(character)


def code_point(character: str) -> str:
    """Return `U+2800`."""
    return f"U+{ord(character):04X}"


class _Forms(dict[int, int | str]):
    """The form in which each character is shown, for `str.translate`."""

    def __init__(self, escape: Callable[[str], str], kept: str) -> None:
        self._escape = escape
        self._kept = kept

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        form = code if is_seen(character) or character in self._kept else self._escape(character)
        if code <= _LAST_KEPT:
            self[code] = form
        return form


def _marked(character: str) -> str:
    return f"<{code_point(character)}>"


def _blank_or_marked(character: str) -> str:
    return " " if unicodedata.category(character) == "Zs" else _marked(character)


_EXACT = _Forms(_marked, "\n\t")
_LINE = _Forms(_marked, "")
_READABLE = _Forms(_blank_or_marked, "\n\t")
_JSON = _Forms(lambda character: json.dumps(character)[1:-1], "\n")


def exact(text: str) -> str:
    """Return a text that is to be approved: everything that cannot be seen is an escape, and nothing is left out."""
    return _translated(text, _EXACT)


def exact_line(text: str) -> str:
    """Return a text for the middle of a line: as `exact`, and line ends and tabs are escapes, too."""
    return _translated(text, _LINE)


def readable(text: str, before: str = "") -> str:
    """Return a text that is only read: as `exact`, but every kind of blank is a space. `before` is what precedes it."""
    return _translated(text, _READABLE, before)


def exact_json(text: str) -> str:
    """Return JSON whose strings show everything as `exact` does, and still mean the same."""
    return _translated(text, _JSON)


def ends_within_emoji(text: str) -> bool:
    """Return whether only the next character tells if the last one belongs to an emoji."""
    return text.endswith(("\u200d", "\ufe0f"))


def _translated(text: str, forms: _Forms, before: str = "") -> str:
    if text.isascii() and text.isprintable():
        return text
    if "\u200d" not in text and "\ufe0f" not in text:
        return text.translate(forms)
    parts: list[str] = []
    at, whole = len(before), before + text
    for joiner in _compiled(_IN_EMOJI).finditer(whole, at):
        parts += (whole[at : joiner.start()].translate(forms), joiner[0])
        at = joiner.end()
    return "".join((*parts, whole[at:].translate(forms)))


def has_right_to_left(text: str) -> bool:
    """Return whether some of it is written from right to left, which would reorder what is beside it."""
    return not text.isascii() and _compiled(_RIGHT_TO_LEFT).search(text) is not None


def isolated(text: str) -> str:
    """Return lines for a terminal whose text cannot reorder what is beside them."""
    if not has_right_to_left(text):
        return text
    return "\n".join(f"{ISOLATE}{line}{ISOLATED}" if has_right_to_left(line) else line for line in text.split("\n"))


def isolated_json(text: str) -> str:
    """Return JSON whose strings cannot reorder the other ones."""
    return _compiled(_STRING).sub(lambda string: f'"{isolated(string[1])}"', text) if has_right_to_left(text) else text


def without_isolates(text: str) -> str:
    """Return an id that a user may have copied from where it was `isolated`."""
    return text.strip(ISOLATE + ISOLATED)
